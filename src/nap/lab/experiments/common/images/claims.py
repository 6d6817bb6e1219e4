"""A column of Table 1's left half: how well image classifiers with norms, and with NaP, end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region
from nap.lab.claims.effects import decide, every
from nap.lab.claims.samples import Samples, Series, together
from nap.lab.experiments.experiment import arm_names
from nap.lab.loops.supervised import settings

TEXT, TABLE = "Section 5.2", "Table 1, left"
BASELINE, NORM, NAP = arm_names((settings.BASELINE, settings.NORM_ONLY, settings.NAP))
CLOSE = 0.5  # accuracy points: what is called comparable, three times the spread of the paper's seeds
AGREES = 0.3  # accuracy points: how near the table our numbers must be


@dataclass(frozen=True)
class ImageTable:
    """What the paper states of one set of images, and on which rows that can be checked."""

    experiment: str
    data: str  # in the rows
    images: str  # in words: "CIFAR-10 after 400,000 updates"
    updates: int  # that a run has, at least
    stated: Mapping[str, float]  # arm → test accuracy in per cent
    spread: Mapping[str, float]  # arm → standard deviation

    def claims(self) -> tuple[Claim, ...]:
        """NaP and norms are comparable to the baseline, and all three end as the table says."""
        numbers = " and ".join(f"{self.stated[arm]} % ({arm})" for arm in (NORM, NAP))
        return (
            Claim(
                f"{self.experiment}.nap-comparable",
                "With the baseline's learning-rate schedule, NaP performs comparably to the baseline.",
                TEXT,
                lambda samples: comparable(samples, NAP),
            ),
            Claim(
                f"{self.experiment}.norm-comparable",
                "So do norms without projection.",
                TABLE,
                lambda samples: comparable(samples, NORM),
            ),
            Claim(
                f"{self.experiment}.as-stated",
                f"Test accuracies are {self.stated[BASELINE]} % (baseline), {numbers}.",
                TABLE,
                self.as_stated,
            ),
        )

    def as_stated(self, samples: Samples) -> Evidence:
        """Each arm's test accuracy against the table's."""
        rows = samples.select(kind=None)
        data, last = rows.unique("data"), max(row["step"] for row in rows)
        if data != [self.data] or last < self.updates:
            raise NotEnough(
                f"too few updates, or other images: the table is of {self.images}, these rows of "
                f"{', '.join(map(str, data))} after {last:,}"
            )
        return every(
            {
                arm: decide(
                    "test accuracy at the end, less the paper's",
                    100 * accuracy(samples, arm).values[:, -1] - stated,
                    Region(-AGREES, AGREES),
                    unit="accuracy points",
                )
                for arm, stated in self.stated.items()
            }
        )


def comparable(samples: Samples, arm: str) -> Evidence:
    """Test accuracy at the end, less the baseline's: not worse. Better is fine."""
    ours, theirs = together(*(accuracy(samples, name) for name in (arm, BASELINE)))
    gap = 100 * (ours.values[:, -1] - theirs.values[:, -1])
    what = f"test accuracy at the end, {arm} less baseline"
    return decide(what, gap, Region(low=-CLOSE), unit="accuracy points")


def accuracy(samples: Samples, arm: str) -> Series:
    """Test accuracy of an arm over the updates."""
    return samples.series("test_accuracy", along="step", fewest=2, arm=arm)
