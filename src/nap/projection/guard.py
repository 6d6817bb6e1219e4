"""Noticing that weights move without a projection: steps that an attached optimizer does not take in `step`.

An optimizer that steps in two halves (SAM's first_step and second_step), or lets another one inside of it do
the work, is never seen to step: hooks hang on `step`. But weights that move have a new version at the next
backward pass, and that is looked at here, for one weight of each optimizer: two numbers are compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nap.projection.misuse import MisuseWarning

_PATIENCE = 4  # backward passes in a row that found a weight moved, with no step in between


class MoveGuard:
    """Watches one weight of an optimizer, and warns once if it keeps moving between the optimizer's steps.

    A weight may move for other reasons (a checkpoint is loaded, an average swapped in and out), and a SAM
    whose inner optimizer is followed moves it once for each step. So one such pass is no sign.

    Args:
        strict: what is done to a step depends on all of it: an error instead of a warning, also where the
            weight moves between the backward passes of one step, as in LBFGS.
    """

    def __init__(self, name: str, find: Callable[[], Tensor], optimizer: Any, *, strict: bool = False):
        self.name, self._find, self._optimizer, self._strict = name, find, optimizer, strict
        self._inside = False  # of a step; one that raised never ends
        self._found = 0  # backward passes since the last step that found it moved
        self._warned = False
        self._handle: Any = None
        self._watched: Tensor | None = None
        self._look()

    def stepped(self, *, by_hand: bool = False) -> None:
        """The optimizer took a step, and what is to be projected has been, by the hook or by hand."""
        if not (by_hand and self._strict):
            self._found, self._inside = 0, False
        self._look()

    def began(self) -> None:
        """The optimizer begins a step."""
        self._found, self._inside = 0, True
        self._look()

    def _look(self) -> None:
        """Remember how the weight is now; it may be another tensor (after `.to()`, say) than before."""
        weight = self._find()
        if weight is not self._watched or (self._handle is None and weight.requires_grad):
            self.remove()
            self._watched = weight
            if weight.requires_grad and weight.is_leaf:
                self._handle = weight.register_post_accumulate_grad_hook(self._after_backward)
        self._version = weight._version

    def _after_backward(self, weight: Tensor) -> None:
        if weight._version == self._version:
            return
        self._version = weight._version
        self._found += 1
        if self._strict and self._inside and self._found == 2:
            raise ValueError(
                f"{self.name} moved between backward passes of one {type(self._optimizer).__name__}.step: "
                "its updates cannot be seen one by one, so none can be limited; take an optimizer that moves "
                "the weights once in a step, or Projector(model, update='free', brake=1)"
            )
        if self._found >= _PATIENCE and not self._warned:
            if self._strict:
                raise ValueError(self._message())
            self._warned = True
            warnings.warn(self._message(), MisuseWarning, stacklevel=2)

    def _message(self) -> str:
        kind = type(self._optimizer).__name__
        inner = next((n for n in _INNER if _is_optimizer(getattr(self._optimizer, n, None))), None)
        way = f"attach(optimizer.{inner}), " if inner else ""
        way += "take Projector(model, update='free', brake=1) and " if self._strict else ""
        return (
            f"{self.name} moved before each of {self._found} backward passes, and {kind}.step was not "
            "called in between, so the weights are not projected: another optimizer moves them, or this one "
            f"by other methods than step, as SAM does; {way}attach the one that moves them, or call "
            "projector.project_() after each update"
        )

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._watched = None


_INNER = ("base_optimizer", "optimizer", "inner_optimizer", "_optimizer")


def _is_optimizer(thing: Any) -> bool:
    return isinstance(thing, torch.optim.Optimizer) or hasattr(thing, "_optimizer_step_post_hooks")
