"""A recorded forward that multiplies no large matrix: what layers would compute is made up.

Planning asks what reaches what, not what it is. So the large weights of the model may be on the meta
device, without values, and what a layer returns is random numbers of the right shape. Where numbers decide
what a model does (a branch, a mask that selects rows), that will not do: `NeedsValues` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nap.tracing.operations import KINDS, Kind
from nap.tracing.product_shapes import product_shape
from nap.tracing.recorder import Recorder
from nap.tracing.told import NOTHING, Told
from nap.tracing.values import tensors_in

_POOL = 1_000_003  # random numbers that are used again and again: a prime, so that no two rows are alike
_READS = frozenset(
    {
        Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__,
        Tensor.__complex__, Tensor.__index__, Tensor.__contains__, Tensor.__array__, Tensor.nonzero,
        torch.nonzero, Tensor.argwhere, torch.argwhere, Tensor.equal, torch.equal, Tensor.allclose,
        torch.allclose, Tensor.masked_select, torch.masked_select, Tensor.unique, torch.unique,
        Tensor.unique_consecutive, torch.unique_consecutive, Tensor.bincount, torch.bincount, Tensor.histc,
        torch.histc, torch.is_nonzero, Tensor.is_nonzero, Tensor.data_ptr, Tensor.untyped_storage,
    }
)  # fmt: skip
_REPEATS = (Tensor.repeat_interleave, torch.repeat_interleave)
_MADE_UP = frozenset({Kind.CONTRACT, Kind.LOOKUP})


_MOVES = frozenset({Tensor.to, Tensor.cpu, Tensor.cuda})
_VIEWS = frozenset(
    """getitem select narrow chunk split unbind index_select unsqueeze squeeze view reshape flatten unflatten
    expand t transpose permute get_T get_mT movedim get_data detach""".split()  # noqa: SIM905
)


class NeedsValues(Exception):
    """The forward cannot be followed without the values of its weights."""


class StandIns:
    """The values of weights that are on the meta device in a copy of a model, and made-up results."""

    def __init__(self, real: Mapping[int, Tensor], keep: Mapping[int, Any]):
        self.real = dict(real)  # id of the weight in the copy → the weight of the model
        self._keep = dict(keep)  # so that ids stay what they are
        self._devices = [value.device for value in self.real.values()]
        self._pool: Tensor | None = None
        self._place = 0

    @property
    def device(self) -> torch.device:
        return next((d for d in self._devices if d.type != "meta"), torch.device("cpu"))

    def known(self, tree: Any) -> bool:
        """Whether all tensors without values in a tree have some in the model."""
        empty = [t for t in tensors_in(tree) if t.is_meta]
        return all(id(t) in self.real and not self.real[id(t)].is_meta for t in empty)

    def shared(self, tree: Any) -> Any:
        """A tree with the model's own tensors, to be looked at only."""
        return tree_map(
            lambda x: self.real[id(x)].detach() if isinstance(x, Tensor) and x.is_meta else x, tree
        )

    def remember(self, tensor: Tensor, real: Tensor) -> None:
        """What a tensor without values stands for."""
        self.real[id(tensor)] = real
        self._keep[id(tensor)] = tensor

    def values(self, tensor: Tensor) -> Tensor:
        """Real numbers for a tensor on the meta device: a weight's own, or made up."""
        known = self.real.get(id(tensor))
        if known is not None and not known.is_meta:
            return known.detach().to(torch.promote_types(known.dtype, tensor.dtype), copy=True)
        return self.made_up(tensor, self.device).abs_().add_(0.5)  # such as a norm of weights

    def norm(self, weight: Tensor, dtype: torch.dtype | None) -> Tensor:
        """What could be the norm of a weight."""
        return torch.full((), max(1, weight.numel()) ** 0.5, dtype=dtype or weight.dtype, device=self.device)

    def made_up(self, like: Tensor, device: torch.device) -> Tensor:
        """Random numbers of a shape; the same ones for the same forward."""
        if self._pool is None:
            generator = torch.Generator().manual_seed(0)
            self._pool = torch.randn(_POOL, generator=generator).to(device)
        count, parts = like.numel(), []
        while count:
            part = self._pool.narrow(0, self._place, min(count, _POOL - self._place))
            self._place = (self._place + len(part)) % _POOL
            count -= len(part)
            parts.append(part)
        flat = torch.cat(parts) if parts else self._pool[:0].clone()
        return flat.to(device, like.dtype).view(like.shape)

    def begin(self) -> None:
        """A new forward: the same numbers again."""
        self._place = 0


