"""A transformer: how it is built, an update on next-token prediction, its evaluation, and metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.lab.loops.common.nonfinite import UpdateMonitor
from nap.lab.loops.common.optimizer import FOLLOWED, norms_and_rates
from nap.lab.loops.common.parallel import Single
from nap.lab.loops.language.settings import TransformerArm, TransformerConfig
from nap.lab.models.transformer import Transformer
from nap.projection.misuse import MisuseWarning

Spans = Mapping[str, slice]  # name of an accuracy → the predictions that it is over, counted from 0


class Trainer:
    """A model, AdamW, the projection after each step, and metrics since the last row.

    Args:
        learning_rate: a number, or one for each update, counted from 0.
        spans: accuracies by name, each over some of a string's predictions.
        weight_decay: of matrices; vectors (scales, offsets) are left alone.
        clip: the largest norm of all gradients together.
        half: products in bfloat16.
        parallel: over processes, each of which makes the same calls with the same strings.
    """

    def __init__(
        self,
        model: nn.Module,
        projector: nap.Projector | None,
        *,
        learning_rate: float | Callable[[int], float],
        spans: Spans,
        weight_decay: float = 0.0,
        clip: float | None = None,
        half: bool = False,
        compile_: bool = False,
        parallel: Single | None = None,
    ):
        self.model, self.projector, self.spans = model, projector, dict(spans)
        self.parallel = parallel or Single()
        self.net = self.parallel.wrap(model, compile_=compile_)  # the model as it is called in training
        self.clip, self.half, self.updates = clip, half, 0
        self._rate = learning_rate if callable(learning_rate) else lambda update: learning_rate
        by_name = dict(model.named_parameters())
        self.parameters = list(by_name.values())
        device = self.parameters[0].device
        groups = [
            {"params": [p for p in self.parameters if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=self._rate(0), fused=True)
        self.monitor = UpdateMonitor(list(by_name), device)
        self.optimizer.found_inf = self.monitor.broken  # type: ignore[attr-defined]
        self._clip_factor = torch.ones((), device=device)  # gradients are divided by it
        if clip is not None:
            self.optimizer.grad_scale = self._clip_factor  # type: ignore[attr-defined]
        if projector is not None:
            with warnings.catch_warnings():  # weight decay on projected weights is the paper's recipe
                warnings.simplefilter("ignore", MisuseWarning)
                projector.attach(self.optimizer)
        self._accuracies = torch.zeros(len(self.spans), device=device)  # summed since the last reading
        self._since = 0
        self._loss = self.parallel.compile(self._train_loss) if compile_ else self._train_loss

    def update(self, *strings: Tensor) -> None:
        """Learn from a batch of strings (B, L), whole or in equal chunks whose gradients accumulate."""
        self.net.train()
        self.optimizer.zero_grad(set_to_none=True)
        losses = [self._backward(chunk, of=len(strings), at=at) for at, chunk in enumerate(strings)]
        with torch.no_grad():
            loss, *accuracies = self.parallel.mean(torch.stack(losses).sum(0))
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            norm = self.monitor.note_(loss, self.parallel.norms(gradients))
            if self.clip is not None:
                self._clip_factor.copy_((norm / self.clip).clamp(min=1))
            self._accuracies += torch.stack(accuracies)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(self.updates)
        self.optimizer.step()
        self.updates += 1
        self._since += 1

    def _backward(self, strings: Tensor, *, of: int, at: int) -> Tensor:
        """Loss and accuracies of a chunk, divided by the number of chunks, on this process's strings."""
        with self.parallel.accumulation(last=at == of - 1):
            loss, accuracies = self._loss(self.parallel.shard(strings))
            (loss / of).backward()
        return torch.cat([loss.detach().view(1), accuracies]) / of

    def loss(self, strings: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy of all predictions, and the accuracy of each span."""
        return self._loss_of(self.model, strings)

    def _train_loss(self, strings: Tensor) -> tuple[Tensor, Tensor]:
        return self._loss_of(self.net, strings)

    def _loss_of(self, model: nn.Module, strings: Tensor) -> tuple[Tensor, Tensor]:
        targets = strings[:, 1:]
        with torch.autocast(strings.device.type, torch.bfloat16, enabled=self.half):
            logits = model(strings[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        correct = (logits.argmax(-1) == targets).float()
        return loss, torch.stack([correct[:, span].mean() for span in self.spans.values()])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, the model is in eval mode; every process makes the same number of calls."""
        self.model.eval()
        with torch.no_grad(), self.parallel.evaluation():
            yield

    def evaluate(self, batches: Iterable[Tensor]) -> tuple[float, dict[str, float]]:
        """Mean loss and accuracies over all strings of the batches.

        Batches go to the processes in turn. One that has none left repeats the last, which does not count: a
        sharded model needs all processes at every call.
        """
        left, count, rank = iter(batches), 0, self.parallel.rank
        total = torch.zeros(1 + len(self.spans), device=self._accuracies.device)
        with self.evaluating():
            while turn := list(islice(left, self.parallel.world_size)):
                mine = turn[min(rank, len(turn) - 1)]
                loss, accuracies = self.loss(mine)
                total += torch.cat([loss.view(1), accuracies]) * (len(mine) if rank < len(turn) else 0)
                count += sum(map(len, turn))
        loss, *shares = (self.parallel.sum(total) / count).tolist()
        return loss, dict(zip(self.spans, shares, strict=True))

    def logits(self, tokens: Tensor) -> Tensor:
        """The logits (B, L, vocabulary) after tokens (B, L).

        Several processes call it together, with the same tokens, and each gets all of the logits.
        """
        with self.evaluating(), torch.autocast(tokens.device.type, torch.bfloat16, enabled=self.half):
            logits: Tensor = self.model(tokens)
        return logits

    def read(self) -> dict[str, float]:
        """Means over the updates since the last call; raises where one was not finite."""
        self.monitor.check()
        shares = (self._accuracies / max(1, self._since)).tolist()
        self._accuracies.zero_()
        self._since = 0
        return self.monitor.read() | dict(zip(self.spans, shares, strict=True))

    def norms_and_rates(self) -> dict[str, float]:
        followed = [weight.name for weight in nap.weight_groups(self.model).of(*FOLLOWED)]
        return norms_and_rates(self.model, self.optimizer, followed)

    def state_dict(self) -> dict[str, Any]:
        """The same from one process and from several; with several, only rank 0 gets the tensors."""
        optimizer = self.optimizer.state_dict()
        full = {
            at: {key: self.parallel.full_tensor(value) for key, value in moments.items()}
            for at, moments in optimizer["state"].items()
        }
        return {
            "model": {
                name: self.parallel.full_tensor(p.detach()) for name, p in self.model.named_parameters()
            },
            "optimizer": {**optimizer, "state": full},
            "projector": None if self.projector is None else self.projector.state_dict(),
            "watch": self.monitor.state_dict(),
            "right": self._accuracies,  # their sum since the last reading
            "updates": self.updates,
            "since": self._since,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, from any number of processes; each is passed all of it."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(self.parallel.distribute(state["model"][name], parameter))
        order = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        local = {
            at: {key: self.parallel.distribute(value, order[at]) for key, value in moments.items()}
            for at, moments in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": local})
        if self.projector is not None:
            self.projector.load_state_dict(state["projector"])
        self.monitor.load_state_dict(state["watch"])
        self._accuracies.copy_(state["right"])
        self.updates, self._since = state["updates"], state["since"]


def transformer_factory(
    settings: TransformerConfig, vocabulary: int, length: int, *, tied: bool = False, recompute: bool = False
) -> Callable[[], Transformer]:
    """Builds a transformer of these settings for so many tokens and positions at each call."""
    return lambda: Transformer(
        vocabulary,
        length,
        blocks=settings.blocks,
        heads=settings.heads,
        width=settings.width,
        norm=settings.backbone_norm,
        branches=settings.branches,
        positions=settings.positions,
        tied=tied,
        recompute=recompute,
    )


def build(
    arm: TransformerArm, make: Callable[[], nn.Module], tokens: Tensor
) -> tuple[nn.Module, nap.Projector | None]:
    """A fresh network, from the global random state, and its projector, if the arm projects.

    Without norms every weight can be projected too (§C.3 does so): that fixes the scale of the function.
    """
    model = make()
    if arm.norm:
        nap.normalize_(model, tokens, norm=arm.kind, affine="scale_offset" if arm.scale else "none")
        nap.fuse_relus_(model, tokens)
    if not arm.project:
        return model, None
    return model, nap.Projector(model, output=arm.output, embeddings=arm.embeddings, branches=arm.branches)
