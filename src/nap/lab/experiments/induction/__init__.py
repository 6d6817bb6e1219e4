"""Strings that end with a copy of a piece of themselves: do norms and projection get in the way? (C.3)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments.experiment import Experiment, Tuning, arm_names
from nap.lab.loops.language.settings import (
    BASELINE,
    NAP,
    NAP_NO_SCALE,
    NAP_RMS,
    NORM_ONLY,
    NORM_ONLY_RMS,
    PROJECTION_ONLY,
    CopyingConfig,
    StringTraining,
    TransformerConfig,
    parse_form,
)
from nap.validation import check_range as check

ARMS = (BASELINE, PROJECTION_ONLY, NORM_ONLY, NAP, NAP_NO_SCALE, NORM_ONLY_RMS, NAP_RMS)
if TYPE_CHECKING:
    ArmName = str
else:
    ArmName = Literal[arm_names(ARMS)]
PAPERS_ARMS = arm_names(ARMS[:5])


@dataclass(frozen=True)
class InductionConfig(TransformerConfig, StringTraining):
    """Settings of the copied strings."""

    forms: tuple[str, ...] = ("412+100", "65536x100+50")
    """lengths of the random prefix and of the copy, a data set for each; 65536x100+50 has 65,536 strings"""
    strings: int = 4096
    """strings of a data set, where its form does not say how many"""
    steps: int = 10_000
    """updates"""
    eval_every: int = 100
    """updates between two rows"""
    arms: tuple[ArmName, ...] = PAPERS_ARMS
    """arms to train"""

    def __post_init__(self) -> None:
        TransformerConfig.__post_init__(self)
        StringTraining.__post_init__(self)
        for name in ("steps", "eval_every"):
            check(self, name, getattr(self, name), 1)
        for form in self.forms:
            self.copying(form)
        if self.strings != type(self).strings and all("x" in form for form in self.forms):
            raise ValueError(
                f"strings is {self.strings}, but every form says how many it has: {', '.join(self.forms)}; "
                f"write that number there, or leave it out of --forms"
            )

    def copying(self, form: str) -> CopyingConfig:
        """The settings of one form."""
        shared = {
            name: getattr(self, name) for name in CopyingConfig.__dataclass_fields__ if hasattr(self, name)
        }
        lengths = parse_form(form, self.strings)
        try:
            return CopyingConfig(**shared | lengths)
        except ValueError as error:
            raise ValueError(f"--forms {form}: {error}") from error


# "The networks are small enough that normalization is not critical": arms without norms have none at all.
# Their stream would double with every branch of unit size, so branches have their share of it.
# Of the short form the paper says that there are too many strings to learn by heart. 4,096 are not: networks
# did that, and did not copy.
PAPER = InductionConfig(backbone_norm="none", branches="share", clip=1.0)
SMALL = replace(PAPER, forms=("65536x100+50",), steps=5_000)
DEMO = InductionConfig(
    blocks=2,
    heads=2,
    width=32,
    backbone_norm="none",
    branches="share",
    vocabulary=32,
    strings=4096,
    forms=("16+12",),
    steps=500,
    eval_every=25,
    batch_size=64,
    learning_rate=3e-3,
)

EXPERIMENT = Experiment(
    name="induction",
    order=18,
    package=__name__,
    title="strings that end with a copy of a piece of themselves (Appendix C.3)",
    shows="Norms and projection do not keep a transformer from learning to copy; they speed it up.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    tuning=Tuning(metric="unseen", rates=(5e-4, 1e-3, 2e-3)),
)
