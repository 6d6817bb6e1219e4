"""What the inserted norms cost: a converted MLP beside the same MLP with nn.LayerNorm written by hand.

    python benchmarks/norm_cost.py --device cuda --width 4096 --batch 4096

Forward and backward, eager and compiled, the two nets in turn within one run. The relative eps reads
every weight once more; the third row has an absolute eps, which reads none, to show the difference.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import nap


def mlp(width: int, depth: int, norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [
            nn.Linear(width, width, bias=not norm),
            *([nn.LayerNorm(width)] if norm else []),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def step(model: Any, x: Tensor) -> Callable[[], None]:
    def forward_and_backward() -> None:
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    return forward_and_backward


def side_by_side(
    acts: dict[str, Callable[[], None]], repeats: int, wait: Callable[[], None]
) -> dict[str, float]:
    """Median milliseconds of each act; they take turns, so that a slow moment strikes them all."""
    times: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(repeats + 3):
        for name, act in acts.items():
            wait()
            start = time.perf_counter()
            act()
            wait()
            if turn >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(measured) for name, measured in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of autocast")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled versions out")
    args = parser.parse_args()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    x = torch.randn(args.batch, args.width, device=device)
    plain = mlp(args.width, args.depth, norm=False).to(device)
    nets: dict[str, nn.Module] = {
        "no norm": plain,
        "nn.LayerNorm by hand": mlp(args.width, args.depth, norm=True).to(device),
    }
    for name, eps in (("converted", "relative"), ("converted, eps=1e-5", 1e-5)):
        nets[name] = copy.deepcopy(plain)
        nap.normalize_(nets[name], x[:2], eps=eps)

    print(f"{args.depth} x Linear({args.width}) + ReLU, batch {args.batch}, forward and backward")
    print(f"{device}, {args.dtype}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads\n")
    print(f"{'net':22}  {'mode':8}  {'ms':>9}  {'x by hand':>9}")
    for mode in ("eager",) if args.no_compile else ("eager", "compiled"):
        chosen = {n: torch.compile(m, fullgraph=True) if mode == "compiled" else m for n, m in nets.items()}
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            measured = side_by_side({n: step(m, x) for n, m in chosen.items()}, args.repeats, wait)
        for name, ms in measured.items():
            print(f"{name:22}  {mode:8}  {ms:9.3f}  {ms / measured['nn.LayerNorm by hand']:9.2f}")


if __name__ == "__main__":
    main()
