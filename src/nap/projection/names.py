"""Names of parameters across wrappers: the same weight in a compiled, parallel or averaged model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

_SHOWN = 5  # differences listed in an error; the others are counted


def bare_names(names: Iterable[str]) -> dict[str, str]:
    """Each name without the prefixes of wrappers: `_orig_mod.` (compile), a common `module.` (DDP, averages).

    No two names become one: `module.` goes only where every name begins with it.

    >>> bare_names(["module._orig_mod.0.weight", "module._orig_mod.0.bias"])
    {'module._orig_mod.0.weight': '0.weight', 'module._orig_mod.0.bias': '0.bias'}
    """
    bare = {name: name.replace("_orig_mod.", "") for name in names}
    while bare and all(name.startswith("module.") for name in bare.values()):
        bare = {name: short.removeprefix("module.") for name, short in bare.items()}
    return bare


def counterparts(
    other: nn.Module, bare: Mapping[str, str], shapes: Mapping[str, torch.Size]
) -> dict[str, Tensor]:
    """The parameters of another model that have these names and shapes; one that lacks them is refused."""
    there = dict(other.named_parameters(remove_duplicate=False))
    by_bare = {short: there[name] for name, short in bare_names(there).items()}
    parameters: dict[str, Tensor] = {name: by_bare[bare[name]] for name in shapes if bare[name] in by_bare}
    problems = [f"{bare[name]}: not there" for name in shapes if name not in parameters]
    problems += [
        f"{bare[name]}: {list(p.shape)} there, {list(shapes[name])} here"
        for name, p in parameters.items()
        if p.shape != shapes[name]
    ]
    if problems:
        raise ValueError(
            f"this {type(other).__name__} is no copy of the model that was measured, so its weights have "
            "no radii; project_ a copy of the same architecture (copy.deepcopy, AveragedModel), taken "
            + "\n  ".join(["after nap.normalize_:", *shortened(problems)])
        )
    return parameters


def shortened(lines: list[str]) -> list[str]:
    """The first few lines, and how many more there are.

    >>> shortened([str(number) for number in range(9)])
    ['0', '1', '2', '3', '4', '… and 4 more']
    """
    rest = len(lines) - _SHOWN
    return lines if rest <= 0 else [*lines[:_SHOWN], f"… and {rest} more"]
