"""Checks of settings and environment variables before any folder is created."""

from __future__ import annotations

import math
import os
from dataclasses import fields
from typing import Any, get_type_hints

from nap.lab.files import expanded

MAX_SIZES = {
    "seeds": 10_000,
    "first_seed": 1_000_000,
    "width": 65_536,
    "hidden": 65_536,
    "channels": 65_536,
    "narrow": 65_536,
    "depth": 1_000,
    "blocks": 1_000,
    "heads": 4_096,
    "atoms": 65_536,
    "batch_size": 1_000_000,
    "num_envs": 65_536,
    "length": 10_000_000,
    "vocabulary": 10_000_000,
    "resize": 65_536,
    "image_size": 65_536,
    "stack": 1_000,
    "n_steps": 10_000,
    "images": 1_000_000_000,
    "replay": 10_000_000_000,
    "probe": 100_000_000,
    "seeds_per_run": 10_000,
}
MAX_NUMBER = 10**15  # of other integers: steps, tokens, frames
MAX_FLOAT = 1e30  # more overflows in float32
MAY_BE_INFINITE = ("clip",)  # meaning no clipping
COUNT_VARIABLES = {
    "NAP_WORKERS": (0, 1024),
    "NAP_SIDE_BY_SIDE": (1, 100_000),
    "LOCAL_WORLD_SIZE": (1, 100_000),
}
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # set where TORCHELASTIC_RUN_ID is


def check_settings(config: Any) -> None:
    """Raise ValueError if a setting is out of range or names unknown data."""
    for field in fields(config):
        value = getattr(config, field.name)
        for number in value if isinstance(value, tuple) else [value]:
            _check_number(field.name, number)
    hints = get_type_hints(type(config))
    for name in ("data", "text", "tokenizer", "eval_sets", "games", "tuned_on"):
        if hints.get(name) in (str, tuple[str, ...]):  # else the parser knows the choices
            _check_data(name, getattr(config, name))


def check_environment() -> None:
    """Raise ValueError for an invalid environment variable."""
    for name, (least, most) in COUNT_VARIABLES.items():
        word = os.environ.get(name)
        if word and not (word.isascii() and word.isdecimal() and least <= int(word) <= most):
            raise ValueError(
                f"the environment variable {name}={word}: expected a number from {least} to {most}"
            )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        for name in TORCHRUN_VARIABLES:
            if not os.environ.get(name, "").isdecimal():
                raise ValueError(
                    f"the environment variable TORCHELASTIC_RUN_ID is set, as by torchrun, and {name} is not "
                    f"a number; start it through torchrun, or unset TORCHELASTIC_RUN_ID"
                )
    if word := os.environ.get("NAP_DATA"):
        try:
            folder = expanded(word)
        except ValueError as error:  # no such user
            raise ValueError(f"the environment variable NAP_DATA={word}: {error}") from error
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"the environment variable NAP_DATA={word} is no folder; name one for data sets")


def _check_number(name: str, number: Any) -> None:
    option = f"--{name.replace('_', '-')} {number}"
    if isinstance(number, int) and abs(number) > (most := MAX_SIZES.get(name, MAX_NUMBER)):
        raise ValueError(f"{option}: it must be at most {most:,}")
    if isinstance(number, float) and name not in MAY_BE_INFINITE:
        if not math.isfinite(number):
            raise ValueError(f"{option}: it must be a finite number")
        if abs(number) > MAX_FLOAT:
            raise ValueError(f"{option}: it must be at most {MAX_FLOAT:g}")


def _check_data(name: str, value: Any) -> None:
    """Raise ValueError for data that is neither in the catalogue nor a file."""
    from nap.lab.datasets.catalog import find_images  # a slow import, which --help should not wait for

    if name == "data":
        try:
            find_images(value)
        except ValueError as error:
            raise ValueError(f"--data {value}: {error}") from error
    if name == "games" and not value:
        raise ValueError("--games: name at least one game")
    if name == "tuned_on" and value:
        from nap.lab.loops.rainbow.games import require_known

        require_known(value)
    if name in ("text", "tokenizer"):
        from nap.lab.datasets.corpus import check_text, check_tokenizer

        for text in value if name == "text" else [value]:
            (check_text if name == "text" else check_tokenizer)(text)
    if name == "eval_sets":
        from nap.lab.loops.language.eval_sets import check_eval_set, parse_eval_sets

        for source, path in parse_eval_sets(value).items():
            check_eval_set(source, path)
