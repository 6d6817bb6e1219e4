"""What NaP costs a small agent on a CPU: an MLP 4-128-128-2, one action at a time and updates of 64.

    python benchmarks/rl.py
    python benchmarks/rl.py --width 256 --fused

The same network plain, with nn.LayerNorm written by hand, the same with the shortest projection that one can
write, converted, and converted with projection. They take turns in one process; a figure is the best of many
turns, so that other work on the machine counts least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

import nap

Act = Callable[[], object]
Project = Callable[[nn.Module, torch.optim.Optimizer], object]


def plain(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )


def by_hand(width: int) -> nn.Sequential:
    first, second = nn.Linear(4, width, bias=False), nn.Linear(width, width, bias=False)
    hidden = (first, nn.LayerNorm(width), nn.ReLU(), second, nn.LayerNorm(width), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(width, 2))


def converted(width: int) -> nn.Sequential:
    model = plain(width)
    nap.normalize_(model, torch.randn(2, 4))
    return model


def action(model: nn.Module) -> Act:
    observation = torch.randn(1, 4)

    def act() -> None:
        with torch.no_grad():
            model(observation)

    return act


def project_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """W ← ρ·W/‖W‖ after each step, with no check and nothing that could be saved."""
    weights = [module.weight.detach() for module in model.modules() if isinstance(module, nn.Linear)]
    radii = [weight.norm() for weight in weights]

    def project(*args: object) -> None:
        for weight, radius in zip(weights, radii, strict=True):
            weight.mul_(radius / torch.linalg.vector_norm(weight))

    optimizer.register_step_post_hook(project)


def update(model: nn.Module, *, fused: bool, project: Project | None = None) -> Act:
    batch = torch.randn(64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused)
    if project is not None:
        project(model, optimizer)

    def act() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return act


def best_of(acts: dict[str, Act], turns: int, calls: int) -> dict[str, float]:
    """Microseconds of one call of each, in turns of a call to warm up and `calls` that are timed."""
    times = dict.fromkeys(acts, float("inf"))
    for _ in range(turns):
        for name, act in acts.items():
            act()
            start = time.perf_counter()
            for _ in range(calls):
                act()
            times[name] = min(times[name], 1e6 * (time.perf_counter() - start) / calls)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--fused", action="store_true", help="Adam(fused=True), for all of them")
    parser.add_argument("--turns", type=int, default=600)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    nets = {"plain": plain, "LayerNorm by hand": by_hand, "converted": converted}
    forward = best_of({name: action(make(args.width)) for name, make in nets.items()}, args.turns, 20)
    updates = {name: update(make(args.width), fused=args.fused) for name, make in nets.items()}
    updates["both by hand"] = update(by_hand(args.width), fused=args.fused, project=project_by_hand)
    updates["converted and projected"] = update(
        converted(args.width), fused=args.fused, project=lambda model, opt: nap.Projector(model).attach(opt)
    )
    updated = best_of(updates, args.turns, 1)
    print(f"{'':24} {'forward, batch 1':>24} {'update, batch 64':>24}")
    hand, base = forward["LayerNorm by hand"], updated["plain"]
    for name, took in updated.items():
        first = f"{forward[name]:.0f} µs, {forward[name] / hand:.2f} × by hand" if name in forward else ""
        print(f"{name:24} {first:>24} {f'{took:.0f} µs, {took / base:.2f} × plain':>24}")


if __name__ == "__main__":
    main()
