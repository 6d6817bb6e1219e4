"""The schedule that weight decay hides, from the recipe alone, to give to a projected network (§4.1).

Gradients stand at right angles to a weight that a norm follows, so each step makes it longer, and decay makes
it shorter. With raw gradients, whose length is G/‖w‖, rate η, decay λ and momentum m that is, for each step,

    Δ‖w‖² = (η/(1−m))² · G²/‖w‖² − 2λ · η/(1−m) · ‖w‖².

The two balance where ‖w‖⁴ = ηG²/(2λ(1−m)). So after a fall of the rate to a tenth the weight shrinks until
its effective rate, η/‖w‖², has fallen to a third only. While G stays the same, q, which is ‖w‖⁴ in units of
what the largest rate leads to, goes as Δq = 4λη/(1−m) · (η/η_max − q): with a time constant of (1−m)/(4λη)
steps. A projected network has that effective rate if it gets η/√q.

Normalised updates with decoupled decay (AdamW) grow by η² and shrink by 2λη: q is ‖w‖² there,
Δq = 2λη · (η/η_max − q), and the rate is η/√q again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from nap.rates.learning_rate import Update


def weight_decay_rates(
    rates: Iterable[float],
    weight_decay: float,
    *,
    momentum: float = 0.0,
    update: Update | str = Update.RAW,
) -> np.ndarray:
    """The rates that weight decay makes of `rates`, for a projected network, which decay cannot shrink.

    With them, weights that a norm follows have the effective rates that they would come to in a free network
    with weight decay. What nothing normalises (scales, offsets, the output layer) has no such hidden
    schedule: to leave it at `rates`, give it a parameter group of its own.

    When the largest rate is first reached, the norm that projection keeps is taken for the one that decay
    would have led to; until then, in a warm-up, the rates are those given. How large that norm is cannot be
    known from the recipe, nor how gradients change while a network learns; here they do not. A schedule that
    goes up again (restarts) finds short weights, so the rates are larger than any given, as they would be.

    Args:
        rates: the free network's, for each update.
        weight_decay: in the gradient for raw updates (`torch.optim.SGD`), beside it for normalised ones
            (`torch.optim.AdamW`).
        momentum: of SGD, without dampening. For normalised updates it does not matter.
        update: what the optimizer adds to the weights, "raw" or "normalised".

    >>> rates = [0.1] * 1000 + [0.01] * 100_000  # a fall to a tenth,
    >>> found = weight_decay_rates(rates, 5e-4, momentum=0.9)
    >>> [round(float(found[step]), 4) for step in (0, 999, 1000, 6000, -1)]  # of which decay leaves a third
    [0.1, 0.1, 0.01, 0.0152, 0.0316]
    """
    schedule = np.array(list(rates), dtype=np.float64)
    if (
        schedule.ndim != 1
        or not np.isfinite(schedule).all()
        or not (schedule >= 0).all()
        or not schedule.any()
    ):
        raise ValueError(
            "rates must be those of each update: finite numbers, none below 0, and not all of them 0"
        )
    if Update(update) is Update.RELATIVE:
        raise ValueError(
            "update='relative': steps in units of the norm leave decay nothing to schedule, so the rates are "
            "those that you give; take update='raw' or 'normalised', that of the run with weight decay"
        )
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay is {weight_decay}, but it is finite and at least 0")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}, but it is a share of the last step: 0 ≤ momentum < 1")
    speed = 4 / (1 - momentum) if Update(update) is Update.RAW else 2
    balances, keeps = schedule / schedule.max(), np.exp(-weight_decay * schedule * speed)
    q = np.ones_like(schedule)  # as each update finds it
    for step in range(int(schedule.argmax()) + 1, len(schedule)):
        balance = balances[step - 1]
        q[step] = balance + (q[step - 1] - balance) * keeps[step - 1]
    return schedule / np.sqrt(q)
