"""What the convolutions of K networks cost on a GPU: our kernels beside cuDNN, layer by layer, and the floor.

    python benchmarks/convolutions.py --members 3
    python benchmarks/convolutions.py --members 3 --search --json tiles.json

Those of the network of `nap run table1-cifar`: forward, gradient of the images, gradient of the kernels, in
microseconds for all K networks, each repeated in one CUDA graph over inputs that take turns. cuDNN does one
network after the other, and all at once as groups. The floor is arithmetic at the rate of a large matrix
product, measured here. `--search` tries other tiles than those that the library takes, a second or two each,
alone and on three streams at once; `--only 1 3 5 7` are layers whose channels stay as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nap.lab.loops.supervised.stacked import conv_triton
from nap.lab.loops.supervised.stacked.conv_tuning import Tiles
from nap.lab.models.presets import POOL, VGG_LIKE

TURNS, REPEATS = 3, 4  # inputs, and how often a graph goes through all of them
TILES = (  # rows and columns of a product, warps, stages
    (128, 128, 8, 3),
    (128, 128, 8, 4),
    (128, 128, 4, 3),
    (128, 64, 4, 3),
    (128, 64, 4, 4),
    (64, 128, 4, 4),
    (64, 64, 4, 4),
)


def layers() -> Iterator[tuple[int, int, int]]:
    """Size of the images, channels and outputs of each layer, once for those that are alike."""
    seen, size, channels = set(), 32, 3
    for outputs in VGG_LIKE:
        if outputs == POOL:
            size //= 2
        else:
            if (layer := (size, channels, outputs)) not in seen:
                seen.add(layer)
                yield layer
            channels = outputs


def microseconds(work: Callable[[int], Any]) -> float:
    """Of `work`, which is called with the number of the inputs to take."""
    for turn in range(TURNS):
        work(turn)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(TURNS * REPEATS):
            work(turn % TURNS)
    return replayed(graph) / (TURNS * REPEATS)


def replayed(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of a replay."""
    times = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


