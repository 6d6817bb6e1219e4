"""Normalize-and-Project: networks that keep learning, with learning rates that are what they say.

    nap.normalize_(model, example_batch)              # step 1: a norm before every nonlinearity
    nap.Projector(model).attach(optimizer)            # step 2: weights back on their sphere

The names below are loaded when they are first used, so that figures can be redrawn from stored rows,
and `nap --help` answered, without importing torch.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nap import diagnostics, schedules
    from nap.checkpoints import load, save
    from nap.conversion.coverage import coverage
    from nap.conversion.fusing import fuse_batch_norms_, fuse_relus_
    from nap.conversion.normalize import normalize_, plan
    from nap.conversion.placement import Plan
    from nap.conversion.verification import verify
    from nap.presets import prepare
    from nap.projection.project import Projector
    from nap.rates.implicit import ImplicitSchedule
    from nap.rates.learning_rate import effective_learning_rates, global_effective_learning_rate
    from nap.rates.twins import TwinPair
    from nap.weights import Role, weight_groups

__version__ = "0.1.0"  # the one place that says it: pyproject.toml reads it here

__all__ = [
    "ImplicitSchedule",
    "Plan",
    "Projector",
    "Role",
    "TwinPair",
    "coverage",
    "diagnostics",
    "effective_learning_rates",
    "fuse_batch_norms_",
    "fuse_relus_",
    "global_effective_learning_rate",
    "load",
    "normalize_",
    "plan",
    "prepare",
    "save",
    "schedules",
    "verify",
    "weight_groups",
]

_MODULE = {
    "ImplicitSchedule": "rates.implicit",
    "Plan": "conversion.placement",
    "Projector": "projection.project",
    "Role": "weights",
    "TwinPair": "rates.twins",
    "coverage": "conversion.coverage",
    "effective_learning_rates": "rates.learning_rate",
    "fuse_batch_norms_": "conversion.fusing",
    "fuse_relus_": "conversion.fusing",
    "global_effective_learning_rate": "rates.learning_rate",
    "load": "checkpoints",
    "normalize_": "conversion.normalize",
    "plan": "conversion.normalize",
    "prepare": "presets",
    "save": "checkpoints",
    "verify": "conversion.verification",
    "weight_groups": "weights",
}

_RENAMED = {"join_batch_norms_": "fuse_batch_norms_", "join_relus_": "fuse_relus_"}  # old name → new name


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"nap.{name} is now nap.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return getattr(import_module("nap"), _RENAMED[name])
    if name not in __all__:
        raise AttributeError(f"module 'nap' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = import_module(f"nap.{_MODULE.get(name, name)}")
    value = getattr(module, name) if name in _MODULE else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
