"""K networks of one architecture as stacked tensors, and their projection: member k of each is network k.

What is elementwise (Adam, decay, noise) acts on the stacks as it would on one network. What is not
(the forward pass, norms) goes over the first axis, with `torch.func.vmap` or one member at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import nap
from nap.projection.affine import decay_scale_offset, joint_scale_offset
from nap.projection.plan import pairs_of
from nap.projection.sphere import norms_of, project_tensors_

Stacked = dict[str, Tensor]
Strategy = Literal["batched", "loop"]
_STREAMS = 8


def build(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The network that `make` gives from this seed; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def initial_values(
    skeleton: nn.Module, make: Callable[[], nn.Module], seeds: Sequence[int], device: torch.device
) -> Stacked:
    """The parameters of each seed's fresh network, stacked, by the names of `skeleton`.

    `skeleton` is what `make` gives, perhaps converted by `nap.normalize_`: it says which parameters there
    are, and what those that conversion added (scale 1, offset 0) start with.
    """
    fresh = [dict(build(make, seed).named_parameters()) for seed in seeds]
    stacks = {
        name: torch.stack([values.get(name, p).detach().to(p) for values in fresh])
        for name, p in skeleton.named_parameters()
    }
    return {name: stack.to(device) for name, stack in stacks.items()}


def forward(model: nn.Module, strategy: Strategy) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """f(stacked parameters, inputs (K, B, …)) → outputs (K, B, …): each member on its own batch."""

    def one(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, dict(parameters), (x,))

    if strategy == "batched":
        return vmap(one, randomness="error")

    def each(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        # unbind, not p[k]: its gradient is one stack, where K selections would add up K full tensors
        members = zip(*(p.unbind() for p in parameters.values()), strict=True)
        outputs = []
        with side_by_side(x.device, len(x)) as stream_of:
            for k, values in enumerate(members):
                with stream_of(k):
                    outputs.append(one(dict(zip(parameters, values, strict=True)), x[k]))
        return torch.stack(outputs)

    return each


@contextmanager
def side_by_side(device: torch.device, count: int) -> Iterator[Callable[[int], AbstractContextManager[Any]]]:
    """On CUDA a stream for each of `count` members, so that their work may overlap; else nothing."""
    if device.type != "cuda" or count == 1:
        yield lambda k: nullcontext()
        return
    here = torch.cuda.current_stream()
    streams = [torch.cuda.Stream() for _ in range(min(count, _STREAMS))]
    for stream in streams:
        stream.wait_stream(here)
    yield lambda k: torch.cuda.stream(streams[k % len(streams)])
    for stream in streams:
        here.wait_stream(stream)


class PopulationProjector:
    """Keeps every member's weights at the norms of `initial`; which weights, `nap.Projector` decides."""

    def __init__(
        self,
        skeleton: nn.Module,
        initial: Stacked,
        *,
        output: Literal["project", "free"] = "project",
        affine: Literal["free", "joint", "decay"] = "free",
        decay: float = 1e-3,
    ):
        self.plan = nap.Projector(
            skeleton, output=output, branches="project", affine=affine, decay=decay
        ).plan
        if growing := self.plan.names("grow"):
            raise ValueError(
                f"{', '.join(growing)}: all zeros, and a population has no such weights; start them"
            )
        self.radii = {name: norms_of(initial[name], stacked=1) for name in self.plan.names("project")}
        table = nap.weight_groups(skeleton)
        self._pairs = pairs_of([table[name] for name in self.plan.names("joint", "decay")])
        self._rule: Any = partial(joint_scale_offset, stacked=1)
        if affine == "decay":
            self._rule = partial(decay_scale_offset, decay=decay)

    def project_(self, parameters: Stacked) -> None:
        """Weights onto their spheres, then scales and offsets by their rule."""
        self.project_weights_(parameters)
        self.project_affine_(parameters)

    def project_weights_(self, parameters: Stacked) -> None:
        project_tensors_([parameters[name] for name in self.radii], list(self.radii.values()))

    @torch.no_grad()
    def project_affine_(self, parameters: Stacked) -> None:
        for names in self._pairs:
            old: list[Tensor | None] = [None if name is None else parameters[name] for name in names]
            for was, new in zip(old, self._rule(*old), strict=True):
                if was is not None and new is not None:
                    was.copy_(new)
