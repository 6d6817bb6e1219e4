"""One update of a transformer on tokens: predict each from those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap import diagnostics
from nap.lab.training.graph import compiled
from nap.lab.training.watch import Watch
from nap.weights import Role

Parts = Mapping[str, slice]  # name of an accuracy → the predictions that it is over, counted from 0


class Trainer:
    """A model, AdamW, the projection after each of its steps, and means over the updates since last read.

    Args:
        learning_rate: a number, or one for each update, counted from 0.
        parts: accuracies that are kept apart, each over some of a string's predictions.
        weight_decay: of matrices; vectors (scales, offsets) are left alone.
        clip: the largest norm of all gradients together.
        half: products in bfloat16.
    """

    def __init__(
        self,
        model: nn.Module,
        projector: nap.Projector | None,
        *,
        learning_rate: float | Callable[[int], float],
        parts: Parts,
        weight_decay: float = 0.0,
        clip: float | None = None,
        half: bool = False,
        compile_: bool = False,
    ):
        self.model, self.projector, self.parts = model, projector, dict(parts)
        self.clip, self.half, self.updates = clip, half, 0
        self._rate = learning_rate if callable(learning_rate) else lambda update: learning_rate
        named = dict(model.named_parameters())
        self.parameters = list(named.values())
        device = self.parameters[0].device
        groups = [
            {"params": [p for p in self.parameters if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=self._rate(0), fused=True)
        self.watch = Watch(list(named), device)
        self.optimizer.found_inf = self.watch.broken  # type: ignore[attr-defined]
        self._too_long = torch.ones((), device=device)  # gradients are divided by it
        if clip is not None:
            self.optimizer.grad_scale = self._too_long  # type: ignore[attr-defined]
        if projector is not None:
            projector.attach(self.optimizer)
        self._right = torch.zeros(len(self.parts), device=device)
        self._since = 0
        self._loss = compiled(self.loss) if compile_ else self.loss

    def step(self, *strings: Tensor) -> None:
        """Learn from a batch of strings (B, L), given whole or in equal parts one after the other.

        What is right is counted before the update.
        """
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        found = [self._backward(part, len(strings)) for part in strings]
        loss, right = (torch.stack(of).sum(0) for of in zip(*found, strict=True))
        with torch.no_grad():
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            norm = self.watch.note_(loss, torch.stack(torch._foreach_norm(gradients)))
            if self.clip is not None:
                self._too_long.copy_((norm / self.clip).clamp(min=1))
            self._right += right
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(self.updates)
        self.optimizer.step()
        self.updates += 1
        self._since += 1

    def _backward(self, strings: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        loss, right = self._loss(strings)
        (loss / parts).backward()
        return loss.detach() / parts, right / parts

    def loss(self, strings: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy of all predictions, and the share of right ones in each part."""
        targets = strings[:, 1:]
        with torch.autocast(strings.device.type, torch.bfloat16, enabled=self.half):
            logits = self.model(strings[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        right = (logits.argmax(-1) == targets).float()
        return loss, torch.stack([right[:, part].mean() for part in self.parts.values()])

    @torch.no_grad()
    def judge(self, batches: Iterable[Tensor]) -> tuple[float, dict[str, float]]:
        """Mean loss and shares of right predictions over batches of equal size, without learning."""
        self.model.eval()
        found = [self.loss(strings) for strings in batches]
        loss, right = (torch.stack(of).mean(0) for of in zip(*found, strict=True))
        return loss.item(), dict(zip(self.parts, right.tolist(), strict=True))

    def read(self) -> dict[str, float]:
        """Means over the updates since the last call; raises where one was not finite."""
        self.watch.check()
        shares = (self._right / max(1, self._since)).tolist()
        self._right.zero_()
        self._since = 0
        return self.watch.read() | dict(zip(self.parts, shares, strict=True))

    def numbers(self) -> dict[str, float]:
        """Norms as they are now, and the rate that they leave."""
        row = {"parameter_norm": float(diagnostics.parameter_norm(self.model))}
        table = nap.weight_groups(self.model)
        if followed := [weight.name for weight in table.of(Role.SCALE_INVARIANT, Role.NORMALISED)]:
            rates = nap.effective_learning_rates(self.model, self.optimizer, weights=followed)
            row["effective_rate"] = torch.tensor(list(rates.values())).double().log().mean().exp().item()
        return row

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": {name: p.detach() for name, p in self.model.named_parameters()},
            "optimizer": self.optimizer.state_dict(),
            "projector": None if self.projector is None else self.projector.state_dict(),
            "watch": self.watch.state_dict(),
            "right": self._right,
            "updates": self.updates,
            "since": self._since,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(state["model"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.projector is not None:
            self.projector.load_state_dict(state["projector"])
        self.watch.load_state_dict(state["watch"])
        self._right.copy_(state["right"])
        self.updates, self._since = state["updates"], state["since"]
