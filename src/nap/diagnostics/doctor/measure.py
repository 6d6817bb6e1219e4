"""The numbers of a live model, its optimizer and a batch, beside those of `nap.diagnostics.Recorder`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nap.diagnostics.doctor.thresholds import limit
from nap.diagnostics.probing import as_arguments, evaluating
from nap.diagnostics.units import wide
from nap.projection.plan import measured, pairs_of
from nap.rates.learning_rate import Update, effective_learning_rates, matrix_like, update_of
from nap.rates.relative import relative_steps
from nap.sharded import resharded
from nap.tracing.values import held_tensors
from nap.weights import Role, WeightTable

Loss = Callable[[Any], Tensor]
BOUNDS: tuple[tuple[type[nn.Module], float, float], ...] = (
    (nn.Tanh, -1.0, 1.0),
    (nn.Sigmoid, 0.0, 1.0),
    (nn.Hardsigmoid, 0.0, 1.0),
    (nn.Softsign, -1.0, 1.0),
)


def gradients(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any], loss: Loss | None
) -> tuple[dict[str, Tensor | None], float | None]:
    """The gradient of each trainable parameter and the loss; from `.grad` where no loss is given."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if loss is None:
        left = {name: p.grad for name, p in trained.items()}
        return (left if any(g is not None for g in left.values()) else {}), None
    # cuDNN has no gradients of recurrent layers in eval mode
    with evaluating(model), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        value = loss(model(*as_arguments(args), **kwargs))
    if not isinstance(value, Tensor) or value.numel() != 1:
        shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss must make one number of the model's output, not {shown}; take its mean")
    if not value.requires_grad:
        return dict.fromkeys(trained), value.item()
    gradients_of = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
    return dict(zip(trained, gradients_of, strict=True)), value.item()


def gradient_numbers(
    table: WeightTable, gradients_by_name: Mapping[str, Tensor | None], moments: Mapping[str, Tensor]
) -> dict[str, float]:
    """`gradient/`, root mean squares; `stale/`, √v̂ over them; and the norm of all."""
    numbers: dict[str, float] = {}
    for name, gradient in gradients_by_name.items():
        if gradient is None or table[name].role in (Role.BIAS, Role.AFFINE, Role.GAIN):
            continue
        size = _rms(gradient)
        numbers[f"gradient/{name}"] = size
        if name in moments and size > limit("no gradient"):
            numbers[f"stale/{name}"] = math.sqrt(moments[name].double().mean().item()) / size
    present = [g for g in gradients_by_name.values() if g is not None]
    if present:
        numbers["norm/gradients"] = math.hypot(*(g.double().norm().item() for g in present))
    return numbers


def second_moments(model: nn.Module, optimizers: Iterable[Any]) -> dict[str, Tensor]:
    """v̂ of each parameter of an optimizer like Adam or RMSprop, after ten updates or more."""
    names = {id(p): name for name, p in model.named_parameters()}
    second = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state.get(p, {})
                v = state.get("exp_avg_sq", state.get("square_avg"))
                steps = float(state.get("step", 0))
                if id(p) not in names or not isinstance(v, Tensor) or v.shape != p.shape or steps < 10:
                    continue
                memory = group["betas"][1] if "betas" in group else group.get("alpha", 0.0)
                second[names[id(p)]] = v / (1 - memory**steps if "betas" in group else 1.0)
    return second


def updates_of(optimizers: Iterable[Any]) -> int | None:
    """How many updates have been made, where the optimizer counts; 0 where it has no state yet."""
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    counts = [int(state["step"]) for state in states if "step" in state]
    return max(counts) if counts else (None if states else 0)


def weight_numbers(model: nn.Module, table: WeightTable) -> dict[str, float]:
    """`size/`, norms in units of the fan-in radius; `affine/`, distances of scale, offset from (1, 0)."""
    parameters = dict(model.named_parameters())
    with resharded(model):
        sizes = measured(table, parameters, (), "tensor")
        numbers = {f"size/{name}": sizes.size(name) for name in sizes.norms}
        for scale, offset in pairs_of(table.of(Role.AFFINE)):
            away = [parameters[scale].detach() - 1] if scale else []
            away += [parameters[offset].detach()] if offset else []
            squares = sum(part.double().square().mean().item() for part in away)
            numbers[f"affine/{(scale or offset or '').rpartition('.')[0]}"] = math.sqrt(squares)
    return numbers


