"""Seeds of results are below 100, seeds of tuning from 100 on."""

from __future__ import annotations

FIRST_TUNING_SEED = 100


def check_seeds(first: int, count: int) -> None:
    """Raise ValueError if some seeds are for results and others for tuning.

    >>> check_seeds(98, 5)
    Traceback (most recent call last):
    ValueError: seeds 98 to 102: those from 100 on are for tuning; take fewer --seeds
    """
    if first < 0:
        raise ValueError(f"first_seed is {first}: it must be at least 0")
    if first < FIRST_TUNING_SEED < first + count:
        raise ValueError(
            f"seeds {first} to {first + count - 1}: those from {FIRST_TUNING_SEED} on are for tuning; "
            "take fewer --seeds"
        )


def for_tuning(seed: object) -> bool:
    """Whether a row with this seed is for tuning; no claim uses it.

    >>> for_tuning(4), for_tuning(100), for_tuning(None)
    (False, True, False)
    """
    return isinstance(seed, int) and seed >= FIRST_TUNING_SEED
