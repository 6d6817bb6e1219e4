"""Does it help to raise the effective rate again when the task changes, and must one be told when it does?

    python benchmarks/rewarm.py --rows rewarm.jsonl         about 15 minutes on two CPU cores

An MLP with NaP learns random labels of scikit-learn's digits. After 100 to 400 updates, it is not told how
many, all labels are drawn anew. Arms: a constant rate; one cosine over the whole run; warm-up and cosine that
start again at each change (told); the same where `ChangeDetector` sees one (detected); detected with equal
relative steps in all layers. Rates are tuned for each arm on seeds 100 and 101, results are on seeds 0 to 4.
With --reset the optimizer starts anew at each change, or where one is detected.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev

import torch
from sklearn.datasets import load_digits
from torch import nn

import nap
from nap.rates.change import ChangeDetector
from nap.rates.relative import equal_step_groups
from nap.schedules import warmup_cosine

ARMS = ("constant", "cosine", "told", "detected", "detected, equal steps")
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)


def lengths(tasks: int, seed: int) -> list[int]:
    """Updates of each task: unknown to the learner, 100 to 400."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(100, 401, (tasks,), generator=generator).tolist()


def run(arm: str, rate: float, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Mean online accuracy, that of the last third of the tasks, and how changes were seen."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.data[:512] / 16.0, dtype=torch.float32)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(64, 10))
    nap.normalize_(model, images[:2])
    groups = equal_step_groups(model, rate) if "equal" in arm else model.parameters()
    optimizer = torch.optim.Adam(groups, lr=rate)
    nap.Projector(model, affine="joint").attach(optimizer)
    plan = lengths(options.tasks, seed)
    period = sum(plan) if arm == "cosine" else 400
    schedule = None
    if arm != "constant":
        shape = {"warmup_steps": 10, "total_steps": period, "init_value": 0.0}
        schedule = warmup_cosine(optimizer, end_value=rate / 30, **shape)
    detector = ChangeDetector(memory=options.memory, threshold=options.threshold)
    accuracies, hits, alarms = [], 0, 0
    for updates in plan:
        labels, correct, seen = torch.randint(10, (512,), generator=generator), 0, False
        for step in range(updates):
            batch = torch.randint(512, (32,), generator=generator)
            logits = model(images[batch])
            loss = nn.functional.cross_entropy(logits, labels[batch])
            change = detector.update(loss.detach().log())
            alarms += change
            if change and step < 50 and not seen:
                seen, hits = True, hits + 1
            restart = change if "detected" in arm else step == 0
            if restart and schedule is not None and arm != "cosine":
                schedule.restart()
            if restart and options.reset:
                optimizer.state.clear()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            correct += int((logits.argmax(1) == labels[batch]).sum())
        accuracies.append(correct / (32 * updates))
    last = accuracies[-len(accuracies) // 3 :]
    return {
        "accuracy": fmean(accuracies),
        "last third": fmean(last),
        "changes seen": hits / (len(plan) - 1),
        "false alarms": (alarms - hits) / len(plan),
    }


def main() -> None:
    """Tune, then measure; every finished run is a line in the file and is not run again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=Path("rewarm.jsonl"))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=50)
    parser.add_argument("--threshold", type=float, default=10.0)
    parser.add_argument("--reset", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {}
    if options.rows.exists():
        for line in options.rows.read_text().splitlines():
            row = json.loads(line)
            known[row["arm"], row["rate"], row["seed"], row["reset"], row["tasks"]] = row

    def row(arm: str, rate: float, seed: int) -> dict[str, float]:
        key = arm, rate, seed, options.reset, options.tasks
        if key not in known:
            about = dict(zip(("arm", "rate", "seed", "reset", "tasks"), key, strict=True))
            known[key] = about | run(arm, rate, seed, options)
            with options.rows.open("a") as file:
                file.write(json.dumps(known[key]) + "\n")
        return known[key]

    for arm in options.arms:
        tuned = {rate: fmean(row(arm, rate, seed)["accuracy"] for seed in (100, 101)) for rate in RATES}
        best = max(tuned, key=lambda rate: tuned[rate])
        results = [row(arm, best, seed) for seed in range(options.seeds)]
        shown = "  ".join(f"{rate:g} {mean:.3f}" for rate, mean in tuned.items())
        print(f"{arm} (tuning: {shown})\n  at {best:g}:", end="")
        for name in ("accuracy", "last third", "changes seen", "false alarms"):
            values = [result[name] for result in results]
            print(f"  {name} {fmean(values):.3f} ± {stdev(values) if len(values) > 1 else 0:.3f}", end="")
        print(flush=True)


if __name__ == "__main__":
    main()
