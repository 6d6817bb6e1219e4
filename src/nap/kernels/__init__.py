"""Triton kernels of the library, each once, and the equations that they are compared with.

- `projection_triton`: all weights back to their radius in three launches, for `nap.projection.sphere`.
- `norm_relu_triton`: a norm over the last axis and the ReLU after it, one pass each way, for
  `nap.norms.fused_relu`.
- `statistics_triton`: norms over images from mean and variance of each (sample, channel), for
  `nap.norms.norm`.
- `statistics`: the same in PyTorch, with the BatchNorm that may follow, for `nap.norms`.

Those with `_triton` in their name import Triton, which comes with the CUDA builds of torch; without it they
are not imported. Before a process uses a kernel, its result is compared with PyTorch's.
"""
