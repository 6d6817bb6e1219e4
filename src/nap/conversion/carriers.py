"""Which module carries the norm on a product that a function makes, and what the product is called."""

from __future__ import annotations

import torch
from torch import nn

Part = tuple[int, ...]  # of a weight, as `nap.norms.products.part_of` has it
ProductKey = tuple[str, frozenset[str], Part]  # the module whose forward makes a product, and its weights


def has_direction(weight: torch.Tensor) -> bool:
    """Whether a weight is not all zeros; those that are never stand on the meta device in a trial copy."""
    return weight.is_meta or bool(weight.any())


def product_name(sources: frozenset[str], part: Part) -> str:
    """What a product is listed by."""
    return "+".join(sorted(sources)) + (f" from {part[0]}" if part else "")


def carrier_of(model: nn.Module, site: str, sources: frozenset[str]) -> tuple[str, tuple[str, ...]] | None:
    """The innermost module around a product that all its weights are below, and their paths from there."""
    ids = {id(model.get_parameter(name)) for name in sources}
    while True:
        module = model.get_submodule(site)
        paths = {id(p): path for path, p in module.named_parameters() if id(p) in ids}
        if len(paths) == len(ids):
            names = tuple(sorted(paths.values()))
            return None if any("parametrizations." in name for name in names) else (site, names)
        if not site:
            return None
        site = site.rpartition(".")[0]
