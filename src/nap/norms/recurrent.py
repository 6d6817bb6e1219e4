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

from typing import Any

from torch import Tensor, nn

from nap.norms.norm import Eps, Norm
from nap.norms.recurrent_modules import (
    NormalizedGRU,
    NormalizedGRUCell,
    NormalizedLSTM,
    NormalizedLSTMCell,
    NormalizedRNN,
    NormalizedRNNCell,
)

NORMALIZED: dict[type, type] = {
    nn.LSTM: NormalizedLSTM,
    nn.GRU: NormalizedGRU,
    nn.RNN: NormalizedRNN,
    nn.LSTMCell: NormalizedLSTMCell,
    nn.GRUCell: NormalizedGRUCell,
    nn.RNNCell: NormalizedRNNCell,
}


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
    module.__class__ = NORMALIZED[type(module)]


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


def _refuse_unless_plain(module: nn.Module) -> None:
    kind = f"{type(module).__module__}.{type(module).__name__}"
    if type(module) in NORMALIZED.values():
        raise ValueError(f"{kind} has its norms already; leave it out with exclude=")
    if type(module) not in NORMALIZED or "forward" in vars(module):
        raise ValueError(
            f"{kind} is not a plain {', '.join(f'nn.{plain.__name__}' for plain in NORMALIZED)}: what it "
            "overrides would be lost; put norms where its gates are computed, or leave it out with exclude="
        )
    if isinstance(module, nn.RNN | nn.RNNCell) and module.hidden_size == 1:
        raise ValueError(
            f"{kind} has one unit, and a norm of width 1 keeps nothing of it; use a larger hidden_size, "
            "or leave it out with exclude="
        )
