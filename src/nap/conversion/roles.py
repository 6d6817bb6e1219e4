"""From the record of a converted model to the role of every parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torch import nn

from nap.norms.gain import Gain
from nap.norms.members import MemberNorm
from nap.norms.norm import CHILD, SOURCES, FusedNorm
from nap.norms.products import product_norms, replaced_biases
from nap.tracing.curves import STAYS
from nap.tracing.homogeneity import NEAR
from nap.tracing.noise import KEY
from nap.tracing.operations import Kind
from nap.tracing.record import Flow, Meeting
from nap.tracing.special import is_opaque
from nap.weights import Role, Weight, WeightTable, is_bare_vector

_Carrier = tuple[str, nn.Module]  # a module with norms on products in its forward, and its path
_Half = tuple[str, Literal["mean", "noise"], str]  # a weight, what it is, and the other one
_BY_ITSELF = (Role.SCALE_INVARIANT, Role.NORMALISED, Role.EMBEDDING, Role.BIAS, Role.AFFINE)
_CARE = (Role.UNUSED, Role.SCALE_INVARIANT, Role.NORMALISED)  # from the freest claim to the most careful


def roles(model: nn.Module, flows: Sequence[Flow]) -> WeightTable:
    """The role of each parameter; where forwards differ (train and eval), the most careful one."""
    rows = {}
    products = [(site, m) for site, m in model.named_modules() if SOURCES in m.__dict__]
    for name, parameter in model.named_parameters():
        found = [_role(flow, model, name, parameter, products) for flow in flows]
        rows[name] = max(found, key=lambda w: _CARE.index(w.role) if w.role in _CARE else len(_CARE))
    return WeightTable(rows | _noisy(flows, rows))


def _noisy(flows: Sequence[Flow], rows: Mapping[str, Weight]) -> dict[str, Weight]:
    """The rows of noisy layers, each half with the name of the other."""
    found = {name: means for flow in flows for name, means in flow.noise.items() if len(means) == 1}
    pairs = [(*means, name) for name, means in found.items()]
    changed = {}
    for mean, noise in pairs:
        alone = [m for m, _ in pairs].count(mean) == 1 and mean not in found
        if not alone or {rows[mean].role, rows[noise].role}.intersection(_BY_ITSELF):
            continue
        degrees = [flow.degrees.get(noise + KEY, NEAR) for flow in flows if noise in flow.noise]
        exact = rows[noise].role is Role.JOINT and set(degrees) == {NEAR}
        halves: tuple[_Half, ...] = ((mean, "mean", noise), (noise, "noise", mean))
        for name, part, other in halves:
            why = f"a norm cancels its scale together with {other}'s" if exact else rows[name].reason
            reason = f"{'means' if part == 'mean' else 'noise'} of a noisy layer; {why}"
            changed[name] = replace(rows[name], part=part, beside=other, reason=reason)
    return changed


def _role(
    flow: Flow, model: nn.Module, name: str, parameter: nn.Parameter, products: Sequence[_Carrier]
) -> Weight:
    norm = next((n for n, names in flow.affine.items() if name in names), None)
    if norm is not None:
        followers = flow.followers.get(norm, set())
        part = "offset" if name.endswith("bias") else "scale"
        after = f", before {', '.join(sorted(followers))}" if followers else ""
        reason, relus = f"{part} of a norm{after}", norm not in flow.curved
        owner = model.get_submodule(name.rpartition(".")[0])
        stacked = len(owner.members) if isinstance(owner, MemberNorm) else 0
        return Weight(name, Role.AFFINE, reason, stacked=stacked, part=part, homogeneous=relus)  # type: ignore[arg-type]
    owner = model.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, Gain):
        return Weight(name, Role.GAIN, "scales what enters its layer, or leaves its table")
    if name not in flow.seen:
        if name in replaced_biases(model):
            return Weight(name, Role.BIAS, "a norm took its place")
        role = Role.BIAS if is_bare_vector(model, name, parameter) else Role.UNUSED
        return Weight(name, role, "the example forward does not use it")
    inline = name.rpartition(".")[0] in flow.inline
    if inline and name not in flow.dotted and name in flow.scaled and bool((parameter == 1).all()):
        return Weight(name, Role.AFFINE, "scale of a norm that the model came with", part="scale")
    keys = [key for key, use in flow.uses.items() if name in use.sources]
    sites = sorted({site for site, _, _ in keys})
    alone = any(use.sources == {name} for use in flow.uses.values())
    if not (sites or name in flow.tables) or (parameter.ndim < 2 and not alone):
        factor = name in flow.dotted | flow.compared or _is_table_of_factors(flow, name, parameter)
        if factor and name not in flow.warped:
            return _factor(flow, name)
        if name in flow.listed:
            return Weight(
                name, Role.EMBEDDING, "learned tokens, keys or values, listed with those of the input"
            )
        return Weight(name, Role.BIAS, "" if parameter.ndim < 2 else _use_of_matrix(flow, name))
    shape = Weight(
        name,
        Role.JOINT,
        out_axis=flow.out_axis.get(name, 0),
        groups=flow.groups.get(name, 1),
        stacked=max(0, min(flow.stacked.get(name, 0), parameter.ndim - 2)),
        place="tokens" if name in flow.chosen else None,
    )
    degree = flow.degrees.get(name)
    sinks: set[str] = set().union(*(flow.sinks.get(key, set()) for key in keys))
    met = [m for m in flow.meetings if any(c.key in keys for c in m.carry)]
    norms = _norms_on(model, name, sites, products)
    whole = any(is_opaque(model.get_submodule(site)) for site in sites)  # its norms are inside
    remark = next((flow.remarks[key] for key in (*sites, name) if key in flow.remarks), "")
    chosen = replace(shape, role=Role.UNNORMALISED, reason=f"as it is: {remark.removesuffix(STAYS)}")
    if degree is None and not (sinks or norms or whole or name in flow.tables):
        if remark:
            return chosen
        return replace(shape, role=Role.OUTPUT, reason="nothing that the example returns depends on it")
    if degree is None and (not met or norms or "norm" in sinks):
        return replace(shape, role=Role.SCALE_INVARIANT, reason="a norm cancels its scale")
    if degree == NEAR:
        return replace(shape, role=Role.NORMALISED, reason="a norm cancels its scale, up to that norm's eps")
    if "output" in sinks:
        tied = "a table that is also the output layer" if name in flow.tables else ""
        return replace(shape, role=Role.OUTPUT, reason=tied or "reaches the output with no norm after it")
    if name in flow.tables:
        return replace(shape, role=Role.EMBEDDING, reason="a table that rows are looked up in")
    if _ends_branch(flow, model, name, sites):
        shape = replace(shape, place="branch")
    if sinks == {"linear"}:
        return replace(shape, role=Role.CHAIN, reason="feeds another weight linearly")
    if any(isinstance(norm, FusedNorm) and not norm.covers_all() for norm in norms):
        return replace(shape, reason="only a part of its output has a norm of its own")
    if (why := _as_it_is(flow, sites)) is not None:
        return replace(shape, role=Role.UNNORMALISED, reason=why)
    if met and not any(norms):
        where = " and ".join(dict.fromkeys(m.operation for m in met))
        if not all(_is_output(m) for m in met):
            return replace(shape, role=Role.UNNORMALISED, reason=f"enters {where} as it is")
        return replace(shape, role=Role.OUTPUT, reason=f"reaches the output through {where}")
    if flow.unseen and not any(norms) and not sinks & {"norm", "linear"}:
        return replace(shape, role=Role.UNNORMALISED, reason="reaches a function that was not seen")
    if remark and "norm" not in sinks and not any(norms):
        return chosen
    if name in flow.warped and name in flow.bent:
        return replace(shape, reason=f"enters {flow.bent[name]} itself, and a norm follows only then")
    return replace(shape, reason="normalised together with other terms of a sum")


def _is_table_of_factors(flow: Flow, name: str, parameter: nn.Parameter) -> bool:
    """Whether a matrix multiplies data entry by entry."""
    return name in flow.scaled and sum(size > 1 for size in parameter.shape) > 1


def _use_of_matrix(flow: Flow, name: str) -> str:
    """Why a matrix that enters no product is a bias."""
    if name in flow.bent:
        return f"enters {flow.bent[name]} itself"
    if name not in flow.degrees:
        return "the output does not scale with it"
    return "multiplied elementwise" if name in flow.scaled else "added, as biases and positions are"


def _factor(flow: Flow, name: str) -> Weight:
    """The role of what multiplies features entry by entry, such as GAT's vectors of attention."""
    degree = flow.degrees.get(name)
    if degree == NEAR:
        return Weight(name, Role.NORMALISED, "a norm cancels its scale, up to that norm's eps")
    if degree == 1.0:
        return Weight(name, Role.OUTPUT, "multiplies features on their way to the output")
    how = "is compared with" if name in flow.compared else "multiplies"
    return Weight(name, Role.UNNORMALISED, f"{how} features, and no norm cancels its scale")