def beside(work: Callable[[int], Any]) -> float:
    """Microseconds of `work` where three streams do it at once: what it takes of the chip, not how long."""
    for turn in range(TURNS):
        work(turn)
    torch.cuda.synchronize()
    graph, streams = torch.cuda.CUDAGraph(), [torch.cuda.Stream() for _ in range(TURNS)]
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        for turn, stream in enumerate(streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                for _ in range(REPEATS):
                    work(turn)
            main.wait_stream(stream)
    return replayed(graph) / (TURNS * REPEATS)


def cudnn(product: str, x: Tensor, w: Tensor, dy: Tensor, groups: int = 1) -> Tensor:
    """One of the three products, as autograd would ask for it."""
    if product == "forward":
        return F.conv2d(x, w, padding=1, groups=groups)
    one, wanted = [1, 1], [product == "images", product == "kernels", False]
    gradients = torch.ops.aten.convolution_backward(
        dy, x, w, None, one, one, one, False, [0, 0], groups, wanted
    )
    gradient: Tensor = gradients[wanted.index(True)]
    return gradient


def check(layer: Layer, product: str) -> None:
    """Ours is the same, or there is nothing to time."""
    ours = layer.ours(product)(0).permute(0, 1, 4, 2, 3).float()
    theirs = torch.stack(layer.one_by_one(product)(0)).float()
    error = ((ours - theirs).norm() / theirs.norm()).item()
    assert error < 1e-2, f"{product} of {layer.channels}→{layer.outputs} differs by {error:.1g} from cuDNN's"


class Layer:
    """One layer of K networks, its three products, and ways to compute them."""

    def __init__(self, members: int, batch: int, size: int, channels: int, outputs: int):
        self.members, self.size, self.channels, self.outputs = members, size, channels, outputs
        self.flops = 2 * 9 * members * batch * size * size * channels * outputs

        def made(*shape: int) -> list[Tensor]:
            return [torch.randn(shape, device="cuda").bfloat16() for _ in range(TURNS)]

        self.x = made(members, batch, size, size, channels)
        self.w = made(members, outputs, 3, 3, channels)
        self.dy = made(members, batch, size, size, outputs)

    def ours(self, product: str, tiles: Any = None) -> Callable[[int], Any]:
        options: dict[str, Any] = {} if tiles is None else {"tiles": tiles}
        ways: dict[str, Callable[[int], Any]] = {
            "forward": lambda t: conv_triton.convolved(self.x[t], self.w[t], **options),
            "images": lambda t: conv_triton.image_gradient(self.dy[t], self.w[t], **options),
            "kernels": lambda t: conv_triton.kernel_gradient(self.dy[t], self.x[t], 3, **options),
        }
        return ways[product]

    def one_by_one(self, product: str) -> Callable[[int], Any]:
        x, w, dy = ([t.permute(0, 1, 4, 2, 3).unbind() for t in ts] for ts in (self.x, self.w, self.dy))
        return lambda t: [cudnn(product, *each) for each in zip(x[t], w[t], dy[t], strict=True)]

    def grouped(self, product: str) -> Callable[[int], Any]:
        """Channels of all members side by side, in memory too."""

        def together(stack: Tensor) -> Tensor:
            return stack.permute(1, 0, 4, 2, 3).flatten(1, 2).to(memory_format=torch.channels_last)

        x, dy = ([together(t) for t in ts] for ts in (self.x, self.dy))
        w = [t.permute(0, 1, 4, 2, 3).flatten(0, 1).to(memory_format=torch.channels_last) for t in self.w]
        return lambda t: cudnn(product, x[t], w[t], dy[t], groups=self.members)

    def candidates(self, product: str) -> Iterator[Any]:
        """Other tiles."""
        deep = 32 if product != "kernels" and 9 * self.channels < 64 else 64
        for rows, columns, warps, stages in TILES:
            for parts in (1,) if product == "kernels" else (1, 2, 3, 4):
                yield Tiles(rows, columns, deep, warps, stages, parts=parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--search", action="store_true", help="other tiles, too")
    parser.add_argument("--only", nargs="*", type=int, help="numbers of the layers, counted from 0")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this times kernels on a GPU, and torch sees none here")
    torch.backends.cudnn.benchmark = True
    square = [torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(TURNS)]
    rate = 2 * 8192**3 / microseconds(lambda t: square[t] @ square[t]) / 1e6  # TFLOP/s
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.members} networks, batch")
    print(f"of {options.batch}; a product of 8192 × 8192 matrices: {rate:.0f} TFLOP/s; microseconds")
    heads = f"{'floor':>7} {'one by one':>11} {'groups':>8} {'ours':>7} {'TFLOP/s':>8}"
    print(f"{'layer':>20} {'product':>8} {heads}")
    rows, sums = [], {"floor": 0.0, "one by one": 0.0, "ours": 0.0}
    for number, (size, channels, outputs) in enumerate(layers()):
        if options.only and number not in options.only:
            continue
        layer = Layer(options.members, options.batch, size, channels, outputs)
        name = f"{channels}→{outputs} at {size}²"
        for product in ("forward", "images", "kernels"):
            if product == "images" and channels == 3:
                continue  # nobody asks for it
            check(layer, product)
            row: dict[str, Any] = {
                "floor": layer.flops / rate / 1e6,
                "one by one": microseconds(layer.one_by_one(product)),
                "groups": microseconds(layer.grouped(product)),
                "ours": microseconds(layer.ours(product)),
            }
            for way in sums:
                sums[way] += row[way]
            print(
                f"{name:>20} {product:>8} {row['floor']:7.1f} {row['one by one']:11.1f} {row['groups']:8.1f} "
                f"{row['ours']:7.1f} {layer.flops / row['ours'] / 1e6:8.0f}",
                flush=True,
            )
            rows.append({"layer": name, "product": product, **row})
            for tiles in layer.candidates(product) if options.search else ():
                try:
                    time, crowded = (clock(layer.ours(product, tiles)) for clock in (microseconds, beside))
                except AssertionError:
                    continue  # they do not fit the layer
                except Exception as error:  # too large for the chip
                    print(f"    {tiles}: {type(error).__name__}")
                    continue
                row = {
                    "layer": name,
                    "product": product,
                    "tiles": str(tiles),
                    "ours": time,
                    "beside": crowded,
                }
                rows.append(row)
                speed = layer.flops / time / 1e6
                print(f"{'':>58} {time:7.1f} {speed:8.0f}  {crowded:7.1f} beside others, {tiles}", flush=True)
    print("each once:", ", ".join(f"{way} {time:.0f}" for way, time in sums.items()))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
