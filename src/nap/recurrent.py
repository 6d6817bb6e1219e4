"""Recurrent nets with a norm on W_ih·x and one on W_hh·h, inside torch's own fused modules.

The layer-normalised recurrent nets of Ba, Kiros and Hinton (2016), with three choices:

- One norm per weight tensor, over all of its gates. What is normalised together is what step 2
  projects together: each tensor has exactly one free scale, and projection fixes it. In a GRU the
  norm comes before the reset gate multiplies, so r ⊙ norm(W_hh·h) replaces r ⊙ (W_hh·h).
- No norm on the cell state of an LSTM. It is a sum of gate products, each bounded; no weight comes
  between the gates and its tanh, so there is no scale to remove.
- No biases. With offsets their values move into the norms, where they do the same (a forget-gate
  bias stays); without offsets they go. The module is then one of `bias=False`, as torch knows it.

`weight_hr`, the projection of an LSTM with `proj_size`, stays a linear map without a norm: it reaches
the module's output, and each weight that reads it has a norm of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nap.norms import Eps, Norm, inverse_row_rms

State = tuple[Tensor, ...]  # (h,), and (h, c) for an LSTM


def normalize_recurrent_(
    module: nn.RNNBase | nn.RNNCellBase,
    *,
    centre: bool = True,
    scale: bool = True,
    offset: bool = True,
    eps: Eps = "relative",
) -> None:
    """Every `weight_ih` and `weight_hh` of `module` gets a norm behind it, in place.

    Adds a child for each: `norm_ih_l0`, `norm_hh_l0`, `norm_ih_l0_reverse`, … (a cell: `norm_ih`,
    `norm_hh`). LayerNorm with `centre`, else RMSNorm.

    >>> lstm = nn.LSTM(3, 4, bidirectional=True)
    >>> normalize_recurrent_(lstm)
    >>> type(lstm).__name__, [name for name, _ in lstm.named_children()]
    ('NormalizedLSTM', ['norm_ih_l0', 'norm_hh_l0', 'norm_ih_l0_reverse', 'norm_hh_l0_reverse'])
    """
    _refuse_unless_plain(module)
    for name in _weight_names(module):
        weight: Tensor = getattr(module, name)
        like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
        norm = Norm(len(weight), centre=centre, scale=scale, offset=offset, eps=eps, **like)
        if module.bias and norm.bias is not None:
            norm.bias.data.copy_(getattr(module, name.replace("weight", "bias")))
        module.add_module(name.replace("weight", "norm"), norm.train(module.training))
    _drop_biases_(module)
    module.__class__ = _NORMALIZED[type(module)]


def _lstm(a: Tensor, b: Tensor, state: State) -> State:
    i, f, g, o = (a + b).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(a: Tensor, b: Tensor, state: State) -> State:
    (r_a, z_a, n_a), (r_b, z_b, n_b) = a.chunk(3, -1), b.chunk(3, -1)
    n = (n_a + (r_a + r_b).sigmoid() * n_b).tanh()
    return (n + (z_a + z_b).sigmoid() * (state[0] - n),)


# The next state from a = norm(W_ih·x), b = norm(W_hh·h) and the state before.
_STEPS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda a, b, state: ((a + b).tanh(),),
    "RNN_RELU": lambda a, b, state: ((a + b).relu(),),
}


def _scan(
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


class _Sequence(nn.RNNBase):
    """The forward of torch's recurrent modules: norm(W_ih·x) of all steps at once, then a loop over h."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        lstm = self.mode == "LSTM"
        run = self._packed if isinstance(input, PackedSequence) else self._padded
        out, state = run(input, hx if lstm or hx is None else (hx,))
        return out, state if lstm else state[0]

    def _packed(self, x: PackedSequence, state: State | None) -> tuple[PackedSequence, State]:
        data, sizes, order, inverse = x
        state = self._first_state(data, sizes, _permuted(state, order))
        out, state = self._layers(data, sizes.tolist(), state)
        return PackedSequence(out, sizes, order, inverse), _permuted(state, inverse)

    def _padded(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        time, batch = (1, 0) if self.batch_first else (0, 1)
        if x.dim() == 2:  # one sequence is a batch of one
            state = None if state is None else tuple(s.unsqueeze(1) for s in state)
            out, state = self._padded(x.unsqueeze(batch), state)
            return out.squeeze(batch), tuple(s.squeeze(1) for s in state)
        state = self._first_state(x, None, state)
        steps = [x.shape[batch]] * x.shape[time]
        out, state = self._layers(x.transpose(0, time).flatten(0, 1), steps, state)
        return out.unflatten(0, (len(steps), -1)).transpose(0, time), state

    def _first_state(self, x: Tensor, sizes: Tensor | None, state: State | None) -> State:
        lstm = self.mode == "LSTM"
        self.check_input(x, sizes)
        if state is None:
            count, batch, width = self.get_expected_hidden_size(x, sizes)
            widths = (width, self.hidden_size) if lstm else (width,)
            return tuple(x.new_zeros(count, batch, w) for w in widths)
        hidden: Any = state if lstm else state[0]
        self.check_forward_args(x, hidden, sizes)
        return tuple(state)

    def _layers(self, x: Tensor, steps: list[int], state: State) -> tuple[Tensor, State]:
        """Outputs of the last layer as (token, feature); last states of every layer and direction."""
        finals: list[State] = []
        for layer in range(self.num_layers):
            x = F.dropout(x, self.dropout, self.training and layer > 0)
            outs = []
            for suffix in ("", "_reverse")[: 1 + self.bidirectional]:
                out, final = self._layer(x, steps, tuple(s[len(finals)] for s in state), f"l{layer}{suffix}")
                outs.append(out)
                finals.append(final)
            x = torch.cat(outs, -1)
        return x, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))

    def _layer(self, x: Tensor, steps: list[int], state: State, suffix: str) -> tuple[Tensor, State]:
        w_ih, w_hh = getattr(self, f"weight_ih_{suffix}"), getattr(self, f"weight_hh_{suffix}")
        norm_ih, norm_hh = getattr(self, f"norm_ih_{suffix}"), getattr(self, f"norm_hh_{suffix}")
        w_hr = getattr(self, f"weight_hr_{suffix}", None)
        rms = inverse_row_rms([w_hh]).reciprocal().view(1, 1)  # all that norm_hh needs of W_hh, found once

        def step(a: Tensor, state: State) -> State:
            h, *rest = _STEPS[self.mode](a, norm_hh(F.linear(state[0], w_hh), rms), state)
            return (h if w_hr is None else F.linear(h, w_hr), *rest)

        inputs = norm_ih(F.linear(x, w_ih), w_ih).split(steps)
        return _scan(step, inputs, state, reverse=suffix.endswith("_reverse"))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        _reset_norms_(self)


