"""What can befall a file in a run's folder: bytes flipped or lost, odd values, no file any more."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OTHER_VALUES: tuple[Any, ...] = (None, {}, [], "a word", -1, 1e308, True, [{}], 10**30)
Injection = Callable[[Path, random.Random], None]


def flipped_bit(path: Path, draws: random.Random) -> None:
    held = bytearray(path.read_bytes())
    held[draws.randrange(len(held))] ^= 1 << draws.randrange(8)
    path.write_bytes(held)


def changed_digit(path: Path, draws: random.Random) -> None:
    held = bytearray(path.read_bytes())
    at = draws.choice([i for i, byte in enumerate(held) if chr(byte).isdigit()])
    held[at] = ord(draws.choice([d for d in "0123456789" if ord(d) != held[at]]))
    path.write_bytes(held)


def nulls(path: Path, draws: random.Random) -> None:
    held = bytearray(path.read_bytes())
    at = draws.randrange(len(held))
    held[at : at + 64] = bytes(len(held[at : at + 64]))
    path.write_bytes(held)


def truncated(path: Path, draws: random.Random) -> None:
    held = path.read_bytes()
    path.write_bytes(held[: draws.randrange(len(held))])


def emptied(path: Path, draws: random.Random) -> None:
    path.write_bytes(b"")


def longer(path: Path, draws: random.Random) -> None:
    path.write_bytes(path.read_bytes() + b'{"arm": "NaP", "seed": 0}\n')


def deleted(path: Path, draws: random.Random) -> None:
    path.unlink()


def pipe(path: Path, draws: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path, draws: random.Random) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path, draws: random.Random) -> None:
    """To a file elsewhere, with the same content."""
    victim(path).write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(victim(path))


def dangling_link(path: Path, draws: random.Random) -> None:
    path.unlink()
    path.symlink_to(victim(path))


def empty_object(path: Path, draws: random.Random) -> None:
    path.write_text("{}\n")


def deep(path: Path, draws: random.Random) -> None:
    path.write_text("[" * 100_000)


def other_value(path: Path, draws: random.Random) -> None:
    """One value, anywhere in a JSON file or a line of one, is of another type or gone."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = draws.randrange(len(lines))
    value = json.loads(lines[at])
    holder, key = draws.choice(list(places(value)))
    if isinstance(holder, dict) and draws.random() < 0.3:
        del holder[key]
    else:
        was = holder[key]
        holder[key] = draws.choice([v for v in OTHER_VALUES if v != was])
    lines[at] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container inside with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def victim(path: Path) -> Path:
    """The file elsewhere that a link leads to."""
    return path.parents[2] / f"victim-{path.name}"


ANY = (flipped_bit, truncated, emptied, deleted, pipe, folder, link, dangling_link)
TEXT = (*ANY, changed_digit, nulls, longer, empty_object, deep, other_value)
OFTEN = {flipped_bit: 2, other_value: 4, changed_digit: 2}  # these differ from draw to draw
