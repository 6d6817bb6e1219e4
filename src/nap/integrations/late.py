"""A `Projector` for trainers that make their optimizers late."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nap.projection.misuse import MisuseWarning
from nap.projection.project import Projector
from nap.weights import PLAN_ATTRIBUTE


def is_converted(model: nn.Module) -> bool:
    """Whether `nap.normalize_` was called on the model or a part of it.

    >>> is_converted(nn.Linear(2, 2))
    False
    """
    return any(hasattr(module, PLAN_ATTRIBUTE) for module in model.modules())


class LateProjector:
    """Options now, model and optimizers when training starts, radii of a checkpoint in between.

    The radii are those that the weights have at the first `start`, or those of the state that was loaded
    before. They outlast `stop`: a second start with the same model goes on with them.

    Args:
        options: those of `Projector`.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    >>> late = LateProjector(every=2)
    >>> late.start(model, [torch.optim.Adam(model.parameters())]).plan.names("project")
    ['0.weight']
    """

    def __init__(self, **options: Any):
        inspect.signature(Projector).bind(None, **options)  # a typo is an error here, not hours later
        self.projector: Projector | None = None
        self._options = options
        self._model: nn.Module | None = None
        self._loaded: Mapping[str, Any] | None = None

    def start(self, model: nn.Module, optimizers: Iterable[Any], *, resumed: bool = False) -> Projector:
        """Build the projector, unless this model has one, and attach it.

        Args:
            resumed: the weights come from a checkpoint, so their norms are not those of the start; it is
                an error if no state was loaded.
        """
        self.stop()
        if self.projector is None or self._model is not model:
            if resumed and self._loaded is None:
                raise ValueError(
                    "the checkpoint has no radii, for it was written without NaPCallback, and norms of "
                    "trained weights are not those that they started with; to keep the present norms all "
                    "the same, load the weights into the model yourself and train without resuming"
                )
            self.projector, self._model = Projector(model, **self._options), model
        if self._loaded is not None:
            self.projector.load_state_dict(self._loaded)
            self._loaded = None
        with warnings.catch_warnings():  # a trainer's callback asks for norms, or is told to do without
            warnings.filterwarnings("ignore", message=".*has no norms", category=MisuseWarning)
            return self.projector.attach(*optimizers)

    def stop(self) -> None:
        """Let go of the optimizers."""
        if self.projector is not None:
            self.projector.detach()

    def state_dict(self) -> dict[str, Any]:
        """The state of the projector; empty before the first start."""
        if self.projector is not None:
            return self.projector.state_dict()
        return dict(self._loaded or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over radii and counts, at the next start."""
        self._loaded = state or None


def to_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with its radii as numbers; they read back exactly.

    >>> to_json({"radii": {"0.weight": torch.tensor([[0.5]])}, "updates": {"0.weight": 3}})
    {'radii': {'0.weight': {'float32': [[0.5]]}}, 'updates': {'0.weight': 3}}
    """
    radii: Mapping[str, Tensor] = state.get("radii", {})
    lists = {name: {str(r.dtype).removeprefix("torch."): r.tolist()} for name, r in radii.items()}
    return {**state, "radii": lists} if state else {}


def from_json(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state from what `to_json` made of it.

    >>> from_json({"radii": {"0.weight": {"float32": [[0.5]]}}})
    {'radii': {'0.weight': tensor([[0.5000]])}}
    """
    lists = state.get("radii", {}).items()
    radii = {n: torch.tensor(r, dtype=getattr(torch, kind)) for n, of in lists for kind, r in of.items()}
    return {**state, "radii": radii} if state else {}
