"""Step 1 for a network that is trained already: the norms start where they change its function least.

A norm has a scale and an offset for each feature. They are set so that on the caller's batches each feature
has the mean and the deviation that it had before the conversion. That is done in the order of execution,
each norm behind those that are calibrated already. So a bias that the conversion removes goes into the
offset. What a norm takes from single samples, their size, cannot come back: the report says how far the
function moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nap.conversion.following import Followed, Outputs, Statistics, follow, run
from nap.conversion.movement import Calibration, compared, relative_error
from nap.conversion.normalize import MISSING, normalize_
from nap.conversion.normalize import plan as plan_of
from nap.conversion.placement import Plan
from nap.conversion.surgery import apply_
from nap.conversion.trial import Example, detached_copy, examples_of
from nap.norms.attention import NormalizedMultiheadAttention
from nap.norms.members import MemberNorm
from nap.norms.norm import PRODUCTS, Norm
from nap.projection.plan import norms_to_keep
from nap.projection.policies import fan_in_radius
from nap.projection.sphere import project_tensors_
from nap.weights import Role

_CLOSE = 1e-4  # relative change of the output that rounding explains


@torch.no_grad()
def normalize_trained_(
    model: nn.Module,
    batches: Any = MISSING,
    kwargs: Mapping[str, Any] | None = None,
    *,
    radii: Literal["trained", "fan-in"] = "trained",
    **options: Any,
) -> Calibration:
    """Inserts norms into a trained `model`, in place, calibrated on batches; returns how far it moved.

    Make optimizer and `Projector` after it. All or nothing, as `nap.normalize_`, whose options it takes.

    Args:
        batches: inputs like those it was trained on, some hundred or more: one batch as for `nap.plan`, or a
            list of tuples (or dicts), one for each batch.
        radii: "trained" leaves weights as they are, so that a `Projector` keeps their trained norms; "fan-in"
            rescales each weight that a norm follows, which changes nothing, to entries of RMS 1/√fan_in: as
            large as those of a fresh network, so that a learning rate of one fits.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> moved = normalize_trained_(model, torch.randn(256, 8))
    >>> moved.output_error < moved.plain_output_error
    True
    """
    if radii not in ("trained", "fan-in"):
        raise ValueError(f"radii={radii!r} is not a choice; use one of trained, fan-in")
    examples = _examples(batches, kwargs)
    plan = plan_of(model, batches, kwargs, **options)
    if plan.problems:
        normalize_(model, plan)  # raises with all of them listed
    _check(model, plan)
    original, teacher = _original(model, plan)
    batch_norms = [name for name, module in teacher.named_modules() if _averages(module)]
    target = follow(teacher, [*original, *batch_norms], examples, original)
    outputs = run(detached_copy(model), examples)
    _check_target(model, outputs, target, original)
    twin = detached_copy(model)
    apply_(twin, plan)
    plain = run(twin, examples)
    for name in target.order:
        _calibrate_(twin, name, target.statistics[name], examples)
    if radii == "fan-in":
        _rescale_(twin, plan)
    report = compared(plan, teacher, original, twin, target.order, examples, outputs, plain)
    apply_(model, plan)
    model.load_state_dict(twin.state_dict())
    return report


def _examples(batches: Any, kwargs: Mapping[str, Any] | None) -> list[Example]:
    if batches is MISSING or (isinstance(batches, (list, tuple)) and not batches and not kwargs):
        raise ValueError(
            "calibration needs inputs of the kind that the network was trained on: "
            "normalize_trained_(model, x) with some hundred samples, or [(x1,), (x2,)] for several batches"
        )
    return examples_of(batches, kwargs)


def _check(model: nn.Module, plan: Plan) -> None:
    """Refuse what cannot be calibrated."""
    modules = dict(model.named_modules())
    if plan.options.affine == "none":
        raise ValueError(
            "affine='none' leaves norms without a scale or offset, and nothing to calibrate; use "
            "affine='scale_offset', or nap.normalize_, which takes the function as lost"
        )
    for placement in plan.placements:
        module, way = modules[placement.module], "convert it untrained with nap.normalize_, or exclude it"
        if placement.action == "normalise recurrence":
            raise ValueError(
                f"{placement.module} ({placement.role}): its norms act inside of each step of a recurrence, "
                f"where no trained statistics can be kept; {way}"
            )
        if placement.members and not placement.member_axes:
            raise ValueError(
                f"{placement.module or 'the model'}: its layers are stacked and run under vmap, where "
                f"statistics of one cannot be seen; {way}"
            )
        if isinstance(module, nn.MultiheadAttention) and module.bias_k is not None:
            raise ValueError(
                f"{placement.module}: an extra key (add_bias_kv) has no statistics of its own; {way}"
            )


def _original(model: nn.Module, plan: Plan) -> tuple[dict[str, Tensor | None], nn.Module]:
    """A copy of the model with idle norms at all places of the plan, and what each must add, by name.

    Biases stay, so it computes what the model does. What hangs on a function leaves its bias out; and
    torch's attention loses those of queries and keys in our subclass. They are added where norms would act.
    """
    there = {name for name, _ in model.named_modules()}
    twin = detached_copy(model)
    kept = [replace(p, remove=(), zero=(), subtract=None) for p in plan.placements]
    apply_(twin, replace(plan, placements=tuple(kept)))
    added: dict[str, Tensor | None] = {}
    left_out = {
        ".".join(filter(None, (p.module, PRODUCTS, p.key))): model.get_submodule(p.module).get_parameter(
            *p.zero
        )
        for p in plan.placements
        if p.action == "normalise product" and len(p.zero) == 1 and p.layout == "features"
    }
    for name, module in twin.named_modules():
        if name in there or not isinstance(module, Norm):
            continue
        owner, _, leaf = name.rpartition(".")
        holder = twin.get_submodule(owner)
        added[name] = left_out.get(name)
        if isinstance(holder, NormalizedMultiheadAttention):
            before = model.get_submodule(owner)
            assert isinstance(before, nn.MultiheadAttention)
            if before.in_proj_bias is not None:
                part = before.in_proj_bias.chunk(3)[0 if leaf == "q_norm" else 1]
                added[name] = part.detach().view(holder.num_heads, 1, holder.head_dim)
    return added, twin


def _check_target(model: nn.Module, outputs: Outputs, target: Followed, original: Mapping[str, Any]) -> None:
    """The idle norms must leave the function alone, each must have run, and all must be finite."""
    for number, out in enumerate(outputs):
        if not all(bool(t.isfinite().all()) for t in out if t.is_floating_point()):
            raise ValueError(
                f"{type(model).__name__} returns NaN or infinity on batch {number}; give inputs on which the "
                "trained network works"
            )
    missing = sorted(name for name in original if name not in target.statistics)
    if missing:
        raise ValueError(
            f"no batch reaches {', '.join(missing)}: give batches that use these layers, or leave them out "
            "with exclude=[...]"
        )
    few = [name for name, found in target.statistics.items() if found.count < 2]
    if few:
        raise ValueError(f"one sample has no deviation (at {', '.join(few)}); give batches of some hundred")
    moved = relative_error(outputs, target.outputs)
    if moved > _CLOSE:
        raise ValueError(
            f"{type(model).__name__} could not be followed with its biases in place (its output moved by "
            f"{moved:.1e}), so there are no statistics to keep; biases in functions of a forward do that: "
            "use nap.normalize_, or leave such layers out with exclude=[...]"
        )


def _averages(module: nn.Module) -> bool:
    """Whether it is a BatchNorm that evaluates with running statistics."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None


