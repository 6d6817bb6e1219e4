"""A step of work as one CUDA graph, recorded once, then replayed without a word from Python; and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor

T = TypeVar("T")
_WARM_UPS = 3  # what lazily starts (cuBLAS, cuDNN's choice of algorithm) must have started before


def captured(
    step: Callable[[], None], changing: Sequence[Tensor], generators: Sequence[Generator] = ()
) -> Callable[[], None]:
    """`step` as a replay of a recording. It runs a few times here; `changing` comes back as it was.

    The step may use tensors that live on, of fixed shapes, and must not wait for the device. Random
    numbers inside it come from `generators`: seed them anew between replays as you like.
    """
    before = [tensor.detach().clone() for tensor in changing]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, value in zip(changing, before, strict=True):
            tensor.copy_(value)
    return graph.replay


def at_once(streams: Sequence[torch.cuda.Stream], *works: Callable[[], T]) -> list[T]:
    """What each of `works` gives, the last on this stream and the others on those, all at once.

    With no streams, one after the other. The works must hold what they read until this returns: what is
    let go on one stream is free to be written there, while another may read it still.
    """
    if not streams:
        return [work() for work in works]
    here = torch.cuda.current_stream()
    results = []
    for stream, work in zip(streams, works[:-1], strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            results.append(work())
    results.append(works[-1]())
    for stream in streams:
        here.wait_stream(stream)
    return results


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """Compiled for its own shapes, however many networks were compiled before in this process.

    Else the second network of an experiment would be compiled for shapes that vary, which fails (under
    `vmap`, GroupNorm needs to know its sizes), and from the ninth on nothing would be compiled at all.
    """
    torch.compiler.reset()
    return torch.compile(function, dynamic=False)
