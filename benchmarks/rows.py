"""What a norm and the ReLU after it cost on a GPU: our kernels, what torch's compiler makes, and the floor.

    python benchmarks/rows.py --rows 32768 --width 6144

Forward and backward alone, milliseconds. The floor is what must be read and written, at the bandwidth that a
copy reaches: two passes forward, three backward. `--search` tries other tiles than those that the library
takes: numbers of a row in each thread, and rows under way at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def plain(y: Tensor, unit: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    x = F.layer_norm(y.float() / unit, y.shape[-1:], scale, offset, 1e-5)
    return x.to(y.dtype).relu()


def ours(y: Tensor, unit: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    result: Tensor = torch.ops.nap.norm_relu(y, unit, scale, offset, 1e-5, True)[0]
    return result


def relu(y: Tensor, *rest: Any) -> Tensor:
    return y.relu()


def both(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], dh: Tensor) -> tuple[float, float]:
    """Milliseconds forward and backward."""
    from triton.testing import do_bench

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True)
    wanted = [one for one in inputs if one.requires_grad]
    h = compiled(*inputs)

    def back() -> Any:
        return torch.autograd.grad(h, wanted, dh, retain_graph=True, allow_unused=True)

    return do_bench(lambda: compiled(*inputs)), do_bench(back)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64 * 512)
    parser.add_argument("--width", type=int, default=6144)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--search", action="store_true", help="other tiles, too")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this times kernels on a GPU, and torch sees none here")
    from triton.testing import do_bench

    from nap.kernels import norm_relu_triton as rows

    torch.compiler.config.force_disable_caches = True  # they do not look at what --search changes
    torch._functorch.config.donated_buffer = False  # a graph goes back many times
    dtype = getattr(torch, args.dtype)
    y = torch.randn(args.rows, args.width, device="cuda", dtype=dtype, requires_grad=True)
    scale, offset = (torch.randn(args.width, device="cuda", requires_grad=True) for _ in range(2))
    inputs = (y, torch.tensor(0.7, device="cuda"), scale, offset)
    dh, target = torch.randn_like(y), torch.empty_like(y)
    copied = do_bench(lambda: target.copy_(dh))

    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{args.rows} rows of {args.width}, {args.dtype}, {machine}")
    print(f"{'':34}{'forward':>10}{'backward':>10}")

    def show(name: str, result: tuple[float, float]) -> None:
        print(f"{name:34}{result[0]:10.3f}{result[1]:10.3f}", flush=True)

    show("floor, from a copy", (copied, 1.5 * copied))
    show("ReLU alone, compiled", both(relu, inputs, dh))
    show("norm and ReLU, compiled", both(plain, inputs, dh))
    show("norm and ReLU, ours", both(ours, inputs, dh))
    if not args.search:
        return
    for numbers in (12, 24, 48):
        for stages in (1, 2, 3, 4):
            rows.FORWARD_NUMBERS = rows.BACKWARD_NUMBERS = numbers
            rows._stages = lambda y, stages=stages: stages  # type: ignore[misc]
            tile = rows.Tile.of(args.width, numbers)
            try:
                show(f"  {tile.warps} warps, {stages} stages backward", both(ours, inputs, dh))
            except Exception as error:
                print(f"  {tile.warps} warps, {stages} stages: {type(error).__name__}")


if __name__ == "__main__":
    main()
