"""What the meetings of a recorded forward ask for: which producers want a norm, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from nap.conversion.carriers import carrier_of, has_direction, product_name
from nap.conversion.decision import Decision, Want
from nap.conversion.extent import layout_of
from nap.conversion.placement import Note, Placement
from nap.conversion.shared import shared_by
from nap.norms.norm import CHILD, EPS, FusedNorm, has_parts
from nap.norms.products import norm_on_product
from nap.norms.recurrent import NORMALIZED
from nap.tracing.arithmetic import DIVISION_BY_POSITIVES
from nap.tracing.operations import Kind
from nap.tracing.record import Flow, Meeting, Use
from nap.tracing.values import Carry

_OF_POSITIVES = {"sqrt", "rsqrt", "log", "log2", "log10", DIVISION_BY_POSITIVES}


def gather(decision: Decision, flow: Flow) -> None:
    """Enters into `decision` all that one recorded forward asks for."""
    _whole_modules(decision, flow)
    for meeting in flow.meetings:
        _meeting(decision, flow, meeting)
    for name, text in flow.remarks.items():
        if not decision.excluded(name):
            decision.notes.setdefault(name, Note(name, text))
    for operation, site in flow.unknown.items():
        decision.refuse(
            operation,
            f"in {site or 'the model'} a parameter or the un-normalised result of a layer enters "
            f"{operation}, which is not known",
            f"say what it is with activations=[{operation!r}] or linear=[{operation!r}]",
        )
    for site in dict.fromkeys(flow.unseen):
        decision.refuse(
            site or "model",
            "it uses a tensor of unseen origin (from vmap, compiled extensions, or before the forward)",
            "convert the members of an ensemble before stacking them for vmap, write the function in plain "
            "torch, or put it into a module and say what that is with activations=[...] or linear=[...]",
        )
    for name, site in flow.closed.items():
        decision.refuse(name, f"it is inside {site}, said to be an activation, which cannot be looked into",
                        "name the activations inside it instead")  # fmt: skip


def _whole_modules(decision: Decision, flow: Flow) -> None:
    options = decision.options
    for site in flow.attention:
        if decision.excluded(site) or _subclass(decision, site, nn.MultiheadAttention):
            continue
        if not options.qk_norm:
            decision.notes[site] = Note(site, "queries and keys stay as they are (qk_norm=False)")
            continue
        decision.placements[site] = Placement(
            site, "normalise attention", "MultiheadAttention", "queries and keys meet in a softmax",
            centre=False, scale=options.affine != "none", offset=False, eps=options.eps,
        )  # fmt: skip
    for site in flow.recurrent:
        if decision.excluded(site) or _subclass(decision, site, *NORMALIZED):
            continue
        role = type(decision.model.get_submodule(site)).__name__
        if options.rnn == "error":
            decision.refuse(site, f"{role} has gates inside, and how to normalise them is your choice",
                            "choose rnn='layernorm'")  # fmt: skip
            continue
        decision.placements[site] = Placement(
            site, "normalise recurrence", role, "its gates follow W·x and W·h",
            centre=options.norm == "layer", scale=options.affine != "none",
            offset=options.affine == "scale_offset", eps=options.eps,
        )  # fmt: skip


def _subclass(decision: Decision, site: str, *plain: type[nn.Module]) -> bool:
    kind = type(decision.model.get_submodule(site))
    if kind not in plain:
        decision.refuse(
            site,
            f"{kind.__name__} extends a torch class, and changing its class would lose what it overrides",
            "normalise it by hand",
        )
    return kind not in plain


def _meeting(decision: Decision, flow: Flow, meeting: Meeting) -> None:
    attention = meeting.kind in (Kind.SOFTMAX, Kind.ATTENTION)
    for carry in asked(decision, flow, meeting):
        if _accepted_product(decision, flow, carry) or (attention and _accepted(decision, meeting, carry)):
            continue
        if attention or carry.site not in decision.summed:
            _want(decision, flow, meeting, carry)


def _accepted(decision: Decision, meeting: Meeting, carry: Carry) -> bool:
    """Whether the caller accepts a layer by name: then neither its queries nor its keys get a norm."""
    if carry.site not in decision.options.allow:
        return False
    decision.accepted.add(carry.site)
    fault = meeting.faults.get(carry)
    why = f"which of its features reach {meeting.operation} is unclear: {fault}" if fault else ""
    decision.note(
        [carry.site], f"accepted by the caller: {why or f'it enters {meeting.operation}'}", first=not fault
    )
    return True


def _accepted_product(decision: Decision, flow: Flow, carry: Carry) -> bool:
    """Whether the caller excludes the modules whose weights make a product, or accepts it by name."""
    sources = flow.uses[carry.key].sources
    if flow.uses[carry.key].product is None or not sources:
        return False
    if min(sources) in decision.options.allow:
        decision.accepted.add(min(sources))
        decision.notes[min(sources)] = Note(
            min(sources), "accepted by the caller: its product is left as it is"
        )
        return True
    owners = {name.rpartition(".")[0] for name in sources}
    return all(decision.excluded(owner) for owner in sorted(owners))


def asked(decision: Decision, flow: Flow, meeting: Meeting) -> Iterator[Carry]:
    """The results that a meeting asks to be normalised; why others need not be is noted."""
    attention = meeting.kind in (Kind.SOFTMAX, Kind.ATTENTION)
    for carry in sorted(meeting.carry, key=lambda c: (*c.key, c.product or ())):
        if decision.excluded(carry.site):
            continue
        names = flow.uses[carry.key].names(carry.site)
        if not meeting.hidden:
            decision.last.setdefault((id(flow), carry.key), meeting.operation)
            decision.note(names, f"{meeting.operation} after it is the model's output", first=True)
        elif carry.batch_norm and decision.options.batch_norm == "keep":
            decision.note(names, "normalised by its BatchNorm (batch_norm='keep')")
        elif attention and carry.product is None:
            why = f"a {meeting.operation} over its own output (a router, a mixer or a pooling), not over q·k"
            decision.note(names, why)
        elif attention and not decision.options.qk_norm:
            decision.note(names, "queries and keys stay as they are (qk_norm=False)")
        else:
            yield carry


def _want(decision: Decision, flow: Flow, meeting: Meeting, carry: Carry) -> None:
    use = flow.uses[carry.key]
    if use.single:
        for name in use.names(carry.site):
            decision.leave_one_feature(name, f"enters {meeting.operation}")
        return
    if carry in meeting.faults:
        decision.refuse(
            carry.site or min(use.sources),
            f"which of its features reach {meeting.operation} is unclear: {meeting.faults[carry]}",
            _by_hand(decision, meeting),
        )
        return
    if meeting.features.get(carry) == frozenset():  # none of them: it was beside what is
        return
    if use.apart:
        name = carry.site if carry.site and use.output is not None else min(use.sources)
        reason = f"it enters {meeting.operation}, and {use.apart}; a norm lets each depend on all inputs"
        decision.refuse(name, reason, "let it end in the output, with no nonlinearity after it")
        return
    first_bent_by = carry.curve[0] if carry.curve else meeting.operation  # of |x| and x² any x will do
    if {meeting.operation, first_bent_by} <= _OF_POSITIVES:
        reason = (
            f"its product enters {meeting.operation}, which does not accept negative numbers, and a norm "
            "produces them"
        )
        decision.refuse(min(use.sources, default=carry.site), reason, "normalise it by hand")
        return
    early = carry.call in meeting.active or carry in meeting.early
    mapped = not use.sources.isdisjoint(flow.mapped)
    inside = early or mapped or carry.site in flow.tupled or use.output is None
    if inside and not _can_be_product(decision, flow, meeting, carry):
        _at_input(decision, flow, meeting, carry, use)
        return
    if isinstance(decision.model.get_submodule(carry.site), torch.jit.ScriptModule):
        way_out = "wrap it in a module of plain torch, and name that in linear=[...]"
        decision.refuse(carry.site, "it is a ScriptModule, and no norm can hang on one", way_out)
        return
    if inside:
        use = replace(use, output=use.made)
    features, heads = meeting.features.get(carry), meeting.heads.get(carry)
    covered = getattr(decision.model.get_submodule(carry.site), CHILD, None)
    if inside and (found := carrier_of(decision.model, carry.site, use.sources)) is not None:
        weights = [decision.model.get_parameter(name) for name in use.sources]
        covered = norm_on_product(decision.model.get_submodule(found[0]), weights, use.part)
    if isinstance(covered, FusedNorm):
        reached = frozenset().union(*heads.groups) if heads else features
        if reached is not None and reached <= covered.normalised_features():
            return
    if inside:
        want = decision.products.setdefault((carry.site, use.sources, use.part), Want(use))
    else:
        want = decision.wants.setdefault(carry.site, Want(use))
    want.batch_norm |= carry.batch_norm
    want.keys.add((id(flow), carry.key))
    if heads is not None and carry.product is not None:
        side = carry.product[1]
        want.reasons[f"is the {('query', 'key')[side]} in {meeting.operation}"] = None
        want.heads.setdefault("qk"[side], set()).update(heads.groups)
        size = len(heads.groups[0]) ** 0.5
        temperature = meeting.temperature * _other_gains(meeting, heads.gain)
        want.gain = (temperature * size) ** -0.5 if temperature * size > 2 else 1.0
    else:
        through = "BatchNorm and " if carry.batch_norm else ""
        why = decision.by_itself.get(carry.site)
        in_sum = f" in a sum (no norm can hang there: {why})" if why else ""
        want.reasons[f"enters {through}{meeting.operation}{in_sum}"] = None
        assert use.output is not None
        want.whole |= features is None or len(features) == use.output.shape[use.axis]
        want.part |= features or set()


def _by_hand(decision: Decision, meeting: Meeting) -> str:
    """The way out where features cannot be told: a module without weights may be called an activation."""
    where = meeting.modules[-1] if meeting.modules else ""
    attention = meeting.kind in (Kind.SOFTMAX, Kind.ATTENTION)
    if attention or not where or next(decision.model.get_submodule(where).parameters(), None) is not None:
        return "normalise it by hand"
    return f"normalise it by hand, or say what {where} is with activations=[{where!r}]"


def _can_be_product(decision: Decision, flow: Flow, meeting: Meeting, carry: Carry) -> bool:
    """Whether the product itself can have the norm, where a function makes it inside of a forward.

    Not the correction of another product (LoRA): a norm of its own would blow it up. There a norm can only
    be on the sum. And not where a module that is called uses the same weights.
    """
    use = flow.uses[carry.key]
    if product_name(use.sources, use.part) in decision.untracked:
        return False
    if use.made is None or not use.fed or meeting.faults.get(carry) or not use.sources:
        return False
    place = decision.placements.get(meeting.modules[-1]) if meeting.modules else None
    if place is not None and place.action == "normalise input":  # a norm of a sum is on all that enters
        return False
    others = [flow.uses[c.key] for c in meeting.carry if c.key != carry.key and c.product == carry.product]
    corrections = [_is_correction(decision, other) for other in others]
    if _is_correction(decision, use) and not all(corrections):
        return False
    if any(corrections) and _takes_norm(decision, flow, meeting, carry):
        return False
    below = f"{carry.site}.".lstrip(".")
    if any(
        u.sources & use.sources and k[0] != carry.site and k[0].startswith(below)
        for k, u in flow.uses.items()
    ):
        return False
    return carrier_of(decision.model, carry.site, use.sources) is not None


def _is_correction(decision: Decision, use: Use) -> bool:
    """Whether a product is made of another one, or of weights that are all zeros: a LoRA's B."""
    weights = [decision.model.get_parameter(name) for name in use.sources]
    return bool(use.joined) or not any(map(has_direction, weights))