def _ends_branch(flow: Flow, model: nn.Module, name: str, sites: Sequence[str]) -> bool:
    """Whether it is the last matrix of a residual branch: what it makes is added to the stream as it is."""
    found = [model.get_submodule(site) for site in sites if site in flow.branches]
    last = [m.out_proj.weight if isinstance(m, nn.MultiheadAttention) else None for m in found]
    return any(weight is None or weight is model.get_parameter(name) for weight in last)


def _is_output(meeting: Meeting) -> bool:
    """Whether a nonlinearity is the model's output: a ReLU after one feature, too, that nothing follows."""
    one = meeting.kind is Kind.HOMOGENEOUS and meeting.shape[-1] == 1
    return not meeting.followed if one else not meeting.hidden


def _norms_on(model: nn.Module, name: str, sites: list[str], products: Sequence[_Carrier]) -> list[nn.Module]:
    """The norms on what these modules return, and on products of this weight in any of their forwards."""
    found = [getattr(model.get_submodule(site), CHILD, None) for site in sites]
    for site, module in products:
        for key, source in module.__dict__[SOURCES].items():
            if any(name == f"{site}.{path}".lstrip(".") for path in source.weights):
                found.append(product_norms(module)[key])
    return [norm for norm in found if norm is not None]


def _as_it_is(flow: Flow, sites: list[str]) -> str | None:
    """What was accepted by name: an operation that is not known, gates or attention that stay as they are."""
    if lost := [flow.lost[site] for site in sites if site in flow.lost]:
        return f"enters {' and '.join(dict.fromkeys(lost))}, which is not known"
    if any(site in flow.recurrent for site in sites):
        return "enters gates as it is"
    if any(site in flow.attention for site in sites):
        return "its queries and keys enter softmax as they are"
    return None
