"""A copy of the model to try things on: recorded forwards that leave no trace in the original."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from nap.conversion.placement import Note
from nap.tracing.eager import as_written
from nap.tracing.record import Flow
from nap.tracing.recorder import Recorder, record
from nap.tracing.told import NOTHING, Told

Watching = Callable[[nn.Module, Told], Recorder]  # what records a forward of a model
Example = tuple[tuple[Any, ...], Mapping[str, Any]]  # positional and named inputs


def examples_of(args: Any, kwargs: Mapping[str, Any] | None) -> list[Example]:
    """Example inputs as given to `nap.plan`: a tuple, a lone input, or a list of tuples and dicts.

    >>> len(examples_of([(torch.ones(1, 3),), (torch.ones(1, 9),)], None))
    2
    """
    several = isinstance(args, list) and args and all(isinstance(one, (tuple, dict)) for one in args)
    rows = args if several else [args if isinstance(args, tuple) else (args,)]
    named = dict(kwargs or {})
    return [((), {**named, **row}) if several and isinstance(row, dict) else (row, named) for row in rows]


class Unfollowed(Exception):
    """A forward that fails only where it is recorded."""


class _DetachedCopies(TorchFunctionMode):
    """Lets a model be copied that still holds results of an earlier forward."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def detached_copy(model: nn.Module, instead: Mapping[int, Any] | None = None) -> nn.Module:
    """A copy of `model` in eval mode, even if it holds tensors that are part of a graph.

    `instead`: what takes the place of some of its parts, by their ids.
    """
    held = (leaf for module in model.modules() for leaf in tree_leaves(list(vars(module).values())))
    scripted = {id(leaf): leaf for leaf in held if isinstance(leaf, torch.jit.ScriptFunction)}
    with _DetachedCopies():  # scripted functions cannot be copied
        return copy.deepcopy(model, {**scripted, **(instead or {})}).eval()


def trial_copy(model: nn.Module) -> nn.Module:
    """A copy whose gradients can be read off: all of it trainable, in float32 or better, no zero gains."""
    return wake_(detached_copy(model))


def wake_(twin: nn.Module) -> nn.Module:
    """Makes a copy into a trial copy."""
    generator = torch.Generator().manual_seed(0)
    for parameter in twin.parameters():
        if not parameter.is_floating_point():
            continue
        parameter.data = _widened(parameter.data)
        zeros = parameter.ndim < 2 and parameter.numel() and not parameter.any()
        if zeros and not parameter.requires_grad:
            continue  # a bias that step 1 took out of use
        parameter.requires_grad_(True)
        if zeros:  # a zero gain would hide what lies behind it from gradients
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    for module in twin.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        module._buffers.update({n: _widened(b) for n, b in module._buffers.items() if b is not None})
    return twin


def _widened(x: Any) -> Any:
    half = isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if half else x


def record_all(
    twin: nn.Module, examples: Sequence[Example], told: Told = NOTHING, watching: Watching | None = None
) -> tuple[list[Flow], dict[str, Note]]:
    """The eval forward of each example; and the train forward where some parameters are used only there."""
    flows = [_run(twin.eval(), *example, told, watching) for example in examples]
    seen = set().union(*(flow.seen for flow in flows))
    unused = [name for name, _ in twin.named_parameters() if name not in seen]
    if not unused:
        return flows, {}
    try:
        flows += [_run(twin.train(), *example, told, watching) for example in examples]
    except Exception as reason:  # e.g. BatchNorm on one value per channel: the eval forward stands alone
        why = f"unused in eval mode, and the forward in train mode fails: {reason}"
        return flows, {name: Note(name, why) for name in unused}
    finally:
        twin.eval()
    return flows, {}


def _run(
    twin: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], told: Told, watching: Watching | None
) -> Flow:
    def own(x: Any) -> Any:
        return _widened(x.detach().clone()) if isinstance(x, Tensor) else x

    def inputs() -> tuple[Any, Any]:
        return tree_map(own, args), tree_map(own, dict(kwargs))

    with fixed_randomness(twin), explained(twin), as_written():
        try:
            return record(twin, *inputs(), told, watching)
        except RuntimeError as error:
            if watching is not None:
                raise
            plain, named = inputs()
            twin(*plain, **named)  # a fault of the model itself is raised here
            raise Unfollowed(error) from error


@contextmanager
def explained(model: nn.Module) -> Iterator[None]:
    """An error of the model on example inputs becomes a ValueError that says what to do."""
    kind = type(model).__name__
    try:
        yield
    except Unfollowed as fault:
        raise ValueError(
            f"{kind} runs on the example inputs, but not while it is followed ({fault}). If its forward "
            "takes derivatives of a part of it, convert that part alone: nap.normalize_(model.part, inputs)"
        ) from fault
    except NotImplementedError as error:
        raise ValueError(
            f"{kind} cannot be called ({error}); "
            "convert the parts of it that can, such as model.actor and model.critic, one by one"
        ) from error
    except Exception as error:
        raise ValueError(
            f"{kind} fails on the example inputs ({type(error).__name__}: {error}); "
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


def first_tensor(inputs: Any) -> Tensor | None:
    """The first tensor with an axis in nested inputs."""
    return next((x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.ndim), None)


def failure(trial: str, reason: Exception) -> str:
    """What was tried, and why it failed, in one line."""
    return f"{trial}: {' '.join(str(reason).split())}"