def _takes_norm(decision: Decision, flow: Flow, meeting: Meeting, carry: Carry) -> bool:
    """Whether the module that is running takes a norm on what enters it, for no other results than these."""
    where = meeting.modules[-1] if meeting.modules else ""
    module = decision.model.get_submodule(where)
    free = is_plain_leaf(module) and CHILD not in module._modules and not decision.is_told(where)
    return free and where != carry.site and not shared_by(flow, meeting, carry, where)


def _other_gains(meeting: Meeting, own: float) -> float:
    """Factors that queries and keys get between their layers and the product, e.g. q·d^(-1/2)."""
    gains = {c.product[1]: h.gain for c, h in meeting.heads.items() if c.product}
    total = 1.0
    for gain in gains.values():
        total *= gain
    return total if gains else own


def _at_input(decision: Decision, flow: Flow, meeting: Meeting, carry: Carry, use: Use) -> None:
    """The norm cannot hang on the producer; if the activation is a module, it can hang there."""
    attention = meeting.kind in (Kind.SOFTMAX, Kind.ATTENTION)
    where = (carry.slot if attention else None) or (meeting.modules[-1] if meeting.modules else "")
    module = decision.model.get_submodule(where)
    can_carry = is_plain_leaf(module) and CHILD not in module._modules and not decision.is_told(where)
    shared = shared_by(flow, meeting, carry, where)
    axis = -1 if attention else meeting.axes.get(carry)
    if shared:
        decision.refuse(
            min(use.sources),
            f"its product enters {where}, and {shared}",
            f"give this use of {where} a module of its own",
        )
        return
    if where != carry.site and can_carry and (carry.slot or not attention) and axis is not None:
        if where in decision.placements or decision.excluded(where):  # a norm of a sum is on all that enters
            return
        width = meeting.contracted.get(carry, meeting.shape[axis])
        layout = layout_of(decision.options, axis, use.space)
        if width == 1:
            decision.leave_one_feature(where, f"enters {meeting.operation}")
            return
        decision.placements[where] = Placement(
            where, "normalise input", type(module).__name__,
            f"{carry.site or min(use.sources)} enters it and cannot carry a norm itself",
            width=width, layout=layout, spatial=-1 - axis,
            centre=decision.options.norm == "layer" and not attention,
            scale=decision.options.affine != "none",
            offset=decision.options.affine == "scale_offset" and not attention,
            eps=EPS if decision.options.eps == "relative" else decision.options.eps,
            like=min(use.sources),
        )  # fmt: skip
        return
    if use.made is not None and use.made.shape[use.axis :].numel() == 1:
        decision.leave_one_feature(min(use.sources), f"enters {meeting.operation}")
        return
    decision.refuse(
        min(use.sources),
        f"its product enters {meeting.operation} before {carry.site or 'the model'} returns, "
        "so there is no place to hang a norm",
        "make the layer a module of its own and call it",
    )


def is_plain_leaf(module: nn.Module) -> bool:
    """Whether a module is an activation or its like: nothing in it, but perhaps a norm of ours."""
    if isinstance(module, torch.jit.ScriptModule):
        return False
    return not has_parts(module) and next(module.parameters(recurse=False), None) is None
