"""TorchRL: `normalize_(actor, tensordict)` before the loss module is made, `follow(loss, optimizer)` after.

A loss module takes the parameters out of the networks that it is given, and stacks those of several critics.
What it trains is therefore followed through the loss.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torch.optim import Optimizer

from nap.conversion.normalize import normalize_ as normalize_module_
from nap.conversion.placement import Plan
from nap.projection.project import Projector

PARAMS = "_params"  # behind the name of a network, in a loss module


def normalize_(module: TensorDictModuleBase, tensordict: Any, **options: Any) -> dict[str, Plan]:
    """Step 1 in each network inside of a module of tensordicts; the plans, by the network's name.

    Args:
        module: an actor, a critic, or several in one; its values and distributions stay as they are.
        tensordict: an example batch; `module` is called with a copy of it to see what its networks get.
        options: those of `nap.normalize_`.
    """
    calls: dict[str, tuple[nn.Module, Any, Any]] = {}
    with _recorded(module, calls), torch.no_grad():
        module(tensordict.clone())
    if not calls:
        raise ValueError(f"no network inside of this {type(module).__name__} has parameters")
    return {name: normalize_module_(*call, **options) for name, call in calls.items()}


@contextmanager
def _recorded(module: nn.Module, calls: dict[str, tuple[nn.Module, Any, Any]]) -> Iterator[None]:
    """Inside, `calls` gets each network of `module` with the arguments of its first call."""
    hooks: list[Any] = []
    for name, network in networks_in(module):

        def note(network: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            calls.setdefault(name, (network, args, kwargs))

        hooks.append(network.register_forward_pre_hook(note, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def networks_in(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules with parameters that take tensors and no tensordict."""
    for name, child in module.named_children():
        if isinstance(child, (TensorDictModuleBase, nn.ModuleList)):
            yield from networks_in(child, f"{prefix}{name}.")
        elif any(True for _ in child.parameters()):
            yield f"{prefix}{name}", child


def follow(loss: nn.Module, *optimizers: Optimizer, **options: Any) -> Projector:
    """Step 2 for all networks of a loss module, targets left out: a projector, called after each step.

    Build it after `loss` was moved to its device. `state_dict()` of the projector goes into your checkpoints.

    Args:
        options: those of `nap.Projector`, such as `output="free"`, the choice where values have a scale to
            find; not `every`.
    """
    trained = nn.ModuleDict(dict(networks_of(loss)))
    if not optimizers or not len(trained):
        lack = "optimizer to follow" if len(trained) else "network that this loss trains"
        raise ValueError(f"there is no {lack}; call follow(loss, optimizer) with a loss module of TorchRL")
    projector = Projector(trained, **options)
    for optimizer in optimizers:
        optimizer.register_step_post_hook(lambda *_: projector.project_())
    return projector


def networks_of(loss: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each network that a loss module trains, on its parameters; stacked critics one after the other."""
    children: Iterator[tuple[str, Any]] = loss.named_children()
    for name, params in children:
        network = getattr(loss, name.removesuffix(PARAMS), None)
        if not name.endswith(PARAMS) or name.startswith("target_") or not isinstance(network, nn.Module):
            continue
        if not params.batch_size:
            yield name.removesuffix(PARAMS), _with(network, params)
        for i in range(params.batch_size.numel() if params.batch_size else 0):
            member = params.data.reshape(-1)[i]
            yield f"{name.removesuffix(PARAMS)}_{i}", _with(network, member.apply(nn.Parameter))


def _with(network: nn.Module, params: Any) -> nn.Module:
    """A copy of the network that shares these parameters."""
    made = copy.deepcopy(network)
    params.to_module(made)
    return made
