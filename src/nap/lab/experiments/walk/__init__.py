"""Random walks of pre-activations as a model of dying ReLUs (Appendix C.4, "ReLU revival").

A layer's d pre-activations v walk under gradients that are pure noise z ~ N(0, I):

    GD              v ← v + max(v, 0) ⊙ z                       RMSProp: the sign of each update
    GD + norm       v ← v + zᵀ ∇_v max(v/‖v‖, 0)
    ... + centring  v ← v + zᵀ ∇_v max(u/‖u‖, 0),  u = v − mean(v)

A unit is dead while the input of its ReLU (v, or u with centring) is not positive. Three things the
paper leaves open are settings: where the walk starts; the first equation's max(v, 0) where the
derivative of a ReLU would be 1[v > 0] (`gate`); and the size of a step, since dividing by ‖v‖ ≈ √d
also makes steps √d times smaller, which `norm="rms"` undoes.
"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.walk.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="walk",
    order=14,
    package=__name__,
    title="random walks of dead units (Appendix C.4)",
    shows="Without a norm dead units only accumulate; a norm slows that under GD and ends it under RMSProp.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
)
