"""Frozen dataclasses from JSON: every key known, every value of its type, or an error that names it."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Made = TypeVar("Made")


class Misfit(ValueError):
    """A value that is not what belongs in its place."""


def made(kind: type[Made], row: Any, where: str) -> Made:
    """A `kind`, of a JSON object with its fields; `where` says in an error which one it is.

    >>> @dataclasses.dataclass
    ... class Part:
    ...     name: str
    ...     sizes: tuple[int, ...] = ()
    >>> made(Part, {"name": "a", "sizes": [1, 2]}, "part 0")
    Part(name='a', sizes=(1, 2))
    >>> made(Part, {"name": "a", "sizes": ["big"]}, "part 0")
    Traceback (most recent call last):
    nap.conversion.typed.Misfit: part 0: sizes[0] is 'big', where a whole number belongs
    """
    if not isinstance(row, Mapping):
        raise Misfit(f"{where} is no object with names, but {_shown(row)}")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := [key for key in row if key not in fields]:
        raise Misfit(f"{where}: {unknown[0]!r} is not known; known are {', '.join(fields)}")
    values = {}
    for name, field in fields.items():
        if name in row:
            values[name] = _value(hints[name], row[name], f"{where}: {name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Misfit(f"{where}: {name} is missing")
    return kind(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    """The value as its type wants it: lists become tuples, objects dataclasses."""
    origin, inner = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return made(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise Misfit(f"{where} is {_shown(value)}, and must be one of {', '.join(kind)}")
        return kind(value)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if not _fits(kind, value):
        raise Misfit(f"{where} is {_shown(value)}, where {_in_words(kind)} belongs")
    return float(value) if kind is float else value  # torch takes no integer beyond 64 bits


def _fits(kind: Any, value: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(each, value) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and abs(value) < math.inf  # NaN is not
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if kind is type(None):
        return value is None
    return isinstance(kind, type) and isinstance(value, kind)


def _in_words(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_in_words, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    words = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a text"}
    return "a list" if origin is tuple else words.get(kind, "null")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
