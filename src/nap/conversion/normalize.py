"""Step 1 of NaP: a norm before every nonlinearity that lacks one (Algorithm 1, left)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nap.conversion.causal import refuse_causal
from nap.conversion.decide import decide
from nap.conversion.decision import Decision
from nap.conversion.gains import place_gains
from nap.conversion.light import Light, is_large, light_copy
from nap.conversion.notes import complete
from nap.conversion.placement import LISTS, Options, Placement, Plan, Problem
from nap.conversion.roles import roles
from nap.conversion.surgery import apply_
from nap.conversion.trial import Example, examples_of, record_all, trial_copy
from nap.norms.compiling import guard_hooks
from nap.norms.norm import Eps
from nap.tracing.record import Flow
from nap.tracing.told import Part, Told, name_of, names_of

_MOST_ROUNDS = 3  # conversions until planning again finds nothing


MISSING: Any = object()  # in place of an example that was not given


def plan(
    model: nn.Module,
    args: Any = MISSING,
    kwargs: Mapping[str, Any] | None = None,
    *,
    norm: Literal["layer", "rms"] = "layer",
    affine: Literal["scale_offset", "scale", "none"] = "scale_offset",
    batch_norm: Literal["precede", "keep"] = "precede",
    residual: Literal["branch", "sum"] = "branch",
    over: Literal["sample", "position"] = "sample",
    qk_norm: bool = True,
    rnn: Literal["error", "layernorm"] = "error",
    eps: Eps = "relative",
    exclude: Iterable[str] = (),
    allow: Iterable[str] = (),
    gains: Literal["none", "small"] | Iterable[str] = "none",
    activations: Iterable[Part] = (),
    linear: Iterable[Part] = (),
    strict: bool = False,
    **unknown: Any,
) -> Plan:
    """What `normalize_` would do to `model`; the model is not touched.

    Args:
        args: example inputs, a tuple as for `torch.export` (a lone tensor is fine). Two samples are
            enough; the model runs on a copy, in eval mode. A list of tuples stands for several
            examples, for a model whose path depends on its input; a dict in it is given by name.
        norm: LayerNorm, or RMSNorm (no centring).
        affine: learnable scale and offset of the inserted norms, scale alone, or neither.
        batch_norm: "precede" puts a norm without offset in front of a BatchNorm (the paper's rule), and
            without a scale where BatchNorm would undo that, too: directly in front of it;
            "keep" counts BatchNorm as the norm.
        residual: where results of several layers are added before a BatchNorm or an activation, "branch"
            gives each layer a norm of its own, so that each weight is scale-invariant by itself; "sum"
            puts one on the input of the BatchNorm or activation, and the weights are so only together and
            with their biases, which stay (their role is joint). What enters no module that a norm can
            hang on, such as `torch.relu`, or is moved on its way, such as by a transpose, is done by
            branch; what is pooled in space on its way to a BatchNorm as if it were a sum.
        over: of images and the like, a norm takes channels and space together, as `GroupNorm(1, C)` does, or
            the channels of each position by themselves, as ConvNeXt does, and Flax's LayerNorm by default.
        qk_norm: per-head RMSNorm on queries and keys.
        rnn: nn.LSTM, GRU and RNN become layer-normalised ones, or are an error.
        eps: relative to the weight in front, which makes scale-invariance exact, or a number.
        exclude: names of modules to leave alone (and everything below them).
        allow: names of problems to accept.
        gains: "small" puts a learnable number in front of output layers and ends of residual branches that
            start small or at zero, and their matrix at full norm: the network computes what it did, to the
            last bit. A list of module names says which layers. Without gains they may grow by themselves
            (`nap.Projector`), which did better where we compared.
        activations: what is a nonlinearity and cannot be looked into, such as scripted functions: by the name
            that a refusal gives, a function, a class, or a module of the model.
        linear: the same for what is linear; if it has weights, they are a layer.
        strict: weights that no example reaches are a problem, not a note.

    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> print(plan(net, torch.randn(2, 8)))
    module  role    action                                 reason
    0       Linear  LayerNorm on its output, bias removed  enters relu
    """
    _check_call(args, kwargs, unknown)
    for name, value in zip(LISTS, (exclude, allow, activations, linear), strict=True):
        if isinstance(value, str):
            raise ValueError(f"{name} takes a list of names, not one string: {name}=[{value!r}]")
    chosen: Any = gains if isinstance(gains, str) else tuple(gains)
    options = Options(
        norm, affine, batch_norm, residual, over, qk_norm, rnn, eps, tuple(exclude), tuple(allow), chosen,
        tuple(name_of(part, model) for part in activations), tuple(name_of(part, model) for part in linear),
        strict,
    )  # fmt: skip
    return plan_with(model, args, kwargs, options)


def plan_with(
    model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, options: Options, *, again: bool = False
) -> Plan:
    """The plan by these options; `again`: of a converted model, where what was accepted may be gone."""
    _check_model(model, options)
    examples, untracked = examples_of(args, kwargs), frozenset[str]()
    while True:
        try:
            return _tried(model, examples, options, again, untracked)
        except _Untracked as missed:
            untracked |= missed.names


class _Untracked(Exception):
    """Products whose norm did not see them: what is made of their weights comes from elsewhere."""

    def __init__(self, names: frozenset[str]):
        super().__init__(*names)
        self.names = names


def _tried(
    model: nn.Module, examples: Sequence[Example], options: Options, again: bool, untracked: frozenset[str]
) -> Plan:
    """The plan, without the values of large weights where that will do; `untracked` take no norm."""
    if is_large(model):
        try:
            light = light_copy(model)
            return _plan(light.twin, examples, options, again, untracked, light)
        except _Untracked:
            raise
        except Exception as reason:  # whatever cannot be done without the weights' values
            _check_values(model, reason)
    return _plan(trial_copy(model), examples, options, again, untracked)


def _plan(
    twin: nn.Module,
    examples: Sequence[Example],
    options: Options,
    again: bool,
    untracked: frozenset[str],
    light: Light | None = None,
) -> Plan:
    """What is to be done to a trial copy; it is converted on the way."""
    told = Told(frozenset(options.activations), frozenset(options.linear))
    watching = light.watching if light else None
    flows, notes = record_all(twin, examples, told, watching)
    decision = decide(twin, flows, options, untracked)
    if not again and not light:
        refuse_causal(decision, twin, examples[0])
    if not again:
        _check_allow(twin, decision)
        _check_told(twin, told, flows)
    placements = dict(decision.placements)
    problems = dict(decision.problems)
    left, gain_placements = decision, list[Placement]()
    for _ in range(_MOST_ROUNDS):  # convert the copy until planning again finds nothing
        if problems or not left.placements:
            break
        apply_(twin, Plan(tuple(left.placements.values())))
        if light:
            light.ground_norms_()
        flows.clear()  # they hold all that layers returned
        left.wants.clear()
        left.products.clear()
        flows, _ = record_all(twin, examples, told, watching)
        left = decide(twin, flows, options, untracked)
        if missed := _products(left.placements) & _products(placements):
            raise _Untracked(missed)
        problems.update(_unsettled({k: p for k, p in left.placements.items() if k in placements}))
        placements.update(left.placements)
        problems.update(left.problems)
    else:
        problems.update(_unsettled(left.placements))
    if options.gains != "none" and not problems:
        gain_placements, more = place_gains(twin, flows, roles(twin, flows), options)
        apply_(twin, Plan(tuple(gain_placements)))
        flows, _ = record_all(twin, examples, told, watching)
        notes |= {note.name: note for note in more}
    order = {name: i for i, (name, _) in enumerate(twin.named_modules())}
    placed = sorted([*placements.values(), *gain_placements], key=lambda p: order[p.module])
    weights = roles(twin, flows)
    left_alone = complete({**decision.notes, **notes}, placed, weights, flows)
    return Plan(tuple(placed), left_alone, tuple(problems.values()), weights, options)


def normalize_(
    model: nn.Module, args_or_plan: Any = MISSING, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> Plan:
    """Inserts the norms into `model`, in place, all or nothing; returns the plan that was applied.

    Takes example inputs and the options of `plan`, or a `Plan` made before (then nothing is traced).
    Raises ValueError with all problems listed, and the model as it was, where it cannot.

    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> applied = normalize_(net, torch.randn(2, 8))
    >>> net[0].nap_norm
    Norm(16, layer, over features, eps=1e-05·‖W‖²/rows, scale and offset)
    """
    if isinstance(args_or_plan, Plan):
        if options or kwargs:
            raise ValueError(
                "a plan holds its options already; call nap.normalize_(model, plan) with nothing else"
            )
        chosen = args_or_plan
    else:
        chosen = plan(model, args_or_plan, kwargs, **options)
    if chosen.problems:
        listed = "\n".join(f"  {problem}" for problem in chosen.problems)
        raise ValueError(
            f"the model was left as it is, because of {len(chosen.problems)} problem(s):\n{listed}"
        )
    apply_(model, chosen)
    guard_hooks()
    return chosen


def _check_call(args: Any, kwargs: Any, unknown: Mapping[str, Any]) -> None:
    """Refuse a call without an example, with inputs one by one, or with an option that is none."""
    if unknown:
        name = next(iter(unknown))
        known = [field.name for field in fields(Options)]
        hint = _nearest(name, known) or "."
        raise ValueError(f"nap.normalize_ has no option {name!r}{hint} It has {', '.join(known)}")
    if args is MISSING:
        raise ValueError(
            "an example input is missing: nap runs the model on it once to see which layer feeds which; call "
            "nap.normalize_(model, example), with a batch of two samples, a tuple of arguments, or () and a "
            "dict of named ones"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ValueError(
            f"the third argument is a dict of named inputs, not a {type(kwargs).__name__}; several inputs go "
            "together in a tuple: nap.normalize_(model, (first, second))"
        )


def _check_model(model: nn.Module, options: Options) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"nap works on a torch.nn.Module, not on a {type(model).__name__}")
    dynamo = sys.modules.get("torch._dynamo")  # importing it here would take seconds
    if dynamo is not None and isinstance(model, dynamo.OptimizedModule):
        raise ValueError("the model is compiled already; convert it first, then call torch.compile on it")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and not _is_told(model, name, options):
            raise ValueError(
                f"{name or 'the model'} is a ScriptModule, which cannot be looked into; "
                "convert the model before scripting it"
                + (f", or say what it is with activations=[{name!r}] or linear=[{name!r}]" if name else "")
            )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(
                f"{name} has no shape yet, and planning runs the model; call the model once before"
            )
    names = {name for name, _ in model.named_modules()}
    for name in options.exclude:
        if name not in names:
            raise ValueError(
                f"exclude names {name!r}, which is no module of the model{_nearest(name, names)}"
            )


def _check_values(model: nn.Module, reason: Exception) -> None:
    """Raises for a model on the meta device that cannot be planned there."""
    name = next((name for name, parameter in model.named_parameters() if parameter.is_meta), None)
    if name is not None:
        raise ValueError(
            f"{name} has no values yet, and planning this model needs them ({reason}); "
            "move it off the meta device with to_empty and initialise it"
        ) from reason


def _check_allow(model: nn.Module, decision: Decision) -> None:
    names = {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}
    for name in decision.options.allow:
        if name not in names | decision.accepted:
            hint = _nearest(name, [*decision.problems, *names])
            raise ValueError(f"allow names {name!r}, which is no problem of this model{hint}")


def _is_told(model: nn.Module, path: str, options: Options) -> bool:
    """Whether the caller says what a module is, or one that it is in."""
    told = {*options.activations, *options.linear}
    parts = path.split(".") if path else []
    paths = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(names_of(model.get_submodule(p), p) & told for p in paths)


def _check_told(model: nn.Module, told: Told, flows: Sequence[Flow]) -> None:
    met = set().union(*(flow.told for flow in flows))
    for name in sorted(told.names - met):
        names = {name for path, module in model.named_modules() for name in names_of(module, path)}
        raise ValueError(
            f"{name!r}, given as an activation or as linear, is no function, class or module that the model "
            f"uses on this example{_nearest(name, names)}"
        )


def _nearest(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _products(placements: Mapping[str, Placement]) -> frozenset[str]:
    return frozenset(name for name, p in placements.items() if p.action == "normalise product")


def _unsettled(placements: Mapping[str, Placement]) -> dict[str, Problem]:
    way_out = "this is a fault of nap: please report it; exclude the module meanwhile"
    return {
        site: Problem(site, f"after conversion it still {placement.reason} un-normalised", way_out)
        for site, placement in placements.items()
    }
