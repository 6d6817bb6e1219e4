"""Weights that a constant mask keeps zeros in: which inputs reach which features, and which taps there are.

Masked autoregressive networks (MADE) and networks of separate parts are made so. A norm over all features of
such a layer would let each of them depend on all inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from nap.tracing.call import Call

ONE_AFTER_ANOTHER = "zeros in its weight let its features depend on more and more inputs, as in MADE"
POSITIONS = "zeros in its weight keep positions that it mixes apart"
IN_BLOCKS = "zeros in its weight keep groups of features apart"


def kept_apart(weight: Tensor, axis: int, whole: Tensor | None, *, mixes: bool = False) -> str:
    """Why the features of a layer must not be normalised together; empty if they may.

    `axis` is that of features; `whole` is the parameter that the weight was made of, if it is one. Zeros at
    random places, as pruning leaves them, and those that a parameter itself starts with keep nothing apart,
    except where the weight `mixes` positions, such as the nodes of a graph.

    >>> import torch
    >>> kept_apart(torch.ones(3, 3).tril(), 0, torch.ones(3, 3))
    'zeros in its weight let its features depend on more and more inputs, as in MADE'
    >>> kept_apart(torch.ones(3, 3), 0, torch.ones(3, 3))
    ''
    """
    if weight.is_meta or weight.ndim < 2 or bool((weight != 0).all()):
        return ""
    made = _is_made(weight, whole)
    rows = (weight.detach() != 0).movedim(axis, 0).flatten(1).unique(dim=0)
    rows = rows[rows.any(1)]
    if len(rows) < 2:
        return ""
    common = rows.float() @ rows.float().T
    sizes = rows.sum(1).float()
    smaller = sizes[:, None].minimum(sizes)
    if bool((common == smaller).all()) and (made or len(rows) > 2):
        return ONE_AFTER_ANOTHER
    if mixes and made:
        return POSITIONS
    apart = bool((common.fill_diagonal_(0) == 0).all())
    return IN_BLOCKS if apart and made else ""


def lacks_taps(weight: Tensor, whole: Tensor | None) -> bool:
    """Whether a mask takes whole taps out of a convolution, as in PixelCNN: it may not look everywhere."""
    if weight.is_meta or weight.ndim < 3 or bool((weight != 0).all()):
        return False
    return _is_made(weight, whole) and not bool((weight != 0).any(0).any(0).all())


def _is_made(weight: Tensor, whole: Tensor | None) -> bool:
    """Whether the zeros are not those of the parameter."""
    if whole is None:
        return True
    if whole.is_meta or weight is whole or weight._base is whole:
        return False
    turned = (whole, whole.mT) if whole.ndim > 1 else ()
    same = next((w for w in turned if w.shape == weight.shape), None)
    if same is None:
        return True
    zero = weight == 0
    clamped = bool(((same <= 0) == zero).all())  # to positive numbers, not masked
    return not clamped and bool((same[zero] != 0).all())


_MASKING = frozenset(["mul", "multiply", "tril", "triu", "masked_fill", "where"])


def need_values(call: Call) -> None:
    """Raises where a matrix without values is masked: what the mask keeps apart shows in its zeros."""
    if call.name not in _MASKING:
        return
    pairs = list(zip(call.tensors, call.operands, strict=True))
    if not any(t.is_meta and t.ndim > 1 and v.raw and not v.data for t, v in pairs):
        return
    others = [t for t, v in pairs if t.ndim > 1 and not (v.sources or v.data or t.is_meta)]
    masks = [t for t in others if bool((t == 0).any()) and bool(((t == 0) | (t == 1)).all())]
    if masks or call.name in ("tril", "triu"):
        raise ValueError("a weight is masked, and what the mask keeps apart shows in its values")
