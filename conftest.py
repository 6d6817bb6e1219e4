"""What pytest cannot import here: Triton comes with the CUDA builds of torch only."""

from importlib.util import find_spec

NEED_TRITON = [
    "src/nap/lab/training/kernels.py",
    "src/nap/lab/vision/descent.py",
    "src/nap/norms/fused.py",
    "src/nap/norms/rows.py",
    "src/nap/projection/fused.py",
]
collect_ignore = [] if find_spec("triton") else NEED_TRITON
