"""Modules that are followed as a whole: our own norms, and torch's fused attention and recurrence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from nap.norms.attention import NormalizedMultiheadAttention
from nap.norms.norm import FusedNorm, Norm
from nap.norms.recurrent import NORMALIZED
from nap.tracing import homogeneity
from nap.tracing.homogeneity import MIXED
from nap.tracing.record import Frame, Use
from nap.tracing.values import NO_CARRY, Carry, Value, merge, tensors_in

if TYPE_CHECKING:
    from nap.tracing.recorder import Recorder

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
NORMALIZED_RECURRENT = tuple(NORMALIZED.values())


def is_opaque(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return type(module).forward in (nn.MultiheadAttention.forward, NormalizedMultiheadAttention.forward)
    return isinstance(module, (Norm, FusedNorm, *RECURRENT))


def follow(
    rec: Recorder,
    module: nn.Module,
    frame: Frame,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    output: Any,
) -> None:
    """Gives the outputs of an opaque module their values."""
    if isinstance(module, (Norm, FusedNorm)):
        _follow_norm(rec, module, frame, args, output)
    elif isinstance(module, nn.MultiheadAttention):
        _follow_attention(rec, module, frame, args, kwargs, output)
    else:
        _follow_recurrent(rec, module, frame, args, kwargs, output)


def _follow_norm(
    rec: Recorder, module: Norm | FusedNorm, frame: Frame, args: Sequence[Any], output: Tensor
) -> None:
    value = rec.value(args[0])
    whole = isinstance(module, Norm) or module.covers_all()
    norms = [m for m in module.modules() if isinstance(m, Norm)]
    degrees = homogeneity.of_norm(value.degrees, _exact(rec, value, norms, args[1:]))
    affine = {}
    for name, norm in module.named_modules():
        if isinstance(norm, Norm) and any(True for _ in norm.parameters()):
            site = f"{frame.site}.{name}" if name else frame.site
            affine[site] = tuple(f"{site}.{leaf}" for leaf, _ in norm.named_parameters())
    rec.flow.affine.update(affine)
    rec.flow.seen.update(n for names in affine.values() for n in names)
    rec.normalised(value)
    if not whole:  # the features between the normalised ones are as they were
        degrees = homogeneity.of_sum([value.degrees, degrees])
    keys = {f"{site}|affine": 1.0 if whole and len(norms) == 1 else MIXED for site in affine}
    rec.put(
        output,
        replace(
            value,
            carry=NO_CARRY if whole else value.carry,
            degrees=homogeneity.of_product([degrees, keys]),
            affine=frozenset(affine),
        ),
    )


def _exact(rec: Recorder, value: Value, norms: Sequence[Norm], weights: Sequence[Tensor]) -> set[str]:
    """The weights whose scale cancels to the last bit: those that the eps scales with as the value does."""
    if all(norm.eps == 0 for norm in norms):
        return set(value.degrees)
    if not weights or not all(norm.relative for norm in norms):
        return set()
    size = homogeneity.of_sum([rec.value(weight).degrees for weight in weights])
    return {name for name, degree in size.items() if degree == value.degrees.get(name) != MIXED}


def _follow_attention(
    rec: Recorder,
    module: nn.MultiheadAttention,
    frame: Frame,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    output: tuple[Tensor, Tensor | None],
) -> None:
    named = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    operands = [rec.value(named[part]) for part in ("query", "key", "value")]
    normalised = isinstance(module, NormalizedMultiheadAttention)
    if not normalised:
        rec.flow.attention.append(frame.site)
    names = {leaf: _join(frame.site, leaf) for leaf, _ in module.named_parameters()}
    rec.flow.seen.update(names.values())
    mine = {names[leaf]: MIXED for leaf in names if not leaf.startswith(("q_norm", "k_norm"))}
    for leaf in ("q_proj_weight", "k_proj_weight") if normalised else ():
        mine.pop(names.get(leaf, ""), None)
    if module.in_proj_bias is None and module.bias_v is None and module.out_proj.bias is None:
        mine.update({names[n]: 1.0 for n in ("v_proj_weight", "out_proj.weight") if n in names})
    elif module.out_proj.bias is None:
        mine[names["out_proj.weight"]] = 1.0
    for leaf in ("q_norm", "k_norm") if normalised else ():
        site = _join(frame.site, leaf)
        rec.flow.affine[site] = tuple(n for n in names.values() if n.startswith(site + "."))
        rec.flow.followers[site].add("softmax")
        rec.flow.curved.add(site)
    degrees = homogeneity.of_product([homogeneity.of_nonlinearity(merge(operands).degrees), mine])
    carry = _parametric(rec, module, frame, "attention", operands)
    rec.nonlinear += 1
    rec.put(output[0], Value(data=True, carry=carry, degrees=degrees))
    if output[1] is not None:
        rec.put(output[1], Value(data=True, degrees=homogeneity.of_nonlinearity(degrees), probability=True))


def _follow_recurrent(
    rec: Recorder,
    module: nn.Module,
    frame: Frame,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    output: Any,
) -> None:
    operands = [rec.value(t) for t in tensors_in((args, kwargs))]
    names = {leaf: _join(frame.site, leaf) for leaf, _ in module.named_parameters()}
    rec.flow.seen.update(names.values())
    mine = dict.fromkeys(names.values(), MIXED)
    if isinstance(module, NORMALIZED_RECURRENT):
        mine = {n: 1.0 for leaf, n in names.items() if leaf.startswith("weight_hr")}
        for leaf, child in module.named_children():
            site = _join(frame.site, leaf)
            rec.flow.affine[site] = tuple(_join(site, n) for n, _ in child.named_parameters())
            rec.flow.followers[site].add("sigmoid")
            rec.flow.curved.add(site)
    else:
        rec.flow.recurrent.append(frame.site)
    rec.nonlinear += 1
    _parametric(rec, module, frame, "recurrence", operands)
    degrees = homogeneity.of_product([homogeneity.of_nonlinearity(merge(operands).degrees), mine])
    for tensor in tensors_in(output):
        rec.put(tensor, Value(data=True, degrees=degrees))


def _parametric(
    rec: Recorder, module: nn.Module, frame: Frame, operation: str, operands: Sequence[Value]
) -> frozenset[Carry]:
    """The weights of a fused module are in use, those whose scale a norm cancels too."""
    learned = {n for v in operands if v.raw and not v.data for n in v.sources}
    rec.flow.dotted |= learned & rec.matrices  # queries or states to start from
    weights = (n for n, p in module.named_parameters() if p.ndim > 1 and not n.startswith("bias"))
    rec.frames.append(frame)
    carry = rec.parametric(Use(frozenset(_join(frame.site, n) for n in weights), operation), operands)
    rec.frames.pop()
    return carry


def _join(prefix: str, leaf: str) -> str:
    return f"{prefix}.{leaf}" if prefix else leaf
