"""Which limit on updates is best on the sphere: none, projection, relative steps or a brake; AdamW and Muon.

    nap data fetch text8
    python benchmarks/updates.py --rows updates.jsonl                       25 minutes of one CPU core
    python benchmarks/updates.py --rows large.jsonl --scale large --device cuda

digits: an MLP with NaP's norms learns random labels of scikit-learn's digits, drawn anew after every 200
updates, when the optimizer starts anew, too. What counts is accuracy on each batch before it is learnt.
text: the small language model of language_start.py on text8, cosine to zero. What counts is validation loss.

none is normalization without projection, brake takes back nine tenths of what norms grow by. Weights that a
Projector has a radius for are trained by AdamW, or by Muon, at a rate that is tuned for each arm: on seeds
100 and 101, in steps of a factor 2, until the best is inside of what was tried. All else is trained by AdamW
at one rate, the same in all arms. Where norms can shrink (none, brake) the language model has weight decay.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from language_start import NETS, Net, text
from rate_trials import Trials
from sklearn.datasets import load_digits
from torch import Tensor, nn

import nap

LIMITS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "projection": {},
    "relative": {"update": "relative"},
    "brake": {"brake": 0.9},
}
OPTIMIZERS = ("AdamW", "Muon")
ARMS = tuple(f"{limit}, {optimizer}" for optimizer in OPTIMIZERS for limit in LIMITS)


@dataclass(frozen=True)
class Digits:
    """Settings of the changing labels."""

    width: int = 128
    tasks: int = 16
    updates: int = 200
    batch: int = 64
    images: int = 1024
    other_rate: float = 1e-3


@dataclass(frozen=True)
class Text:
    """Settings of the language model."""

    net: Net = NETS["nanogpt"]
    steps: int = 400
    batch: int = 16
    other_rate: float = 3e-3
    decay: float = 0.1


SCALES: dict[str, dict[str, Any]] = {
    "small": {"digits": Digits(), "text": Text()},
    "large": {
        "digits": Digits(width=512, tasks=100),
        "text": Text(Net(8, 512, tied=True, zero=False, heads=8, length=256), steps=4000, batch=64),
    },
}


class Together:
    """Two optimizers as one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]):
        self.optimizers = optimizers

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


def optimizer_of(model: nn.Module, arm: str, rate: float, other_rate: float, decay: float) -> Together:
    """The optimizers of an arm, with its limit attached."""
    limit, kind = arm.split(", ")
    options = LIMITS[limit]
    projector = nap.Projector(model, **(options or {}))
    with_radius = set(projector.plan.names("project", "grow"))
    named = list(model.named_parameters())
    weights = [parameter for name, parameter in named if name in with_radius]
    others = [parameter for name, parameter in named if name not in with_radius]
    own_decay = decay if limit in ("none", "brake") else 0.0
    first: torch.optim.Optimizer
    if kind == "Muon":
        first = torch.optim.Muon(weights, lr=rate, weight_decay=own_decay, adjust_lr_fn="match_rms_adamw")
    else:
        first = torch.optim.AdamW(weights, lr=rate, weight_decay=own_decay)
    both = Together([first, torch.optim.AdamW(others, lr=other_rate, weight_decay=decay)])
    if options is not None:
        projector.attach(both)
    return both


def learn_digits(setting: Digits, device: str, arm: str, rate: float, seed: int) -> float:
    """Mean online error over all tasks."""
    torch.manual_seed(seed)
    hidden = [nn.Linear(64, setting.width), nn.ReLU()]
    for _ in range(2):
        hidden += [nn.Linear(setting.width, setting.width), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(setting.width, 10))
    images = digits()[: setting.images]
    nap.normalize_(model, images[:2])
    model, images = model.to(device), images.to(device)
    optimizer = optimizer_of(model, arm, rate, setting.other_rate, decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    correct = torch.zeros((), device=device)
    for _ in range(setting.tasks):
        labels = torch.randint(10, (len(images),), generator=generator).to(device)
        for part in optimizer.optimizers:
            part.state.clear()
        for _ in range(setting.updates):
            batch = torch.randint(len(images), (setting.batch,), generator=generator).to(device)
            logits = model(images[batch])
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[batch]).backward()
            optimizer.step()
            correct += (logits.argmax(1) == labels[batch]).sum()
    return 1 - correct.item() / (setting.tasks * setting.updates * setting.batch)


