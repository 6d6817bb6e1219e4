"""Old names of settings, values, arms, rows and options in stored results and old commands.

To rename something, add `"old": "new",` to its table, in alphabetical order; nothing else has to change.
`"fig1/old": "new",` renames it in one experiment only. When a name is renamed again, change its line: no new
name may be an old one in the same table.

New folders have the new names. A stored config is translated when it is compared with a request, and a row
when it is read; files and hashes stay as they are. A folder that is continued gets rows under its own names.
A setting that a folder lacks means the behaviour of its time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

SETTINGS: dict[str, str] = {  # keys of configs, at any depth, and the options that set them (with hyphens)
    "correction": "importance_exponent",
    "edges": "padding_mode",
    "evaluation": "eval_frames",
    "every": "project_every_updates",
    "examined": "max_eval_examples",
    "exams": "eval_sets",
    "exponent": "priority_exponent",
    "fresh_moments": "optimizer_state",
    "induction/every": "eval_every",
    "judged": "valid_windows",
    "lanes": "num_envs",
    "learn_start": "min_replay_size",
    "limit": "v_max",
    "recompute": "activation_checkpointing",
    "regenerative": "l2_init",
    "replay": "replay_size",
    "smallest": "min_crop_area",
    "smoke": "smoke_frames",
    "smoothing": "label_smoothing",
    "table1-cifar/crop": "crop_padding",
    "table1-cifar/every": "eval_every",
    "table1-cifar/mean": "global_pool",
    "table1-cifar/over": "norm_axes",
    "table1-imagenet/every": "eval_every",
    "table1-imagenet/size": "image_size",
    "table1-imagenet/warm_up": "warmup_epochs",
    "table1-language/every": "eval_every",
    "table1-language/parts": "grad_accum_steps",
    "table1-language/tokens": "max_tokens",
    "table1-language/warm_up": "warmup_steps",
    "tied": "tie_embeddings",
    "together": "seeds_per_run",
    "weight_size": "init_std_scale",
}
VALUES: dict[str, dict[str, str]] = {  # new name of a setting or column: {old value: new value}
    "method": {"regenerative": "L2 Init"},
    "optimizer_state": {"false": "legacy", "true": "reset"},  # it was a switch
    "padding_mode": {"black": "zeros", "mirror": "reflect"},
}
ARMS: dict[str, str] = {  # values of the column "arm" and of --arms; run folders are named after them
    "NaP + regenerative": "NaP + L2 Init",
    "regenerative": "L2 Init",
}
KINDS: dict[str, str] = {  # values of the column "kind"
    "exam": "evaluation",
}
COLUMNS: dict[str, str] = {  # columns of rows
    "table1-language/answered": "answer_accuracy",
    "table1-language/answered_by_byte": "answer_accuracy_by_byte",
    "table1-language/questions": "num_questions",
    "table1-language/set": "eval_set",
}
OPTIONS: dict[str, str] = {  # options that every experiment has, without --
    "part": "shard",
    "spread": "parallel",
}
MANIFEST: dict[str, str] = {  # keys of manifest.json
    "sittings": "sessions",
}

Row = dict[str, Any]


def config(stored: Any, like: Any = None, experiment: str = "") -> Any:
    """A stored config under current names.

    With `like`, the requested config, a key is renamed only if `like` has the new name and not the old one,
    which may mean something else.

    >>> SETTINGS["lanes_then"] = "num_envs_now"
    >>> config({"settings": {"lanes_then": 16}})
    {'settings': {'num_envs_now': 16}}
    >>> config({"lanes_then": 16}, like={"lanes_then": 1})
    {'lanes_then': 16}
    >>> del SETTINGS["lanes_then"]
    """
    if not isinstance(stored, Mapping):
        return stored
    renamed: dict[str, Any] = {}
    for key, value in stored.items():
        new = _new(SETTINGS, key, experiment)
        taken = new in stored or (isinstance(like, Mapping) and (key in like or new not in like))
        name = key if taken else new
        inner = like.get(name) if isinstance(like, Mapping) else None
        renamed[name] = config(_value(name, value, inner, experiment), inner, experiment)
    return renamed


def row(stored: Row) -> Row:
    """A stored row under current names."""
    experiment = stored.get("experiment", "")
    renamed = {}
    for key, value in stored.items():
        new = _new(COLUMNS, key, experiment)
        name = key if new in stored else new
        renamed[name] = _cell(name, value, experiment)
    return renamed


class Spelling:
    """Renames new rows as the stored rows of a folder that is continued.

    >>> COLUMNS["right_then"] = "num_correct_now"
    >>> Spelling([{"right_then": 3}]).of({"num_correct_now": 4, "loss": 0.5})
    {'right_then': 4, 'loss': 0.5}
    >>> Spelling([]).of({"num_correct_now": 4})
    {'num_correct_now': 4}
    >>> del COLUMNS["right_then"]
    """

    def __init__(self, stored: Iterable[Row]):
        self._columns: dict[str, str] = {}
        self._cells: dict[tuple[str, Any], Any] = {}
        for old in stored:
            for (key, value), (name, now) in zip(old.items(), row(old).items(), strict=True):
                if key != name:
                    self._columns[name] = key
                if value != now:
                    self._cells[name, now] = value

    def of(self, new: Mapping[str, Any]) -> Row:
        """The row under the names of the folder."""
        return {
            self._columns.get(key, key): self._cells.get((key, value), value) for key, value in new.items()
        }


def manifest(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A stored manifest under current names."""
    return {MANIFEST.get(key, key): value for key, value in stored.items()}


