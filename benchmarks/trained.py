"""Norms for a network that is trained already: what does the conversion cost, and does it restore plasticity?

    python benchmarks/trained.py --rows trained.jsonl                 about 20 minutes on one CPU core
    python benchmarks/trained.py --task language --rows trained.jsonl
    python benchmarks/trained.py --device cuda --width 512 --rows large.jsonl

Networks without norms are trained first: an MLP on scikit-learn's digits, for 600 updates on their classes
("young") or for 60 tasks of random labels ("worn"), and a transformer of 2 blocks on the letters of Python's
help texts. Then each goes on with a new optimizer, on the same data, with new labels (letters exchanged, in
the transformer) or with permuted pixels: as it is, converted by nap.normalize_, or calibrated, all but
the first with projection; "pulled": scales and offsets go back to (1, 0) at one percent an update. Beside
them fresh networks. Rates are tuned for each arm on seeds 100 and 101, results are on others. Compared is an
error: the share of wrong answers while learning (for the same data, on held-out images), or nats of a
letter. Recovery: updates until the mean loss of 20 is within 5 % of that of the trained network.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from language_start import GPT, Net
from rate_trials import Trials, compare
from sklearn.datasets import load_digits
from torch import Tensor, nn

import nap
from nap.conversion.calibration import normalize_trained_
from nap.conversion.movement import recovery
from nap.lab.datasets.corpus import load

ARMS = (
    *("unconverted", "normalize_", "calibrated", "calibrated, fan-in", "calibrated, pulled"),
    *("fresh", "fresh NaP"),
)
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
CASES = {
    "classifier": (
        ("young", "same"),
        ("young", "labels"),
        ("young", "pixels"),
        ("worn", "labels"),
        ("worn", "pixels"),
    ),
    "language": (("young", "same"), ("young", "letters")),
}
TRAIN, BATCH = 1024, 64
Batches = Iterator[tuple[Tensor, Tensor]]


class Classifier:
    """Digits: what a network is trained on before, and after."""

    def __init__(self, width: int, device: str):
        self.width, self.device = width, device
        digits = load_digits()
        order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(7))
        self.x = torch.tensor(digits.data / 16.0, dtype=torch.float32)[order].to(device)
        self.y = torch.tensor(digits.target)[order].to(device)
        self.sample = self.x[:512]

    def make(self) -> nn.Module:
        width = self.width
        sizes = (64, width, width, width)
        hidden = [p for a, b in pairwise(sizes) for p in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 10)).to(self.device)

    def batches(self, data: str, seed: int, updates: int, length: int = 200) -> Batches:
        """Tasks of `length` updates; the same data all the time, new labels or new orders of the pixels."""
        generator = torch.Generator().manual_seed(seed)
        x, y = self.x[:TRAIN], self.y[:TRAIN]
        for update in range(updates):
            if update % length == 0 and data == "labels":
                y = torch.randint(10, (TRAIN,), generator=generator).to(self.device)
            if update % length == 0 and data == "pixels":
                x = self.x[:TRAIN, torch.randperm(64, generator=generator)]
            chosen = torch.randint(TRAIN, (BATCH,), generator=generator)
            yield x[chosen], y[chosen]

    def before(self, base: str, seed: int) -> Batches:
        return self.batches("labels", seed, 12_000) if base == "worn" else self.batches("same", seed, 600)

    def after(self, data: str, seed: int) -> Batches:
        return self.batches(data, 500 + seed, 400 if data == "same" else 800)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        logits = model(x)
        return F.cross_entropy(logits, y), float((logits.argmax(1) != y).float().mean())

    def held_out(self, model: nn.Module) -> float:
        """Share of wrong answers on images that nothing was trained on."""
        with torch.no_grad():
            return float((model(self.x[TRAIN:]).argmax(1) != self.y[TRAIN:]).float().mean())


class Language:
    """Letters of Python's help texts."""

    length = 32

    def __init__(self, width: int, device: str):
        self.width, self.device = width // 2, device
        corpus = load(["python"], "bytes", limit=3_000_000)
        parts = (torch.from_numpy(part.tokens.astype("int64")) for part in (corpus.train, corpus.valid))
        train, valid = (torch.where((p >= 97) & (p <= 122), p - 96, 0) for p in parts)
        whole = (len(valid) - 1) // self.length * self.length
        self.train, self.valid = train.to(device), valid[: whole + 1].to(device)
        self.sample = self.train[: 64 * self.length].view(64, self.length)

    def make(self) -> nn.Module:
        model = GPT(Net(2, self.width, tied=False, zero=False))
        model.norm = nn.Identity()  # type: ignore[assignment]
        for block in model.blocks:
            block.norm1 = block.norm2 = nn.Identity()  # type: ignore[assignment]
        return model.to(self.device)

    def batches(self, data: str, seed: int, updates: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        letters = torch.randperm(27, generator=generator) if data == "letters" else torch.arange(27)
        letters, places = letters.to(self.device), torch.arange(self.length + 1)
        for _ in range(updates):
            starts = torch.randint(len(self.train) - self.length, (16, 1), generator=generator)
            strings = letters[self.train[(starts + places).to(self.device)]]
            yield strings[:, :-1], strings[:, 1:]

    def before(self, base: str, seed: int) -> Batches:
        return self.batches("same", seed, 1000)

    def after(self, data: str, seed: int) -> Batches:
        return self.batches(data, 500 + seed, 300)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        return loss, loss.item()

    def held_out(self, model: nn.Module) -> float:
        """Nats of a letter of other texts."""
        with torch.no_grad():
            logits = model(self.valid[:-1].view(-1, self.length))
            return F.cross_entropy(logits.flatten(0, 1), self.valid[1:]).item()


Task = Classifier | Language


@cache
def trained(task: Task, base: str, seed: int) -> tuple[nn.Module, float]:
    """A network without norms, and its mean loss over the last 50 updates."""
    torch.manual_seed(seed)
    model = task.make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = [loss for loss, _ in learn(task, model, optimizer, task.before(base, seed))]
    return model, sum(losses[-50:]) / 50


def learn(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches
) -> Iterator[tuple[float, float]]:
    """Loss and error of each update."""
    for x, y in batches:
        loss, wrong = task.loss(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item(), wrong


def start(task: Task, arm: str, base: str, rate: float, seed: int) -> tuple[nn.Module, torch.optim.Adam]:
    """The network of an arm, and its new optimizer."""
    torch.manual_seed(seed)
    model = task.make() if "fresh" in arm else copy.deepcopy(trained(task, base, seed)[0])
    if "calibrated" in arm:
        normalize_trained_(model, task.sample, radii="fan-in" if "fan-in" in arm else "trained")
    elif arm in ("normalize_", "fresh NaP"):
        nap.normalize_(model, task.sample[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    if arm not in ("unconverted", "fresh"):
        pulled: Any = {"affine": "decay", "decay": 0.01} if "pulled" in arm else {}
        nap.Projector(model, **pulled).attach(optimizer)
    return model, optimizer


def error(arm: str, rate: float, seed: int, *, task: Task, base: str, data: str) -> float:
    """Held-out error at the end for the same data, mean error while learning for other data."""
    model, optimizer = start(task, arm, base, rate, seed)
    errors = [wrong for _, wrong in learn(task, model, optimizer, task.after(data, seed))]
    return task.held_out(model) if data == "same" else sum(errors) / len(errors)


def updates_back(arm: str, rate: float, seed: int, *, task: Task, base: str) -> float:
    """Updates until the loss is back where it was; infinite if not within those that are made."""
    model, optimizer = start(task, arm, base, rate, seed)
    steps = learn(task, model, optimizer, task.after("same", seed))
    many = sum(1 for _ in task.after("same", seed))
    found = recovery(lambda: next(steps)[0], trained(task, base, seed)[1] * 1.05, most=many)
    return math.inf if found is None else float(found)


def at_once(task: Task, base: str, seed: int) -> str:
    """How far both kinds of conversion move the network."""
    model, _ = trained(task, base, seed)
    before, plain, calibrated = task.held_out(model), copy.deepcopy(model), copy.deepcopy(model)
    nap.normalize_(plain, task.sample[:2])
    report = normalize_trained_(calibrated, task.sample)
    return (
        f"seed {seed}, {base}: held-out error {before:.3f}; normalize_ {task.held_out(plain):.3f}, "
        f"calibrated {task.held_out(calibrated):.3f}; outputs moved by {report.plain_output_error:.2f} and "
        f"{report.output_error:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--data", nargs="+", help="of what follows: same, labels, pixels, letters")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--seeds", type=int, default=5, help="of the classifier's results")
    parser.add_argument("--language-seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128, help="of the MLP; the transformer has half of it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=Path, help="keep finished trials here, and do not run them again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.task:
        make: Callable[[int, str], Task] = Classifier if name == "classifier" else Language
        task = make(options.width, options.device)
        seeds = options.seeds if name == "classifier" else options.language_seeds
        cases = [case for case in CASES[name] if options.data is None or case[1] in options.data]
        common = {"task": name, "width": options.width}
        for base in dict.fromkeys(base for base, _ in cases):
            print("\n".join(at_once(task, base, seed) for seed in range(seeds)), flush=True)
        for base, data in cases:
            about = common | {"base": base, "data": data}
            trials = Trials(partial(error, task=task, base=base, data=data), options.rows, about)
            print(f"== {name}, {base}, {data}", flush=True)
            compare(trials, options.arms, options.rates, seeds=seeds, tuning_seeds=2)
            if data == "same":
                back = Trials(
                    partial(updates_back, task=task, base=base), options.rows, about | {"measure": "recovery"}
                )
                for arm in (arm for arm in options.arms if "fresh" not in arm):
                    rate = trials.best_rate(arm, options.rates, 2)
                    took = " ".join(f"{n:g}" for n in back.losses(arm, rate, range(seeds)))
                    print(f"{arm}: updates until recovered at {rate:g}: {took}")


if __name__ == "__main__":
    main()
