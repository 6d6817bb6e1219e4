"""Applying a plan to a model: all of it or nothing.

A norm hangs as a child on the module whose output it normalises, applied by a module-level forward
hook. So parameter names, classes, deepcopy, pickle and `torch.compile` stay as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

import torch
from torch import nn

from nap.conversion.carriers import has_direction
from nap.conversion.gains import rescale_
from nap.conversion.placement import Placement, Plan
from nap.norms.attention import NormalizedMultiheadAttention, normalize_attention_
from nap.norms.gain import GAIN, GAIN_HOOK, Gain, scale_input, scale_rows
from nap.norms.members import MemberNorm
from nap.norms.norm import CHILD, HOOK, FusedNorm, Norm, Source, keep_zero, normalise_input, normalise_output
from nap.norms.products import ProductSource, hang_, product_norms
from nap.norms.recurrent import normalize_recurrent_
from nap.tracing.special import NORMALIZED_RECURRENT
from nap.weights import PLAN_ATTRIBUTE

_TABLES = frozenset(key for key, value in vars(nn.Module()).items() if isinstance(value, dict))
Undo = Callable[[], None]


def apply_(model: nn.Module, plan: Plan) -> None:
    """Inserts every norm of `plan`; a failure on the way undoes what was done and raises."""
    check(model, plan)
    undo: list[Undo] = []
    named = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.is_floating_point()}
    first = next(iter(named.values()), torch.empty(0))
    try:
        for placement in plan.placements:
            like = named.get(placement.like, first)
            _insert_(model.get_submodule(placement.module), placement, undo, like)
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoder):  # nested tensors would pass the hooks by
                undo.append(_restore(module))
                module.use_nested_tensor = False
        setattr(model, PLAN_ATTRIBUTE, _joined(getattr(model, PLAN_ATTRIBUTE, None), plan))
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def _joined(before: Plan | None, plan: Plan) -> Plan:
    """What a model that was converted before, and perhaps has grown since, now carries in all."""
    return plan if before is None else replace(plan, placements=(*before.placements, *plan.placements))


def check(model: nn.Module, plan: Plan) -> None:
    """Raises where `plan` was made for another model, or the model already has its norms."""
    modules = dict(model.named_modules())
    for placement in plan.placements:
        module = modules.get(placement.module)
        if module is None or type(module).__name__ != placement.role:
            found = "missing" if module is None else f"a {type(module).__name__}"
            raise ValueError(
                f"the plan expects {placement.module!r} to be a {placement.role}, but it is {found}: "
                "the plan was made for another model; make a new one with nap.plan(model, args)"
            )
        there = placement.child in module._modules
        if placement.action == "normalise product":
            there = placement.key in product_norms(module)
        if there or isinstance(module, (NormalizedMultiheadAttention, *NORMALIZED_RECURRENT)):
            raise ValueError(
                f"{placement.module!r} already carries a norm: this plan has been applied to the model; "
                "nap.plan(model, args) says what is still missing"
            )
        if placement.action == "scale input":
            continue
        on_output = placement.action == "normalise output"
        sizes: tuple[str, ...] = ("out_features", "out_channels") if on_output else ("num_features",)
        own_meaning = not type(module).__module__.startswith("torch.")  # quaternions: 4 numbers to a feature
        sizes = () if placement.action == "normalise product" or own_meaning else sizes
        width = next((getattr(module, size) for size in sizes if hasattr(module, size)), placement.width)
        if width != placement.width:
            raise ValueError(
                f"the plan expects {placement.module!r} to have {placement.width} "
                f"{'outputs' if on_output else 'features'}, not {width}: "
                "the plan was made for another model; make a new one with nap.plan(model, args)"
            )
        subtracted = () if placement.subtract is None else (placement.subtract,)
        for path in (*placement.weights, *placement.remove, *placement.zero, *subtracted):
            owner, _, leaf = path.rpartition(".")
            if not isinstance(getattr(module.get_submodule(owner), leaf, None), torch.Tensor):
                raise ValueError(
                    f"{placement.module!r} has no parameter {path!r}: the plan was made for another model; "
                    "make a new one with nap.plan(model, args)"
                )
        for path in (*placement.remove, *placement.zero, *subtracted):
            bias = module.get_parameter(path)
            axes = bias.ndim
            stacked = placement.width * math.prod(placement.members)  # a bias for each member of a stack
            if axes != 1 and not (placement.members and bias.numel() in (placement.width, stacked)):
                raise ValueError(
                    f"the plan takes {path!r} of {placement.module!r} for a bias, but it has {axes} axes: "
                    "the plan was made for another model; make a new one with nap.plan(model, args)"
                )


def _insert_(module: nn.Module, placement: Placement, undo: list[Undo], like: torch.Tensor) -> None:
    undo.append(_restore(module))
    frozen = [path for path in placement.zero if module.get_parameter(path).is_meta]
    if frozen:
        raise ValueError(
            f"{placement.module}: its {', '.join(frozen)} must stay zero, and has no values yet; "
            "move the model off the meta device with to_empty and initialise it before"
        )
    if placement.action == "normalise attention":
        assert isinstance(module, nn.MultiheadAttention)
        if module.in_proj_bias is not None:
            undo.append(_restore_parameter(module.in_proj_bias))
        normalize_attention_(module, scale=placement.scale, eps=placement.eps)
        return
    if placement.action == "normalise recurrence":
        assert isinstance(module, (nn.RNNBase, nn.RNNCellBase))
        normalize_recurrent_(
            module, centre=placement.centre, scale=placement.scale, offset=placement.offset, eps=placement.eps
        )
        return
    if placement.action == "scale input":
        _insert_gain_(module, placement, undo, like)
        return
    norm = build_norm(module, placement, like).train(module.training)
    _start_at_bias_(norm, module, placement)
    if placement.action == "normalise product":
        undo.extend(_restore(child) for child in module.children())
        source = ProductSource(placement.weights, placement.zero, placement.part)
        hang_(module, placement.key, norm, source)
        _zero_(module, placement, undo)
        return
    module.add_module(CHILD, norm)
    if placement.action == "normalise input":
        module._forward_pre_hooks[HOOK] = normalise_input
        return
    for path in placement.remove:
        owner = module.get_submodule(path.rpartition(".")[0])
        undo.append(_restore(owner))
        owner.register_parameter(path.rpartition(".")[2], None)
    _zero_(module, placement, undo)
    module.__dict__[CHILD + "_source"] = Source(placement.weights, placement.subtract, placement.zero)
    module._forward_hooks[HOOK] = normalise_output


def _start_at_bias_(norm: nn.Module, module: nn.Module, placement: Placement) -> None:
    """The offset of a norm behind a weight that is all zeros starts at its bias: what comes out is the same.

    At zero, a ReLU would let no gradient through to the weight.
    """
    offset = getattr(norm, "bias", None)
    if offset is None or any(has_direction(attrgetter(path)(module)) for path in placement.weights):
        return
    for path in (*placement.remove, *placement.zero):
        bias = module.get_parameter(path).detach()
        with torch.no_grad():
            offset.add_(bias.reshape(offset.shape) if bias.numel() == offset.numel() else bias.flatten())


def _zero_(module: nn.Module, placement: Placement, undo: list[Undo]) -> None:
    """Takes biases out of use that cannot go."""
    for path in placement.zero:
        parameter = module.get_parameter(path)
        undo.append(_restore_parameter(parameter))
        parameter.requires_grad_(False).data.zero_()
    if placement.zero:
        module._load_state_dict_post_hooks[HOOK] = keep_zero


def _insert_gain_(module: nn.Module, placement: Placement, undo: list[Undo], like: torch.Tensor) -> None:
    for path in placement.weights:
        parameter = module.get_parameter(path)
        undo.append(_restore_parameter(parameter))
        rescale_(parameter.data, placement)
    module.add_module(GAIN, Gain(placement.gain, device=like.device, dtype=like.dtype).train(module.training))
    if isinstance(module, nn.Embedding):
        module._forward_hooks[GAIN_HOOK] = scale_rows
    else:
        module._forward_pre_hooks[GAIN_HOOK] = scale_input


def build_norm(module: nn.Module, placement: Placement, like: torch.Tensor) -> Norm | FusedNorm:
    """The norm module of a placement, on the device and in the dtype of its carrier, or else of `like`."""
    like = next((p for p in module.parameters() if p.is_floating_point()), like)

    def norm(width: int, centre: bool, offset: bool, kind: type[Norm] = Norm, **where: object) -> Norm:
        return kind(
            width,
            centre=centre,
            scale=placement.scale,
            offset=offset,
            eps=placement.eps,
            rows=placement.width,
            gain=placement.gain,
            before_batch_norm=placement.before_batch_norm,
            device=like.device,
            dtype=like.dtype,
            **where,  # type: ignore[arg-type]
        )

    if placement.members:
        return norm(
            placement.width,
            placement.centre,
            placement.offset,
            kind=MemberNorm,
            members=placement.members,
            axes=placement.member_axes,
            layout=placement.layout,
            spatial=placement.spatial,
        )
    if not placement.sections:
        return norm(
            placement.width,
            placement.centre,
            placement.offset,
            layout=placement.layout,
            spatial=placement.spatial,
        )
    parts = {}
    for section in placement.sections:
        if section.name is not None and section.name not in parts:
            same = [s.length for s in placement.sections if s.name == section.name]
            width = section.head or same[0] * placement.periods
            parts[section.name] = norm(
                width, placement.centre and not section.head, placement.offset and not section.head
            )
    return FusedNorm(placement.periods, placement.sections, parts, placement.spatial)


def _restore(module: nn.Module) -> Undo:
    kept, kind = dict(module.__dict__), type(module)
    inner = [(table, dict(table)) for key, table in kept.items() if key in _TABLES]

    def undo() -> None:
        object.__setattr__(module, "__class__", kind)
        module.__dict__.clear()
        module.__dict__.update(kept)
        for table, entries in inner:
            table.clear()
            table.update(entries)

    return undo


def _restore_parameter(parameter: nn.Parameter) -> Undo:
    data, flag = parameter.detach().clone(), parameter.requires_grad

    def undo() -> None:
        parameter.data.copy_(data)
        parameter.requires_grad_(flag)

    return undo
