"""Following an optimizer: which of its steps were real updates, and a hook after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Follow = Callable[[list[str], bool | Tensor], None]


def was_real(optimizer: Any) -> bool | Tensor:
    """Whether the step that just ended changed the weights; asked from a hook after the step.

    Where `GradScaler` finds an inf, most optimizers are not stepped at all. A fused one goes through
    its step and skips on the device, so there the answer is a tensor, and no one has to wait for it.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    return True if found_inf is None else found_inf == 0


def unwrapped(optimizer: Any) -> Any:
    """The torch optimizer inside of wrappers such as accelerate's AcceleratedOptimizer."""
    inner = optimizer
    while not hasattr(inner, "_optimizer_step_post_hooks"):
        if not hasattr(inner, "optimizer"):
            raise ValueError(
                f"{type(optimizer).__name__} is no torch.optim.Optimizer and has none as .optimizer; "
                "call projector.project_() after each update instead"
            )
        inner = inner.optimizer
    return inner


class AfterStep:
    """A hook on one optimizer: after each step it calls follow(names, real), names of what it holds."""

    def __init__(self, optimizer: Any, names: list[str], follow: Follow):
        self.optimizer, self.names, self._follow = optimizer, names, follow
        self._handle: Any = None

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._follow(self.names, was_real(optimizer))

    def attach(self) -> None:
        self._handle = self.optimizer.register_step_post_hook(self)

    def detach(self) -> None:
        self._handle.remove()

    @property
    def alive(self) -> bool:
        """Whether it still hangs on its optimizer: hooks vanish where an optimizer is unpickled."""
        return self._handle.id in self.optimizer._optimizer_step_post_hooks