class ShapeRecorder(Recorder):
    """A recorder whose layers return made-up numbers."""

    def __init__(self, model: nn.Module, told: Told = NOTHING, *, stand_ins: StandIns):
        super().__init__(model, told)
        self._stand_ins = stand_ins
        self._guesses: set[int] = set()  # tensors that depend on made-up numbers
        stand_ins.begin()

    def run(
        self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: Sequence[Tensor]
    ) -> Any:
        if name == "get_device" and function is not Tensor.get_device and args[0].is_meta:
            return self._stand_ins.device
        guessed = any(id(t) in self._guesses for t in tensors)
        if guessed and _reads_values(function, args, kwargs, tensors):
            raise NeedsValues(name)
        if not any(t.is_meta for t in tensors):
            out = function(*args, **kwargs)
        elif KINDS.get(name) is Kind.LOOKUP and self._stand_ins.known(args):
            alters = kwargs.get("max_norm") is not None
            look = self._real if alters else self._stand_ins.shared
            out = tree_map(_with_a_past, function(*look(args), **look(kwargs)))
        elif self._makes_up(name, tensors):
            out, guessed = self._made_up(function, name, args, kwargs, tensors), True
        elif self._is_chosen(name, args, tensors):
            out = self._of_weights(function, name, args, kwargs)
        elif any(self._followed(t) for t in tensors if not t.is_meta):
            known = self._stand_ins.known((args, kwargs))
            if not known and KINDS.get(name) is Kind.CONTRACT and not self.muted:
                raise NeedsValues("a layer that mixes heads")  # the size of what it gives counts
            guessed = guessed or not known
            out = function(*self._real(args), **self._real(kwargs))
        else:
            out = self._of_weights(function, name, args, kwargs)
        if guessed:
            self._guess(out)
        if guessed and args and name in ("setitem", "copy"):
            self._guess(args[0])
        return out

    def _is_chosen(self, name: str, args: Any, tensors: Sequence[Tensor]) -> bool:
        """Whether some of a stack of weights are taken, by indices that may come from data: experts."""
        stack, *indices = tensors
        chosen = name in _VIEWS and args[0] is stack and stack.is_meta and stack.ndim > 2
        whole = all(t.dtype in (torch.int64, torch.int32) for t in indices)
        return chosen and whole and self._stand_ins.known(args)

    def _of_weights(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """What is made of weights alone stays without values; parts and views of them are known."""
        if function is torch.linalg.vector_norm and len(args) == 1 and "dim" not in kwargs:
            return self._stand_ins.norm(args[0], kwargs.get("dtype"))
        if function in _MOVES:
            return _in_dtype(*args, **kwargs)
        out = function(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
        if name in _VIEWS and self._stand_ins.known((args, kwargs)):
            same = function(*self._stand_ins.shared(args), **self._stand_ins.shared(kwargs))
            for mine, real in zip(tensors_in(out), tensors_in(same), strict=True):
                self._stand_ins.remember(mine, real)
        return out

    def _left(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        result = super()._left(module, args, kwargs, output)
        if isinstance(output, Tensor) and id(output) in self._guesses:
            self._guess(result)
        return result

    def _guess(self, tree: Any) -> None:
        for tensor in tensors_in(tree):
            self._guesses.add(id(tensor))
            self.alive.append(tensor)
            if tensor._is_view() and tensor._base is not None:
                self._guesses.add(id(tensor._base))
                self.alive.append(tensor._base)

    def _makes_up(self, name: str, tensors: Sequence[Tensor]) -> bool:
        kind = KINDS.get(name)
        if kind is Kind.CONTRACT:  # heads that talk: their gradients go through the product
            return bool(self.muted) or not any(c.product for t in tensors for c in self.value(t).carry)
        return kind in _MADE_UP

    def _followed(self, tensor: Tensor) -> bool:
        if self.muted:
            return True
        value = self.value(tensor)
        return bool(value.data or value.carry)

    def _made_up(self, function: Any, name: str, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        shapes = product_shape(name, args, kwargs)
        if shapes is None:
            shapes = function(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
        device = next((t.device for t in tensors if not t.is_meta), self._stand_ins.device)

        def leaf(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if not (x.is_floating_point() or x.is_complex()):
                raise NeedsValues("a product that is not of floats")
            return _with_a_past(self._stand_ins.made_up(x, device))

        return tree_map(leaf, shapes)

    def _real(self, tree: Any) -> Any:
        def leaf(x: Any) -> Any:
            return self._stand_ins.values(x) if isinstance(x, Tensor) and x.is_meta else x

        return tree_map(leaf, tree)

    def put(self, tensor: Tensor, value: Any) -> None:
        if tensor.is_meta and value.data:
            raise NeedsValues("what the model computes is on the meta device")
        super().put(tensor, value)


def _with_a_past(x: Any) -> Any:
    """What a layer returns can be differentiated."""
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
        return x
    return x.detach().requires_grad_(torch.is_grad_enabled()).clone()


def _in_dtype(weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A weight without values has no device that it could be moved to."""
    named = [*args, *kwargs.values()]
    dtypes = [a.dtype if isinstance(a, Tensor) else a for a in named if isinstance(a, (Tensor, torch.dtype))]
    return weight.to(dtypes[0]) if dtypes else weight


def _to_meta(x: Any) -> Any:
    return x.detach().to("meta") if isinstance(x, Tensor) else x


def _reads_values(function: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> bool:
    if function in _READS:
        return True
    if function in _REPEATS:
        return len(tensors) > 1
    if function in (torch.where, Tensor.where):
        return len(args) + len(kwargs) == 1
    if function is Tensor.__getitem__:
        return any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1]))
    return False
