"""A column of Table 1's left half: how well image classifiers with norms, and with NaP, end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region
from nap.lab.claims.effects import all_of, decide, difference
from nap.lab.claims.samples import Samples, Series, paired
from nap.lab.experiments.experiment import arm_names
from nap.lab.loops.supervised import settings

TEXT, TABLE = "Section 5.2", "Table 1, left"
BASELINE, NORM, NAP = arm_names((settings.BASELINE, settings.NORM_ONLY, settings.NAP))
CLOSE = 0.5  # accuracy points: what is called comparable, three standard deviations of the paper's seeds
AGREES = 0.3  # accuracy points: how near the table our numbers must be


@dataclass(frozen=True)
class ImageTable:
    """The results that the paper states for one data set, and the rows that can be compared with them."""

    experiment: str
    data: str  # in the rows
    images: str  # in words, for example "CIFAR-10 after 400,000 updates"
    updates: int  # that a run has, at least
    stated: Mapping[str, float]  # arm → test accuracy in per cent
    std: Mapping[str, float]  # arm → standard deviation over seeds

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
                "With the baseline's schedule, norms without projection perform comparably to the baseline.",
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
                f"too few updates, or other images: the table is for {self.images}, these rows for "
                f"{', '.join(map(str, data))} after {last:,}"
            )
        return all_of(
            {
                arm: decide(
                    "test accuracy at the end, minus the paper's",
                    100 * accuracy(samples, arm).values[:, -1] - stated,
                    Region(-AGREES, AGREES),
                    unit="accuracy points",
                )
                for arm, stated in self.stated.items()
            }
        )


def comparable(samples: Samples, arm: str) -> Evidence:
    """Test accuracy at the end is not worse than the baseline's. Better is fine."""
    ours, theirs = paired(*(accuracy(samples, name) for name in (arm, BASELINE)))
    quantity = f"test accuracy at the end, {arm} minus baseline"
    return difference(quantity, ours.values[:, -1], theirs.values[:, -1], Region(low=-CLOSE))


def accuracy(samples: Samples, arm: str) -> Series:
    """Test accuracy of an arm over the updates."""
    return samples.series("test_accuracy", along="step", min_points=2, arm=arm)
