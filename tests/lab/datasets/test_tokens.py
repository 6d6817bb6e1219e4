"""Tokens on disk: packed, windowed, drawn by seed and step, whole or not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nap.lab.datasets.tokens import TokensDamaged, Windows, read, write

DOCUMENTS = [[1, 2, 3], [4], [], [5, 6]]
LINE = [1, 2, 3, 0, 4, 0, 0, 5, 6, 0]


def test_documents_lie_end_to_end(tmp_path: Path) -> None:
    found = write(tmp_path / "a" / "x.tokens", DOCUMENTS, end=0, vocabulary=9, about={"from": "a test"})
    assert found.tokens.tolist() == LINE
    assert found.tokens.dtype == np.uint16
    again = read(found.path)
    assert again == found
    assert again.about["from"] == "a test"
    assert sorted(p.name for p in found.path.parent.iterdir()) == ["x.tokens", "x.tokens.json"]


@pytest.mark.parametrize("limit", range(1, 11))
def test_a_limit_cuts_anywhere(tmp_path: Path, limit: int) -> None:
    found = write(tmp_path / "x", iter(DOCUMENTS), end=0, vocabulary=9, limit=limit)
    assert found.tokens.tolist() == LINE[:limit]


def test_large_vocabularies_have_room(tmp_path: Path) -> None:
    found = write(tmp_path / "x", [[99_999]], end=0, vocabulary=100_000)
    assert found.tokens.tolist() == [99_999, 0]


@given(count=st.integers(2, 60), length=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_a_pass_predicts_every_token_once(count: int, length: int) -> None:
    if count <= length:
        with pytest.raises(ValueError, match="do not fill one window"):
            Windows(np.arange(count), length)
        return
    windows = Windows(np.arange(count), length)
    seen = torch.cat([windows.batch(seed=3, step=step, size=1)[:, 1:] for step in range(len(windows))])
    assert sorted(seen.flatten().tolist()) == list(range(1, 1 + length * len(windows)))


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    windows = Windows(np.arange(101), 5)
    assert torch.equal(windows.batch(1, 7, 4), windows.batch(1, 7, 4))
    assert not torch.equal(windows.batch(1, 7, 4), windows.batch(2, 7, 4))
    one, two = (
        [windows.batch(0, 5 * epoch + step, 4)[:, 0].tolist() for step in range(5)] for epoch in (0, 1)
    )
    assert one != two
    for starts in (one, two):
        assert sorted(start for batch in starts for start in batch) == list(range(0, 100, 5))
    with pytest.raises(ValueError, match="lower --batch-size"):
        windows.batch(0, 0, 21)


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    def broken() -> Iterator[list[int]]:
        yield [1, 2]
        raise OSError("the line is dead")

    with pytest.raises(OSError, match="the line is dead"):
        write(tmp_path / "x", broken(), end=0, vocabulary=9)
    with pytest.raises(ValueError, match="token 9 does not fit a vocabulary of 9"):
        write(tmp_path / "x", [[9]], end=0, vocabulary=9)
    with pytest.raises(ValueError, match="no documents"):
        write(tmp_path / "x", [], end=0, vocabulary=9)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    found = write(tmp_path / "x", DOCUMENTS, end=0, vocabulary=9)
    found.path.write_bytes(found.path.read_bytes()[:-1])
    with pytest.raises(TokensDamaged, match="has 19 bytes and should have 20"):
        read(found.path)
    with pytest.raises(TokensDamaged, match="make them again"):
        read(tmp_path / "y")


@pytest.mark.parametrize("bit", [0, 7, 77, 159])
def test_a_flipped_bit_is_found(tmp_path: Path, bit: int) -> None:
    found = write(tmp_path / "x", DOCUMENTS, end=0, vocabulary=9)
    held = bytearray(found.path.read_bytes())
    held[bit // 8] ^= 1 << bit % 8
    found.path.write_bytes(held)
    with pytest.raises(TokensDamaged, match="is not what was written"):
        read(found.path)


@pytest.mark.parametrize(
    "about", ["{}", "[]", '{"count": "ten", "vocabulary": 9}', '{"count": 10}', "[" * 9999]
)
def test_an_odd_description_is_refused(tmp_path: Path, about: str) -> None:
    found = write(tmp_path / "x", DOCUMENTS, end=0, vocabulary=9)
    (tmp_path / "x.json").write_text(about)
    with pytest.raises(TokensDamaged, match=r"make (it|them) again"):
        read(found.path)


def test_tokens_that_are_older_than_hashes_are_taken_and_hashed(tmp_path: Path) -> None:
    found = write(tmp_path / "x", DOCUMENTS, end=0, vocabulary=9)
    beside = tmp_path / "x.json"
    before = json.loads(beside.read_text())
    beside.write_text(json.dumps(dict(found.about)))
    assert read(found.path).tokens.tolist() == LINE
    assert json.loads(beside.read_text()) == before == {**found.about, "sha256": before["sha256"]}
