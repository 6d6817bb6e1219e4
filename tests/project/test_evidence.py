"""The records in evidence/ say what the rows beside them give, and PAPER.md says what the records say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs/hooks"))

import records as hook  # noqa: E402

RECORDS = hook.records()
DECIDED = [record for record in RECORDS if record.verdicts and record.archive]


def test_every_archive_has_its_record() -> None:
    archives = {path.name.removesuffix(".tar.xz") for path in hook.EVIDENCE.glob("*.tar.xz")}
    assert archives - {record.name for record in RECORDS} == set()
    without_rows = {record.scale for record in RECORDS if not record.archive}
    assert without_rows <= {"demo"}, "rows of longer runs are kept"


@pytest.mark.parametrize("record", DECIDED, ids=lambda record: record.name)
def test_a_record_says_what_its_rows_say(record: hook.Record) -> None:
    assert record.archive is not None
    assert hook.decide(record.archive) == record.verdicts


def test_the_tables_of_the_paper_page_are_those_of_the_records() -> None:
    (table,) = hook.TABLE.findall((ROOT / "PAPER.md").read_text("utf-8"))
    assert table.strip() == hook.verdict_table().strip(), "run: python docs/hooks/records.py"


def test_the_paper_page_is_a_page_and_no_database() -> None:
    assert len((ROOT / "PAPER.md").read_bytes()) <= 15_000


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_leads_to_its_findings(record: hook.Record) -> None:
    assert record.findings.is_file()
    if record.superseded_by:
        assert record.superseded_by in {other.name for other in RECORDS}
        assert record.findings.parent.name == "log"


def test_every_experiment_of_the_lab_s_core_left_its_rows() -> None:
    assert {"fig1", "fig2", "fig4", "revival", "walk"} <= {r.experiments[0] for r in DECIDED}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('scael = "small"', "has no scael"),
        ('superseded_by = "fig1-demo"', "come together"),
        ('experiments = ["fig99"]', "fig99"),
    ],
)
def test_a_wrong_record_is_refused(line: str, says: str, tmp_path: Path) -> None:
    text = (hook.EVIDENCE / "fig1-small.toml").read_text("utf-8")
    key = line.partition(" ")[0]
    path = tmp_path / "fig1-small.toml"
    path.write_text(f"{line}\n{re.sub(f'^{key} = .*$', '', text, flags=re.MULTILINE)}", "utf-8")
    with pytest.raises(ValueError, match=says):
        hook.read_record(path)


def test_new_rows_get_a_draft_from_their_manifests() -> None:
    text = hook.draft("walk-small")
    assert 'experiments = ["walk"]' in text
    assert "seeds = 32" in text
    assert "date = 2026-11-15" in text
    assert re.search(r"verdicts = \{hold = 5, fail = 1, open = 1\}", text)
