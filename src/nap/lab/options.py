"""The options of `nap run` and `nap sweep`: words of the command line → a checked config for each experiment.

Two stages: the names and --scale are read first, then tyro reads every other word as an override of
that scale's config. So each experiment has just its own settings, typed, with their defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nap.lab import aliases

EXAMPLES = """\
examples:
  nap run {name}                                  on this computer, in a minute or two
  nap run {name} --scale small --device cuda      with enough seeds for confidence intervals
  nap run {name} --seeds 3 --out elsewhere        the same again continues where it stopped
  nap run {name} --part 1/2 & nap run {name} --part 2/2    two processes at the same time
  nap run {name} --scale paper --help             the settings and defaults of another scale"""


MOST_THREADS = 4096


@dataclass(frozen=True)
class How:
    """How to run: options that every experiment has, and that change no row."""

    command = "run"
    examples = EXAMPLES

    scale: Literal["demo", "small", "paper"] = "demo"
    """Settings to start from: a minute or two on a laptop, minutes on a GPU, or the paper's own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes CUDA where there is one."""
    threads: int = 0
    """CPU threads; 0 takes one at demo, whose networks are small, and beside a GPU; else torch's choice."""
    part: str = "1/1"
    """2/4: the second of four shares of the runs, for processes or machines that work at the same time."""
    spread: Literal["ddp", "fsdp"] = "ddp"
    """How processes that torchrun starts share a network: a copy on each, or a piece; rows are the same."""
    out: Path = Path("results")
    """Folder of results; each run has a folder of its own in it."""
    tuned: Path | None = None
    """Learning rates for each arm: a file that nap tune wrote; results go to a folder that ends in -tuned."""
    report: bool = False
    """Write the HTML report at the end, as `nap report` does."""
    tensorboard: bool = False
    """Log every metric for TensorBoard, too, in each run's folder."""
    time_limit: float | None = None
    """Seconds after which runs are saved and stopped, as by SIGTERM; the same command goes on with them."""
    force: bool = False
    """Start over: discard what the runs' folders hold."""

    def check(self) -> None:
        """Refuse numbers out of range; not when it is made, since tyro would frame and wrap the message."""
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise ValueError(f"--time-limit {self.time_limit:g}: it must be a number of seconds above 0")


@dataclass(frozen=True)
class Request:
    """What `nap run` or `nap sweep` was asked to do with one experiment."""

    name: str
    how: How
    config: Any
    words: Sequence[str] = field(default=(), compare=False)  # that asked for it, under the names of today
    notes: Sequence[str] = field(default=(), compare=False)  # on old names among them


def split_names(
    words: Sequence[str], known: Iterable[str], *, command: str = "run"
) -> tuple[list[str], list[str]]:
    """The experiments' names, which come first, and the other words.

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


def parse(name: str, scales: Mapping[str, Any], words: Sequence[str], common: type[How] = How) -> Request:
    """What the words ask of one experiment; --help prints and exits.

    `common` has the options that do not depend on the experiment: those of `nap run`, or more.
    Raises ValueError for a key that there is not, a value of a wrong type, or one out of its range.
    """
    scale = _scale(scales, words)
    default = scales[scale]
    words, notes = aliases.words(groups(words), _kinds(common, default), name)
    _check_keys(name, common, default, words)
    given = _read(name, scale, common, default, words)
    if given is None:
        raise ValueError(_culprit(name, scale, common, default, words))
    # The config's own checks run here: from inside tyro their message would come framed and wrapped.
    config = type(default)(**{f.name: getattr(given.experiment, f.name) for f in fields(default)})
    return Request(name, given.common, config, words, notes)


def _scale(scales: Mapping[str, Any], words: Sequence[str]) -> str:
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument("--scale", default="demo", nargs="?", const="")
    scale: str = reader.parse_known_args(list(words))[0].scale
    if scale not in scales:
        raise ValueError(
            f"--scale {scale}: expected one of {', '.join(scales)}{_suggest(scale, scales)}".replace(
                " :", ":"
            )
        )
    return scale


def _read(name: str, scale: str, common: type[How], default: Any, words: Sequence[str]) -> Any:
    """The words, read by tyro: .common and .experiment; None where one of them is ill-typed."""
    import tyro

    kind = type(default)
    unchecked = type(kind.__name__, (kind,), {"__post_init__": lambda self: None})
    both: Any = make_dataclass("Options", [("common", common), ("experiment", unchecked)], frozen=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its own words on what is wrong fill a screen
            return tyro.cli(
                both,
                args=list(words),
                default=both(common(scale=scale), unchecked(**vars(default))),  # type: ignore[arg-type]
                prog=f"nap {common.command} {name}",
                description=f"Defaults below are those of --scale {scale}.\n\n"
                + common.examples.format(name=name),
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as exit_:
        if exit_.code == 0:  # --help
            raise
        return None


def _check_keys(name: str, common: type[How], default: Any, words: Sequence[str]) -> None:
    keys = _kinds(common, default)
    for key, *values in groups(words):
        if bare(key) not in keys and key not in ("--help", "-h"):
            raise ValueError(
                f"{name} has no setting {' '.join([key, *values])}; "
                f"it has {', '.join(keys)}{_suggest(bare(key), keys)}"
            )


def _culprit(name: str, scale: str, common: type[How], default: Any, words: Sequence[str]) -> str:
    """Which option could not be read, and what was expected: each is tried by itself."""
    kinds = _kinds(common, default)
    for key, *values in groups(words):
        if _read(name, scale, common, default, [key, *values]) is None:
            nothing = "" if values else ", got nothing"
            return f"{shlex.join([key, *values])}: expected {in_words(kinds[bare(key)])}{nothing}"
    return f"these options do not go together: {' '.join(words)}"


def bare(key: str) -> str:
    """--no-report is about --report."""
    return key.replace("--no-", "--", 1)


def _kinds(common: type[How], default: Any) -> dict[str, Any]:
    """Every option and its type."""
    hints = get_type_hints(common) | get_type_hints(type(default))
    return {"--" + name.replace("_", "-"): kind for name, kind in hints.items()}


def groups(words: Sequence[str]) -> Iterator[list[str]]:
    """Each key with the values that follow it; --key=value is taken apart, underscores are hyphens."""
    group: list[str] = []
    for word in words:
        if word.startswith("--") or not group:
            if group:
                yield group
            key, equals, value = word.partition("=")
            group = [key.replace("_", "-"), *([value] if equals else [])]
        else:
            group.append(word)
    if group:
        yield group


def in_words(kind: Any) -> str:
    """The type of a setting in plain words.

    >>> in_words(tuple[int, ...]), in_words(Literal["a", "b"]), in_words(float | None)
    ('whole numbers', 'one of a, b', 'a number or None')
    >>> print(in_words(tuple[Literal["a", "b and c"], ...]))
    some of a, 'b and c'
    """
    plain = {int: "a whole number", float: "a number", str: "a word", Path: "a path", NoneType: "None"}
    origin, inner = get_origin(kind), [a for a in get_args(kind) if a is not Ellipsis]
    if kind is bool:
        return "no value; write --key for yes, --no-key for no"
    if origin is Literal:
        return "one of " + ", ".join(shlex.quote(str(each)) for each in inner)
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, inner))
    if origin is tuple and get_origin(inner[0]) is Literal:
        return in_words(inner[0]).replace("one", "some", 1)
    if origin is tuple:
        return in_words(inner[0]).removeprefix("a ") + "s"
    return plain[kind]


def _suggest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f". Did you mean {close[0]}?" if close else ""
