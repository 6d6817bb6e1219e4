"""Model-steps per second of a population trained in one step, beside the loop that users have.

    python benchmarks/population.py                    on this machine's CPU
    python benchmarks/population.py --device cuda      one CUDA graph a step

A step is: gather the batch, forward, backward, gradient norms, Adam, projection, tallies. "script" is the
same network in an ordinary PyTorch loop: `nap.normalize_`, `torch.optim.Adam`, `nap.Projector`, one member.
"floor" is the time to move the bytes that a step must move (parameters, gradients and Adam's two averages:
14 passes over the weights) at the bandwidth measured in the same run; on a CPU it says little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

import nap
from nap.lab.loops.population.continual_run import network_factory, skeleton_of
from nap.lab.loops.population.settings import NAP, Continual
from nap.lab.loops.population.stacking import PopulationProjector, Strategy, initial_values
from nap.lab.loops.population.trainer import Recipe, Trainer
from nap.methods import Method

NETS = {
    "mlp 3072-512×4-10": Continual(network="mlp"),
    "cnn 32×4, 256": Continual(network="cnn", width=256),
    "cnn 32-32-64-64, 512": Continual(network="cnn", channels=(32, 32, 64, 64), width=512),
    "mlp 64-128×3-10": Continual(network="mlp", width=128, depth=3, data="digits"),
}
PASSES = 14  # forward 1, backward 1, gradient 1 + norm 1, Adam 7, projection 3


def pixels(config: Continual, count: int, device: torch.device) -> torch.Tensor:
    shape = (1, 8, 8) if config.data == "digits" else (3, 32, 32)
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)).to(device)


def population(
    config: Continual, members: int, strategy: Strategy, device: torch.device, compiled: bool
) -> tuple[Callable[[], None], int]:
    """A step of so many members, and the bytes of their weights."""
    images = pixels(config, 2048, device)
    make = network_factory(config, images.shape[1:], 10)
    skeleton = skeleton_of(make, NAP, Method(), images[:2].cpu(), torch.float32).to(device)
    initial = initial_values(skeleton, make, range(members), device)
    projector = PopulationProjector(skeleton, initial)
    recipe = Recipe(1e-4, strategy=strategy, graph=device.type == "cuda", compile_=compiled)
    trainer = Trainer(skeleton, initial, images, recipe, projector=projector, batch_size=config.batch_size)
    trainer.labels.random_(10)
    trainer._index.random_(len(images))
    return trainer._step, sum(p.numel() * p.element_size() for p in initial.values())


def script(config: Continual, device: torch.device) -> Callable[[], None]:
    """The ordinary loop: one network, eager."""
    images = pixels(config, 2048, device)
    labels = torch.randint(10, (2048,), device=device)
    model = network_factory(config, images.shape[1:], 10)().to(device)
    nap.normalize_(model, images[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    nap.Projector(model).attach(optimizer)

    def step() -> None:
        batch = torch.randint(2048, (config.batch_size,), device=device)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], object], device: torch.device, at_least: float = 0.4) -> float:
    """Median seconds of one call."""
    for _ in range(3):
        step()
    times: list[float] = []
    while sum(times) < at_least or len(times) < 5:
        _wait(device)
        start = time.perf_counter()
        calls = 10 if device.type == "cuda" else 1
        for _ in range(calls):
            step()
        _wait(device)
        times.append((time.perf_counter() - start) / calls)
        if len(times) * calls > 2000:
            break
    return statistics.median(times)


def bandwidth(device: torch.device) -> float:
    """Bytes per second of a large copy, read plus written."""
    source = torch.randn(1 << (28 if device.type == "cuda" else 24), device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds(lambda: target.copy_(source), device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--members", type=int, nargs="+", default=[1, 5, 32])
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--strategies", nargs="+", default=["batched", "loop"])
    parser.add_argument("--compiled", action="store_true", help="parts of the step through torch.compile")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    speed = bandwidth(device)
    name = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    )
    print(f"{name}, torch {torch.__version__}, copy {speed / 1e9:.0f} GB/s")
    print(
        f"{'network':22} {'how':8} {'K':>4} {'ms/step':>8} {'model-steps/s':>14} "
        f"{'× script':>9} {'× floor':>8}"
    )
    rows = []
    for net in options.nets:
        alone = seconds(script(NETS[net], device), device)
        print(f"{net:22} {'script':8} {1:4} {alone * 1e3:8.3f} {1 / alone:14.0f} {1:9.2f}", flush=True)
        rows.append({"net": net, "how": "script", "members": 1, "seconds": alone})
        for strategy in options.strategies:
            for members in options.members:
                step, size = population(NETS[net], members, strategy, device, options.compiled)
                elapsed = seconds(step, device)
                rate, floor = members / elapsed, PASSES * size / speed
                print(
                    f"{net:22} {strategy:8} {members:4} {elapsed * 1e3:8.3f} {rate:14.0f} "
                    f"{rate * alone:9.2f} {elapsed / floor:8.2f}",
                    flush=True,
                )
                rows.append({"net": net, "how": strategy, "members": members, "seconds": elapsed})
                del step
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