class _Cell(nn.RNNCellBase):
    """The forward of torch's recurrent cells, for input with or without a batch axis."""

    norm_ih: Norm
    norm_hh: Norm

    def forward(self, input: Any, hx: Any = None) -> Any:
        lstm = isinstance(self, nn.LSTMCell)
        zero = input.new_zeros(*input.shape[:-1], self.hidden_size)
        if hx is None:
            hx = (zero, zero) if lstm else zero
        state = tuple(hx) if lstm else (hx,)
        if input.dim() not in (1, 2) or any(s.shape != zero.shape for s in state):
            raise ValueError(
                f"{type(self).__name__} got input of shape {tuple(input.shape)} and state of shape "
                f"{' and '.join(str(tuple(s.shape)) for s in state)}; give (batch, {self.input_size}) and "
                f"(batch, {self.hidden_size}), or both without batch"
            )
        a = self.norm_ih(F.linear(input, self.weight_ih), self.weight_ih)
        b = self.norm_hh(F.linear(state[0], self.weight_hh), self.weight_hh)
        state = _STEPS[self._mode()](a, b, state)
        return state if lstm else state[0]

    def _mode(self) -> str:
        if isinstance(self, nn.RNNCell):
            return f"RNN_{self.nonlinearity.upper()}"
        return "LSTM" if isinstance(self, nn.LSTMCell) else "GRU"

    def reset_parameters(self) -> None:
        super().reset_parameters()
        _reset_norms_(self)


