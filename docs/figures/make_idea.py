"""Draws the pictures of docs/idea.md: `python docs/figures/make_idea.py`.

The two pictures of geometry are computed. The third is measured: one small network learns random labels of
handwritten digits, redrawn every 200 updates, three times from the same start with the same batches:
with the norms of step 1 alone, with NaP at a constant rate, and with NaP and a schedule. The numbers that
the page quotes are printed; `--true-labels` prints them for labels that stay, and draws nothing.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch
from sklearn.datasets import load_digits
from torch import nn

import nap

matplotlib.use("Agg")
HERE = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, INK, QUIET = "#0072b2", "#d55e00", "#009e73", "#202124", "#5f6368"
STYLE: Any = {  # and no automatic layout, whose last digits differ from run to run
    "svg.hashsalt": "nap",
    "svg.fonttype": "path",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.labelcolor": QUIET,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titlecolor": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
}
UPDATES, UPDATES_PER_TASK, BATCH_SIZE, LOOK_EVERY = 4000, 200, 96, 20
RATE, LAST_RATE = 1e-3, 1e-5
ARMS = {"norms only": ORANGE, "NaP": BLUE, "NaP + schedule": GREEN}


def save(figure: Any, name: str) -> None:
    figure.savefig(HERE / f"idea-{name}.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def sphere() -> None:
    """The same step turns a long weight less than a short one; back on the sphere, every step turns alike."""
    bounds = [(-1.15, 1.3), (-0.25, 2.95), (-1.25, 1.3)]
    widths = [right - left for left, right in bounds]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.7), width_ratios=widths)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.9, wspace=0.04)
    step = 0.8
    for axis, norm in zip(axes[:2], (1.0, 2.6), strict=True):
        turn = math.atan2(step, norm)
        circle(axis, norm)
        circle(axis, 0.45 * norm, (0, turn), QUIET)
        arrow(axis, (0, 0), (norm, 0), INK)
        arrow(axis, (norm, 0), (norm, step), ORANGE)
        arrow(axis, (0, 0), (norm, step), BLUE)
        place = (0.5 * norm * math.cos(turn / 2), 0.5 * norm * math.sin(turn / 2))
        axis.text(*place, f"{math.degrees(turn):.0f}°", va="center", color=INK)
        axis.set_title(f"norm {norm:g}, step {step:g}")
    axis, angle, turn = axes[2], 0.0, math.atan2(step, 1.0)
    circle(axis, 1.0)
    for _ in range(3):
        start = (math.cos(angle), math.sin(angle))
        tip = (start[0] - step * math.sin(angle), start[1] + step * math.cos(angle))
        arrow(axis, (0, 0), start, INK)
        arrow(axis, start, tip, ORANGE)
        middle = angle + turn / 2
        axis.text(
            0.5 * math.cos(middle),
            0.5 * math.sin(middle),
            f"{math.degrees(turn):.0f}°",
            ha="center",
            va="center",
        )
        angle += turn
        arrow(axis, tip, (math.cos(angle), math.sin(angle)), GREEN, dashed=True)
    arrow(axis, (0, 0), (math.cos(angle), math.sin(angle)), INK)
    axis.set_title("projected after each step")
    for axis, limits in zip(axes, bounds, strict=True):
        axis.set(xlim=limits, ylim=(-1.1, 1.6), aspect="equal")
        axis.axis("off")
    save(figure, "sphere")


def circle(
    axis: Any, radius: float, ends: tuple[float, float] = (0, math.tau), colour: str = "#c9cdd2"
) -> None:
    turns = [ends[0] + (ends[1] - ends[0]) * i / 400 for i in range(401)]
    points = [(radius * math.cos(turn), radius * math.sin(turn)) for turn in turns]
    axis.plot(*zip(*points, strict=True), color=colour, lw=1)


def arrow(
    axis: Any, start: tuple[float, float], end: tuple[float, float], colour: str, dashed: bool = False
) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "lw": 1.8, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", xy=end, xytext=start, arrowprops={**style, "ls": "--" if dashed else "-"})


def steps() -> None:
    """A network before and after: where norms go in, and what is projected."""
    figure, axis = plt.subplots(figsize=(11, 2.5))
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
    before = ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    after = ["Linear", "norm", "ReLU", "Linear", "norm", "ReLU", "Linear"]
    for y, label, names in ((1.0, "before", before), (0.0, "with NaP", after)):
        axis.text(-0.3, y, label, ha="right", va="center", color=QUIET)
        for x, name in enumerate(names):
            new, held = name == "norm", name == "Linear" and y == 0
            colour = GREEN if new else BLUE if held else "#9aa0a6"
            box = FancyBboxPatch((x, y - 0.24), 0.78, 0.48, boxstyle="round,pad=0.02,rounding_size=0.1")
            box.set(
                facecolor="#e2f5ee" if new else "#e3eef7" if held else "#f4f5f6",
                edgecolor=colour,
                linewidth=1.6,
            )
            axis.add_patch(box)
            axis.text(x + 0.39, y, name, ha="center", va="center", color=INK)
            if x + 1 < len(names):
                arrow(axis, (x + 0.82, y), (x + 0.97, y), "#9aa0a6")
    axis.text(7.05, 0.26, "step 1 puts these in", color=GREEN, va="center")
    axis.text(7.05, -0.1, "step 2 holds the norm of\nthese weights", color=BLUE, va="center")
    axis.set(xlim=(-1.3, 9.2), ylim=(-0.4, 1.4))
    axis.axis("off")
    save(figure, "steps")


def train(arm: str, true_labels: bool) -> list[tuple[int, float, float]]:
    """Update, norm of the hidden weights, their mean effective rate (Definition 1)."""
    torch.manual_seed(0)
    width = 256
    hidden = [layer for size in (64, width, width) for layer in (nn.Linear(size, width), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, 10))
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32)
    images, labels = (images - images.mean()) / images.std(), torch.tensor(data.target)
    nap.normalize_(model, images[:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    if arm != "norms only":
        nap.Projector(model).attach(optimizer)
    falling = arm == "NaP + schedule"
    schedule = nap.schedules.linear(optimizer, total_steps=UPDATES, end_value=LAST_RATE if falling else RATE)
    draws, rows = torch.Generator().manual_seed(0), []
    for update in range(UPDATES + 1):
        if update % UPDATES_PER_TASK == 0 and not true_labels:
            labels = torch.randint(10, (len(images),), generator=draws)
        if update % LOOK_EVERY == 0:
            weights = [p.norm().item() for p in model.parameters() if p.ndim == 2][:-1]
            rates = list(nap.effective_learning_rates(model, optimizer).values())[:-1]
            rows.append((update, math.hypot(*weights), float(sum(rates) / len(rates))))
        batch = torch.randint(len(images), (BATCH_SIZE,), generator=draws)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    return rows


def rates(true_labels: bool) -> None:
    """What the norm does to the rate, measured."""
    torch.set_num_threads(1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4))
    figure.subplots_adjust(left=0.04, right=0.99, bottom=0.16, top=0.86, wspace=0.12)
    for arm, colour in ARMS.items():
        updates, norms, effective = zip(*train(arm, true_labels), strict=True)
        dashes = "--" if arm == "NaP + schedule" else "-"
        left.plot(updates, norms, color=colour, lw=2, ls=dashes)
        right.plot(updates, effective, color=colour, lw=2, label=arm)
        print(
            f"{arm:15} norm {norms[0]:.1f} → {norms[-1]:.1f}, rate {effective[0]:.2g} → {effective[-1]:.2g}"
        )
    left.set(title="Norm of the hidden weights", xlabel="update (new labels every 200)", ylim=(0, None))
    right.set(title="Effective learning rate", xlabel="update (new labels every 200)", ylim=(0, None))
    right.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    right.legend(frameon=False)
    if not true_labels:
        save(figure, "rates")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--true-labels", action="store_true", help="labels that stay; prints, draws nothing")
    options = parser.parse_args()
    with plt.rc_context(STYLE):
        if not options.true_labels:
            sphere()
            steps()
        rates(options.true_labels)
