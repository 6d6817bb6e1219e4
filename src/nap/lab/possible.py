"""Settings that cannot be: unknown data, sizes that no machine holds. Refused before a folder appears."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from nap.lab.files import expanded

SIZES = {  # the most that a setting may be; paper scale has 1,536 units, 12 blocks and 256 images in a batch
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
    "lanes": 65_536,
    "length": 10_000_000,
    "vocabulary": 10_000_000,
    "resize": 65_536,
    "size": 65_536,
    "stack": 1_000,
    "n_steps": 10_000,
    "images": 1_000_000_000,
    "replay": 10_000_000_000,
    "probe": 100_000_000,
    "together": 10_000,
    "seeds_per_run": 10_000,
}
MOST = 1_000_000_000_000_000  # of any other whole number: steps, tokens, frames
MAY_BE_INFINITE = ("clip",)  # no clipping
COUNTS = {"NAP_WORKERS": (0, 1024), "NAP_SIDE_BY_SIDE": (1, 100_000), "LOCAL_WORLD_SIZE": (1, 100_000)}
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # set where TORCHELASTIC_RUN_ID is


def check_possible(config: Any) -> None:
    """Raise ValueError, with the setting and what it may be, for a config that cannot be run."""
    for field in fields(config):
        value = getattr(config, field.name)
        for number in value if isinstance(value, tuple) else [value]:
            _check_number(field.name, number)
    for name, value in _named(config):
        _check_name(name, value)


def check_environment() -> None:
    """Raise ValueError for environment variables that the lab reads and cannot use."""
    for name, (least, most) in COUNTS.items():
        word = os.environ.get(name)
        if word and not (word.isascii() and word.isdecimal() and least <= int(word) <= most):
            raise ValueError(
                f"the environment variable {name}={word}: expected a number from {least} to {most}"
            )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        for name in TORCHRUN:
            if not os.environ.get(name, "").isdecimal():
                raise ValueError(
                    f"the environment variable TORCHELASTIC_RUN_ID is set, as by torchrun, and {name} is no "
                    f"number; start it through torchrun, or unset TORCHELASTIC_RUN_ID"
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
    if isinstance(number, int) and abs(number) > (most := SIZES.get(name, MOST)):
        raise ValueError(f"{option}: it must be at most {most:,}")
    if isinstance(number, float) and not math.isfinite(number) and name not in MAY_BE_INFINITE:
        raise ValueError(f"{option}: it must be a finite number")


def _named(config: Any) -> Iterator[tuple[str, Any]]:
    for name in ("data", "text", "tokenizer", "eval_sets"):
        if hasattr(config, name):
            yield name, getattr(config, name)


def _check_name(name: str, value: Any) -> None:
    """Refuse names of data that neither the catalogue nor this machine has."""
    from nap.lab.datasets.catalog import (  # they take a moment, and `nap --help` has none
        IMAGE_SETS,
        find_images,
    )

    if name == "data" and value not in {data.name for data in IMAGE_SETS} and value != "imagenet":
        try:
            find_images(value)
        except ValueError as error:
            raise ValueError(f"--data {value}: {error}") from error
    if name in ("text", "tokenizer"):
        from nap.lab.datasets.corpus import check_text, check_tokenizer

        for text in value if name == "text" else [value]:
            (check_text if name == "text" else check_tokenizer)(text)
    if name == "eval_sets":
        from nap.lab.loops.language.eval_sets import check_eval_set, parse_eval_sets

        for source, path in parse_eval_sets(value).items():
            check_eval_set(source, path)
