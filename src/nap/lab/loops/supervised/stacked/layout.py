"""Stacks of the images of K networks, (K, N, C, H, W), with channels last in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor


def by_position(stack: Tensor) -> Tensor:
    """(K, N, C, H, W) as (K, N, H, W, C) in memory; channels-last images are so already."""
    return stack.permute(0, 1, 3, 4, 2).contiguous()


def channels_last(stack: Tensor) -> Tensor:
    """The same stack, channels last in memory."""
    return by_position(stack).permute(0, 1, 4, 2, 3)


def like(stack: Tensor, shape: Sequence[int]) -> Tensor:
    """An empty stack of images or kernels of this shape, (K, N, C, H, W)."""
    members, images, channels, *space = shape
    return stack.new_empty(members, images, *space, channels).permute(0, 1, 4, 2, 3)


def one_stack(size: int, axes: Sequence[int | None], *stacks: Tensor) -> Iterator[Tensor]:
    """Stacks under `vmap`, whose axis of members is moved to the front and merged with the stacks' own."""
    for stack, axis in zip(stacks, axes, strict=True):
        whole = stack.expand(size, *stack.shape) if axis is None else stack.movedim(axis, 0)
        yield whole.flatten(0, 1)
