"""From the record of a forward to placements: which norm goes where, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from nap.flow.layout import LayoutError, sections
from nap.flow.operations import Kind
from nap.flow.record import Flow, Meeting, Use
from nap.flow.values import Carry
from nap.norms import CHILD, EPS, FusedNorm, Layout
from nap.placement import Note, Options, Placement, Problem

_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
_PLAIN = (nn.Linear, nn.modules.conv._ConvNd)  # their bias may simply become None


@dataclass
class Want:
    """What the meetings ask of one producer."""

    use: Use
    reasons: dict[str, None] = field(default_factory=dict)
    whole: bool = False
    part: set[int] = field(default_factory=set)
    heads: dict[str, set[frozenset[int]]] = field(default_factory=dict)
    gain: float = 1.0
    batch_norm: bool = False


@dataclass
class Decision:
    """What was decided so far."""

    model: nn.Module
    options: Options
    wants: dict[str, Want] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    problems: dict[str, Problem] = field(default_factory=dict)

    def excluded(self, site: str) -> bool:
        hit = any(name in ("", site) or site.startswith(f"{name}.") for name in self.options.exclude)
        if hit:
            self.notes[site] = Note(site, "excluded by the caller")
        return hit

    def refuse(self, name: str, reason: str, way_out: str) -> None:
        if name in self.options.allow:
            self.notes[name] = Note(name, f"accepted by the caller: {reason}")
        else:
            end = f"or accept it as it is with allow=[{name!r}]"
            self.problems.setdefault(name, Problem(name, reason, f"{way_out}, {end}"))


def decide(model: nn.Module, flows: Sequence[Flow], options: Options) -> Decision:
    """All placements, notes and problems that the recorded forwards of `model` give rise to."""
    decision = Decision(model, options)
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            decision.refuse(
                "ScriptModule", "a scripted module cannot be looked into", "convert before scripting"
            )
    for flow in flows:
        _whole_modules(decision, flow)
        for meeting in flow.meetings:
            _meeting(decision, flow, meeting)
        for operation, site in flow.unknown.items():
            decision.refuse(
                operation,
                f"in {site or 'the model'} a parameter or a layer's un-normalised result enters {operation}, "
                "which is not known",
                "normalise the layer by hand",
            )
        for site in dict.fromkeys(flow.unseen):
            decision.refuse(
                site or "model",
                "it uses a tensor of unseen origin (a custom autograd function or compiled code)",
                "convert before compiling, or write the function in plain torch",
            )
    returned = set().union(*(flow.returned for flow in flows))
    for site, want in decision.wants.items():
        if site in returned and (want.whole or not want.part):
            decision.refuse(
                site,
                f"its result {next(iter(want.reasons))} inside the network and is also returned as an output",
                "give the output a layer of its own",
            )
        else:
            _place(decision, site, want, flows)
    return decision


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
        if decision.excluded(site) or _subclass(decision, site, *_RECURRENT):
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
    for carry in sorted(meeting.carry, key=lambda c: (c.site, c.call)):
        if decision.excluded(carry.site):
            continue
        if not meeting.hidden:
            decision.notes.setdefault(
                carry.site, Note(carry.site, f"{meeting.operation} after it is the model's output")
            )
        elif carry.batch_norm and decision.options.batch_norm == "keep":
            decision.notes[carry.site] = Note(carry.site, "normalised by its BatchNorm (batch_norm='keep')")
        elif attention and carry.product is None:
            decision.notes[carry.site] = Note(
                carry.site,
                f"a {meeting.operation} over its own output (a router, a mixer or a pooling), not over q·k",
            )
        elif attention and not decision.options.qk_norm:
            decision.notes[carry.site] = Note(carry.site, "queries and keys stay as they are (qk_norm=False)")
        else:
            _want(decision, flow, meeting, carry)


def _want(decision: Decision, flow: Flow, meeting: Meeting, carry: Carry) -> None:
    use = flow.uses[carry.key]
    if carry in meeting.faults:
        decision.refuse(
            carry.site,
            f"which of its features reach {meeting.operation} is unclear: {meeting.faults[carry]}",
            "normalise it by hand",
        )
        return
    if carry.call in meeting.active or carry.site in flow.tupled or use.output is None:
        _at_input(decision, meeting, carry, use)
        return
    features, heads = meeting.features.get(carry), meeting.heads.get(carry)
    covered = getattr(decision.model.get_submodule(carry.site), CHILD, None)
    if isinstance(covered, FusedNorm):
        reached = frozenset().union(*heads.groups) if heads else features
        if reached is not None and reached <= covered.normalised_features():
            return
    want = decision.wants.setdefault(carry.site, Want(use))
    want.batch_norm |= carry.batch_norm
    if heads is not None and carry.product is not None:
        side = carry.product[1]
        want.reasons[f"is a {('query', 'key')[side]} of {meeting.operation}"] = None
        want.heads.setdefault("qk"[side], set()).update(heads.groups)
        size = len(heads.groups[0]) ** 0.5
        temperature = meeting.temperature * _other_gains(meeting, heads.gain)
        want.gain = (temperature * size) ** -0.5 if temperature * size > 2 else 1.0
    else:
        through = "BatchNorm and " if carry.batch_norm else ""
        want.reasons[f"enters {through}{meeting.operation}"] = None
        want.whole |= features is None or len(features) == use.output.shape[use.axis]
        want.part |= features or set()


def _other_gains(meeting: Meeting, own: float) -> float:
    """Factors that queries and keys get between their layers and the product, e.g. q·d^(-1/2)."""
    gains = {c.product[1]: h.gain for c, h in meeting.heads.items() if c.product}
    total = 1.0
    for gain in gains.values():
        total *= gain
    return total if gains else own


def _at_input(decision: Decision, meeting: Meeting, carry: Carry, use: Use) -> None:
    """The norm cannot hang on the producer; if the activation is a module, it can hang there."""
    attention = meeting.kind in (Kind.SOFTMAX, Kind.ATTENTION)
    where = (carry.slot if attention else None) or (meeting.modules[-1] if meeting.modules else "")
    module = decision.model.get_submodule(where)
    leaf = next(module.children(), None) is None and next(module.parameters(), None) is None
    if where != carry.site and leaf and (carry.slot or not attention):
        if decision.excluded(where):
            return
        width = meeting.contracted.get(carry, meeting.shape[-1])
        if width == 1:
            _refuse_width(decision, where, f"enters {meeting.operation}")
            return
        decision.placements[where] = Placement(
            where, "normalise input", type(module).__name__,
            f"{carry.site} enters it and cannot carry a norm itself",
            width=width, centre=decision.options.norm == "layer" and not attention,
            scale=decision.options.affine != "none",
            offset=decision.options.affine == "scale_offset" and not attention,
            eps=EPS if decision.options.eps == "relative" else decision.options.eps,
        )  # fmt: skip
        return
    decision.refuse(
        min(use.sources),
        f"its product enters {meeting.operation} before {carry.site or 'the model'} returns, "
        "so there is no place to hang a norm",
        "make the layer a module of its own and call it",
    )


def _refuse_width(decision: Decision, site: str, reason: str) -> None:
    decision.refuse(site, f"it {reason} with one feature, and a norm over one feature always gives zero",
                    "give it more features")  # fmt: skip


def _place(decision: Decision, site: str, want: Want, flows: Sequence[Flow]) -> None:
    options, use = decision.options, want.use
    assert use.output is not None
    module = decision.model.get_submodule(site)
    width = use.output.shape[use.axis]
    try:
        periods, parts = _parts(want, width)
    except LayoutError as fault:
        decision.refuse(
            site, f"its queries, keys or gates are laid out in a way not known: {fault}", "split it"
        )
        return
    smallest = min([s.head or s.length * periods for s in parts if s.name] or [width])
    layout: Layout = (
        "sample" if use.spatial >= 2 and not parts else "features" if use.axis == -1 else "channels"
    )
    one = use.output[0].numel() if layout == "sample" else smallest
    if one == 1:
        _refuse_width(decision, site, next(iter(want.reasons)))
        return
    names = _own_parameters(decision.model, module)
    weights = tuple(dict.fromkeys(_attribute(module, names[n]) for n in sorted(use.sources) if n in names))
    biases = [names[n] for flow in flows for n in flow.added if n in names]
    biases = sorted({path for path in biases if module.get_parameter(path).ndim == 1})
    plain = [p for p in biases if isinstance(module.get_submodule(p.rpartition(".")[0]), _PLAIN)]
    partial = any(s.name is None for s in parts)
    only_heads = bool(want.heads) and not want.part
    if partial and len(biases) > 1:
        decision.refuse(
            site, f"a part of its output is normalised and it has {len(biases)} biases", "split it"
        )
        return
    zeros = [p for p in weights if not module_tensor(module, p).any()]
    if weights and len(zeros) == len(weights):
        name = f"{site}.{zeros[0]}".lstrip(".")
        decision.refuse(name, "it is all zeros, so it has no direction to keep", "initialise it")
        return
    decision.placements[site] = Placement(
        site,
        "normalise output",
        type(module).__name__,
        " and ".join(want.reasons),
        width=width,
        layout=layout,
        spatial=-1 - use.axis,
        periods=periods,
        sections=parts,
        centre=options.norm == "layer" and not only_heads,  # heads are never centred; a gate beside them is
        scale=options.affine != "none",
        offset=options.affine == "scale_offset" and not want.batch_norm and not only_heads,
        eps=options.eps if weights or options.eps != "relative" else EPS,
        gain=want.gain,
        weights=weights,
        remove=() if partial else tuple(plain),
        zero=() if partial else tuple(p for p in biases if p not in plain),
        subtract=biases[0] if partial and biases else None,
    )


def _parts(want: Want, width: int) -> tuple[int, tuple]:
    if want.whole or (len(want.part) == width and not want.heads):
        return 1, ()
    labels: list[tuple[str, int] | None] = [None] * width
    for index in want.part:
        labels[index] = ("gate", 0)
    for name, groups in want.heads.items():
        for group in groups:
            if max(group) - min(group) + 1 != len(group):
                raise LayoutError("the features of one head are not next to each other")
            for index in group:
                labels[index] = (name, len(group))
    return sections(width, labels)


def _own_parameters(model: nn.Module, module: nn.Module) -> dict[str, str]:
    """First name in the model → path below the module, for the parameters of the module."""
    first = {id(p): name for name, p in model.named_parameters()}
    return {first[id(p)]: path for path, p in module.named_parameters(remove_duplicate=False)}


def _attribute(module: nn.Module, path: str) -> str:
    """A parametrised weight is read through the attribute that computes it."""
    head, mark, rest = path.partition("parametrizations.")
    return head + rest.split(".")[0] if mark else path


def module_tensor(module: nn.Module, path: str) -> torch.Tensor:
    owner, _, leaf = path.rpartition(".")
    return getattr(module.get_submodule(owner), leaf)


__all__ = ["Decision", "Iterable", "decide"]
