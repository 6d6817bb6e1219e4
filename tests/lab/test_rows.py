"""Rows of results: written durably, read back exactly, without torch."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nap.lab import rows


def test_rows_come_back_as_written_with_null_for_nan(tmp_path: Path) -> None:
    file = rows.RowFile(tmp_path / "rows.jsonl")
    file.append([{"arm": "NaP", "seed": 0, "loss": 0.1 + 0.2, "ok": True, "α": "ü\n", "rate": None}])
    size = file.size()
    file.append([{"loss": math.nan}, {"loss": -math.inf}, {"loss": np.float64(1e-300)}])
    assert list(rows.read(tmp_path)) == [
        {"arm": "NaP", "seed": 0, "loss": 0.1 + 0.2, "ok": True, "α": "ü\n", "rate": None},
        {"loss": None},
        {"loss": None},
        {"loss": 1e-300},
    ]
    assert "NaN" not in file.path.read_text()
    file.truncate_to(size)
    assert len(rows.read(file.path)) == 1


def test_appending_nothing_writes_nothing(tmp_path: Path) -> None:
    file = rows.RowFile(tmp_path / "rows.jsonl")
    file.append([])
    assert file.size() == 0


@pytest.mark.parametrize("value", [np.float32(1), torch.tensor(1.0), [1], {"a": 1}])
def test_a_row_is_flat_and_plain(tmp_path: Path, value: Any) -> None:
    file = rows.RowFile(tmp_path / "rows.jsonl")
    with pytest.raises(ValueError, match="the row's 'loss' is a"):
        file.append([{"seed": 1}, {"loss": value}])
    assert file.size() == 0


def test_a_torn_line_is_cut_off_when_writing_and_skipped_when_reading(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"task": 1}\n{"task": 2}\n{"ta')
    assert rows.read(path).values("task") == [1, 2]
    file = rows.RowFile(path)
    file.append([{"task": 3}])
    assert path.read_bytes() == b'{"task": 1}\n{"task": 2}\n{"task": 3}\n'


def test_a_file_of_one_torn_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"ta')
    assert rows.RowFile(path).size() == 0


def test_a_spoilt_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"task": 1}\nhello\n{"task": 3}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl line 2 is no JSON"):
        rows.read(path)
    path.write_bytes(b"[1]\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl line 1 is no JSON object"):
        rows.read(path)


def test_a_full_disk_leaves_whole_rows(tmp_path: Path) -> None:
    file = rows.RowFile(tmp_path / "rows.jsonl")
    file.append([{"task": 1}])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=r"rows\.jsonl needs 1,\d\d\d bytes more; free some space"):
            file.append([{"task": task, "note": "x" * 50} for task in range(20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.path.read_bytes() == b'{"task": 1}\n'


def test_reading_finds_every_run_below(tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        (tmp_path / name).mkdir(parents=True)
        rows.RowFile(tmp_path / name / "rows.jsonl").append([{"run": name}])
    assert rows.read(tmp_path).values("run") == ["a/deep", "b"]
    with pytest.raises(ValueError, match=r"no rows\.jsonl at .*nowhere"):
        rows.read(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no rows\.jsonl at .*empty or below it"):
        rows.read(tmp_path / "empty")


def test_selecting(tmp_path: Path) -> None:
    found = rows.Rows(
        [
            {"arm": "NaP", "seed": 1, "task": 2, "loss": 0.2},
            {"arm": "NaP", "seed": 0, "task": 1, "loss": 0.1},
            {"arm": "NaP", "seed": 0, "task": 2, "loss": None},
            {"arm": "none", "seed": 0, "task": 1, "loss": 0.4},
            {"kind": "trajectory"},
        ]
    )
    array, seeds, tasks = found.where(arm="NaP").matrix("loss")
    assert (seeds, tasks) == ([0, 1], [1, 2])
    np.testing.assert_array_equal(array, [[0.1, np.nan], [np.nan, 0.2]])
    assert found.unique("arm") == ["NaP", "none"]
    assert len(found.where(arm=None)) == 1
    assert len(found[1:3]) == 2
    assert isinstance(found[1:3], rows.Rows)
    with pytest.raises(ValueError, match="two rows have a 'loss' for seed 0 and task 1; select one arm"):
        found.matrix("loss")


def test_rows_need_no_torch() -> None:
    check = "import sys, nap.lab.rows; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
