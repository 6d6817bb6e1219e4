"""Norms on products that a function makes inside of a forward: where they go, and what becomes of biases."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import nn

from nap.conversion.carriers import ProductKey, carrier_of, has_direction, product_name
from nap.conversion.decision import Decision, Want
from nap.conversion.extent import FROM_ZERO, ZERO_PART, eps_of, layout_of, members_of, parts_of
from nap.conversion.placement import Placement
from nap.tracing.layout import LayoutError
from nap.tracing.record import Flow, Use

UseKey = tuple[str, int, int]


def place_product(decision: Decision, key: ProductKey, want: Want, flows: Sequence[Flow]) -> None:
    """The norm that the product of these weights wants, unless something stands against it."""
    (site, sources, part), use, options, model = key, want.use, decision.options, decision.model
    found = carrier_of(model, site, sources)
    assert found is not None
    assert use.output is not None
    (carrier, paths), name = found, min(sources)
    if (why := _otherwise_used(key, want, flows, decision.last)) is not None:
        return decision.refuse(name, why, "make the layer a module of its own and call it")
    zero = not any(has_direction(model.get_parameter(source)) for source in sources)
    if use.output.is_complex():
        reason = f"its product {next(iter(want.reasons))} with complex numbers, which norms do not take"
        return decision.refuse(
            name,
            reason,
            "put the product and what makes it real again into a module of its own that leaves features on "
            "their axis",
        )
    width = use.output.shape[use.axis]
    try:
        periods, parts = parts_of(want, width)
    except LayoutError as fault:
        reason = f"its queries, keys or gates are laid out in a way not known: {fault}"
        return decision.refuse(name, reason, "split it")
    layout = layout_of(options, use.axis, 0 if parts else use.space)
    together = [s.head or s.length * periods for s in parts if s.name] or [width]
    if (use.output[0].numel() if layout == "sample" else min(together)) == 1:
        return decision.leave_one_feature(name, next(iter(want.reasons)))
    mapped = {sizes for flow in flows for name, sizes in flow.mapped.items() if name in sources}
    if len(mapped) > 1 or any(len(sizes) > 1 for sizes in mapped):
        reason = "vmap maps over its members in several ways, which one norm has no scale and offset for"
        return decision.refuse(name, reason, "convert the members before stacking them")
    members = members_of(use, model, layout, parts, next(iter(mapped), ()))
    partial = any(s.name is None for s in parts)
    if zero and partial:
        return decision.refuse(name, *ZERO_PART)
    centred = not (want.heads and not want.part)
    decision.placements[product_name(sources, part)] = Placement(
        carrier,
        "normalise product",
        type(model.get_submodule(carrier)).__name__,
        " and ".join(want.reasons) + (FROM_ZERO if zero else ""),
        width=width,
        layout=layout,
        spatial=-1 - use.axis,
        periods=periods,
        sections=parts,
        centre=options.norm == "layer" and centred,
        scale=options.affine != "none",
        offset=options.affine == "scale_offset"
        and centred
        and not want.batch_norm
        and not _has_offset(model, key, flows, width * math.prod(members.get("members", ()))),
        eps=eps_of(options, fixed=zero or use.scaleless),
        gain=want.gain,
        **members,
        weights=paths,
        zero=() if partial or part else _fused_biases(model, carrier, use),
        part=part,
        like=name,
    )
    return None


def _otherwise_used(
    key: ProductKey, want: Want, flows: Sequence[Flow], last: Mapping[tuple[int, UseKey], str]
) -> str | None:
    """Why the product of these weights must not be normalised wherever it is made.

    Of a recurrence, the last step may end in the same activation, which then makes the output.
    """
    reason = next(iter(want.reasons))
    for flow in flows:
        made: dict[int, list[UseKey]] = defaultdict(list)  # the products of each call
        for found, use in flow.uses.items():
            where = found[0]
            if (where, use.sources, use.part) == key and use.fed:
                made[found[1]].append(found)
                if found in flow.returned_keys and (want.whole or not want.part):
                    return f"its product {reason} inside the network and is also returned as an output"
                assert want.use.output is not None
                if use.made is None or use.made.shape[use.axis] != want.use.output.shape[want.use.axis]:
                    return f"its product {reason}, and it makes products of other widths, too"
        for keys in made.values():
            hidden = [(id(flow), found) in want.keys for found in keys]
            final = [f"enters {last.get((id(flow), found))}" in want.reasons for found in keys]
            asked = [a or b for a, b in zip(hidden, final, strict=True)] if want.whole else hidden
            if any(hidden) and not (all(asked) and (len(keys) == 1 or not want.heads)):
                return (
                    f"its product {reason}, and others that are made of it do not, or another part of it does"
                )
    return None


def _has_offset(model: nn.Module, key: ProductKey, flows: Sequence[Flow], width: int) -> bool:
    """Whether a vector of parameters is added to the product later: it does what an offset would."""
    added = {
        name
        for flow in flows
        for (where, call, op), use in flow.uses.items()
        if (where, use.sources, use.part) == key
        for name in flow.shifts.get((where, call, op), ())
    }
    return any(model.get_parameter(name).numel() == width for name in added)


def _fused_biases(model: nn.Module, carrier: str, use: Use) -> tuple[str, ...]:
    """Biases that the function adds to the product: the norm takes their place."""
    ids = {id(model.get_parameter(name)) for name in use.fused}
    inside = model.get_submodule(carrier).named_parameters()
    return tuple(sorted(path for path, p in inside if id(p) in ids))
