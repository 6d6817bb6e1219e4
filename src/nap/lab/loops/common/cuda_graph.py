"""A training step as one CUDA graph, several networks on parallel streams, and compilation of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor

T = TypeVar("T")
_WARM_UPS = 3  # lazy initialisation (cuBLAS, cuDNN's choice of algorithm) must be over before capture


def capture(
    step: Callable[[], None], changing: Sequence[Tensor], generators: Sequence[Generator] = ()
) -> Callable[[], None]:
    """`step` as a replay of a CUDA graph. It runs a few times here; then `changing` is restored.

    The step may use tensors of fixed shape that stay alive, and must not synchronise with the device. Its
    random numbers come from `generators`, which may be reseeded between replays.
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


def on_streams(streams: Sequence[torch.cuda.Stream], *functions: Callable[[], T]) -> list[T]:
    """The results of `functions`, the last run on the current stream and each other one on its own.

    Without streams they run one after the other. The functions must hold what they read until this returns:
    memory that is freed on one stream may be written there while another still reads it.
    """
    if not streams:
        return [function() for function in functions]
    current = torch.cuda.current_stream()
    results = []
    for stream, function in zip(streams, functions[:-1], strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            results.append(function())
    results.append(functions[-1]())
    for stream in streams:
        current.wait_stream(stream)
    return results


def graph_and_compile(
    device: torch.device, updates: int, worth_compiling: int, *, graph: bool | None, compile_: bool | None
) -> tuple[bool, bool]:
    """Whether to capture a CUDA graph and whether to compile: as asked; by default on CUDA.

    Compiling takes a minute or two, so by default only runs of `worth_compiling` updates or more do it.

    >>> graph_and_compile(torch.device("cuda"), 1_000, 50_000, graph=None, compile_=None)
    (True, False)
    >>> graph_and_compile(torch.device("cpu"), 100_000, 50_000, graph=None, compile_=None)
    (False, False)
    """
    cuda = device.type == "cuda"
    pays = cuda and updates >= worth_compiling
    return cuda if graph is None else graph, pays if compile_ is None else compile_


def compile_static(function: Callable[..., T]) -> Callable[..., T]:
    """`function` compiled for fixed shapes, however many networks this process has compiled before.

    Without the reset the second network of an experiment would be compiled for dynamic shapes, which fails
    (under `vmap`, GroupNorm needs to know its sizes), and the ninth would not be compiled at all.
    """
    torch.compiler.reset()
    return torch.compile(function, dynamic=False)
