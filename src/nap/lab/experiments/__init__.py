"""The experiments, one package each: the paper's in this folder, others through entry points.

A distribution with experiments of its own names them in its pyproject.toml:

    [project.entry-points."nap.experiments"]
    affine = "mypackage.affine"  # the package (or module) that has EXPERIMENT

A script can add one, too: `MODULES["affine"] = "affine"`. Nothing here imports torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from importlib import import_module, metadata
from pathlib import Path

from nap.lab.experiments.experiment import Experiment

GROUP = "nap.experiments"  # of entry points
SHARED = "common"  # the package with code that several experiments share
UNLISTED = {"compare": f"{__name__}.compare"}  # for `nap compare`; not the paper's, so in none of its lists


def _built_in() -> dict[str, str]:
    """Names and packages of this folder, the paper's figures first."""
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/__init__.py")}
    names = sorted(folders - {SHARED, *UNLISTED}, key=lambda name: (not name.startswith("fig"), name))
    return {name.replace("_", "-"): f"{__name__}.{name}" for name in names}


def _installed() -> dict[str, str]:
    """Names and modules that installed distributions provide."""
    modules = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in BUILT_IN:
            warnings.warn(
                f"{entry.value} calls its experiment {entry.name!r}, which is the name of one of the "
                "paper's: it cannot be run; rename its entry point",
                stacklevel=2,
            )
        else:
            modules[entry.name] = entry.value
    return modules


BUILT_IN = _built_in()
MODULES = BUILT_IN | _installed()  # name on the command line → module that has its EXPERIMENT


def modules() -> dict[str, str]:
    """Every experiment's name with its module, the unlisted ones included."""
    return MODULES | UNLISTED


def load(name: str) -> Experiment:
    """The experiment of that name; ValueError if its module cannot be imported or has none."""
    module, _, attribute = modules()[name].partition(":")
    try:
        experiment = getattr(import_module(module), attribute or "EXPERIMENT")
    except (ImportError, AttributeError) as error:
        if name in BUILT_IN | UNLISTED:
            raise  # a package that the lab needs is not installed
        raise ValueError(
            f"the experiment {name} cannot be loaded from {MODULES[name]}: {error}; correct that module, or "
            "uninstall the distribution that names it"
        ) from error
    if getattr(experiment, "name", None) != name:
        raise ValueError(f"EXPERIMENT in {MODULES[name]} is not named {name!r}; give it that name")
    assert isinstance(experiment, Experiment)
    return experiment


def experiments(names: Iterable[str] | None = None) -> dict[str, Experiment]:
    """Experiments by name, in the paper's order; all of them by default."""
    loaded = [load(name) for name in (MODULES if names is None else names)]
    return {each.name: each for each in sorted(loaded, key=lambda each: (each.order, each.name))}


def readers(name: str) -> list[Experiment]:
    """The experiments with claims or figures about rows of this name; empty if it is unknown."""
    if name not in modules():
        return []
    experiment = load(name)
    return [experiment, *map(load, experiment.readers)]
