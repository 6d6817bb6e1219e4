"""Figure 1: one network learns new random labels, task after task, with and without LayerNorm and projection.

Runs that keep the optimizer's state at a change of task and runs that reset it get separate verdicts.
"""

from __future__ import annotations

from nap.lab.claims.claim import Claim, Evidence, Region, grouped
from nap.lab.claims.effects import (
    CONSTANT,
    FALLS,
    FALLS_SHARPLY,
    GROWS,
    GROWS_RAPIDLY,
    TENTH,
    above_chance,
    accuracy_falls,
    accuracy_kept,
    correlation,
    decide,
    difference,
    growth,
)
from nap.lab.claims.samples import Samples, paired
from nap.lab.experiments.experiment import arm_names
from nap.lab.experiments.fig1 import PAPERS_ARMS
from nap.lab.loops.population.settings import NAP_NO_AFFINE

NO_NORM, LAYER_NORM, RESCALED, NAP, FRESH, _ = arm_names(PAPERS_ARMS)
NO_AFFINE = NAP_NO_AFFINE.name
CAPTION, TEXT = "Figure 1, caption", "Section 3.2"


def norm_and_accuracy(samples: Samples, arm: str) -> Evidence:
    """The correlation of parameter norm and accuracy over tasks: negative, with r² above a tenth."""
    accuracy = samples.series("accuracy", arm=arm)
    r = correlation(samples.series("parameter_norm", arm=arm), accuracy)
    region = Region(high=-(TENTH**0.5))
    return decide("parameter norm and accuracy, over tasks", r, region, unit="correlation")


def without_affine(samples: Samples) -> Evidence:
    """Mean online accuracy of NaP without learnable scale and offset: within a tenth of NaP's."""
    ours, theirs = paired(*(samples.series("accuracy", arm=arm) for arm in (NO_AFFINE, NAP)))
    tenth = TENTH * above_chance(theirs.values, f"arm {NAP!r}")
    quantity = "mean online accuracy, NaP without learnable scale and offset minus NaP with them"
    return difference(quantity, ours.mean(), theirs.mean(), Region(-tenth, tenth))


CLAIMS = grouped(
    ("optimizer_state",),
    Claim(
        "fig1.no-norm-accuracy-falls",
        "Without normalization, later tasks are learnt less well than the first.",
        TEXT,
        lambda s: accuracy_falls(s, arm=NO_NORM),
    ),
    Claim(
        "fig1.no-norm-parameter-norm",
        "Without normalization, the parameter norm grows rapidly.",
        CAPTION,
        lambda s: growth(s, "parameter_norm", GROWS_RAPIDLY, arm=NO_NORM),
    ),
    # Such a network may die on the way, and a dead one has no gradient: growth is up to the peak.
    Claim(
        "fig1.no-norm-gradient-norm",
        "Without normalization, the gradient norm grows rapidly.",
        CAPTION,
        lambda s: growth(s, "gradient_norm", GROWS_RAPIDLY, peak=True, arm=NO_NORM),
    ),
    Claim(
        "fig1.no-norm-jacobian-norm",
        "Without normalization, the Jacobian norm grows to unstable values.",
        TEXT,
        lambda s: growth(s, "jacobian_norm", GROWS_RAPIDLY, peak=True, arm=NO_NORM),
    ),
    Claim(
        "fig1.no-norm-norm-against-accuracy",
        "Without normalization, accuracy is lower where the parameter norm is larger.",
        TEXT,
        lambda s: norm_and_accuracy(s, NO_NORM),
    ),
    Claim(
        "fig1.layernorm-parameter-norm",
        "With LayerNorm, the parameter norm grows too.",
        CAPTION,
        lambda s: growth(s, "parameter_norm", GROWS, arm=LAYER_NORM),
    ),
    Claim(
        "fig1.layernorm-gradient-norm",
        "With LayerNorm, the gradient norm falls as the parameters grow.",
        CAPTION,
        lambda s: growth(s, "gradient_norm", FALLS, arm=LAYER_NORM),
    ),
    Claim(
        "fig1.layernorm-jacobian-norm",
        "With LayerNorm, the Jacobian norm falls sharply.",
        TEXT,
        lambda s: growth(s, "jacobian_norm", FALLS_SHARPLY, arm=LAYER_NORM),
    ),
    Claim(
        "fig1.layernorm-effective-rate",
        "With LayerNorm, the effective learning rate falls as the parameters grow.",
        f"{TEXT}, Definition 1",
        lambda s: growth(s, "effective_rate", FALLS, arm=LAYER_NORM),
    ),
    Claim(
        "fig1.layernorm-accuracy-falls",
        "With LayerNorm alone, later tasks are learnt less well than the first.",
        CAPTION,
        lambda s: accuracy_falls(s, arm=LAYER_NORM),
    ),
    Claim(
        "fig1.layernorm-norm-against-accuracy",
        "With LayerNorm, accuracy is lower where the parameter norm is larger.",
        TEXT,
        lambda s: norm_and_accuracy(s, LAYER_NORM),
    ),
    Claim(
        "fig1.rescaled-keeps-accuracy",
        "With LayerNorm and weights rescaled after every task, the last tasks are learnt as well as from a "
        "fresh initialisation.",
        CAPTION,
        lambda s: accuracy_kept(s, RESCALED, FRESH),
    ),
    Claim(
        "fig1.nap-keeps-accuracy",
        "With NaP, the last tasks are learnt as well as from a fresh initialisation.",
        f"{CAPTION}; Section 3.3",
        lambda s: accuracy_kept(s, NAP, FRESH),
    ),
    Claim(
        "fig1.nap-effective-rate",
        "With NaP, the effective learning rate stays constant.",
        "Section 4",
        lambda s: growth(s, "effective_rate", CONSTANT, arm=NAP),
    ),
    Claim(
        "fig1.no-affine-little-effect",
        "Removing the learnable scale and offset from NaP has little effect.",
        "Section 3.3, footnote",
        without_affine,
    ),
)
