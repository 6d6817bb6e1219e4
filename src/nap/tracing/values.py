"""What is known of one tensor during the recorded forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._pytree import tree_leaves

from nap.tracing import homogeneity
from nap.tracing.homogeneity import Degrees


@dataclass(frozen=True)
class Carry:
    """A producer whose result, not yet normalised, is part of a value."""

    site: str  # the module that produced it
    call: int  # in which call of that module
    op: int = 0  # by which of the operations of that call
    product: tuple[int, int] | None = None  # as which operand of which data·data product
    batch_norm: bool = False  # it went through a BatchNorm
    entry: str | None = None  # the first BatchNorm module that was given it, as all of its input or in a sum
    bent: bool = False  # no longer as it was: |x|, x², a norm of it, its largest
    curve: tuple[str, int] | None = None  # the first such operation, and its number in `places`
    chosen: bool = False  # the largest or the like of it, or parts of it where it is so
    sliced: bool = False  # perhaps only a part of its features is here
    chunk: bool = False  # one of several parts of its features, each for another purpose
    moved: str | None = None  # what first changed its layout or made no sum of it; "" if of several tensors
    slot: str | None = None  # the last nn.Identity it went through: a place for a norm
    mixed: bool = False  # a linear layer has acted on the product since, as talking heads do
    times: bool = False  # it was multiplied with another such result

    @property
    def key(self) -> tuple[str, int, int]:
        return self.site, self.call, self.op


NO_CARRY: frozenset[Carry] = frozenset()


@dataclass(frozen=True)
class Value:
    """One tensor: what it depends on, what it carries, how it scales."""

    data: bool = False  # it depends on the model's input
    sources: frozenset[str] = frozenset()  # parameters it was computed from, while it is not data
    carry: frozenset[Carry] = NO_CARRY
    degrees: Degrees = field(default_factory=dict)
    pending: frozenset[int] = frozenset()  # nonlinearities upstream that may be the model's output
    mask: frozenset[Carry] = NO_CARRY  # a comparison of these: with them it makes a nonlinearity
    picked: frozenset[Carry] = NO_CARRY  # indices that say where these are largest
    fourier: bool = False  # a Fourier transform
    foreign: bool = False  # made where the recorder does not see: perhaps of the input
    affine: frozenset[str] = frozenset()  # norms whose scale and offset no activation has met yet
    probability: bool = False  # the result of a softmax
    zero: bool = False  # all zeros: neutral in a sum
    raw: bool = False  # a parameter, perhaps moved, added or normalised, but not multiplied
    index: bool = False  # not floating point
    beside: frozenset[str] = frozenset()  # parameters that were added to it or listed with it, as they are
    gains: frozenset[str] = frozenset()  # parameters that it was just multiplied by, entry by entry
    squares: frozenset[str] = frozenset()  # weights whose squares were added to it
    noised: frozenset[str] = frozenset()  # weights that were multiplied by what no weight has made

    def relabel(self, **change: object) -> Value:
        """The value with every carried producer relabelled, e.g. `relabel(sliced=True)`."""
        return replace(self, carry=frozenset(replace(c, **change) for c in self.carry))  # type: ignore[arg-type]


CONSTANT = Value()


def merge(values: Iterable[Value]) -> Value:
    """All that several operands bring along, before an operation says what it does to it."""
    values = list(values)
    data = any(v.data for v in values)
    none: frozenset = frozenset()
    return Value(
        data=data,
        sources=none if data else none.union(*(v.sources for v in values)),
        carry=none.union(*(v.carry for v in values)),
        degrees=sum_degrees(values),
        pending=none.union(*(v.pending for v in values)),
        mask=none.union(*(v.mask for v in values)),
        picked=none.union(*(v.picked for v in values)),
        fourier=any(v.fourier for v in values),
        foreign=any(v.foreign for v in values),
        affine=none.union(*(v.affine for v in values)),
        probability=bool(values) and all(v.probability for v in values if v.data) and data,
        zero=bool(values) and all(v.zero for v in values),
        raw=any(v.raw for v in values) and all(v.raw or not v.sources for v in values),
        beside=none.union(*(v.beside if v.data else v.sources if v.raw else none for v in values))
        if data
        else none,
        noised=none.union(*(v.noised for v in values)),
    )


def sum_degrees(values: Iterable[Value]) -> Degrees:
    """Degrees of a sum or a selection: zeros are neutral, and what picks the elements must not scale."""
    values = list(values)
    terms = [v.degrees for v in values if not v.index and not v.zero]
    picks = [homogeneity.of_nonlinearity(v.degrees) for v in values if v.index and v.degrees]
    return homogeneity.of_product([homogeneity.of_sum(terms) if terms else homogeneity.NONE, *picks])


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, mappings and dataclasses."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors_in(item)
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_in(item)
    elif hasattr(tree, "__dataclass_fields__"):
        held = getattr(tree, "__dict__", None)  # a field may be unset, or refuse to be read
        for name in tree.__dataclass_fields__:
            yield from tensors_in(getattr(tree, name, None) if held is None else held.get(name))


def held_tensors(tree: Any, *, deep: bool = False) -> Iterator[Tensor]:
    """The same for what a model is given or returns, where objects of other classes may hold tensors.

    A distribution is always looked into, any other object only where no tensor lies open: what a
    cache holds beside the logits is no output. With `deep` all objects are: they may be inputs.
    """
    return _held(tree, deep, set())


def _held(tree: Any, deep: bool, seen: set[int]) -> Iterator[Tensor]:
    found = list(tensors_in(tree))
    for leaf in tree_leaves(tree):
        if id(leaf) in seen or isinstance(leaf, (Tensor, nn.Module, type)) or not hasattr(leaf, "__dict__"):
            continue
        if deep or isinstance(leaf, Distribution) or not found:
            seen.add(id(leaf))
            found += _held(dict(vars(leaf)), deep, seen)
    return iter(found)
