"""Folders of runs as other settings, or another end, would have left them: every checksum is right."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from nap.lab import stored


def rewritten(manifest: Path, text: str) -> None:
    """Another manifest, with the checksum that a run would have noted in it."""
    content = json.loads(text)
    content[stored.CHECKSUM] = stored.checksum(content)
    manifest.write_text(json.dumps(content))


def begun_with(folder: Path, settings: dict[str, Any]) -> None:
    """A finished run's folder, as if it had been begun with these settings."""
    manifest, rows = folder / stored.MANIFEST, folder / "rows.jsonl"
    content = json.loads(manifest.read_text())
    now = stored.config_hash(settings)
    held = rows.read_bytes().replace(content["config"].encode(), now.encode())
    rows.write_bytes(held)
    (folder / stored.CONFIG).write_text(json.dumps(settings))
    content |= {"config": now, "rows_sha256": hashlib.sha256(held).hexdigest()}
    rewritten(manifest, json.dumps(content))
