"""A run's folder as it is found: manifest and rows, each checked, without torch.

A run notes in its manifest how long its rows are and their SHA-256, and the manifest has one of its own. What
was changed since, by a person, a disk or a transfer, is named in words and never taken for a result. Folders
that are older than these checksums are read as they are, and are not `verified`.
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
CHECKSUM = "manifest_sha256"  # of all else in a manifest
UNVERIFIED = "without a checksum of their rows, since they are older than that: not verified"


@dataclass(frozen=True)
class StoredRun:
    """What a run's folder holds. Rows that cannot be read are left out, and `damage` says so."""

    manifest: Mapping[str, Any]  # {} where there is none, or a damaged one
    rows: Rows
    damage: tuple[str, ...]  # in words, a line each
    verified: bool  # its rows have the SHA-256 that the manifest notes


def stored_run(folder: Path) -> StoredRun:
    """A run's folder, with whatever is wrong with it in words."""
    manifest, problem = read_manifest(folder / MANIFEST)
    if not manifest and not problem and (folder / CONFIG).exists():  # rows that were copied have neither
        problem = f"{MANIFEST} is missing"
    damage, path = [problem] if problem else [], folder / row_files.FILE_NAME
    try:
        held = files.content(path)
    except FileNotFoundError:
        held = b""
    except (files.NotAFile, OSError) as error:
        return StoredRun(manifest, Rows(), (*damage, str(error)), verified=False)
    if changed := rows_damage(held, manifest):
        damage.append(changed)
    found, unreadable = _readable(held)
    damage += [f"{path.name} {unreadable}"] if unreadable else []
    verified = not damage and "rows_sha256" in manifest
    return StoredRun(manifest, Rows(found), tuple(damage), verified)


def read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """What a manifest holds, under the names of today, and "", or {} and what is wrong with it.

    Where there is none: {} and "".
    """
    try:
        found = json.loads(files.content(path))
    except FileNotFoundError:
        return {}, ""
    except files.NotAFile as error:
        return {}, str(error)
    except OSError as error:
        return {}, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return {}, f"{path.name} is damaged ({error})"
    reason = _oddity(found)
    return ({}, f"{path.name} is damaged ({reason})") if reason else (aliases.manifest(found), "")


def rows_damage(held: bytes, manifest: Mapping[str, Any]) -> str:
    """How the bytes of a file of rows differ from what the manifest notes of them; "" where they do not.

    While a run is not finished it may have written more since it last saved.
    """
    name, size = row_files.FILE_NAME, manifest.get("rows_bytes")
    if size is None:
        return ""
    finished = manifest.get("finished") is not None
    if len(held) < size or (finished and len(held) != size):
        then = "when the run was finished" if finished else "when the run last saved"
        return f"{name} has {len(held):,} bytes, but {size:,} {then}: it was edited"
    if manifest.get("rows_sha256") not in (None, hashlib.sha256(held[:size]).hexdigest()):
        return f"{name} is not what the run wrote: its SHA-256 is not the one in {MANIFEST}"
    return ""


def checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of what a manifest says, whatever the order of its keys; its own checksum is left out."""
    return hashlib.sha256(_canonical({k: v for k, v in manifest.items() if k != CHECKSUM})).hexdigest()


def config_hash(settings: Mapping[str, Any]) -> str:
    """Eight digits that stand for the content of a config.json."""
    return hashlib.sha256(_canonical(settings)).hexdigest()[:8]


def begun_with(folder: Path) -> str | None:
    """The configuration that made a folder's rows, in eight digits; None where nothing says so."""
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


def _readable(held: bytes) -> tuple[list[Row], str]:
    """The lines that are rows, and what is wrong with the first one that is none."""
    found: list[Row] = []
    kinds: dict[str, str] = {}
    problem = ""
    for number, text in row_files.lines(held):
        try:
            row = row_files.parsed(text)
            for key, value in row.items():
                if value is not None and (kind := _kind(value)) != kinds.setdefault(key, kind):
                    raise ValueError(f"has a {kind} as {key!r}, where other rows have a {kinds[key]}")
        except ValueError as error:
            problem = problem or f"line {number} {error}"
        else:
            found.append(aliases.row(row))
    return found, problem


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "truth value"
    return "text" if isinstance(value, str) else "number"


def _oddity(found: Any) -> str:
    """What in a manifest is not as a run writes it; "" for nothing."""
    if not (isinstance(found, dict) and isinstance(found.get("sittings"), list)):
        return "not the object that a run writes"
    for key, is_right in _MANIFEST.items():
        if key in found and not is_right(found[key]):
            return f"{key} is {json.dumps(found[key])[:40]}"
    if found.get("finished") is not None and "rows_bytes" not in found:
        return "finished, and rows_bytes is missing"
    for sitting in found["sittings"]:
        if not (isinstance(sitting, dict) and "exit" in sitting and _is_text_or_none(sitting["exit"])):
            return "a sitting without its exit"
        if not _is_texts(sitting.get("notes", [])):
            return "the notes of a sitting are not texts"
    if CHECKSUM in found and found[CHECKSUM] != checksum(found):
        return "it was changed: its checksum does not match its content"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_MANIFEST: dict[str, Callable[[Any], bool]] = {
    "experiment": _is_text,
    "scale": _is_text,
    "run": _is_text,
    "config": _is_text,
    "command": _is_texts,
    "versions": _is_object,
    "commit": _is_text,
    "device": _is_text,
    "platform": _is_text,
    "started": _is_text,
    "finished": _is_text_or_none,
    "exit": _is_text_or_none,
    "seconds": _is_seconds,
    "rows_bytes": _is_count,
    "rows_sha256": _is_text,
}
