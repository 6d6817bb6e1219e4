"""TorchScript: functions are read as they were written, modules recorded at their calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nap.tracing.operations import operation_name

if TYPE_CHECKING:
    from nap.tracing.recorder import Recorder


def names_of_function(name: str) -> set[str]:
    """The names that a function goes by: a scripted one its own, too."""
    return {name, name.removeprefix("script.")}


@contextmanager
def watched(rec: Recorder) -> Iterator[None]:
    """Inside, the recorder is told of each call of scripted functions and of the model's scripted modules."""
    plain = torch.jit.ScriptFunction.__call__

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        name = operation_name(function)
        written = getattr(function, "_torchdynamo_inline", None)  # the Python that was scripted
        if written is not None and rec.told.kind(names_of_function(name)) is None:
            return written(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return rec.call(name, lambda *a, **k: plain(function, *a, **k), args, kwargs)

    def enter(module: nn.Module, args: Any) -> None:
        if isinstance(module, torch.jit.ScriptModule) and id(module) in rec.names:
            rec._enter(module, args, {})

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(module, torch.jit.ScriptModule) and id(module) in rec.names:
            return rec._exit(module, args, {}, output)
        return None

    handles = []
    if any(isinstance(module, torch.jit.ScriptModule) for module in rec.modules.values()):
        handles = [  # a scripted module takes no hooks of its own
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave),
        ]
    torch.jit.ScriptFunction.__call__ = called  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.jit.ScriptFunction.__call__ = plain  # type: ignore[method-assign]
        for handle in handles:
            handle.remove()
