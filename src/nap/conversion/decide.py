"""From what is asked for to placements: which norm goes where, and what is done with the bias."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from nap.conversion.carriers import has_direction
from nap.conversion.decision import Decision, Want
from nap.conversion.extent import FROM_ZERO, ZERO_PART, eps_of, layout_of, members_of, parts_of
from nap.conversion.needs import gather
from nap.conversion.placement import Options, Placement
from nap.conversion.products import place_product
from nap.conversion.reach import note_unreached
from nap.conversion.sums import place_sums
from nap.tracing.layout import LayoutError
from nap.tracing.record import Flow, Use

_PLAIN = (nn.Linear, nn.modules.conv._ConvNd)  # their bias may simply become None


def decide(
    model: nn.Module, flows: Sequence[Flow], options: Options, untracked: frozenset[str] = frozenset()
) -> Decision:
    """All placements, notes and problems that the recorded forwards of `model` give rise to."""
    decision = Decision(model, options, untracked=untracked)
    if options.residual == "sum":
        place_sums(decision, flows)
    for flow in flows:
        gather(decision, flow)
    note_unreached(decision, flows)
    returned = set().union(*(flow.returned for flow in flows))
    for site, want in decision.wants.items():
        if site in returned and (want.whole or not want.part) and not _is_one_feature(want):
            decision.refuse(
                site,
                f"its result {next(iter(want.reasons))} inside the network and is also returned as an output",
                "give the output a layer of its own",
            )
        else:
            _place(decision, site, want, flows)
    for key, want in decision.products.items():
        place_product(decision, key, want, flows)
    return decision


def _place(decision: Decision, site: str, want: Want, flows: Sequence[Flow]) -> None:
    """The norm that one producer wants, unless something stands against it."""
    options, use = decision.options, want.use
    assert use.output is not None
    module, width = decision.model.get_submodule(site), use.output.shape[use.axis]
    try:
        periods, parts = parts_of(want, width)
    except LayoutError as fault:
        reason = f"its queries, keys or gates are laid out in a way not known: {fault}"
        return decision.refuse(site, reason, "split it")
    if use.output.is_complex():
        reason = (
            f"it {next(iter(want.reasons))} with complex numbers, which norms of real features do not take"
        )
        return decision.refuse(
            site,
            reason,
            "write it as a module that multiplies with weights of its own and returns real and imaginary "
            "parts side by side",
        )
    layout = layout_of(options, use.axis, 0 if parts else use.space)
    together = [s.head or s.length * periods for s in parts if s.name] or [width]
    if (use.output[0].numel() if layout == "sample" else min(together)) == 1:
        return decision.leave_one_feature(site, next(iter(want.reasons)))
    names = _own_parameters(decision.model, module)
    weights = tuple(dict.fromkeys(_attribute(names[n]) for n in sorted(use.sources) if n in names))
    zero = weights and not any(has_direction(_tensor(module, path)) for path in weights)
    biases = sorted({names[n] for flow in flows for n in flow.added if n in names})
    members = members_of(use, decision.model, layout, parts)
    sizes = {width, width * math.prod(members.get("members", ()))} if members else set()
    biases = [p for p in biases if (b := module.get_parameter(p)).ndim == 1 or b.numel() in sizes]
    partial = any(s.name is None for s in parts)
    if zero and partial:
        return decision.refuse(f"{site}.{weights[0]}".lstrip("."), *ZERO_PART)
    if partial and len(biases) > 1:
        reason = f"a part of its output is normalised and it has {len(biases)} biases"
        return decision.refuse(site, reason, "split it")
    droppable = [p for p in biases if isinstance(module.get_submodule(p.rpartition(".")[0]), _PLAIN)]
    undone = want.batch_norm and not any(site in flow.beside_batch_norm for flow in flows)
    only_heads = bool(want.heads) and not want.part  # heads are never centred; a gate beside them is
    decision.placements[site] = Placement(
        site,
        "normalise output",
        type(module).__name__,
        " and ".join(want.reasons) + (FROM_ZERO if zero else ""),
        width=width,
        layout=layout,
        spatial=-1 - use.axis,
        periods=periods,
        sections=parts,
        centre=options.norm == "layer" and not only_heads,
        scale=options.affine != "none" and not undone,
        offset=options.affine == "scale_offset" and not want.batch_norm and not only_heads,
        eps=eps_of(options, fixed=zero or not weights or (use.scaleless and _are_raw(names, use))),
        gain=want.gain,
        before_batch_norm=undone,
        **members,
        weights=weights,
        remove=() if partial else tuple(droppable),
        zero=() if partial else tuple(p for p in biases if p not in droppable),
        subtract=biases[0] if partial and biases else None,
    )
    return None


def _is_one_feature(want: Want) -> bool:
    return want.use.output is not None and want.use.output.shape[want.use.axis :].numel() == 1


def _own_parameters(model: nn.Module, module: nn.Module) -> dict[str, str]:
    """First name in the model → path below the module, for the parameters of the module."""
    first = {id(p): name for name, p in model.named_parameters()}
    return {first[id(p)]: path for path, p in module.named_parameters(remove_duplicate=False)}


def _are_raw(names: Mapping[str, str], use: Use) -> bool:
    """Whether the weights of a layer are read as they are, not through what parametrises them."""
    return all(_attribute(names[n]) == names[n] for n in use.sources if n in names)


def _attribute(path: str) -> str:
    """A parametrised weight is read through the attribute that computes it."""
    head, mark, rest = path.partition("parametrizations.")
    return head + rest.split(".")[0] if mark else path


def _tensor(module: nn.Module, path: str) -> torch.Tensor:
    owner, _, leaf = path.rpartition(".")
    return getattr(module.get_submodule(owner), leaf)
