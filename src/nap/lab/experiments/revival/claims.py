"""Dead units of an MLP after sudden changes of its task (Section 3.1, Appendix C.4)."""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region, grouped
from nap.lab.claims.effects import TENTH, decide, difference
from nap.lab.claims.samples import Samples, Series, paired

TEXT = "Appendix C.4"
RECOVER, STAY_DEAD = Region(low=100 * TENTH), Region(high=100 * TENTH)
MORE, FEWER = Region(low=0), Region(high=0)


def dead_units(samples: Samples, norm: str, optimizer: str = "Adam") -> Series:
    """The share of dead units at every measurement."""
    return samples.series("dead_units", along="step", norm=norm, optimizer=optimizer)


def tasks_of(samples: Samples, steps: list[int], norm: str, optimizer: str = "Adam") -> np.ndarray:
    """The task of each measured step."""
    rows = samples.select(norm=norm, optimizer=optimizer)
    task_of = dict(zip(rows.values("step"), rows.values("task"), strict=True))
    return np.array([task_of[step] for step in steps])


def recovery(samples: Samples, norm: str, region: Region) -> Evidence:
    """Of the units dead at the peak after a task change, the fraction that live at the task's end."""
    dead = dead_units(samples, norm)
    tasks = tasks_of(samples, dead.points, norm)
    later = [dead.values[:, tasks == task] for task in np.unique(tasks) if task > 1]
    if not later:
        raise NotEnough("there is one task only, so no change of task to recover from")
    peak, end = (np.sum(dead, 0) for dead in ([d.max(1) for d in later], [d[:, -1] for d in later]))
    if not peak.all():
        raise NotEnough(f"with norm {norm!r} and Adam there are seeds without a dead unit, so none to revive")
    quantity = "units dead at the peak within a task that live again at its end"
    return decide(quantity, 100 * (peak - end) / peak, region, unit="% of dead units")


def revival_rate(samples: Samples, norm: str, optimizer: str) -> Series:
    """Per seed, one point: the fraction of units dead at a measurement that live at the next."""
    dead = dead_units(samples, norm, optimizer)
    revived, _, _ = samples.select(norm=norm, optimizer=optimizer).matrix("revived", by=("seed", "step"))
    before = dead.values[:, :-1]
    if not before.any(1).all():
        raise NotEnough(f"with norm {norm!r} and {optimizer} there are seeds without a dead unit")
    share = np.where(before > 0, revived[:, 1:], 0)  # undefined where none was dead
    if np.isnan(share).any():
        raise NotEnough(f"rows of norm {norm!r} and {optimizer} lack numbers in 'revived'")
    return Series((share * before).sum(1, keepdims=True) / before.sum(1, keepdims=True), dead.seeds, [0])


def rates_compared(samples: Samples, one: tuple[str, str], other: tuple[str, str]) -> Evidence:
    """The difference of two (norm, optimizer) pairs in how often dead units revive."""
    ours, theirs = paired(revival_rate(samples, *one), revival_rate(samples, *other))
    quantity = f"dead units alive at the next measurement, {' + '.join(one)} minus {' + '.join(other)}"
    return difference(quantity, ours.values[:, 0], theirs.values[:, 0], MORE, "% of dead units")


def dead_compared(samples: Samples, one: tuple[str, str], other: tuple[str, str], region: Region) -> Evidence:
    """The difference of two (norm, optimizer) pairs in the dead units of the last measurements."""
    ours, theirs = paired(dead_units(samples, *one), dead_units(samples, *other))
    quantity = f"dead units at the end, {' + '.join(one)} minus {' + '.join(other)}"
    return difference(quantity, ours.last(), theirs.last(), region, "% of units")


def deaths_at_changes(samples: Samples) -> Evidence:
    """Units that die in the first measurement of a task, minus those that die in a later one."""
    died = samples.series("died", along="step", norm="none", optimizer="Adam")
    tasks = tasks_of(samples, died.points, "none")
    first = np.diff(tasks, prepend=tasks[0]) > 0
    rest = ~first & (tasks > 1)
    if not first.any() or not rest.any():
        raise NotEnough("it takes two tasks or more, each measured twice or more")
    quantity = "units that die between measurements, right after a task change minus later in the task"
    at_change, later = (died.values[:, points].mean(1) for points in (first, rest))
    return difference(quantity, at_change, later, MORE, "% of units")


CLAIMS = grouped(
    ("optimizer_state",),
    Claim(
        "revival.layernorm-recovers",
        "With LayerNorm and Adam, dead units come back to life after a change of task.",
        f"{TEXT}, figure; Section 3.1",
        lambda s: recovery(s, "LayerNorm", RECOVER),
    ),
    Claim(
        "revival.rmsnorm-recovers",
        "With RMSNorm and Adam, dead units come back to life after a change of task.",
        "Section 3.1, Proposition 1",
        lambda s: recovery(s, "RMSNorm", RECOVER),
    ),
    Claim(
        "revival.no-norm-stays-dead",
        "Without normalization, dead units stay dead.",
        f"{TEXT}, figure",
        lambda s: recovery(s, "none", STAY_DEAD),
    ),
    Claim(
        "revival.layernorm-revives-more",
        "Under Adam, a dead unit is more likely to revive with LayerNorm than without normalization.",
        f"{TEXT}; Section 3.1",
        lambda s: rates_compared(s, ("LayerNorm", "Adam"), ("none", "Adam")),
    ),
    Claim(
        "revival.adam-revives-more",
        "With LayerNorm, more dead units revive under Adam, which rescales small gradients, than under SGD.",
        f"{TEXT}; Section 3.1",
        lambda s: rates_compared(s, ("LayerNorm", "Adam"), ("LayerNorm", "SGD")),
    ),
    Claim(
        "revival.adam-kills-more",
        "Without normalization, Adam leaves more dead units than SGD.",
        TEXT,
        lambda s: dead_compared(s, ("none", "Adam"), ("none", "SGD"), MORE),
    ),
    Claim(
        "revival.changes-kill",
        "Without normalization and with Adam, units die mostly right after a change of task.",
        TEXT,
        deaths_at_changes,
    ),
    Claim(
        "revival.layernorm-mitigates",
        "Under Adam, LayerNorm leaves fewer dead units than no normalization.",
        TEXT,
        lambda s: dead_compared(s, ("LayerNorm", "Adam"), ("none", "Adam"), FEWER),
    ),
)
