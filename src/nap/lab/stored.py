"""Reading a run's folder with all checks, without torch.

A manifest holds length and SHA-256 of the run's rows, and a SHA-256 of itself. Whatever was changed since, by
a person, a disk or a transfer, is reported as damage. Older folders without checksums are read as they are,
and are not `verified`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nap.lab import aliases, files
from nap.lab import rows as row_files
from nap.lab.rows import Row, Rows

MANIFEST, CONFIG = "manifest.json", "config.json"
CHECKSUM = "manifest_sha256"  # of everything else in the manifest
UNVERIFIED = "without a checksum of their rows, since they are older than that: not verified"


@dataclass(frozen=True)
class StoredRun:
    """The content of a run's folder. Unreadable rows are left out and reported in `damage`."""

    manifest: Mapping[str, Any]  # {} if there is none, or if it is damaged
    rows: Rows
    damage: tuple[str, ...]  # one line each
    verified: bool  # the rows have the SHA-256 in the manifest


def stored_run(folder: Path) -> StoredRun:
    """The content of a run's folder, and whatever is wrong with it."""
    manifest, problem = read_manifest(folder / MANIFEST)
    if not manifest and not problem and (folder / CONFIG).exists():  # copied rows have neither
        problem = f"{MANIFEST} is missing"
    damage, path = [problem] if problem else [], folder / row_files.FILE_NAME
    try:
        content = files.content(path)
    except FileNotFoundError:
        content = b""
    except (files.NotAFile, OSError) as error:
        return StoredRun(manifest, Rows(), (*damage, str(error)), verified=False)
    if changed := rows_damage(content, manifest):
        damage.append(changed)
    rows, unreadable = _parse_rows(content)
    damage += [f"{path.name} {unreadable}"] if unreadable else []
    return StoredRun(manifest, Rows(rows), tuple(damage), not damage and "rows_sha256" in manifest)


def read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """The manifest under current names, or {}; and what is wrong with it, "" for nothing."""
    try:
        content = files.parse_json(files.content(path))
    except FileNotFoundError:
        return {}, ""
    except files.NotAFile as error:
        return {}, str(error)
    except OSError as error:
        return {}, f"{path.name} cannot be read: {error.strerror}"
    except ValueError as error:
        return {}, f"{path.name} is damaged ({error})"
    current = aliases.manifest(content) if isinstance(content, dict) else {}
    problem = _manifest_problem(current)
    if not problem and content.get(CHECKSUM, checksum(content)) != checksum(content):
        problem = "it was changed: its checksum does not match its content"
    return ({}, f"{path.name} is damaged ({problem})") if problem else (current, "")


def rows_damage(content: bytes, manifest: Mapping[str, Any]) -> str:
    """How a file of rows differs from what the manifest says; "" if it does not.

    An unfinished run may have written more rows since it last saved.
    """
    name, size = row_files.FILE_NAME, manifest.get("rows_bytes")
    if size is None:
        return ""
    finished = manifest.get("finished") is not None
    if len(content) < size or (finished and len(content) != size):
        then = "when the run was finished" if finished else "when the run last saved"
        return f"{name} has {len(content):,} bytes, but {size:,} {then}: it was edited"
    if manifest.get("rows_sha256") not in (None, hashlib.sha256(content[:size]).hexdigest()):
        return f"{name} is not what the run wrote: its SHA-256 is not the one in {MANIFEST}"
    return ""


def checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its own checksum; the order of keys does not matter."""
    return hashlib.sha256(_canonical({k: v for k, v in manifest.items() if k != CHECKSUM})).hexdigest()


def config_hash(settings: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of the hash of a config.json."""
    return hashlib.sha256(_canonical(settings)).hexdigest()[:8]


def begun_with(folder: Path) -> str | None:
    """Hash of the configuration that made a folder's rows; None if neither manifest nor rows have it."""
    manifest, _ = read_manifest(folder / MANIFEST)
    if "config" in manifest:
        return str(manifest["config"])
    try:
        first = next(row_files.lines(files.content(folder / row_files.FILE_NAME)), None)
        label = None if first is None else row_files.parsed(first[1]).get("config")
    except (OSError, ValueError):
        return None
    return label if isinstance(label, str) else None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _parse_rows(content: bytes) -> tuple[list[Row], str]:
    """The lines that are rows, and what is wrong with the first line that is not."""
    rows: list[Row] = []
    kinds: dict[str, str] = {}
    problem = ""
    for number, text in row_files.lines(content):
        try:
            row = row_files.parsed(text)
            for key, value in row.items():
                if value is not None and (kind := _kind(value)) != kinds.setdefault(key, kind):
                    raise ValueError(f"has a {kind} as {key!r}, where other rows have a {kinds[key]}")
        except ValueError as error:
            problem = problem or f"line {number} {error}"
        else:
            rows.append(aliases.row(row))
    return rows, problem


def _kind(value: object) -> str:
    return "truth value" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def _manifest_problem(content: Mapping[str, Any]) -> str:
    """What in a manifest, under current names, is not as a run writes it; "" for nothing."""
    if not isinstance(content.get("sessions"), list):
        return "not the object that a run writes"
    for key, is_valid in _MANIFEST.items():
        if key in content and not is_valid(content[key]):
            return f"{key} is {json.dumps(content[key])[:40]}"
    if content.get("finished") is not None and "rows_bytes" not in content:
        return "finished, and rows_bytes is missing"
    for session in content["sessions"]:
        if not (isinstance(session, dict) and "exit" in session and _is_text_or_none(session["exit"])):
            return "a session without its exit"
        if not _is_texts(session.get("notes", [])):
            return "the notes of a session are not texts"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return isinstance(value, str | None)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


_MANIFEST: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("experiment", "scale", "run", "config", "rows_sha256"), _is_text),
    **dict.fromkeys(("commit", "device", "platform", "started"), _is_text),
    **dict.fromkeys(("finished", "exit"), _is_text_or_none),
    "command": _is_texts,
    "versions": _is_object,
    "seconds": _is_seconds,
    "rows_bytes": _is_count,
}