def _calibrate_(twin: nn.Module, name: str, wanted: Statistics, examples: Sequence[Example]) -> None:
    """Sets one norm, or the running statistics of one BatchNorm, from what reaches it now."""
    module = twin.get_submodule(name)
    now = follow(twin, [name], examples).statistics[name]
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        assert module.running_mean is not None
        assert module.running_var is not None
        ratio = torch.where(wanted.variance > 0, now.variance / wanted.variance, 1.0)
        mean = now.mean + (module.running_mean - wanted.mean) * ratio.sqrt()
        module.running_mean.copy_(mean)
        variance = (module.running_var + module.eps) * ratio - module.eps
        module.running_var.copy_(variance.clamp(min=0))
        return
    assert isinstance(module, Norm)
    shape = (*module.members, module.width) if isinstance(module, MemberNorm) else (module.width,)
    if module.weight is None:
        return  # a BatchNorm follows, whose statistics are set next
    if module.bias is None:  # no offset: what can be kept is the root mean square
        ratio = torch.where(now.square > 0, wanted.square / now.square, 1.0).sqrt()
        module.weight.copy_(ratio.view(shape))
        return
    ratio = torch.where(now.variance > 0, wanted.variance / now.variance, 1.0).sqrt()
    module.weight.copy_(ratio.view(shape))
    module.bias.copy_(((wanted.mean - ratio * now.mean) / module.gain).view(shape))


def _rescale_(twin: nn.Module, plan: Plan) -> None:
    """Weights that a norm follows exactly, to their fan-in radius."""
    for row in plan.weights.of(Role.SCALE_INVARIANT):
        if row.beside is None:
            weight = twin.get_parameter(row.name)
            project_tensors_([weight], [fan_in_radius(row, weight, norms_to_keep(row, weight, "tensor"))])
