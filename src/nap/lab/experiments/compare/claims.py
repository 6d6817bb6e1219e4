"""Is NaP better than plain training here, and better than its normalization alone?"""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region
from nap.lab.claims.effects import decide
from nap.lab.claims.samples import Samples
from nap.lab.experiments.compare.config import ArmName


def by_seed(samples: Samples, arm: ArmName) -> dict[int, float]:
    """The result of each seed: the mean of its numbers."""
    found: dict[int, list[float]] = {}
    for row in samples.select(arm=arm):
        found.setdefault(row["seed"], []).append(np.nan if row["result"] is None else row["result"])
    if not found:
        raise NotEnough(f"there are no rows of arm “{arm}”")
    means = {seed: float(np.mean(values)) for seed, values in found.items()}
    if broke := [str(seed) for seed, mean in means.items() if not np.isfinite(mean)]:
        raise NotEnough(f"arm “{arm}” diverged at seed {', '.join(broke)}, at its best learning rate")
    return means


def lead(samples: Samples, arm: ArmName, other: ArmName) -> Evidence:
    """The advantage of one arm over another, paired by seed."""
    ours, theirs = by_seed(samples, arm), by_seed(samples, other)
    seeds = sorted(ours.keys() & theirs.keys())
    sign = -1 if samples.select(arm=arm)[0].get("goal") == "lowest" else 1
    gain = np.array([sign * (ours[seed] - theirs[seed]) for seed in seeds])
    if not seeds:
        raise NotEnough(f"arms “{arm}” and “{other}” have no seed in common")
    words = f"{arm} minus {other}" if sign > 0 else f"{other} minus {arm}"
    return decide(f"result, {words}", gain, Region(low=0), unit="in the result's own unit")


CLAIMS = [
    Claim(
        id=f"compare.{arm.lower().replace(' ', '-')}-{other.replace(' ', '-')}",
        statement=statement,
        source="at best rates",
        check=lambda samples, arm=arm, other=other: lead(samples, arm, other),  # type: ignore[misc]
    )
    for arm, other, statement in (
        ("NaP", "plain", "NaP is better than plain training"),
        ("NaP", "norm only", "NaP is better than its normalization alone"),
        ("norm only", "plain", "Normalization alone is better than plain training"),
    )
]
