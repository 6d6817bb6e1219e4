"""A run is a folder: its configuration, what came of it, and one process at a time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from nap.lab import aliases, files, rows, stored
from nap.lab.files import PARTIAL, write_json
from nap.lab.runner import checkpoint, manifest
from nap.lab.runner.lock import Lock

CONFIG_NAME = stored.CONFIG
LOCK_NAME = "lock"
WHAT_A_RUN_WRITES = (  # in the order in which starting over removes it: a kill leaves what can be resumed
    manifest.FILE_NAME,
    checkpoint.FILE_NAME,
    checkpoint.PREVIOUS_NAME,
    checkpoint.REFUSED_NAME,
    rows.FILE_NAME,
    CONFIG_NAME,
)
RESULTS = (checkpoint.FILE_NAME, checkpoint.PREVIOUS_NAME, checkpoint.REFUSED_NAME, rows.FILE_NAME)
WAYS_OUT = "put the file back, choose another folder with --out, or start over with --force"
_MISSING = object()


class RunFolder:
    """An open run folder, locked for this process until `close()`; a context manager."""

    def __init__(self, path: Path, settings: dict[str, Any], lock: Lock):
        self.path, self.settings, self._lock = path, settings, lock

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        experiment: str,
        scale: str,
        run: str,
        config: Any,
        start_over: bool = False,
    ) -> Self:
        """Create the folder, or take it up again if it holds the same configuration.

        `config` (a dataclass or mapping) is all that determines the rows. `start_over` removes what
        an earlier run left here, whatever its configuration. One that left nothing but its configuration,
        because that could not be run, is in nobody's way.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "nap"
        >>> RunFolder.open(path, experiment="fig1", scale="demo", run="nap", config={"lr": 0.1}).close()
        >>> _ = (path / "rows.jsonl").write_text('{"loss": 1}')
        >>> RunFolder.open(path, experiment="fig1", scale="demo", run="nap", config={"lr": 0.2})
        Traceback (most recent call last):
        ValueError: ... holds a run with other settings:
          config.lr: 0.1 there, 0.2 now
        Choose another folder with --out, or start this one over with --force
        """
        path = Path(path)
        asked = {"experiment": experiment, "scale": scale, "run": run, "config": _json_able(config)}
        try:
            _check_no_links(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(path / LOCK_NAME)
        except OSError as error:
            reason = f"cannot write in {path}: {error.strerror}"
            raise ValueError(f"{reason}; choose another folder with --out") from error
        try:
            _clear(path, everything=start_over)
            settings = _settings(path, asked, config)
        except BaseException:
            lock.release()
            raise
        return cls(path, settings, lock)

    @property
    def config_hash(self) -> str:
        """Eight digits that stand for config.json."""
        return stored.config_hash(self.settings)

    def manifest(self) -> tuple[manifest.Manifest, list[str]]:
        """The manifest as it is on disk, and a note where it was damaged."""
        return manifest.Manifest.read(self.path / manifest.FILE_NAME)

    def is_finished(self) -> bool:
        """Whether all is done and the rows are still those that were written; no checkpoint is loaded."""
        found, _ = self.manifest()
        if found.finished is None:
            return False
        path = self.path / rows.FILE_NAME
        if damage := stored.rows_damage(files.content(path) if path.exists() else b"", found.content):
            raise ValueError(
                f"{self.path}/{damage}; put it back, or delete the folder to start this run over"
            )
        return True

    def close(self) -> None:
        """Give the folder to others."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def differences(there: Any, now: Any, name: str = "") -> Iterator[str]:
    """One line for each setting that differs.

    >>> list(differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3, "d": 4}}))
    ['b.c: 2 there, 3 now', 'b.d: not set there, 4 now']
    """
    if isinstance(there, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*there, *now]):
            below = f"{name}.{key}" if name else str(key)
            yield from differences(there.get(key, _MISSING), now.get(key, _MISSING), below)
    elif _show(there) != _show(now):
        yield f"{name}: {_show(there)} there, {_show(now)} now"


def _show(value: Any) -> str:
    return "not set" if value is _MISSING else json.dumps(value)


