"""Notices that a model has other parameters than its optimizer: a layer was replaced, fused or loaded anew.

Then the optimizer trains tensors that nothing uses, and no error says so.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from nap.projection.misuse import MisuseWarning
from nap.projection.names import shortened
from nap.projection.refusals import held_by
from nap.sharded import reshard_, sharded_parts

CHECK_EVERY = 100  # updates; a check walks through the parameters of the model


class ModelWatch:
    """Warns once if `model` loses parameters that this optimizer holds, or gets others that are trained."""

    def __init__(self, model: nn.Module, optimizer: Any):
        self._model, self._optimizer = model, optimizer
        held = held_by(optimizer)
        # ids, since torch.utils.swap_tensors refuses tensors with weak references; the id of one that is gone
        # may come again, and then the new one goes unnoticed
        self._known = {id(p) for p in model.parameters()}
        self._names = {id(p): name for name, p in model.named_parameters() if id(p) in held}
        self._left, self._warned = CHECK_EVERY, False

    def count(self) -> None:
        """Count an update; check after every hundredth."""
        self._left -= 1
        if not self._left:
            self.check(stacklevel=6)  # the line that called optimizer.step

    def check(self, *, stacklevel: int = 4) -> None:
        """Compare the model's parameters with those of the beginning; the warning names a caller's line."""
        self._left = CHECK_EVERY
        if self._warned:
            return
        reshard_(sharded_parts(self._model))
        now = dict(self._model.named_parameters())
        ids = {id(p) for p in now.values()}
        held = held_by(self._optimizer)
        gone = [f"{name} (replaced)" for key, name in self._names.items() if key in held and key not in ids]
        new = [f"{n} (new)" for n, p in now.items() if p.grad is not None and id(p) not in self._known]
        if gone or new:
            self._warned = True
            kind = type(self._optimizer).__name__
            warnings.warn(
                f"{', '.join(shortened(gone + new))}: the model has other parameters than when its Projector "
                f"was attached (a layer was replaced or fused, peft, load_state_dict(assign=True)). {kind} "
                "does not train what is new, and what was replaced is trained and never used; make all "
                "changes first, then build the optimizer and nap.Projector",
                MisuseWarning,
                stacklevel=stacklevel,
            )