def rate_numbers(
    model: nn.Module,
    optimizers: Iterable[Any],
    update: Update | str | None,
    gradients_by_name: Mapping[str, Tensor | None],
) -> dict[str, float]:
    """`rate/` by Definition 1, `step/` relative to the norm, `lr/` and the `peak/` that schedulers note."""
    numbers: dict[str, float] = {}
    table = matrix_like(model)
    for number, optimizer in enumerate(optimizers):
        kind = update_of(optimizer) if update is None else Update(update)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        names = [n for n in table if id(model.get_parameter(n)) in held]
        title = "all" if number == 0 else f"optimizer {number}"
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        numbers[f"lr/{title}"] = max(rates)
        peaks = [float(group["initial_lr"]) for group in optimizer.param_groups if "initial_lr" in group]
        if peaks:
            numbers[f"peak/{title}"] = max(peaks)
        if not names:
            continue
        effective = effective_learning_rates(model, optimizer, update=kind, weights=names)
        numbers |= {f"rate/{name}": rate for name, rate in effective.items()}
        steps = relative_steps(model, optimizer, update=kind, weights=names)
        if kind is Update.RAW:
            momentum = max(group.get("momentum", 0.0) for group in optimizer.param_groups)
            steps = {
                name: rate
                * model.get_parameter(name).detach().norm().item()
                * g.norm().item()
                / (1 - momentum)
                for name, rate in steps.items()
                if (g := gradients_by_name.get(name)) is not None and math.isfinite(rate)
            }
        numbers |= {f"step/{name}": step for name, step in steps.items()}
    return numbers


def broken_numbers(model: nn.Module, gradients_by_name: Mapping[str, Tensor | None]) -> dict[str, float]:
    """`nonfinite/`: NaN and infinite entries of each parameter, buffer or gradient that has any."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors |= {f"gradient of {name}": g for name, g in gradients_by_name.items() if g is not None}
    counts = {
        name: int((~t.detach().isfinite()).sum()) for name, t in tensors.items() if t.is_floating_point()
    }
    return {f"nonfinite/{name}": float(count) for name, count in counts.items() if count}


class Seen:
    """Measures of one forward: samples, widths, saturation, and the layer that runs last."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.last: nn.Linear | None = None
        self._bounded: list[tuple[str, Tensor, float, float]] = []

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Register the hooks inside of this context."""
        handles = []
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                handles.append(module.register_forward_hook(self._linear))
            for kind, low, high in BOUNDS:
                if isinstance(module, kind):
                    handles.append(module.register_forward_hook(self._bound(name, low, high)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _linear(self, module: nn.Linear, args: Any, output: Tensor) -> None:
        if args:
            self.last, features = module, args[0]
            samples = features.numel() // features.shape[-1]
            self.numbers["samples"] = samples
            self.numbers["possible/penultimate"] = min(samples, features.shape[-1])

    def _bound(self, name: str, low: float, high: float) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self._bounded.append((name, output, low, high))

        return hook

    def finish(self, output: Any) -> None:
        """`saturated/`; a sigmoid that is the output itself is meant to be near 0 or 1."""
        returned = {id(t) for t in held_tensors(output)}
        for name, values, low, high in self._bounded:
            if id(values) in returned and low == 0.0:
                continue
            margin = 0.01 * (high - low)
            out = (values <= low + margin) | (values >= high - margin)
            self.numbers[f"saturated/{name}"] = out.float().mean().item()


def seen(model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Seen:
    """Run one forward in eval mode with these hooks."""
    watched = Seen()
    with evaluating(model), torch.no_grad(), watched.watching(model):
        watched.finish(model(*as_arguments(args), **kwargs))
    return watched


def _rms(tensor: Tensor) -> float:
    return wide(tensor.detach()).square().mean().sqrt().item()
