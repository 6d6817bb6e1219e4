"""Norms on products: for weights that a module uses in a function, where no module's output could carry them.

`F.linear(x, self.qkv.weight)` and `x @ self.w` are calls inside of a forward. While the forward of their
module runs, each call of a torch function is looked at: what is made of the weights alone is followed, and
where data is multiplied with it, the product goes through its norm. A bias in the same call is left out, or
cancelled where a part of the product is normalised; one that is added later takes the place of an offset.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nap.norms.members import MemberNorm, unwrapped
from nap.norms.norm import PRODUCTS, SOURCES, FusedNorm, Norm

_ADDEND_FIRST = ("addmm", "addmv", "addbmm", "baddbmm")
_ADDEND_LAST = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d")
_BARE = (
    *("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "outer", "einsum", "tensordot", "chain_matmul"),
    *("conv_tbc", "bilinear", "grouped_mm", "_grouped_mm"),
)
_SPACES: tuple[Any, ...] = (torch, F, Tensor, torch.linalg)
_CONTRACTS: dict[Any, str] = {  # function → its name
    **{
        getattr(space, name): name
        for name in (*_ADDEND_FIRST, *_ADDEND_LAST, "conv_transpose3d", *_BARE)
        for space in _SPACES
        if hasattr(space, name)
    },
    Tensor.__matmul__: "matmul",
    Tensor.__rmatmul__: "rmatmul",
}
_ADDENDS = {
    **dict.fromkeys(_ADDEND_FIRST, (0, "input")),
    **dict.fromkeys((*_ADDEND_LAST, "conv_transpose3d"), (2, "bias")),
}
_CHOICES = (Tensor.__getitem__, Tensor.index_select, torch.index_select)


@dataclass(frozen=True)
class ProductSource:
    """Which weights a product is made of, as attribute paths of the module, and biases that it loses."""

    weights: tuple[str, ...]
    zero: tuple[str, ...] = ()
    part: tuple[int, ...] = ()  # of one weight, as `part_of` has it


class NormalisedForward:
    """A module's forward with norms on its products; it is copied and pickled along with the module.

    >>> class Layer(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = nn.Parameter(torch.randn(8, 4))
    ...     def forward(self, x):
    ...         return torch.relu(x @ self.w)
    >>> layer = Layer()
    >>> norm = hang_(layer, "w", Norm(4), ProductSource(("w",)))
    >>> x = torch.randn(2, 8)
    >>> torch.equal(layer(x), torch.relu(norm(x @ layer.w, layer.w)))
    True
    """

    def __init__(self, module: nn.Module):
        self.module, self.inner = module, module.__dict__.get("forward")
        self.eager = (
            False  # whether the compiler must leave it alone: slices and vmap are not seen in its way
        )
        functools.update_wrapper(self, module.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _uncompiled(self, args, kwargs) if self.eager else _run(self, args, kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state.get("eager"):
            _keep_eager()


def _run(forward: NormalisedForward, args: Any, kwargs: Any) -> Any:
    module = forward.module
    with _OnProducts(module):
        if forward.inner is not None:
            return forward.inner(*args, **kwargs)
        return type(module).forward(module, *args, **kwargs)


_uncompiled = _run


@functools.cache
def _keep_eager() -> None:
    """From now on `_uncompiled` is not compiled; importing the compiler takes a second or two."""
    global _uncompiled
    _uncompiled = torch.compiler.disable(_run)


def hang_(module: nn.Module, key: str, norm: nn.Module, source: ProductSource) -> nn.Module:
    """Puts a norm on the product of these weights in the forward of `module`, and returns it."""
    if PRODUCTS not in module._modules:
        module.add_module(PRODUCTS, nn.ModuleDict())
        module.__dict__[SOURCES] = {}
        module.__dict__["forward"] = NormalisedForward(module)
    norms, forward = module._modules[PRODUCTS], module.__dict__["forward"]
    assert isinstance(norms, nn.ModuleDict)
    if source.part or (isinstance(norm, MemberNorm) and not norm.axes):
        forward.eager = True
        _keep_eager()
    norms[key] = norm
    module.__dict__[SOURCES] = {**module.__dict__[SOURCES], key: source}
    return norm


def key_of(paths: Sequence[str], part: Sequence[int] = ()) -> str:
    """The name under which the norm of these weights, or of a part of one, hangs on their module.

    >>> key_of(["qkv.weight", "scale"]), key_of(["qkv.weight"], (64, 8, 8, 8, 1))
    ('qkv_weight_scale', 'qkv_weight_from_64')
    """
    return "_".join([*(path.replace(".", "_") for path in paths), *(["from", str(part[0])] if part else [])])


def part_of(weight: Tensor, whole: Tensor) -> tuple[int, ...]:
    """Where a slice of a parameter begins, its sizes and its strides; empty where it is no slice.

    >>> qkv = nn.Parameter(torch.zeros(24, 8))
    >>> part_of(qkv.chunk(3)[1], qkv), part_of(qkv.T, qkv)
    ((64, 8, 8, 8, 1), ())
    """
    sliced = weight.ndim == whole.ndim and weight.numel() < whole.numel()
    if not sliced or weight.untyped_storage()._cdata != whole.untyped_storage()._cdata:
        return ()
    return weight.storage_offset() - whole.storage_offset(), *weight.shape, *weight.stride()


def product_norms(module: nn.Module) -> dict[str, nn.Module]:
    """The norms on products that hang on a module, by key."""
    norms = module._modules.get(PRODUCTS)
    return dict(norms.items()) if isinstance(norms, nn.ModuleDict) else {}


def norm_on_product(
    module: nn.Module, weights: Iterable[Tensor], part: tuple[int, ...] = ()
) -> nn.Module | None:
    """The norm on the product of just these weights, or of a part of one, in the forward of `module`."""
    wanted = {id(weight) for weight in weights}
    for key, source in module.__dict__.get(SOURCES, {}).items():
        if source.part == part and wanted == {id(attrgetter(path)(module)) for path in source.weights}:
            return product_norms(module)[key]
    return None


def replaced_biases(model: nn.Module) -> set[str]:
    """The biases that functions would add to products which have norms now."""
    found = set()
    for site, module in model.named_modules():
        for source in module.__dict__.get(SOURCES, {}).values():
            found |= {f"{site}.{path}".lstrip(".") for path in source.zero}
    return found


def products_run(module: nn.Module) -> bool:
    """Whether the norms on a module's products, if it has any, are at work."""
    forward = module.__dict__.get("forward")
    return PRODUCTS not in module._modules or isinstance(forward, NormalisedForward)


class _OnProducts(TorchFunctionMode):
    """Follows what is made of some weights, and normalises the products of data with it."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.norms = module._modules[PRODUCTS]
        self.sources: dict[str, ProductSource] = module.__dict__[SOURCES]
        paths = dict.fromkeys(path for source in self.sources.values() for path in source.weights)
        self.made: list[tuple[Tensor, frozenset[str]]] = [
            (attrgetter(path)(module), frozenset([path])) for path in paths
        ]
        self.module = module
        self.parts: list[
            tuple[Tensor, tuple[int, ...]]
        ] = []  # of what was made: the slice that it is, or is of
        self.chosen: list[
            tuple[Tensor, frozenset[str], Tensor]
        ] = []  # weights that data chose, and their size
        self.in_parts = any(source.part for source in self.sources.values())
        self.constants = {id(b): b for b in module.buffers() if b is not None}  # and what is made of them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _CONTRACTS.get(func)
        if name is not None and name in _ADDENDS:
            addend, args, kwargs = _without_addend(name, args, kwargs)
        else:
            addend = None
        tensors = _tensors((args, *kwargs.values()))
        made_of = [self._made_of(tensor) for tensor in tensors]
        paths = frozenset(path for some in made_of if some is not None for path in some)
        if not paths:
            out = func(*args, **kwargs) if addend is None else addend.added(func, args, kwargs)
            if all(map(self._constant, tensors)):
                self.constants.update((id(t), t) for t in _tensors((out,)))
            return out
        if name is not None and None in made_of:
            factors = [t for t, some in zip(tensors, made_of, strict=True) if some is not None]
            part = self._part(factors[0], paths)
            keys = [k for k, s in self.sources.items() if paths == frozenset(s.weights) and s.part == part]
            if not keys:  # a list: the compiler of torch 2.6 knows no `next` with a default
                return func(*args, **kwargs) if addend is None else addend.added(func, args, kwargs)
            return self._normalised(keys[0], func, args, kwargs, factors, addend)
        out = func(*args, **kwargs) if addend is None else addend.added(func, args, kwargs)
        chosen = func in _CHOICES  # by an index, perhaps from data: what is chosen is a weight all the same
        if all(
            some is not None or self._constant(t) or (chosen and not t.is_floating_point())
            for t, some in zip(tensors, made_of, strict=True)
        ):
            for result in _tensors((out,)):
                if self._made_of(result) is None:
                    self.made.append((result, paths))
                    given = [t for t, some in zip(tensors, made_of, strict=True) if some is not None]
                    part = self._part(result, paths) or self._part(given[0], paths)
                    self.parts += [(result, part)] if part else []
                    size = (
                        self._size(given[0], paths, result)
                        if not chosen
                        else _size_of_one(given[0], args, result)
                    )
                    self.chosen += [(result, paths, size)] if size is not None else []
        return out

    def _size(self, given: Tensor, paths: frozenset[str], result: Tensor) -> Tensor | None:
        """Of weights that data chose, and of what is the same in another shape: the size of one of them."""
        known = [size for t, its, size in self.chosen if t is given and its == paths]
        return known[0] if known and result.numel() == given.numel() else None

    def _part(self, tensor: Tensor, paths: frozenset[str]) -> tuple[int, ...]:
        """Which slice of its one weight a tensor is, or was made of."""
        if not self.in_parts or len(paths) > 1:
            return ()
        known = [part for made, part in self.parts if made is tensor]
        return known[0] if known else part_of(tensor, attrgetter(min(paths))(self.module))

    def _normalised(
        self, key: str, func: Any, args: Any, kwargs: Any, factors: list[Tensor], addend: _Addend | None
    ) -> Tensor:
        norm: Norm | FusedNorm = self.norms[key]  # type: ignore[index]
        paths = frozenset(self.sources[key].weights)
        sizes = [self._size(factor, paths, factor) for factor in factors]
        factors = [f if size is None else size for f, size in zip(factors, sizes, strict=True)]
        if isinstance(norm, FusedNorm) and not norm.covers_all() and addend is not None:
            y = addend.added(func, args, kwargs)
            return norm(y, *factors, bias=addend.value)
        y = func(*args, **kwargs) if addend is None else addend.left_out(func, args, kwargs)
        return norm(y, *factors)

    def _made_of(self, tensor: Tensor) -> frozenset[str] | None:
        inner = tensor if torch.compiler.is_compiling() else unwrapped(tensor)
        for made, paths in self.made:
            if made is tensor or made is inner:
                return paths
        return None

    def _constant(self, tensor: Tensor) -> bool:
        return isinstance(tensor, nn.Parameter) or id(tensor) in self.constants


def _size_of_one(stack: Tensor, args: Sequence[Any], result: Tensor) -> Tensor | None:
    """A matrix of one entry, as large as a weight of a stack is on average; None if no index chose from it.

    eps is relative to it: a sample's norm depends neither on what others choose nor on how many there are.
    """
    index = next((t for t in _tensors(args) if t is not stack), None)
    if index is None or index.dtype == torch.bool:
        return None
    share = result.numel() / (max(index.numel(), 1) * stack.numel())  # of one in the stack
    return torch.linalg.vector_norm(stack.detach()).mul(share**0.5).view(1, 1)


@dataclass(frozen=True)
class _Addend:
    """What a call adds to its product, taken out of its arguments."""

    value: Tensor
    first: bool

    def added(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The call as it was."""
        if self.first:
            return func(self.value, *args, **kwargs)
        return (
            func(*args[:2], self.value, *args[2:], **kwargs)
            if len(args) > 2
            else func(*args, bias=self.value, **kwargs)
        )

    def left_out(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The call with nothing added."""
        if self.first:
            return func(torch.zeros_like(self.value), *args, **kwargs)
        return func(*args[:2], None, *args[2:], **kwargs) if len(args) > 2 else func(*args, **kwargs)


def _without_addend(name: str, args: Any, kwargs: Any) -> tuple[_Addend | None, Any, Any]:
    """What is added, and the other arguments; the addend is named only where it was given by name."""
    place, word = _ADDENDS[name]
    if place == 0 and args:
        return _Addend(args[0], True), args[1:], kwargs
    if word in kwargs and isinstance(kwargs[word], Tensor):
        rest = {key: value for key, value in kwargs.items() if key != word}
        return (None, args, kwargs) if place == 0 else (_Addend(kwargs[word], False), args, rest)
    if place == 2 and len(args) > 2 and isinstance(args[2], Tensor):
        return _Addend(args[2], False), (*args[:2], *args[3:]), kwargs
    return None, args, kwargs


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for item in tree:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            found += _tensors(item)
    return found