@cache
def digits() -> Tensor:
    return torch.tensor(load_digits().data / 16.0, dtype=torch.float32)


def learn_text(setting: Text, device: str, arm: str, rate: float, seed: int) -> float:
    """Validation loss at the end."""
    tokens, held_out = text()
    torch.manual_seed(seed)
    model, length = setting.net.make(), setting.net.length
    nap.normalize_(model, tokens[: 2 * length].view(2, length))
    model = model.to(device)
    optimizer = optimizer_of(model, arm, rate, setting.other_rate, setting.decay)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            part, lambda step: (1 + math.cos(math.pi * step / setting.steps)) / 2
        )
        for part in optimizer.optimizers
    ]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(setting.steps):
        starts = torch.randint(len(tokens) - length, (setting.batch, 1), generator=generator)
        strings = tokens[starts + torch.arange(length + 1)].to(device)
        loss = F.cross_entropy(model(strings[:, :-1]).flatten(0, 1), strings[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for schedule in schedules:
            schedule.step()
    with torch.no_grad():
        losses = [
            F.cross_entropy(model(x.view(-1, length)).flatten(0, 1), y, reduction="sum").item()
            for x, y in _pieces(held_out.to(device), length * 256)
        ]
    return sum(losses) / (len(held_out) - 1)


def _pieces(held_out: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(held_out[:-1].split(size), held_out[1:].split(size), strict=True))


LEARN: dict[str, Any] = {"digits": learn_digits, "text": learn_text}


def first_rate(arm: str) -> float:
    """Where the search begins: a relative step, or a rate of AdamW, whose steps have Muon's size."""
    return 0.02 if arm.startswith("relative") else 2e-3


def best_rate(trials: Trials, arm: str, tuning_seeds: int) -> tuple[float, dict[float, float]]:
    """The best of first·2ᵏ on tuning seeds, with worse rates on both sides."""
    seeds = range(100, 100 + tuning_seeds)
    start, means = first_rate(arm), dict[int, float]()
    wanted = {-1, 0, 1}
    while wanted:
        for power in sorted(wanted):
            means[power] = statistics.fmean(trials.losses(arm, start * 2.0**power, seeds))
        best = min(means, key=lambda power: means[power])
        wanted = {best - 1, best + 1} - set(means)
    return start * 2.0**best, {start * 2.0**power: means[power] for power in sorted(means)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=list(LEARN), default=list(LEARN))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3, help="of the results: 0, 1, …")
    parser.add_argument("--tuning-seeds", type=int, default=2, help="of the tuning: 100, 101, …")
    parser.add_argument("--scale", choices=list(SCALES), default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=Path, help="keep finished trials here, and do not run them again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for task in options.tasks:
        learn = partial(LEARN[task], SCALES[options.scale][task], options.device)
        trials = Trials(learn, options.rows, {"task": task, "scale": options.scale})
        for arm in options.arms:
            rate, tried = best_rate(trials, arm, options.tuning_seeds)
            losses = trials.losses(arm, rate, range(options.seeds))
            std = statistics.stdev(losses) if len(losses) > 1 else 0.0
            shown = "  ".join(f"{one:.3g}: {loss:.3f}" for one, loss in tried.items())
            lines.append(f"{task:7} {arm:19} at {rate:7.3g}  {statistics.fmean(losses):.4f} ± {std:.4f}")
            lines[-1] += f"   tuning: {shown}"
            print(lines[-1], flush=True)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