class NormalizedLSTM(_Sequence, nn.LSTM):
    """`nn.LSTM` with normalised gates; made by `normalize_recurrent_`."""


class NormalizedGRU(_Sequence, nn.GRU):
    """`nn.GRU` with normalised gates; made by `normalize_recurrent_`."""


class NormalizedRNN(_Sequence, nn.RNN):
    """`nn.RNN` with normalised pre-activations; made by `normalize_recurrent_`."""


class NormalizedLSTMCell(_Cell, nn.LSTMCell):
    """`nn.LSTMCell` with normalised gates; made by `normalize_recurrent_`."""


class NormalizedGRUCell(_Cell, nn.GRUCell):
    """`nn.GRUCell` with normalised gates; made by `normalize_recurrent_`."""


class NormalizedRNNCell(_Cell, nn.RNNCell):
    """`nn.RNNCell` with normalised pre-activations; made by `normalize_recurrent_`."""


_NORMALIZED: dict[type, type] = {
    nn.LSTM: NormalizedLSTM,
    nn.GRU: NormalizedGRU,
    nn.RNN: NormalizedRNN,
    nn.LSTMCell: NormalizedLSTMCell,
    nn.GRUCell: NormalizedGRUCell,
    nn.RNNCell: NormalizedRNNCell,
}


def _permuted(state: Any, order: Tensor | None) -> Any:
    return state if state is None or order is None else tuple(s.index_select(1, order) for s in state)


def _weight_names(module: nn.RNNBase | nn.RNNCellBase) -> list[str]:
    """The names of the weights that get a norm."""
    if isinstance(module, nn.RNNCellBase):
        return ["weight_ih", "weight_hh"]
    return [name for names in module._all_weights for name in names if name[:9] in ("weight_ih", "weight_hh")]


def _drop_biases_(module: nn.RNNBase | nn.RNNCellBase) -> None:
    """`module` as torch builds it with bias=False."""
    for name in [name for name, _ in module.named_parameters(recurse=False) if name.startswith("bias")]:
        delattr(module, name)
        if isinstance(module, nn.RNNCellBase):
            module.register_parameter(name, None)
    module.bias = False
    if isinstance(module, nn.RNNBase):
        kept = [[name for name in names if not name.startswith("bias")] for names in module._all_weights]
        module._all_weights = kept
        module._flat_weights_names = [name for names in kept for name in names]
        module._init_flat_weights()


def _reset_norms_(module: nn.Module) -> None:
    for norm in module.modules():
        if isinstance(norm, Norm) and norm.weight is not None:
            nn.init.ones_(norm.weight)
        if isinstance(norm, Norm) and norm.bias is not None:
            nn.init.zeros_(norm.bias)


def _refuse_unless_plain(module: nn.Module) -> None:
    kind = f"{type(module).__module__}.{type(module).__name__}"
    if type(module) in _NORMALIZED.values():
        raise ValueError(f"{kind} has its norms already; leave it out with exclude=")
    if type(module) not in _NORMALIZED or "forward" in vars(module):
        raise ValueError(
            f"{kind} is not a plain {', '.join(f'nn.{plain.__name__}' for plain in _NORMALIZED)}: what it "
            "overrides would be lost; put norms where its gates are computed, or leave it out with exclude="
        )
    if isinstance(module, nn.RNN | nn.RNNCell) and module.hidden_size == 1:
        raise ValueError(
            f"{kind} has one unit, and a norm of width 1 keeps nothing of it; use a larger hidden_size, "
            "or leave it out with exclude="
        )
