"""An image classifier in training: a model, its optimizer, one update, and what came of the last ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap import diagnostics
from nap.lab.loops.common.cuda_graph import capture
from nap.lab.loops.common.nonfinite import UpdateMonitor
from nap.lab.loops.common.parallel import Single
from nap.weights import Role

WORTH_COMPILING = 20_000  # updates of a run; a guess: it takes a minute or two and saves milliseconds
FOLLOWED = (Role.SCALE_INVARIANT, Role.NORMALISED)
Rates = Callable[[int], tuple[float, float]]  # of each update: of followed weights, and of all others


class Recipe(Protocol):
    """What an update needs to know of the settings."""

    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def decay_scales(self) -> bool: ...
    @property
    def smoothing(self) -> float: ...


class Classifier:
    """A model, SGD with Nesterov's momentum, the projection after each step, and what is right so far.

    An update waits for nothing on the device, so all of it can be recorded as a CUDA graph.

    Args:
        half: products in bfloat16.
        parallel: over processes, each of which makes the same calls with its share of the images.
    """

    def __init__(
        self,
        model: nn.Module,
        projector: nap.Projector | None,
        recipe: Recipe,
        *,
        half: bool = False,
        compile_: bool = False,
        parallel: Single | None = None,
    ):
        self.model, self.projector, self.recipe, self.half = model, projector, recipe, half
        self.parallel = parallel or Single()
        self.net = self.parallel.wrap(model, compile_=compile_)  # the model, as it is called to learn
        named = dict(model.named_parameters())
        self.parameters = list(named.values())
        device = self.parameters[0].device
        self.followed = [weight.name for weight in nap.weight_groups(model).of(*FOLLOWED)]
        self.rates = torch.zeros((), device=device), torch.zeros((), device=device)
        rest = [p for name, p in named.items() if name not in self.followed]
        (of_followed, of_rest), decay = self.rates, recipe.weight_decay
        groups: list[dict[str, Any]] = [
            {"params": [named[name] for name in self.followed], "lr": of_followed, "weight_decay": decay},
            {"params": [p for p in rest if p.ndim >= 2], "lr": of_rest, "weight_decay": decay},
            {
                "params": [p for p in rest if p.ndim < 2],
                "lr": of_rest,
                "weight_decay": decay * recipe.decay_scales,
            },
        ]
        self.optimizer = torch.optim.SGD(
            [group for group in groups if group["params"]],
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
            fused=True,
        )
        if recipe.momentum > 0:
            for parameter in self.parameters:  # they must be there before a graph is recorded
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.watch = UpdateMonitor(list(named), device)
        self.optimizer.found_inf = self.watch.broken  # type: ignore[attr-defined]
        self._loss = self.parallel.compile(self._learnt_loss) if compile_ else self._learnt_loss
        self.right = torch.zeros((), dtype=torch.int64, device=device)

    def set_rates_(self, followed: float, others: float) -> None:
        """The learning rates of the updates to come: of weights that a norm follows, and of all others."""
        for held, rate in zip(self.rates, (followed, others), strict=True):
            held.fill_(rate)

    def update(self, *batch: Tensor) -> None:
        """Learn from this process's share of a batch, at the rates that were set."""
        loss, right = self._loss(*batch)
        norms = self._gradient_norms(loss)
        with torch.no_grad():
            self._note_(self.parallel.mean(loss.detach()), self.parallel.sum(right), norms)
        self._descend_()

    def recorded(self, step: Callable[[], None], *more: Tensor) -> Callable[[], None]:
        """`step`, which makes an update, as a CUDA graph; what it changes, `more` too, stays as it is here.

        After `load_state_dict` it must be recorded anew: the projector has other radii then.
        """
        return capture(step, [*self.changing(), *more])

    def changing(self) -> list[Tensor]:
        """All that an update changes."""
        momenta = [buffer for state in self.optimizer.state.values() for buffer in state.values()]
        return [*self.parameters, *momenta, *self.model.buffers(), *self.watch.tensors, self.right]

    def _gradient_norms(self, loss: Tensor) -> Tensor:
        """Find the gradients; the norm of each."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        with torch.no_grad():
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            return torch.stack(torch._foreach_norm(gradients))

    def _note_(self, loss: Tensor, right: Tensor, norms: Tensor) -> None:
        """See an update before it is made."""
        self.watch.note_(loss, norms)
        self.right += right

    def _descend_(self) -> None:
        """Make the update."""
        self.optimizer.step()
        if self.projector is not None:
            self.projector.project_()  # by hand: what an attached one counts would be lost in a graph

    def _learnt_loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self._loss_of(self.net, images, labels, self.recipe.smoothing)

    def _loss_of(
        self, net: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy, and how many predictions are right."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.half):
            logits = net(images).float()
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        return loss, (logits.argmax(-1) == labels).sum()

    @torch.no_grad()
    def judged(self, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """Loss, without smoothing, and accuracy on images and labels, without learning.

        Several processes are judged on different images, and each gets the numbers of all.
        """
        self.model.eval()
        self.parallel.broadcast_buffers_(self.model)
        sums = torch.zeros(3, dtype=torch.float64, device=self.right.device)  # of loss, right, images
        for images, labels in batches:
            loss, right = self._loss_of(self.model, images, labels, 0.0)
            sums[0] += loss * len(labels)
            sums[1] += right
            sums[2] += len(labels)
        loss_sum, right_sum, count = self.parallel.sum(sums).tolist()
        return {"test_loss": loss_sum / count, "test_accuracy": right_sum / count}

    def read(self, seen: int) -> dict[str, float]:
        """Means over the updates since the last call, on `seen` images; raises where one was not finite."""
        self.watch.check()
        accuracy = self.right.item() / max(1, seen)
        self.right.zero_()
        return self.watch.read() | {"accuracy": accuracy}

    def numbers(self) -> dict[str, float]:
        """Norms as they are now, and the rate that they leave."""
        row = {"parameter_norm": float(diagnostics.parameter_norm(self.model))}
        if self.followed:
            rates = nap.effective_learning_rates(self.model, self.optimizer, weights=self.followed)
            row["effective_rate"] = torch.tensor(list(rates.values())).double().log().mean().exp().item()
        return row

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "momentum": [self.optimizer.state[p].get("momentum_buffer") for p in self.parameters],
            "projector": None if self.projector is None else self.projector.state_dict(),
            "watch": self.watch.state_dict(),
            "right": self.right,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        held = self.model.state_dict()
        if apart := sorted(held.keys() ^ state["model"].keys()):
            raise ValueError(f"this state is of another network: one of the two has no {apart[0]}")
        for name, tensor in held.items():  # into the tensors that are there: a recorded graph reads those
            tensor.copy_(state["model"][name])
        for parameter, momentum in zip(self.parameters, state["momentum"], strict=True):
            if momentum is not None:
                self.optimizer.state[parameter]["momentum_buffer"].copy_(momentum)
        if self.projector is not None:
            self.projector.load_state_dict(state["projector"])
        self.watch.load_state_dict(state["watch"])
        self.right.copy_(state["right"])
