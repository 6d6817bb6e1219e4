"""What an experiment is: settings at three scales, the runs they ask for, claims and a figure."""

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
    """One piece of work, with a folder of its own."""

    name: str  # of its folder, for example "nap" or "mlp-random-nap-redo"
    config: Any  # a frozen dataclass: everything that determines its rows
    start: Callable[[torch.device], Work]  # loads its data and builds its networks
    distributed: bool = False  # several processes, which torchrun starts, can share it
    group: str = ""  # runs that share a tuned learning rate: its name, if not the run's own
    decides: bool = True  # whether `nap tune` runs it; the others of its group take the rate that is found

    @property
    def tuned_as(self) -> str:
        """The group whose learning rate it takes."""
        return self.group or self.name


@dataclass(frozen=True)
class Tuning:
    """What `nap tune` looks for: the learning rate with the best value of a metric, over seeds of its own."""

    metric: str  # a column of the rows
    rates: tuple[float, ...]  # where the search starts, from low to high; it goes on past the ends if need be
    goal: Literal["highest", "lowest"] = "highest"
    over: Literal["all", "last"] = "all"  # the mean over all rows of a seed that have it, or the last of them
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings for tuning alone: images held out
    setting: ClassVar[str] = "learning_rate"  # what is tuned


def arm_names(arms: Iterable[Any]) -> tuple[str, ...]:
    """The names of arms, in their order."""
    return tuple(arm.name for arm in arms)


def _in_its_package(config: Any) -> list[Run]:
    """Stands for the runs of the package until `Experiment` knows which that is."""
    raise AssertionError


@dataclass(frozen=True)
class Experiment:
    """A figure or table: settings at three scales, and the modules that have its runs, claims and figure.

    `package` is where those are: runs.py has `runs(config)`, claims.py `CLAIMS`, figure.py `figures(rows)`
    and `missing(rows)`. Each is imported when it is needed, so that claims and reports need no torch. An
    experiment in a single module gives `runs` instead. One that is `like` another has that one's modules
    where its package has none of its own.
    """

    name: str
    title: str  # a few words
    shows: str  # what the paper shows with it, one sentence
    scales: Mapping[str, Any]  # "demo" | "small" | "paper" → frozen config dataclass with `seeds: int`
    datasets: Mapping[str, str] = field(default_factory=dict)  # scale → names, separated by commas
    package: str = ""  # `__name__`, in the __init__.py of its package
    runs: Callable[[Any], list[Run]] = _in_its_package
    folder: str = ""  # if not the name: experiments that measure the same runs share one
    tuning: Tuning | None = None  # None where learning rates are part of what is tested
    readers: tuple[str, ...] = ()  # other experiments whose claims and figures are about the same rows
    named_by_scale: bool = True  # whether the scale is a part of its folder's name
    order: float = inf  # its place in `nap list` and in reports
    like: Experiment | None = None  # another one, with settings of the same kind
    claims_note: str = ""  # what the paper states that one's claims for

    def __post_init__(self) -> None:
        if not self.folder:
            object.__setattr__(self, "folder", self.name)
        if self.runs is _in_its_package:
            if not self.package:
                raise ValueError(f"{self.name}: say where its runs are: package=__name__, or runs=")
            # bound to this one: `replace` gives the runs to experiments that share them
            object.__setattr__(self, "runs", partial(_runs, self.package, self.like, self.name))

    @property
    def claims(self) -> Sequence[Claim]:
        """The paper's statements about it."""
        if (module := _module(self.package, "claims")) is not None:
            return module.CLAIMS
        from nap.lab.claims.claim import restated

        return () if self.like is None else restated(self.like.claims, self.name, self.claims_note)

    @property
    def figure(self) -> ModuleType | None:
        """How its rows are drawn; None where it does not say."""
        module = _module(self.package, "figure")
        return self.like.figure if module is None and self.like is not None else module


def _module(package: str, name: str) -> ModuleType | None:
    there = package and find_spec(f"{package}.{name}")
    return import_module(f"{package}.{name}") if there else None


def _runs(package: str, like: Experiment | None, experiment: str, config: Any) -> list[Run]:
    module = _module(package, "runs")
    if module is None and like is not None:
        return import_module(f"{like.package}.runs").runs(config, experiment)
    return import_module(f"{package}.runs").runs(config)


def __getattr__(name: str) -> Any:
    if name in ("MODULES", "experiments"):
        import warnings

        from nap.lab import experiments

        warnings.warn(
            f"nap.lab.experiments.experiment.{name} is now nap.lab.experiments.{name}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(experiments, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
