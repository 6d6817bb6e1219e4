"""A run's folder: its configuration and results, locked for one process at a time."""

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
RESULTS = (checkpoint.FILE_NAME, checkpoint.PREVIOUS_NAME, checkpoint.REFUSED_NAME, rows.FILE_NAME)
RUN_FILES = (
    manifest.FILE_NAME,
    *RESULTS,
    CONFIG_NAME,
)  # the order of removal: a kill leaves a resumable run
WAYS_OUT = "put the file back, choose another folder with --out, or start over with --force"
_MISSING = object()


class RunFolder:
    """An open run folder, locked for this process until `close()`; a context manager."""

    def __init__(self, path: Path, settings: dict[str, Any], lock: Lock):
        self.path, self.settings, self._lock = path, settings, lock

    @classmethod
    def open(
        cls, path: Path | str, *, experiment: str, scale: str, run: str, config: Any, start_over: bool = False
    ) -> Self:
        """Create a run folder, or reopen one with the same configuration.

        `config`, a dataclass or mapping, is everything that determines the rows. `start_over` deletes an
        earlier run. A folder without results can be opened with any configuration.

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
        requested = {"experiment": experiment, "scale": scale, "run": run, "config": _as_json(config)}
        try:
            _check_no_links(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock(path / LOCK_NAME)
        except OSError as error:
            reason = f"cannot write in {path}: {error.strerror}"
            raise ValueError(f"{reason}; choose another folder with --out") from error
        try:
            for name in RUN_FILES:
                (path / (name + PARTIAL)).unlink(missing_ok=True)  # of a save that was killed
                if start_over:
                    (path / name).unlink(missing_ok=True)
            return cls(path, _settings(path, requested, config), lock)
        except BaseException:
            lock.release()
            raise

    @property
    def config_hash(self) -> str:
        """Eight hexadecimal digits of the hash of config.json."""
        return stored.config_hash(self.settings)

    def manifest(self) -> tuple[manifest.Manifest, list[str]]:
        """The manifest on disk, and a note if it is damaged."""
        return manifest.Manifest.read(self.path / manifest.FILE_NAME)

    def is_finished(self) -> bool:
        """Whether the run is finished; raises ValueError if its rows were changed since."""
        finished, _ = self.manifest()
        if finished.finished is None:
            return False
        path = self.path / rows.FILE_NAME
        if damage := stored.rows_damage(files.content(path) if path.exists() else b"", finished.content):
            raise ValueError(
                f"{self.path}/{damage}; put it back, or delete the folder to start this run over"
            )
        return True

    def close(self) -> None:
        """Release the lock."""
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


def _as_json(config: Any) -> dict[str, Any]:
    """`config` as JSON returns it: tuples become lists."""
    is_record = dataclasses.is_dataclass(config) and not isinstance(config, type)
    values = dataclasses.asdict(config) if is_record else config
    if not isinstance(values, Mapping):
        raise ValueError(f"a config is a dataclass or a mapping, not a {type(config).__name__}")
    try:
        return {str(key): json.loads(json.dumps(value)) for key, value in values.items()}
    except TypeError as error:
        raise ValueError(f"the config cannot be written as JSON: {error}") from error


def _settings(path: Path, requested: dict[str, Any], config: Any) -> dict[str, Any]:
    """The settings of the folder, after checking that they are those requested; a new folder gets these."""
    file, now = path / CONFIG_NAME, stored.config_hash(requested)
    rows_hash = stored.begun_with(path) if has_results(path) else None
    if not file.exists() and rows_hash not in (None, now):
        raise ValueError(
            f"{file} is gone, and the rows beside it are of configuration {rows_hash}, while these "
            f"settings are {now}; {WAYS_OUT}"
        )
    if not file.exists() or not has_results(path):
        write_json(file, requested)
        return requested
    try:
        there = files.parse_json(files.content(file))
        if not isinstance(there, dict):
            raise ValueError(f"a {type(there).__name__}, not an object")
        if rows_hash not in (None, stored.config_hash(there)):
            raise ValueError(
                f"it was edited: it is configuration {stored.config_hash(there)}, the rows {rows_hash}"
            )
    except ValueError as error:
        raise ValueError(
            f"{file} is damaged ({error}): what made this folder's rows is unknown; {WAYS_OUT}"
        ) from error
    if lines := other_settings(there, requested, config):
        raise other_settings_error(path, lines)
    return there


def other_settings_error(path: Path, lines: list[str]) -> ValueError:
    return ValueError(
        f"{path} holds a run with other settings:\n  "
        + "\n  ".join(lines)
        + "\nChoose another folder with --out, or start this one over with --force"
    )


def has_results(path: Path) -> bool:
    """Whether this folder has rows or a checkpoint, or its manifest says that it had."""
    results = [path / name for name in RESULTS]
    if any(file.exists() and file.stat().st_size > 0 for file in results):
        return True
    content, _ = stored.read_manifest(path / manifest.FILE_NAME)
    return content.get("finished") is not None  # its rows may have been deleted


def other_settings(there: dict[str, Any], requested: dict[str, Any], config: Any) -> list[str]:
    """One line for each setting in which a folder differs from the request, whose config is `config`."""
    experiment, run = there.get("experiment"), there.get("run")
    before = aliases.config(there.get("config"), requested["config"], str(experiment))
    names = {"run": requested["run"]} if run in aliases.run_names(requested["run"]) else {}
    completed = _completed(before, requested["config"], config)
    return list(differences(there | names | {"config": completed}, requested))


def _completed(there: Any, requested: Any, config: Any) -> Any:
    """A folder's config, with settings that it lacks if the request leaves them at their defaults.

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
            whole[field.name] = _completed(there[field.name], requested[field.name], value)
        elif value == field.default:
            whole[field.name] = requested[field.name]
    return whole


def _check_no_links(path: Path) -> None:
    """Refuse links in a folder, which may be from somebody else: writing would change files elsewhere."""
    if path.is_symlink():
        raise ValueError(
            f"{path} is a symbolic link: a run writes into no folder that another one points to; "
            f"name that one's parent with --out"
        )
    for name in RUN_FILES:
        files.check_no_link(path / name)