def run_names(name: str) -> list[str]:
    """Earlier names of a run's folder, from earlier names of its arm.

    >>> ARMS["L2, then"] = "L2 now"
    >>> run_names("mlp-l2-now-seed-0"), run_names("nap")
    (['mlp-l2-then-seed-0'], [])
    >>> del ARMS["L2, then"]
    """
    names = []
    for old, new in ARMS.items():
        before, now = slug(old.rpartition("/")[2]), slug(new)
        renamed = re.sub(rf"(?<![^-]){re.escape(now)}(?![^-])", before, name)
        names += [renamed] if renamed != name else []
    return list(dict.fromkeys(names))


def slug(name: str) -> str:
    """A folder's name.

    >>> slug("LayerNorm, rescaled each task")
    'layernorm-rescaled-each-task'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def words(
    groups: Iterable[Sequence[str]], known: Collection[str], experiment: str = ""
) -> tuple[list[str], list[str]]:
    """Words of the command line under current names, and a note for each old name.

    Args:
        groups: options with their values, such as ["--lanes", "4"].
        known: the current options, such as --num-envs.

    >>> OPTIONS["spread_then"] = "parallel_now"
    >>> words([["--spread-then", "fsdp"]], ["--parallel-now"])
    (['--parallel-now', 'fsdp'], ['--spread-then is now --parallel-now'])
    >>> del OPTIONS["spread_then"]
    """
    current: list[str] = []
    notes: list[str] = []
    for key, *values in groups:
        now = key if key in known else _option(key, known, experiment)
        if now != key and not values:
            now, *values = _switch(now)
        setting = now.removeprefix("--").replace("-", "_")
        renamed = [_listed(setting, value, experiment) for value in values]
        pairs = [(key, now), *zip(values, renamed, strict=True)]
        notes += [f"{old} is now {new}" for old, new in pairs if old != new]
        current += [now, *renamed]
    return current, notes


def _option(key: str, known: Collection[str], experiment: str) -> str:
    prefix = "--no-" if key.startswith("--no-") else "--"
    name = key.removeprefix(prefix).replace("-", "_")
    for table in (OPTIONS, SETTINGS):
        new = _new(table, name, experiment).replace("_", "-")
        if f"--{new}" in known and new != name:
            return prefix + new
    return key


def _switch(option: str) -> list[str]:
    """For an old switch that is now an option with choices: the option and its value.

    >>> _switch("--no-optimizer-state"), _switch("--flip")
    (['--optimizer-state', 'legacy'], ['--flip'])
    """
    name = option.removeprefix("--no-").removeprefix("--")
    choices = VALUES.get(name.replace("-", "_"), {})
    if "true" not in choices:
        return [option]
    return [f"--{name}", choices["false" if option.startswith("--no-") else "true"]]


def _listed(setting: str, value: str, experiment: str) -> str:
    """The current name of a value; --arms and --methods list values of the columns arm and method."""
    if setting == "arms":
        return _new(ARMS, value, experiment)
    for name in (setting, setting.removesuffix("s")):
        if (new := VALUES.get(name, {}).get(value)) is not None:
            return new
    return value


def _value(name: str, value: Any, like: Any, experiment: str) -> Any:
    if isinstance(value, bool):
        return VALUES.get(name, {}).get(str(value).lower(), value)
    if isinstance(value, str) and value != like:
        return _new(ARMS, value, experiment) if name == "name" else VALUES.get(name, {}).get(value, value)
    if isinstance(value, list):
        return [_listed(name, item, experiment) if isinstance(item, str) else item for item in value]
    return value


def _cell(name: str, value: Any, experiment: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name in ("arm", "kind"):
        return _new(ARMS if name == "arm" else KINDS, value, experiment)
    return VALUES.get(name, {}).get(value, value)


def _new(table: Mapping[str, str], old: str, experiment: Any) -> str:
    return table.get(f"{experiment}/{old}") or table.get(old, old)


def deprecations(notes: Iterable[str]) -> Iterator[str]:
    """One line for all notes, if there are any."""
    if said := "; ".join(dict.fromkeys(notes)):
        yield f"deprecated: {said}; old names will go"
