"""One minute of plasticity loss, and its cure, in an ordinary training loop.

A network learns random labels for 1024 handwritten digits, with new labels every 200 updates. Three copies
see the same labels and batches: one plain, one with the norms of step 1, one with both steps of NaP. All uses
of nap are in `prepare`; the rest is an ordinary training loop, a table and a plot.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import nap
from nap import diagnostics

IMAGES, CLASSES = 1024, 10
TASKS, UPDATES_PER_TASK, BATCH_SIZE = 40, 200, 96
LEARNING_RATE = 1e-3
SEED = 0
ARMS = {"no norm": "#8a8f98", "LayerNorm only": "#e07b39", "NaP": "#2563a8"}
OUT = Path(__file__).resolve().parents[1] / "demo"

Row = dict[str, float]
_tasks_done: Any = None  # a counter that the three processes share


def make_model(width: int = 256) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(64, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, CLASSES),
    )


def prepare(arm: str, images: Tensor) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """The model and optimizer of one arm: this is how nap is used."""
    model = make_model()
    if arm != "no norm":
        nap.normalize_(model, images)  # step 1: a norm in front of each nonlinearity
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    if arm == "NaP":
        nap.Projector(model).attach(optimizer)  # step 2: each weight back to its first norm
    return model, optimizer


def train(arm: str, tasks: int) -> list[Row]:
    """One row of measurements for each task."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    images = digits()
    model, optimizer = prepare(arm, images)
    draws = torch.Generator().manual_seed(SEED)  # the same labels and batches for every arm
    rows = []
    for _ in range(tasks):
        labels = torch.randint(CLASSES, (IMAGES,), generator=draws)
        correct = torch.zeros(())
        for _ in range(UPDATES_PER_TASK):
            batch = torch.randint(IMAGES, (BATCH_SIZE,), generator=draws)
            logits = model(images[batch])
            correct += (logits.argmax(1) == labels[batch]).sum()
            optimizer.zero_grad()
            F.cross_entropy(logits, labels[batch]).backward()
            optimizer.step()
        accuracy = correct.item() / (
            UPDATES_PER_TASK * BATCH_SIZE
        )  # each batch is scored before it is learnt
        rows.append({"accuracy": accuracy, **measure(model, optimizer, images)})
        with _tasks_done.get_lock():
            _tasks_done.value += 1
    return rows


@torch.no_grad()
def measure(model: nn.Sequential, optimizer: torch.optim.Optimizer, images: Tensor) -> Row:
    rates = list(nap.effective_learning_rates(model, optimizer).values())[:-1]  # of the hidden layers
    features = model[:-1](images)
    return {
        "weight norm": math.hypot(*(p.norm().item() for p in model.parameters() if p.ndim == 2)),
        "effective rate": statistics.geometric_mean(rates),
        "dead units": float(diagnostics.dead_units(features)),
        "linearized units": float(diagnostics.linearized_units(features)),
    }


def digits() -> Tensor:
    images = torch.tensor(load_digits().data[:IMAGES], dtype=torch.float32)
    return (images - images.mean()) / images.std()


def run_arms(tasks: int) -> dict[str, list[Row]]:
    """The rows of every arm, each trained in a process of its own."""
    context = multiprocessing.get_context("spawn")
    counter = context.Value("i", 0)
    with ProcessPoolExecutor(len(ARMS), context, initializer=_share, initargs=(counter,)) as pool:
        jobs = {arm: pool.submit(train, arm, tasks) for arm in ARMS}
        show_progress(list(jobs.values()), counter, tasks * len(ARMS))
        return {arm: job.result() for arm, job in jobs.items()}


def _share(counter: Any) -> None:
    global _tasks_done
    _tasks_done = counter


