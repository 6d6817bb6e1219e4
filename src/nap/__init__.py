"""Normalize-and-Project: networks that keep learning, with learning rates that are what they say.

    nap.normalize_(model, example_batch)              # step 1: a norm before every nonlinearity
    nap.Projector(model).attach(optimizer)            # step 2: weights back on their sphere
"""

from nap import diagnostics, schedules
from nap.learning_rate import effective_learning_rates, global_effective_learning_rate
from nap.normalize import normalize_, plan
from nap.placement import Plan
from nap.project import Projector
from nap.twins import ImplicitSchedule, TwinPair
from nap.verification import Verification, verify
from nap.weights import Role, weight_groups

__all__ = [
    "ImplicitSchedule",
    "Plan",
    "Projector",
    "Role",
    "TwinPair",
    "Verification",
    "diagnostics",
    "effective_learning_rates",
    "global_effective_learning_rate",
    "normalize_",
    "plan",
    "schedules",
    "verify",
    "weight_groups",
]
