"""torch's recurrent modules with a norm on W_ih·x and one on W_hh·h; see `nap.norms.recurrent`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nap.norms.norm import Norm
from nap.norms.recurrent_steps import STEPS, State, scan
from nap.norms.weight_size import row_rms


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
        scale = row_rms([w_hh])  # all that norm_hh needs of W_hh, found once

        def step(a: Tensor, state: State) -> State:
            h, *rest = STEPS[self.mode](a, norm_hh(F.linear(state[0], w_hh), scale=scale), state)
            return (h if w_hr is None else F.linear(h, w_hr), *rest)

        inputs = norm_ih(F.linear(x, w_ih), w_ih).split(steps)
        return scan(step, inputs, state, reverse=suffix.endswith("_reverse"))

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
        state = STEPS[self._mode()](a, b, state)
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


def _permuted(state: Any, order: Tensor | None) -> Any:
    return state if state is None or order is None else tuple(s.index_select(1, order) for s in state)


def _reset_norms_(module: nn.Module) -> None:
    for norm in module.modules():
        if isinstance(norm, Norm) and norm.weight is not None:
            nn.init.ones_(norm.weight)
        if isinstance(norm, Norm) and norm.bias is not None:
            nn.init.zeros_(norm.bias)
