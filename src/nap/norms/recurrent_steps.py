"""One step of an LSTM, GRU or RNN from its two normalised products, and the scan over steps: no modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

State = tuple[Tensor, ...]  # (h,), and (h, c) for an LSTM


def _lstm(a: Tensor, b: Tensor, state: State) -> State:
    i, f, g, o = (a + b).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(a: Tensor, b: Tensor, state: State) -> State:
    (r_a, z_a, n_a), (r_b, z_b, n_b) = a.chunk(3, -1), b.chunk(3, -1)
    n = (n_a + (r_a + r_b).sigmoid() * n_b).tanh()
    return (n + (z_a + z_b).sigmoid() * (state[0] - n),)


# The next state from a = norm(W_ih·x), b = norm(W_hh·h) and the state before.
STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda a, b, state: ((a + b).tanh(),),
    "RNN_RELU": lambda a, b, state: ((a + b).relu(),),
}


def scan(
    step: Callable[[Tensor, State], State], inputs: Sequence[Tensor], state: State, *, reverse: bool
) -> tuple[Tensor, State]:
    """All h in time order, one step after the other, and the last state of each sequence.

    Inputs get shorter as sequences end. One that has ended (or, in reverse, not begun) keeps its state.
    """
    outs = []
    for a in reversed(inputs) if reverse else inputs:
        new = step(a, tuple(s[: len(a)] for s in state))
        new = tuple(n.to(s.dtype) for n, s in zip(new, state, strict=True))  # autocast must not narrow it
        outs.append(new[0])
        short = len(a) < len(state[0])
        state = tuple(torch.cat([n, s[len(a) :]]) for n, s in zip(new, state, strict=True)) if short else new
    return torch.cat(outs[::-1] if reverse else outs), state
