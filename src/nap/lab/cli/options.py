"""Parses the command line of an experiment to options and settings.

Names of experiments and --scale come first; tyro parses the rest as overrides of the config of that scale.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nap.lab import aliases
from nap.lab.options import Request, RunOptions, grouped, without_no


def split_names(
    words: Sequence[str], known: Iterable[str], *, command: str = "run"
) -> tuple[list[str], list[str]]:
    """The names of experiments, which come first, and the remaining words.

    >>> split_names(["fig1", "walk", "--seeds", "3"], ["fig1", "fig2", "walk"])
    (['fig1', 'walk'], ['--seeds', '3'])
    """
    known = list(known)
    first_option = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    names = list(dict.fromkeys(words[:first_option]))
    if not names:
        raise ValueError(f"name an experiment first: nap {command} {known[0]}; there are {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ValueError(f"no experiment {name!r}; there are {', '.join(known)}{_suggest(name, known)}")
    return names, list(words[first_option:])


def parse(
    name: str, scales: Mapping[str, Any], words: Sequence[str], run_options: type[RunOptions] = RunOptions
) -> Request:
    """The options and settings of one experiment; --help prints and exits.

    `run_options` is the class of the options that all experiments share. Raises ValueError for an unknown
    option or an invalid value.
    """
    scale = _scale(scales, words)
    default = scales[scale]
    words, notes = aliases.words(grouped(words), _option_types(run_options, default), name)
    words = _in_any_case(words, _option_types(run_options, default))
    _check_keys(name, run_options, default, words)
    parsed = _read(name, scale, run_options, default, words)
    if parsed is None:
        raise ValueError(_bad_option(name, scale, run_options, default, words))
    # the checks in __post_init__ run here, since tyro would wrap their messages
    config = type(default)(**{f.name: getattr(parsed.experiment, f.name) for f in fields(default)})
    return Request(name, parsed.run, config, words, notes)


def _in_any_case(words: Sequence[str], types: Mapping[str, Any]) -> list[str]:
    """The words with values of Literal types in the spelling of the type.

    >>> _in_any_case(["--arms", "nap", "MINE", "--seeds", "3"], {"--arms": tuple[Literal["NaP", "no"], ...]})
    ['--arms', 'NaP', 'MINE', '--seeds', '3']
    """
    corrected: list[str] = []
    for key, *values in grouped(words):
        names = {str(name).lower(): str(name) for name in _names_of(types.get(key))}
        corrected += [key, *(names.get(value.lower(), value) for value in values)]
    return corrected


def _names_of(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal, or of a tuple of them."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return _names_of(get_args(kind)[0]) if get_origin(kind) is tuple else ()


def _scale(scales: Mapping[str, Any], words: Sequence[str]) -> str:
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument("--scale", default="demo", nargs="?", const="")
    scale: str = reader.parse_known_args(list(words))[0].scale
    if scale not in scales:
        given = f"--scale {scale}".rstrip()
        raise ValueError(f"{given}: expected one of {', '.join(scales)}{_suggest(scale, scales)}")
    return scale


def _read(name: str, scale: str, run_options: type[RunOptions], default: Any, words: Sequence[str]) -> Any:
    """The words as parsed by tyro, in .run and .experiment; None if a value is invalid."""
    import tyro

    kind = type(default)
    unchecked = type(kind.__name__, (kind,), {"__post_init__": lambda self: None})
    both: Any = make_dataclass("Options", [("run", run_options), ("experiment", unchecked)], frozen=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its messages are long
            return tyro.cli(
                both,
                args=list(words),
                default=both(run_options(scale=scale), unchecked(**vars(default))),  # type: ignore[arg-type]
                prog=f"nap {run_options.command} {name}",
                description=f"Defaults below are those of --scale {scale}.\n\n"
                + run_options.examples.format(name=name),
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as exit_:
        if exit_.code == 0:  # --help
            raise
        return None


def _check_keys(name: str, run_options: type[RunOptions], default: Any, words: Sequence[str]) -> None:
    keys = _option_types(run_options, default)
    for key, *values in grouped(words):
        if without_no(key) not in keys and key not in ("--help", "-h"):
            raise ValueError(
                f"{name} has no setting {' '.join([key, *values])}; "
                f"it has {', '.join(keys)}{_suggest(without_no(key), keys)}"
            )


def _bad_option(
    name: str, scale: str, run_options: type[RunOptions], default: Any, words: Sequence[str]
) -> str:
    """The error message for the first option that is invalid by itself."""
    types = _option_types(run_options, default)
    for key, *values in grouped(words):
        if _read(name, scale, run_options, default, [key, *values]) is None:
            nothing = "" if values else ", got nothing"
            return f"{shlex.join([key, *values])}: expected {describe_type(types[without_no(key)])}{nothing}"
    return f"these options do not go together: {' '.join(words)}"


def _option_types(run_options: type[RunOptions], default: Any) -> dict[str, Any]:
    """The type of each option."""
    hints = get_type_hints(run_options) | get_type_hints(type(default))
    return {"--" + name.replace("_", "-"): kind for name, kind in hints.items()}


def describe_type(kind: Any) -> str:
    """The type of a setting in plain words.

    >>> describe_type(tuple[int, ...]), describe_type(Literal["a", "b"]), describe_type(float | None)
    ('whole numbers', 'one of a, b', 'a number or None')
    >>> print(describe_type(tuple[Literal["a", "b and c"], ...]))
    some of a, 'b and c'
    """
    plain = {int: "a whole number", float: "a number", str: "a word", Path: "a path", NoneType: "None"}
    origin, inner = get_origin(kind), [a for a in get_args(kind) if a is not Ellipsis]
    if kind is bool:
        return "no value; write --key for yes, --no-key for no"
    if origin is Literal:
        return "one of " + ", ".join(shlex.quote(str(each)) for each in inner)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, inner))
    if origin is tuple and get_origin(inner[0]) is Literal:
        return describe_type(inner[0]).replace("one", "some", 1)
    if origin is tuple:
        return describe_type(inner[0]).removeprefix("a ") + "s"
    return plain[kind]


def _suggest(word: str, known: Iterable[str]) -> str:
    """A suggestion: names that begin with the word, have it as initials, or else are similar.

    >>> _suggest("fig5", ["fig5-suite", "fig5-end", "fig6"]), _suggest("--lr", ["--learning-rate", "--arms"])
    ('. Did you mean fig5-suite or fig5-end?', '. Did you mean --learning-rate?')
    """
    known = list(known)
    initials = word.lstrip("-")
    likely = [name for name in known if initials and name.startswith(word)]
    likely = likely or [name for name in known if len(initials) > 1 and initials == _initials(name)]
    likely = likely or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f". Did you mean {' or '.join(likely)}?" if likely else ""


def _initials(name: str) -> str:
    return "".join(part[0] for part in name.split("-") if part)
