"""Experiments of one's own, which a script added to `MODULES`: how workers, who never run it, know them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec

from nap.lab.experiments import BUILT_IN, MODULES, OWN, modules

VARIABLE = "NAP_OWN_EXPERIMENTS"


def passed_on(names: Iterable[str]) -> dict[str, str]:
    """What the environment of workers has more: the modules of these experiments, and where to look for them.

    Raises ValueError where a worker could not import one of them.
    """
    own = {name: modules()[name] for name in names if (BUILT_IN | OWN).get(name) != modules()[name]}
    for name, module in own.items():
        if not _is_in_a_file(module):
            raise ValueError(
                f"{name}: workers cannot import {module}, which holds its EXPERIMENT, since no file of that "
                f"name is in sys.path; put it into a module of its own, and that into MODULES"
            )
    folders = [os.path.abspath(folder) for folder in sys.path]  # "" is the current one
    return {VARIABLE: json.dumps({"modules": own, "folders": folders})} if own else {}


def adopt() -> None:
    """Know here, in a worker, what `passed_on` gave the driver's environment for it."""
    told = json.loads(os.environ.get(VARIABLE, "null"))
    if told is not None:
        MODULES.update(told["modules"])
        sys.path[:] = dict.fromkeys([*told["folders"], *sys.path])  # in the driver's order


def _is_in_a_file(module: str) -> bool:
    try:
        found = find_spec(module.partition(":")[0])
    except (ImportError, ValueError):  # a package that is not there; one made without a file, as __main__
        return False
    return found is not None and found.origin is not None
