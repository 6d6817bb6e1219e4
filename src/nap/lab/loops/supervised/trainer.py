"""An image classifier: how it is built, an update, its evaluation, and the metrics since the last row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.lab.loops.common.cuda_graph import capture
from nap.lab.loops.common.nonfinite import UpdateMonitor
from nap.lab.loops.common.optimizer import FOLLOWED, norms_and_rates, state_tensors
from nap.lab.loops.common.parallel import Single
from nap.lab.loops.supervised.settings import CifarConfig, ImageNetConfig, VisionArm
from nap.lab.models.resnet import ResNetV2
from nap.lab.models.vgg import vgg

WORTH_COMPILING = 20_000  # updates of a run; a guess: it takes a minute or two and saves milliseconds
Rates = Callable[[int], tuple[float, float]]  # of each update: of weights that a norm follows, and of others


class Trainer:
    """A model, SGD with Nesterov momentum, the projection after each step, and metrics.

    An update never waits for the device, so that a CUDA graph can hold all of it.

    Args:
        half: products in bfloat16.
        parallel: over processes, each of which makes the same calls with its share of the images.
    """

    def __init__(
        self,
        model: nn.Module,
        projector: nap.Projector | None,
        settings: CifarConfig | ImageNetConfig,
        *,
        half: bool = False,
        compile_: bool = False,
        parallel: Single | None = None,
    ):
        self.model, self.projector, self.settings, self.half = model, projector, settings, half
        self.parallel = parallel or Single()
        self.net = self.parallel.wrap(model, compile_=compile_)  # the model, as it is called in training
        named = dict(model.named_parameters())
        self.parameters = list(named.values())
        device = self.parameters[0].device
        self.followed = [weight.name for weight in nap.weight_groups(model).of(*FOLLOWED)]
        self.rates = torch.zeros((), device=device), torch.zeros((), device=device)
        rest = [p for name, p in named.items() if name not in self.followed]
        (of_followed, of_rest), decay = self.rates, settings.weight_decay
        vector_decay = decay * settings.decay_scales
        groups: list[dict[str, Any]] = [
            {"params": [named[name] for name in self.followed], "lr": of_followed, "weight_decay": decay},
            {"params": [p for p in rest if p.ndim >= 2], "lr": of_rest, "weight_decay": decay},
            {"params": [p for p in rest if p.ndim < 2], "lr": of_rest, "weight_decay": vector_decay},
        ]
        self.optimizer = torch.optim.SGD(
            [group for group in groups if group["params"]],
            momentum=settings.momentum,
            nesterov=settings.momentum > 0,
            fused=True,
        )
        if settings.momentum > 0:
            for parameter in self.parameters:  # they must exist before a graph is captured
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.monitor = UpdateMonitor(list(named), device)
        self.optimizer.found_inf = self.monitor.broken  # type: ignore[attr-defined]
        self._loss = self.parallel.compile(self._training_loss) if compile_ else self._training_loss
        self.num_correct = torch.zeros((), dtype=torch.int64, device=device)

    def set_rates_(self, followed: float, others: float) -> None:
        """Set the learning rates of weights that a norm follows, and of all others."""
        for rate, value in zip(self.rates, (followed, others), strict=True):
            rate.fill_(value)

    def update(self, *batch: Tensor) -> None:
        """Learn from this process's share of a batch."""
        loss, correct = self._loss(*batch)
        norms = self._backward(loss)
        with torch.no_grad():
            self._record_(self.parallel.mean(loss.detach()), self.parallel.sum(correct), norms)
        self._apply_update_()

    def captured(self, step: Callable[[], None], *more: Tensor) -> Callable[[], None]:
        """`step`, which makes an update and may change `more`, as a CUDA graph; nothing is changed here.

        Capture it again after `load_state_dict`: the projector's radii have changed.
        """
        return capture(step, [*self.changing(), *more])

    def changing(self) -> list[Tensor]:
        moments = state_tensors(self.optimizer)
        return [*self.parameters, *moments, *self.model.buffers(), *self.monitor.tensors, self.num_correct]

    def _training_loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self._loss_and_correct(self.net, images, labels, self.settings.label_smoothing)

    def _loss_and_correct(
        self, net: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy, and the number of correct predictions."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.half):
            logits = net(images).float()
        loss = F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
        return loss, (logits.argmax(-1) == labels).sum()

    def _backward(self, loss: Tensor) -> Tensor:
        """Compute the gradients; the norm of each."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        with torch.no_grad():
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            return torch.stack(torch._foreach_norm(gradients))

    def _record_(self, loss: Tensor, correct: Tensor, norms: Tensor) -> None:
        self.monitor.note_(loss, norms)
        self.num_correct += correct

    def _apply_update_(self) -> None:
        self.optimizer.step()
        if self.projector is not None:
            self.projector.project_()  # by hand: an attached one counts steps, which a graph would lose

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """Loss, without label smoothing, and accuracy on batches of images and labels.

        Several processes evaluate different images, and each gets the numbers of all.
        """
        self.model.eval()
        self.parallel.broadcast_buffers_(self.model)
        sums = torch.zeros(3, dtype=torch.float64, device=self.num_correct.device)  # loss, correct, images
        for images, labels in batches:
            loss, correct = self._loss_and_correct(self.model, images, labels, 0.0)
            sums[0] += loss * len(labels)
            sums[1] += correct
            sums[2] += len(labels)
        loss_sum, num_correct, count = self.parallel.sum(sums).tolist()
        return {"test_loss": loss_sum / count, "test_accuracy": num_correct / count}

    def read(self, images: int) -> dict[str, float]:
        """Means over the updates since the last call, on so many images; raises if one was not finite."""
        self.monitor.check()
        accuracy = self.num_correct.item() / max(1, images)
        self.num_correct.zero_()
        return self.monitor.read() | {"accuracy": accuracy}

    def norms_and_rates(self) -> dict[str, float]:
        return norms_and_rates(self.model, self.optimizer, self.followed)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "momentum": [self.optimizer.state[p].get("momentum_buffer") for p in self.parameters],
            "projector": None if self.projector is None else self.projector.state_dict(),
            "watch": self.monitor.state_dict(),
            "right": self.num_correct,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        model = self.model.state_dict()
        if differing := sorted(model.keys() ^ state["model"].keys()):
            raise ValueError(f"this state is of another network: one of the two has no {differing[0]}")
        for name, tensor in model.items():  # in place: a captured graph reads these tensors
            tensor.copy_(state["model"][name])
        for parameter, momentum in zip(self.parameters, state["momentum"], strict=True):
            if momentum is not None:
                self.optimizer.state[parameter]["momentum_buffer"].copy_(momentum)
        if self.projector is not None:
            self.projector.load_state_dict(state["projector"])
        self.monitor.load_state_dict(state["watch"])
        self.num_correct.copy_(state["right"])


EPS = 1e-5  # absolute: as fast as a norm written by hand, and weights on their sphere never come near it


def vgg_factory(config: CifarConfig, shape: Sequence[int], classes: int) -> Callable[[], nn.Module]:
    return lambda: vgg(
        shape,
        classes,
        channels=config.channels,
        global_pool=config.global_pool,
        hidden=config.hidden,
        batch_norm=config.batch_norm,
        dropout=config.dropout,
        init_std_scale=config.init_std_scale,
        weight_norm=config.weight_norm,
    )


def resnet_factory(config: ImageNetConfig, classes: int) -> Callable[[], nn.Module]:
    return lambda: ResNetV2(
        3, classes, blocks=config.blocks, width=config.width, small_stem=config.small_stem
    )


def build(
    arm: VisionArm, make: Callable[[], nn.Module], images: Tensor, **options: Any
) -> tuple[Any, nap.Projector | None]:
    """A new network of this arm, drawn from the global random state, and its projector.

    `options` are further options of `nap.normalize_`.
    """
    model = make()
    if arm.norm:
        # on sums, so that each BatchNorm has one to join
        nap.normalize_(model, images, eps=EPS, residual="sum", **options)
        nap.fuse_batch_norms_(model, images)
    if not arm.project:
        return model, None
    return model, nap.Projector(model, output=arm.output, branches=arm.branches)


def learning_rates(
    arm: VisionArm, planned: Callable[[int], float], steps: int, settings: CifarConfig | ImageNetConfig
) -> Rates:
    """The learning rates of each of `steps` updates; `planned` are those of the settings."""
    if not arm.translated:
        return lambda step: (planned(step), planned(step))
    translated = nap.schedules.weight_decay_rates(
        map(planned, range(steps)), settings.weight_decay, momentum=settings.momentum
    ).tolist()
    return lambda step: (translated[step], planned(step))
