"""What projecting every weight costs: a plain loop, `nap`, `nap` compiled, and the traffic floor.

    python benchmarks/projection.py --device cuda --layers 12 --width 1536

The floor is three passes over the weights (read for the norm, read and write for the product) at the
bandwidth that a copy reaches on the same device. "relative" is all that update="relative" adds to a step,
projection included: a copy before it, and steps of the length of the rate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from nap.projection.sphere import norms_of, project_tensors_
from nap.projection.steps import relative_


def transformer_shapes(layers: int, width: int, vocabulary: int) -> list[tuple[int, int]]:
    """The matrices of a decoder: query-key-value, output, up and down for each layer, and a table."""
    layer = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    return layer * layers + [(vocabulary, width)]


def relative_step(weights: list[Tensor], starts: list[Tensor], radii: list[Tensor]) -> None:
    """What a Projector with relative steps does before and after the optimizer, of which nothing is timed."""
    before = [weight.clone() for weight in starts]
    relative_(weights, before, radii, [0.01] * len(weights))
    project_tensors_(weights, radii)


@torch.no_grad()
def project_in_a_loop_(weights: list[Tensor], radii: list[Tensor]) -> None:
    """The textbook version, one weight after the other."""
    for weight, radius in zip(weights, radii, strict=True):
        weight.mul_(radius / torch.linalg.vector_norm(weight, dtype=torch.float32))


def milliseconds(act: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of one call, after three to warm up."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    times = []
    for _ in range(repeats + 3):
        wait()
        start = time.perf_counter()
        act()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[3:])


def captured(act: Callable[[], object]) -> Callable[[], object]:
    """`act` as one CUDA graph: what is left is the time of the kernels, without that of launching them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        act()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        act()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16", "float64"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled version out")
    args = parser.parse_args()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)

    shapes = transformer_shapes(args.layers, args.width, args.vocabulary)
    weights = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
    radii = [norms_of(weight) for weight in weights]
    starts = [weight + 0.01 * torch.randn_like(weight) for weight in weights]
    size = sum(weight.numel() * weight.element_size() for weight in weights)

    source = torch.empty(size // 4, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    copy_ms = milliseconds(lambda: target.copy_(source), device, args.repeats)
    floor_ms = 1.5 * copy_ms  # a copy is two passes, the projection three

    ways: dict[str, Callable[[], object]] = {
        "loop": lambda: project_in_a_loop_(weights, radii),
        "nap": lambda: project_tensors_(weights, radii),
        "nap, relative": lambda: relative_step(weights, starts, radii),
    }
    if not args.no_compile:
        compiled = torch.compile(project_tensors_, fullgraph=True)
        ways["nap, compiled"] = lambda: compiled(weights, radii)
    if device.type == "cuda":
        ways |= {f"{name}, graph": captured(act) for name, act in ways.items()}

    print(
        f"{len(weights)} weights, {sum(w.numel() for w in weights) / 1e6:.1f}M numbers, {size / 1e9:.3f} GB"
    )
    print(f"{device}, {args.dtype}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads\n")
    print(f"{'way':20}  {'ms':>9}  {'x floor':>7}")
    print(f"{'floor':20}  {floor_ms:9.3f}  {1:7.2f}")
    for name, act in ways.items():
        ms = milliseconds(act, device, args.repeats)
        print(f"{name:20}  {ms:9.3f}  {ms / floor_ms:7.2f}")


if __name__ == "__main__":
    main()
