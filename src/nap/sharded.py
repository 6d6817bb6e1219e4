"""Networks in pieces (`fully_shard`, FSDP2): what is read and written between two passes must be the pieces.

After a forward that no backward follows, an evaluation for one, the outermost module keeps its parameters
whole. They are copies then: what is written into them is lost.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def sharded_parts(model: nn.Module) -> list[Any]:
    """The modules of `model` whose parameters lie in pieces."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # who did not import it has none
    kind = getattr(fsdp, "FSDPModule", None)
    return [] if kind is None else [module for module in model.modules() if isinstance(module, kind)]


def reshard_(parts: Iterable[Any]) -> None:
    """Put the parameters of these modules back into pieces, where they are whole."""
    for part in parts:
        part.reshard()


@contextmanager
def resharded(model: nn.Module) -> Iterator[None]:
    """In it, a forward leaves all parameters in pieces, as training does."""

    def after(module: Any, *_: Any) -> None:
        module.reshard()

    hooks = [part.register_forward_hook(after) for part in sharded_parts(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
