"""The schedule that weight decay hides, from the recipe alone, to give to a projected network (§4.1).

Gradients stand at right angles to a weight that a norm follows, so each step makes it longer, and decay makes
it shorter. With raw gradients, whose length is G/‖w‖, rate η, decay λ and momentum m that is, for each step,

    Δ‖w‖² = (η/(1−m))² · G²/‖w‖² − 2λ · η/(1−m) · ‖w‖².

The two are even where ‖w‖⁴ = ηG²/(2λ(1−m)). So after a fall of the rate to a tenth the weight shrinks until
its effective rate, η/‖w‖², has fallen to a third only, in about (1−m)/(4ηλ) steps. While G stays the same,
q, which is ‖w‖⁴ in units of what the largest rate leads to, goes as Δq = 4λη/(1−m) · (η/η_max − q), and a
projected network has that rate if it gets η/√q.

Normalised updates with decoupled decay (AdamW) have η² for the growth and 2λη for the fall: q is ‖w‖² there,
Δq = 2λη · (η/η_max − q), and the rate is η/√q again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nap.rates.learning_rate import Update


def weight_decay_rates(
    rates: Sequence[float] | np.ndarray,
    weight_decay: float,
    *,
    momentum: float = 0.0,
    update: Update | str = Update.RAW,
) -> np.ndarray:
    """The rates with which a projected network learns as a free one does with `rates` and weight decay.

    It begins in balance: the norm that projection keeps is taken for the one that decay would have led to at
    the largest rate. How large that norm is cannot be known from the recipe. Nor can it be known how
    gradients change while a network learns; here they do not.

    Args:
        rates: the free network's, for each update.
        weight_decay: in the gradient for raw updates (`torch.optim.SGD`), beside it for normalised ones
            (`torch.optim.AdamW`).
        momentum: of SGD. For normalised updates it does not matter.

    >>> rates = [0.1] * 1000 + [0.01] * 100_000  # a fall to a tenth,
    >>> found = weight_decay_rates(rates, 5e-4, momentum=0.9)
    >>> [round(float(found[step]), 4) for step in (0, 999, 1000, 6000, -1)]  # of which decay leaves a third
    [0.1, 0.1, 0.01, 0.0152, 0.0316]
    """
    given = np.asarray(rates, dtype=np.float64)
    if given.ndim != 1 or not np.isfinite(given).all() or not (given >= 0).all() or not given.any():
        raise ValueError("rates must be a list with the learning rate of each update: finite, none below 0")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay is {weight_decay}, but it is finite and at least 0")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}, but it is a share of the last step: 0 ≤ momentum < 1")
    speed = 4 / (1 - momentum) if Update(update) is Update.RAW else 2
    balances, keeps = given / given.max(), np.exp(-speed * weight_decay * given)
    q, found = 1.0, np.empty_like(given)
    for step, (balance, kept) in enumerate(zip(balances.tolist(), keeps.tolist(), strict=True)):
        found[step] = q
        q = balance + (q - balance) * kept
    return given / np.sqrt(found)
