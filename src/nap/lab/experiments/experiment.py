"""What an experiment is: settings at three scales, the runs for them, claims and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    import torch

    from nap.lab.claims.claim import Claim
    from nap.lab.runner.work import Work


@dataclass(frozen=True)
class Run:
    """One training run, with a folder of its own."""

    name: str  # of its folder, for example "nap" or "mlp-random-nap-redo"
    config: Any  # a frozen dataclass: everything that determines its rows
    start: Callable[[torch.device], Work]  # loads its data and builds its networks
    distributed: bool = False  # several processes, started by torchrun, can share it
    group: str = ""  # runs that share a tuned learning rate; by default the run alone
    decides: bool = True  # whether `nap tune` runs it; the others of its group take the rate that it finds

    @property
    def tuned_as(self) -> str:
        """The group whose learning rate it takes."""
        return self.group or self.name


@dataclass(frozen=True)
class Tuning:
    """The goal of `nap tune`: the learning rate with the best value of a metric, on tuning seeds."""

    metric: str  # a column of the rows
    rates: tuple[float, ...]  # the first grid, from low to high; the search goes beyond its ends if need be
    goal: Literal["highest", "lowest"] = "highest"
    over: Literal["all", "last"] = "all"  # the mean over all rows of a seed that have it, or the last of them
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings for tuning alone: images held out
    setting: ClassVar[str] = "learning_rate"  # the setting that is tuned


def arm_names(arms: Iterable[Any]) -> tuple[str, ...]:
    """The names of arms, in their order."""
    return tuple(arm.name for arm in arms)


@dataclass(frozen=True)
class Experiment:
    """A figure or table: settings at three scales, and the modules with its runs, claims and figure.

    Its package has runs.py with `runs(config)`, claims.py with `CLAIMS`, and figure.py with `figures(rows)`.
    Each is imported when it is needed, so that claims and reports need no torch. An experiment in a single
    module gives `runs` instead. Where its package has no module, that of its `family` is used, then that of
    the experiment that it is `like`; such a `runs` takes the name of the experiment, too.
    """

    name: str
    title: str  # a few words
    shows: str  # what the paper shows with it, one sentence
    scales: Mapping[str, Any]  # "demo" | "small" | "paper" → frozen config dataclass with `seeds: int`
    datasets: Mapping[str, str] = field(default_factory=dict)  # scale → names, separated by commas
    package: str = ""  # `__name__`, in the __init__.py of its package
    runs: Callable[[Any], list[Run]] = None  # type: ignore[assignment]  # set from the package
    folder: str = ""  # by default its name; experiments with the same runs share one
    tuning: Tuning | None = None  # None if learning rates are part of what is tested
    readers: tuple[str, ...] = ()  # other experiments with claims and figures about the same rows
    named_by_scale: bool = True  # whether the scale is a part of its folder's name
    order: float = inf  # its place in `nap list` and in reports
    family: str = ""  # a package with modules that several experiments share
    like: Experiment | None = None  # another one, with settings of the same class
    claims_note: str = ""  # what the paper states that one's claims for

    def __post_init__(self) -> None:
        if not self.folder:
            object.__setattr__(self, "folder", self.name)
        if self.runs is None:
            if not self.package:
                raise ValueError(f"{self.name}: say where its runs are: package=__name__, or runs=")
            # bound to this one: `replace` gives the runs to experiments that share them
            object.__setattr__(self, "runs", partial(_runs, self))

    @property
    def claims(self) -> Sequence[Claim]:
        """The paper's statements about it."""
        if (module := _module(self.package, "claims")) is not None:
            return module.CLAIMS
        from nap.lab.claims.claim import restated

        return () if self.like is None else restated(self.like.claims, self.name, self.claims_note)

    @property
    def figure(self) -> ModuleType | None:
        """The module that draws its rows, if there is one."""
        return _find(self, "figure")


def _module(package: str, name: str) -> ModuleType | None:
    exists = package and find_spec(f"{package}.{name}")
    return import_module(f"{package}.{name}") if exists else None


def _find(experiment: Experiment, name: str) -> ModuleType | None:
    """The module of its package, of its family, or of the experiment that it is like."""
    module = _module(experiment.package, name) or _module(experiment.family, name)
    return _find(experiment.like, name) if module is None and experiment.like else module


def _runs(experiment: Experiment, config: Any) -> list[Run]:
    module = _find(experiment, "runs")
    if module is None:
        raise ValueError(f"{experiment.name}: {experiment.package} has no module runs.py")
    own = module.__name__ == f"{experiment.package}.runs"
    runs: list[Run] = module.runs(config) if own else module.runs(config, experiment.name)
    return runs
