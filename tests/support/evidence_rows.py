"""Rows that real runs left in evidence/."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

EVIDENCE = Path(__file__).parents[2] / "evidence"


def rows_of(archive: str, run: str) -> list[dict[str, Any]]:
    """Of one run in one archive."""
    with tarfile.open(EVIDENCE / f"{archive}.tar.xz") as packed:
        file = packed.extractfile(f"{archive}/{run}/rows.jsonl")
        assert file is not None
        return [json.loads(line) for line in file]
