"""Tensors of K agents in one memory; of their parameters, one in blocks of equal length.

A block belongs to one parameter of one agent. So whatever goes by agent or by parameter (a clipped gradient,
a learning rate, a radius) is one number a block, and Adam, norms and projection are a few kernels each,
however many parameters and agents there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

BLOCK = 1024  # numbers in a block; the last block of a parameter ends in zeros


def share_(tensors: Sequence[Tensor]) -> Tensor:
    """One stack of these tensors (K, *shape). Each of them lies in its place there from now on.

    >>> one, two = torch.zeros(2), torch.ones(2)
    >>> stack = share_([one, two]).add_(1)
    >>> one, two
    (tensor([1., 1.]), tensor([2., 2.]))
    """
    stack = torch.stack([tensor.detach() for tensor in tensors])
    for tensor, place in zip(tensors, stack.unbind(), strict=True):
        tensor.data = place
    return stack


class Blocks:
    """Where the parameters of K agents lie in memories of shape (blocks, BLOCK).

    Parameters come in groups of equal shape: those of a group lie side by side, so that one view has them
    all, (group, K, *shape). All agents have parameters of the same names, shapes and strides.

    Args:
        like: the parameters of one agent, by name.
        groups: the names, each once.
    """

    def __init__(self, like: Mapping[str, Tensor], groups: Sequence[tuple[str, ...]], agents: int):
        self.agents, self.groups = agents, [tuple(group) for group in groups]
        self.names = [name for group in self.groups for name in group]
        if sorted(self.names) != sorted(like):
            raise ValueError(f"the groups name {sorted(self.names)}, and the parameters are {sorted(like)}")
        for group in self.groups:
            if len({like[name].shape for name in group}) > 1:
                raise ValueError(f"{', '.join(group)} are not of one shape, so they are no group")
        self._like = {name: tensor.detach() for name, tensor in like.items()}
        self.device = next(iter(like.values())).device
        self._lengths = [-(-like[name].numel() // BLOCK) for name in self.names]  # in blocks, of one agent
        self._starts, total = {}, 0
        for name, length in zip(self.names, self._lengths, strict=True):
            self._starts[name] = total
            total += length * agents
        self.count = total
        units = torch.tensor(self._lengths).repeat_interleave(agents)  # blocks of (parameter, agent)
        unit = torch.arange(len(units)).repeat_interleave(units)
        self.parameter_of = (unit // agents).to(self.device)  # (blocks,)
        self.agent_of = (unit % agents).to(self.device)
        first = units.cumsum(0) - units
        places = first.unsqueeze(1) + torch.arange(max(self._lengths))
        inside = torch.arange(max(self._lengths)) < units.unsqueeze(1)
        self._places = torch.where(inside, places, total).to(self.device)  # `total`: a zero

    def new(self) -> Tensor:
        dtype = next(iter(self._like.values())).dtype
        return torch.zeros(self.count, BLOCK, dtype=dtype, device=self.device)

    def view(self, memory: Tensor, group: tuple[str, ...]) -> Tensor:
        """The parameters of a group in a memory, (group, K, *shape)."""
        like, length = self._like[group[0]], self._length(group[0])
        return memory.as_strided(
            (len(group), self.agents, *like.shape),
            (self.agents * length, length, *like.stride()),
            self._starts[group[0]] * BLOCK,
        )

    def place(self, memory: Tensor, name: str, agent: int) -> Tensor:
        """One parameter of one agent in a memory."""
        like, start = self._like[name], self._starts[name] * BLOCK + agent * self._length(name)
        return memory.as_strided(like.shape, like.stride(), start)

    def adopt_(self, memory: Tensor, agent: int, tensors: Mapping[str, Tensor]) -> None:
        """Move an agent's tensors into a memory: they keep their values, and lie there from now on."""
        for name, tensor in tensors.items():
            place = self.place(memory, name, agent)
            place.copy_(tensor.detach())
            tensor.data = place

    def squares(self, memory: Tensor) -> Tensor:
        """‖·‖² of each parameter of each agent, float64 (parameters, K), summed in a fixed order."""
        sums = memory.square().sum(1, dtype=torch.promote_types(memory.dtype, torch.float32)).double()
        padded = torch.cat([sums, sums.new_zeros(1)])
        return padded[self._places].sum(1).view(len(self.names), self.agents)

    def of_agents(self, values: Tensor) -> Tensor:
        """A number for each agent (K,), for each block (blocks, 1)."""
        return values[self.agent_of].unsqueeze(1)

    def of_parameters(self, values: Tensor) -> Tensor:
        """A number for each parameter of each agent (parameters, K), for each block (blocks, 1)."""
        return values[self.parameter_of, self.agent_of].unsqueeze(1)

    def _length(self, name: str) -> int:
        return self._lengths[self.names.index(name)] * BLOCK