def _json_able(config: Any) -> dict[str, Any]:
    """`config` as it comes back from JSON: tuples as lists."""
    is_record = dataclasses.is_dataclass(config) and not isinstance(config, type)
    values = dataclasses.asdict(config) if is_record else config
    if not isinstance(values, Mapping):
        raise ValueError(f"a config is a dataclass or a mapping, not a {type(config).__name__}")
    try:
        return {str(key): json.loads(json.dumps(value)) for key, value in values.items()}
    except TypeError as error:
        raise ValueError(f"the config cannot be written as JSON: {error}") from error


def _settings(path: Path, asked: dict[str, Any], config: Any) -> dict[str, Any]:
    """The settings of the folder, which are those asked for; writes them to a new one.

    A setting that is newer than the folder and stands at its default is what the folder was begun with.
    """
    file = path / CONFIG_NAME
    begun_with = stored.begun_with(path) if has_results(path) else None
    if begun_with is None and not (file.exists() and has_results(path)):
        write_json(file, asked)
        return asked
    if not file.exists():
        if begun_with != stored.config_hash(asked):
            raise ValueError(
                f"{file} is gone, and the rows beside it are of configuration {begun_with}, while these "
                f"settings are {stored.config_hash(asked)}; {WAYS_OUT}"
            )
        write_json(file, asked)
        return asked
    try:
        there = json.loads(files.content(file))
        if not isinstance(there, dict):
            raise ValueError(f"a {type(there).__name__}, not an object")
        if begun_with not in (None, stored.config_hash(there)):
            raise ValueError(
                f"it was edited: it is configuration {stored.config_hash(there)}, the rows {begun_with}"
            )
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{file} is damaged ({error}): what made this folder's rows is unknown; {WAYS_OUT}"
        ) from error
    if found := other_settings(there, asked, config):
        raise ValueError(
            f"{path} holds a run with other settings:\n  "
            + "\n  ".join(found)
            + "\nChoose another folder with --out, or start this one over with --force"
        )
    return there


def has_results(path: Path) -> bool:
    """Whether a run has left anything in this folder that its settings led to."""
    found = [path / name for name in RESULTS]
    if any(file.exists() and file.stat().st_size > 0 for file in found):
        return True
    noted, _ = stored.read_manifest(path / manifest.FILE_NAME)
    return noted.get("finished") is not None  # its rows may be gone, and are its results all the same


def other_settings(there: dict[str, Any], asked: dict[str, Any], config: Any) -> list[str]:
    """A line for each setting in which a folder differs from what is asked, `config` among it."""
    experiment, run = there.get("experiment"), there.get("run")
    begun_with = aliases.config(there.get("config"), asked["config"], str(experiment))
    names = {"run": asked["run"]} if run in aliases.run_names(asked["run"]) else {}
    completed = _completed(begun_with, asked["config"], config)
    return list(differences(there | names | {"config": completed}, asked))


def _completed(there: Any, asked: Any, config: Any) -> Any:
    """What a folder has of a config; and settings that it does not know, if their default is asked for.

    >>> @dataclasses.dataclass
    ... class Config:
    ...     steps: int
    ...     mean: bool = False
    >>> _completed({"steps": 3}, {"steps": 3, "mean": False}, Config(3))
    {'steps': 3, 'mean': False}
    >>> _completed({"steps": 3}, {"steps": 3, "mean": True}, Config(3, mean=True))
    {'steps': 3}
    """
    if not isinstance(there, dict) or not dataclasses.is_dataclass(config):
        return there
    whole = dict(there)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in there:
            whole[field.name] = _completed(there[field.name], asked[field.name], value)
        elif value == field.default:
            whole[field.name] = asked[field.name]
    return whole


def _check_no_links(path: Path) -> None:
    """Refuse a folder, perhaps received from somebody, in which writing would reach files elsewhere."""
    if path.is_symlink():
        raise ValueError(
            f"{path} is a symbolic link: a run writes into no folder that another one points to; "
            f"name that one's parent with --out"
        )
    for name in WHAT_A_RUN_WRITES:
        files.check_no_link(path / name)


def _clear(path: Path, *, everything: bool) -> None:
    """Remove what a killed save left, or all that a run ever wrote here; never anything else."""
    for name in WHAT_A_RUN_WRITES:
        (path / (name + PARTIAL)).unlink(missing_ok=True)
        if everything:
            (path / name).unlink(missing_ok=True)
