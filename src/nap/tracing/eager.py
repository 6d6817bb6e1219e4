"""Runs a model as its code says: compiled parts uncompiled, checkpointed parts once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import checkpoint


@contextmanager
def as_written() -> Iterator[None]:
    """Inside, `torch.compile` compiles nothing, and activation checkpointing recomputes nothing.

    Compiled code hides what it calls, and what a gradient recomputes would be recorded twice.
    """
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # importing it here would take seconds, and nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, instead in _INSTEAD.items():
            stack.callback(setattr, checkpoint, name, getattr(checkpoint, name))
            setattr(checkpoint, name, instead)
        yield


class _Once:
    """In place of the autograd function that forgets what it has computed."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


_INSTEAD = {"CheckpointFunction": _Once, "_checkpoint_without_reentrant_generator": _nothing}
