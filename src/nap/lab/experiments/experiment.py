"""What an experiment is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    import torch

    from nap.lab.runner.work import Work

MODULES = {  # name on the command line → module that holds its EXPERIMENT
    "fig1": "nap.lab.experiments.fig1",
    "fig2": "nap.lab.experiments.fig2",
    "fig4": "nap.lab.experiments.fig4",
    "stats": "nap.lab.experiments.stats",
    "revival": "nap.lab.experiments.revival",
    "walk": "nap.lab.experiments.walk",
    "fig3": "nap.lab.experiments.fig3",
    "fig5-suite": "nap.lab.experiments.fig5_suite",
    "fig5-sequential": "nap.lab.experiments.fig5_sequential",
    "fig6": "nap.lab.experiments.fig6",
    "minatar": "nap.lab.experiments.minatar",
    "minatar-ends": "nap.lab.experiments.minatar_ends",
    "minatar-sequential": "nap.lab.experiments.minatar_sequential",
    "ablations": "nap.lab.experiments.ablations",
    "strings": "nap.lab.experiments.strings",
    "induction": "nap.lab.experiments.induction",
    "table1-cifar": "nap.lab.experiments.table1_cifar",
    "table1-imagenet": "nap.lab.experiments.table1_imagenet",
    "table1-language": "nap.lab.experiments.table1_language",
}
OURS = frozenset(MODULES.items())  # what others add to MODULES is not in it


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


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper: settings at three scales, and the runs that they ask for."""

    name: str
    title: str  # a few words
    shows: str  # what the paper shows with it, one sentence
    scales: Mapping[str, Any]  # "demo" | "small" | "paper" → frozen config dataclass with `seeds: int`
    runs: Callable[[Any], list[Run]]
    needs: Mapping[str, str]  # scale → names of data sets, with a comma between; "" for none
    folder: str  # usually the name; experiments that measure the same runs share one
    tuning: Tuning | None = None  # None where learning rates are part of what is tested


def experiments(names: Iterable[str] = MODULES) -> dict[str, Experiment]:
    """Experiments by name, all of them unless some are named.

    This call imports their modules, and torch with them; `MODULES` has the names without that.
    """
    return {name: import_module(MODULES[name]).EXPERIMENT for name in names}