def show_progress(jobs: list[Future[list[Row]]], counter: Any, total: int) -> None:
    """A line that says how far the arms are: rewritten in a terminal, once every tenth elsewhere."""
    start, shown, terminal = time.monotonic(), 0, sys.stderr.isatty()
    first: tuple[float, int] | None = None  # the clock starts with the first finished tasks, not with imports
    while not all(job.done() for job in jobs):
        time.sleep(0.25)
        now, done = time.monotonic(), counter.value
        first = first or ((now, done) if done else None)
        if first and done > first[1] and (terminal or 10 * done // total > shown):
            shown = 10 * done // total
            left = (now - first[0]) / (done - first[1]) * (total - done)
            line = f"  {done:3} of {total} tasks, about {left:.0f} s left   "
            print(line, end="\r" if terminal else "\n", file=sys.stderr, flush=True)
    print(f"  {counter.value} of {total} tasks in {time.monotonic() - start:.0f} s       ", file=sys.stderr)


def table(results: dict[str, list[Row]]) -> str:
    def mean_accuracy(rows: list[Row]) -> float:
        return statistics.mean(row["accuracy"] for row in rows)

    cells = [
        ["", "online accuracy", "weight norm", "effective rate", "dead units", "linearized"],
        ["", "first 10 → last 10", "task 1 → last", "task 1 → last", "at the end", "at the end"],
    ]
    for arm, rows in results.items():
        first, last = rows[0], rows[-1]
        rate = f"{first['effective rate']:.1e} → {last['effective rate']:.1e}"
        cells.append(
            [
                arm,
                f"{mean_accuracy(rows[:10]):.0%} → {mean_accuracy(rows[-10:]):.0%}",
                f"{first['weight norm']:.1f} → {last['weight norm']:.1f}",
                "not defined" if arm == "no norm" else rate,  # Definition 1 needs a norm after the weight
                f"{last['dead units']:.0%}",
                f"{last['linearized units']:.0%}",
            ]
        )
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def plot(results: dict[str, list[Row]], path: Path) -> None:
    """Three panels: what is learnt, what grows meanwhile, and what that does to the learning rate."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    style: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}
    style |= {"grid.color": "#ececec", "axes.edgecolor": "#999999", "axes.labelcolor": "#555555"}
    style |= {"axes.titlelocation": "left", "axes.titlesize": 11, "axes.titlepad": 10, "axes.axisbelow": True}
    style |= {"xtick.color": "#555555", "ytick.color": "#555555"}
    panels = [
        ("accuracy", "Online accuracy of each task", (0.0, 0.8)),
        ("weight norm", "Norm of the weights, relative to task 1", (0.0, 4.0)),
        ("effective rate", "Effective learning rate, relative to task 1", (0.0, 1.2)),
    ]
    with plt.rc_context(style):
        figure, axes = plt.subplots(1, 3, figsize=(14, 3.9), layout="constrained")
        for axis, (key, title, limits) in zip(axes, panels, strict=True):
            for arm, rows in results.items():
                if key == "effective rate" and arm == "no norm":
                    continue
                tasks, values = range(1, len(rows) + 1), [row[key] for row in rows]
                if key == "accuracy":  # noisy: a mean over five tasks in front of what was measured
                    axis.plot(tasks, values, color=ARMS[arm], linewidth=0.8, alpha=0.35)
                    values = [statistics.mean(values[max(0, i - 2) : i + 3]) for i in range(len(rows))]
                else:
                    values = [value / values[0] for value in values]
                axis.plot(tasks, values, color=ARMS[arm], linewidth=2.2)
                axis.annotate(
                    arm.replace(" only", "\nonly"),
                    (len(rows), values[-1]),
                    xytext=(6, 0),
                    textcoords="offset points",
                    color=ARMS[arm],
                    va="center",
                    fontweight="bold",
                )
            axis.set(xlabel="task (labels drawn anew)", xlim=(0, tasks[-1] + 1), ylim=limits)
            axis.set_title(title)
        axes[0].axhline(1 / CLASSES, color="#555555", linewidth=1, linestyle=":")
        axes[0].text(1, 1 / CLASSES - 0.015, "chance", color="#555555", va="top", fontsize=9)
        axes[0].yaxis.set_major_formatter("{x:.0%}")
        axes[2].text(1, 0.03, "without a norm there is none", color=ARMS["no norm"], fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"how often labels are drawn, {TASKS}")
    args = parser.parse_args()
    if args.tasks < 1:
        parser.error(f"--tasks {args.tasks}: it must be at least 1")
    print(
        f"{args.tasks} tasks of {UPDATES_PER_TASK} updates: {IMAGES} digits, random labels, "
        f"Adam {LEARNING_RATE:g}"
    )
    results = run_arms(args.tasks)
    plot(results, OUT / "digits.png")
    print(f"\n{table(results)}\n\nPlot: {(OUT / 'digits.png').relative_to(OUT.parent)}")


if __name__ == "__main__":
    main()
