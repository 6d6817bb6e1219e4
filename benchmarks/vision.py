"""What norms and projection cost image classifiers: steps and images per second of three arms.

    python benchmarks/vision.py --device cuda --net vgg                       batch 32, one CUDA graph a step
    python benchmarks/vision.py --device cuda --net vgg --seeds-per-run 3     three networks in each step
    python benchmarks/vision.py --device cuda --net vgg --stacked             one, by the kernels for several
    python benchmarks/vision.py --device cuda --net resnet --batch 256        ResNet-50 v2 at 224 × 224
    python benchmarks/vision.py --net vgg --batch 32 --steps 2 --turns 2      on this CPU

Images are random bytes that lie on the device; a step crops and flips them, as in training, and is forward,
backward, norms of the gradients, SGD with Nesterov's momentum, and projection. The arms take turns in one
process, so that their ratios hold whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from nap.lab.experiments.table1_cifar import PAPER
from nap.lab.loops.supervised.cifar_trainer import CifarTrainer
from nap.lab.loops.supervised.random_crop import PaddedImages
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, CifarConfig, VisionArm
from nap.lab.loops.supervised.stacked_trainer import StackedTrainer
from nap.lab.loops.supervised.trainer import build, vgg_factory
from nap.lab.models.resnet import ResNetV2

ARMS = {arm.name: arm for arm in (BASELINE, NORM_ONLY, NAP)}
LEVELS = (torch.full((3,), 127.5), torch.full((3,), 70.0))  # mean and deviation of random bytes, about


def trainer(arm: VisionArm, options: argparse.Namespace, seed: int = 0) -> CifarTrainer:
    """The arm's network in training on random images."""
    size, classes = (224, 1000) if options.net == "resnet" else (32, 10)
    device = torch.device(options.device)
    count = max(options.images, options.batch * options.steps)
    images = PaddedImages.of(
        torch.randint(256, (count, 3, size, size), dtype=torch.uint8, device=device), *LEVELS
    )
    network = CifarConfig() if options.net == "vgg16" else PAPER
    settings = replace(network, batch_size=options.batch, batch_norm=not options.no_batch_norm)

    def make() -> torch.nn.Module:
        if options.net == "resnet":
            return ResNetV2(3, classes)
        return vgg_factory(settings, (3, size, size), classes)()

    torch.manual_seed(seed)
    model, projector = build(arm, make, torch.randn(2, 3, size, size), over=options.over)
    model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    alone = device.type == "cuda" and not options.stacked
    return CifarTrainer(
        model,
        projector,
        images,
        torch.randint(classes, (count,), device=device),
        settings,
        half=device.type == "cuda",
        compile_=alone and not options.eager,
        graph=alone and not options.no_graph,
        fused=alone and options.net != "resnet",
    )


def learners(arm: VisionArm, options: argparse.Namespace) -> CifarTrainer | StackedTrainer:
    """The arm's network, or several that learn together."""
    if not options.stacked:
        return trainer(arm, options)
    members = [trainer(arm, options, seed) for seed in range(options.seeds_per_run)]
    return StackedTrainer(members, graph=False if options.no_graph else None)


def seconds(one: CifarTrainer | StackedTrainer, options: argparse.Namespace) -> float:
    """Of one step, mean over a few."""
    order = torch.arange(options.batch * options.steps, device=options.device).view(options.steps, -1)
    wait = torch.cuda.synchronize if torch.device(options.device).type == "cuda" else (lambda: None)
    wait()
    began = time.perf_counter()
    if isinstance(one, StackedTrainer):
        one.train_epoch(
            [order] * options.seeds_per_run, range(options.seeds_per_run), lambda step: (1e-3, 1e-3), 0
        )
    else:
        one.train_epoch(order, 0, lambda step: (1e-3, 1e-3), 0)
    wait()
    return (time.perf_counter() - began) / options.steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--net", choices=("vgg", "vgg16", "resnet"), default="vgg", help="vgg: that of nap run table1-cifar"
    )
    parser.add_argument("--over", choices=("sample", "position"), default="sample", help="of the norms")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--seeds-per-run", type=int, default=1, help="networks of an arm in one step; vgg only"
    )
    parser.add_argument(
        "--stacked", action="store_true", help="a single network, too, as several in one step are computed"
    )
    parser.add_argument("--images", type=int, default=1, help="images that lie on the device, at least")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--no-batch-norm", action="store_true", help="VGG without BatchNorm")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--no-graph", action="store_true", help="without a CUDA graph")
    parser.add_argument("--steps", type=int, default=50, help="steps of an arm's turn")
    parser.add_argument("--turns", type=int, default=5, help="turns of each arm; the median counts")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    options.stacked |= options.seeds_per_run > 1
    if options.stacked and (options.net == "resnet" or options.eager):
        parser.error("those that learn together are VGGs, and compiled: leave --net resnet and --eager out")
    if torch.device(options.device).type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")

    trainers = {name: learners(ARMS[name], options) for name in options.arms}
    for name, one in trainers.items():
        began = time.perf_counter()
        seconds(one, options)  # compiles, records, and warms up
        print(f"{name}: ready after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(options.turns):
        for name, one in trainers.items():
            times[name].append(seconds(one, options))
    where = torch.cuda.get_device_name() if torch.device(options.device).type == "cuda" else "cpu"
    print(f"{where}, torch {torch.__version__}, {options.seeds_per_run} {options.net}, batch {options.batch}")
    first, rows = statistics.median(times[options.arms[0]]), []
    for name, measured in times.items():
        step = statistics.median(measured)
        rate = options.seeds_per_run / step
        row = {
            "arm": name,
            "seeds_per_run": options.seeds_per_run,
            "ms": 1e3 * step,
            "steps/s": rate,
            "images/s": options.batch * rate,
        }
        rows.append(row | {"over the first": step / first - 1})
        print(
            f"{name:<10} {row['ms']:8.3f} ms  {row['steps/s']:8,.0f} steps/s  "
            f"{row['images/s']:9,.0f} images/s {100 * (step / first - 1):+5.1f} %"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
