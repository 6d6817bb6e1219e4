"""PAPER.md states the verdicts that the rows in evidence/ give."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from nap.lab.claims import judge, read

ROOT = Path(__file__).parents[1]
PAPER = (ROOT / "PAPER.md").read_text(encoding="utf-8")
EVIDENCE = ROOT / "evidence"
ARCHIVES = [*sorted(EVIDENCE.glob("*-small.tar.xz")), *sorted(EVIDENCE.glob("*-paper.tar.xz"))]


def stated(name: str) -> tuple[int, ...]:
    """Hold, fail, open: from the row of the table that begins with this name."""
    row = re.search(rf"^\| {name}\b.*\| (\d+) / (\d+) / (\d+) \|$", PAPER, re.MULTILINE)
    assert row, f"PAPER.md has no row for {name}"
    return tuple(map(int, row.groups()))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.split(".")[0])
def test_the_paper_page_says_what_the_rows_say(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (rows,) = read(tmp_path).values()
    verdicts = Counter(str(evidence.verdict) for _, evidence in judge(rows))
    counted = tuple(verdicts[word] for word in ("holds", "fails", "not enough evidence"))
    assert sum(counted) == verdicts.total()
    assert counted == stated(archive.name.split(".")[0])


def test_every_experiment_of_the_lab_s_core_left_its_rows() -> None:
    assert {"fig1", "fig2", "fig4", "revival", "walk"} <= {a.name.split("-")[0] for a in ARCHIVES}
