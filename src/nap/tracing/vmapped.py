"""`vmap`, recorded: the function runs once for each index, on slices, and its results are stacked.

Inside of `vmap` tensors are wrapped, so that nothing is known of them; slices are operations like others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._functorch import apis
from torch._functorch.vmap import _broadcast_to_and_flatten, _process_batched_inputs
from torch.utils._pytree import tree_flatten, tree_unflatten

from nap.norms.members import member

if TYPE_CHECKING:
    from nap.tracing.recorder import Recorder


@contextmanager
def unrolled(rec: Recorder) -> Iterator[None]:
    """Inside, `torch.vmap` is a loop; parameters that it maps over are entered in the record."""
    mapped = apis.vmap_impl

    def loop(function: Callable[..., Any], in_dims: Any, out_dims: Any, *rest: Any, **named: Any) -> Any:
        args = rest[2:]  # after the randomness and the size of chunks
        size, dims, leaves, spec = _process_batched_inputs(in_dims, args, function)
        _note_members(rec, size, dims, leaves)
        stacks = any(d is not None and _is_weight(rec, leaf) for d, leaf in zip(dims, leaves, strict=True))
        results = []
        for index in range(size):
            one = [x if d is None else x.select(d, index) for d, x in zip(dims, leaves, strict=True)]
            with member(index if stacks else None):
                results.append(function(*tree_unflatten(one, spec), **named))
        return _stacked(results, out_dims)

    apis.vmap_impl = loop  # type: ignore[assignment]
    try:
        yield
    finally:
        apis.vmap_impl = mapped


def _is_weight(rec: Recorder, leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and bool(rec.value(leaf).sources) and not rec.value(leaf).data


def _note_members(rec: Recorder, size: int, dims: list[int | None], leaves: list[Any]) -> None:
    for dim, leaf in zip(dims, leaves, strict=True):
        if dim is not None and _is_weight(rec, leaf):
            for name in rec.value(leaf).sources:
                rec.flow.mapped[name] = (*rec.flow.mapped.get(name, ()), size)


def _stacked(results: list[Any], out_dims: Any) -> Any:
    flat = [tree_flatten(result) for result in results]
    spec = flat[0][1]
    dims = _broadcast_to_and_flatten(out_dims, spec)
    if dims is None:  # a lone tensor's tuple of one
        dims = [out_dims[0]] if isinstance(out_dims, tuple) else [out_dims]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    pairs = zip(dims, columns, strict=True)
    joined = [column[0] if dim is None else torch.stack(column, dim) for dim, column in pairs]
    return tree_unflatten(joined, spec)
