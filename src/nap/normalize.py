"""Step 1 of NaP: a norm before every nonlinearity that lacks one (Algorithm 1, left)."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from nap.decide import Decision, decide
from nap.flow.record import Flow
from nap.flow.recorder import record
from nap.norms import Eps
from nap.placement import Note, Options, Placement, Plan, Problem
from nap.roles import roles
from nap.surgery import apply_

_MOST_ROUNDS = 3  # conversions until planning again finds nothing


def plan(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    norm: Literal["layer", "rms"] = "layer",
    affine: Literal["scale_offset", "scale", "none"] = "scale_offset",
    batch_norm: Literal["precede", "keep"] = "precede",
    qk_norm: bool = True,
    rnn: Literal["error", "layernorm"] = "error",
    eps: Eps = "relative",
    exclude: Iterable[str] = (),
    allow: Iterable[str] = (),
) -> Plan:
    """What `normalize_` would do to `model`; the model is not touched.

    Args:
        args: example inputs, a tuple as for `torch.export` (a lone tensor is fine). Two samples are
            enough; the model runs on a copy, in eval mode.
        norm: LayerNorm, or RMSNorm (no centring).
        affine: learnable scale and offset of the inserted norms, scale alone, or neither.
        batch_norm: "precede" puts a norm without offset in front of a BatchNorm (the paper's rule);
            "keep" counts BatchNorm as the norm.
        qk_norm: per-head RMSNorm on queries and keys.
        rnn: nn.LSTM, GRU and RNN become layer-normalised ones, or are an error.
        eps: relative to the weight in front, which makes scale-invariance exact, or a number.
        exclude: names of modules to leave alone (and everything below them).
        allow: names of problems to accept.

    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> print(plan(net, torch.randn(2, 8)))
    module  role    action                                 reason
    0       Linear  LayerNorm on its output, bias removed  enters relu
    """
    for name, value in (("exclude", exclude), ("allow", allow)):
        if isinstance(value, str):
            raise ValueError(f"{name} takes a list of names, not one string: {name}=[{value!r}]")
    options = Options(norm, affine, batch_norm, qk_norm, rnn, eps, tuple(exclude), tuple(allow))
    _check_model(model, options)
    inputs = args if isinstance(args, tuple) else (args,)
    twin = _copy_for_recording(model)
    flows, untried = _record(twin, inputs, kwargs or {})
    decision = decide(twin, flows, options)
    decision.notes.update(untried)
    placements = dict(decision.placements)
    if not decision.problems:
        for _ in range(_MOST_ROUNDS):
            apply_(twin, Plan(tuple(decision.placements.values())))
            flows, _ = _record(twin, inputs, kwargs or {})
            again = decide(twin, flows, options)
            decision.problems.update(again.problems)
            decision.placements = again.placements
            placements.update(again.placements)
            if not again.placements or again.problems:
                break
        _check_fixpoint(decision)
    order = {name: i for i, (name, _) in enumerate(twin.named_modules())}
    rows: list[Placement] = sorted(placements.values(), key=lambda p: order[p.module])
    notes = [note for name, note in decision.notes.items() if name not in placements]
    problems = tuple(decision.problems.values())
    return Plan(tuple(rows), tuple(notes), problems, roles(twin, flows), options)


def normalize_(
    model: nn.Module, args_or_plan: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
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
    return chosen


def _check_model(model: nn.Module, options: Options) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"nap works on a torch.nn.Module, not on a {type(model).__name__}")
    dynamo = sys.modules.get("torch._dynamo")  # importing it here would take seconds
    if dynamo is not None and isinstance(model, dynamo.OptimizedModule):
        raise ValueError("the model is compiled already; convert it first, then call torch.compile on it")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the model'} is a ScriptModule, which cannot be looked into; "
                "convert the model before scripting it"
            )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            raise ValueError(
                f"{name} has no values yet, and planning runs the model; give it values first "
                "(call a lazy model once, move one off the meta device with to_empty and initialise it)"
            )
    names = {name for name, _ in model.named_modules()}
    for name in options.exclude:
        if name not in names:
            raise ValueError(
                f"exclude names {name!r}, which is no module of the model; see model.named_modules()"
            )


class _DetachedCopies(TorchFunctionMode):
    """Lets a model be copied that still holds results of an earlier forward."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def detached_copy(model: nn.Module) -> nn.Module:
    """A copy of `model` in eval mode, even if it holds tensors that are part of a graph."""
    with _DetachedCopies():
        return copy.deepcopy(model).eval()


def _copy_for_recording(model: nn.Module) -> nn.Module:
    twin = detached_copy(model)
    generator = torch.Generator().manual_seed(0)
    for parameter in twin.parameters():
        vector_of_zeros = parameter.ndim < 2 and parameter.numel() and not parameter.any()
        if vector_of_zeros and not parameter.requires_grad:
            continue  # a bias that step 1 took out of use
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
            if vector_of_zeros:
                # a zero gain would hide what lies behind it from the gradients that find layouts
                drawn = torch.randn(parameter.shape, generator=generator) * 0.1
                parameter.data.copy_(drawn)
    return twin


def _record(
    twin: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Flow], dict[str, Note]]:
    """The eval forward; and the train forward too where some parameters are used only there."""
    flows = [_run(twin.eval(), args, kwargs)]
    unused = [name for name, _ in twin.named_parameters() if name not in flows[0].seen]
    if not unused:
        return flows, {}
    try:
        flows.append(_run(twin.train(), args, kwargs))
    except Exception as reason:  # e.g. BatchNorm on one value per channel: the eval forward stands alone
        why = f"unused in eval mode, and the forward in train mode fails: {reason}"
        return flows, {name: Note(name, why) for name in unused}
    finally:
        twin.eval()
    return flows, {}


def _run(twin: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Flow:
    def clone(x: Any) -> Any:
        return x.detach().clone() if isinstance(x, Tensor) else x

    with fixed_randomness(twin):
        try:
            return record(twin, tree_map(clone, args), tree_map(clone, dict(kwargs)))
        except Exception as error:
            raise ValueError(
                f"{type(twin).__name__} fails on the example inputs ({type(error).__name__}: {error}); "
                "give args and kwargs as you would call the model"
            ) from error


@contextmanager
def fixed_randomness(model: nn.Module) -> Iterator[None]:
    """The same random numbers for every forward inside; the caller's generators stay as they were."""
    cuda = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(0)
        for index in cuda:
            torch.cuda.default_generators[index].manual_seed(0)
        yield


def _check_fixpoint(decision: Decision) -> None:
    for site, placement in decision.placements.items():
        decision.problems[site] = Problem(
            site,
            f"after conversion it still {placement.reason} un-normalised",
            "this is a fault of nap: please report it; exclude the module meanwhile",
        )
