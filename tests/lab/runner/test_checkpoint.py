"""Checkpoints: exact, atomic, and refused when a single bit of their content is wrong."""

from __future__ import annotations

import errno
import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from nap.lab import files
from nap.lab.runner import Damaged, checkpoint

STATE = {
    "weights": {"w": torch.arange(12.0).reshape(3, 4), "half": torch.ones(5, dtype=torch.bfloat16)},
    "channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "step": torch.tensor(7),
    "numbers": [1, 2.5, float("nan"), None, True, "α", 2**70],
    "pair": (0.9, 0.999),
    "by index": {0: "a", 1: "b"},
    "nothing": torch.empty(0, 3),
}


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A disk that takes no more than `size` bytes a file: writing more is an error of the system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with two checkpoints: step 1, and step 2 as the latest."""
    for step in (1, 2):
        checkpoint.save(tmp_path / "checkpoint.pt", {**STATE, "at": step})
    return tmp_path


def test_everything_comes_back_exactly(saved: Path) -> None:
    state, notes = checkpoint.load_latest(saved)
    assert state is not None
    assert notes == []
    assert checkpoint.checksum(state) == checkpoint.checksum({**STATE, "at": 2})
    assert_close(state["weights"]["w"], STATE["weights"]["w"], rtol=0, atol=0)  # type: ignore[index]
    assert state["channels_last"].stride() == STATE["channels_last"].stride()  # type: ignore[attr-defined]
    assert state["pair"] == (0.9, 0.999)
    assert list(state["by index"]) == [0, 1]
    (saved / "checkpoint.pt").write_bytes(b"")  # what was loaded does not hang on the file
    assert state["weights"]["w"].sum() == 66


def test_torch_alone_can_read_it(saved: Path) -> None:
    assert torch.load(saved / "checkpoint.pt", weights_only=True)["state"]["step"] == 7


def test_a_view_is_saved_without_the_rest_of_its_storage(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "checkpoint.pt", {"member": torch.zeros(1000, 1000)[3]})
    assert (tmp_path / "checkpoint.pt").stat().st_size < 20_000


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path) == (None, [])


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (np.zeros(2), "numpy.ndarray"),
        (np.float64(1), "numpy.float64"),
        ({1, 2}, "builtins.set"),
        (torch.device("cpu"), "torch.device"),
        ({(1, 2): 3}, r"key \(1, 2\)"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
    ],
)
def test_what_could_not_be_loaded_is_refused_when_saving(saved: Path, value: Any, named: str) -> None:
    with pytest.raises(ValueError, match=rf"state\['inner'\]\[1\].*{named}"):
        checkpoint.save(saved / "checkpoint.pt", {"inner": [0, value]})
    assert checkpoint.load(saved / "checkpoint.pt")["at"] == 2


def test_every_flipped_bit_is_harmless_or_detected(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, STATE)
    good, expected = path.read_bytes(), checkpoint.checksum(STATE)
    detected = 0
    draws = random.Random(0)
    for _ in range(400):
        bad = bytearray(good)
        bad[draws.randrange(len(bad))] ^= 1 << draws.randrange(8)
        path.write_bytes(bad)
        try:
            assert checkpoint.checksum(checkpoint.load(path)) == expected
        except Damaged:
            detected += 1
    assert 100 < detected < 400  # the archive's padding and time stamps may change freely


def test_every_flipped_bit_of_a_tensor_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    tensor = torch.arange(1.0, 9.0)
    checkpoint.save(path, {"w": tensor})
    good = path.read_bytes()
    at = good.index(tensor.numpy().tobytes())
    for bit in range(8 * at, 8 * (at + tensor.nbytes)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(Damaged, match="checksum"):
            checkpoint.load(path)


def _flip_the_middle(raw: bytes) -> bytes:
    at = raw.index(STATE["weights"]["w"].numpy().tobytes()) + 6  # type: ignore[index]
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "truncated": lambda raw: raw[: len(raw) // 2],
    "truncated by one byte": lambda raw: raw[:-1],
    "one bit flipped": _flip_the_middle,
    "something else": lambda raw: b"PK is how zip files start" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_previous(
    saved: Path, damage: Callable[[bytes], bytes]
) -> None:
    latest = saved / "checkpoint.pt"
    latest.write_bytes(damage(latest.read_bytes()))
    state, notes = checkpoint.load_latest(saved)
    assert state is not None
    assert state["at"] == 1
    assert len(notes) == 1
    assert "\n" not in notes[0]
    assert notes[0].startswith("checkpoint.pt is refused: ")
    assert "going on from checkpoint.previous.pt" in notes[0]


def test_a_damaged_checkpoint_never_replaces_the_good_previous_one(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = saved / "checkpoint.pt"
    latest.write_bytes(b"damaged")
    checkpoint.load_latest(saved)
    renames: list[Path] = []

    def killed_between_the_renames(old: Path, new: Path) -> None:
        renames.append(new)
        if new == latest:
            raise KeyboardInterrupt
        os.rename(old, new)

    monkeypatch.setattr(files.os, "replace", killed_between_the_renames)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(latest, {**STATE, "at": 3})
    assert renames == [latest]
    monkeypatch.undo()
    state, _ = checkpoint.load_latest(saved)
    assert state is not None
    assert state["at"] == 1


def test_two_damaged_ones_are_an_error_with_a_way_out(saved: Path) -> None:
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (saved / name).write_bytes(b"damaged")
    with pytest.raises(Damaged, match=r"no good checkpoint in .*previous.* delete the folder to start"):
        checkpoint.load_latest(saved)
    assert (saved / "checkpoint.pt").exists()


class Malicious:
    """Unpickled, it would create a file."""

    def __init__(self, victim: Path):
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("form", ["pickle", "torch", "inside a checkpoint", "endless"])
def test_a_malicious_checkpoint_is_refused_and_does_nothing(saved: Path, form: str) -> None:
    latest, victim = saved / "checkpoint.pt", saved / "was here"
    evil = Malicious(victim)
    if form == "pickle":
        latest.write_bytes(pickle.dumps(evil))
    elif form == "torch":
        torch.save(evil, latest)
    elif form == "endless":
        good = torch.load(latest, weights_only=True)
        good["state"]["itself"] = good["state"]
        torch.save(good, latest)
    else:
        good = torch.load(latest, weights_only=True)
        torch.save({**good, "state": {**good["state"], "extra": evil}}, latest)
    state, notes = checkpoint.load_latest(saved)
    assert state is not None
    assert state["at"] == 1
    assert len(notes) == 1
    assert not victim.exists()


def test_a_full_disk_leaves_the_checkpoint_in_place(saved: Path) -> None:
    big = {"w": torch.zeros(100_000)}
    with (
        file_size_limit(50_000),
        pytest.raises(OSError, match=r"checkpoint\.pt was not saved: .*; it needs 465\.5 kB") as caught,
    ):
        checkpoint.save(saved / "checkpoint.pt", big)
    assert caught.value.errno == errno.EFBIG
    assert sorted(path.name for path in saved.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert checkpoint.load(saved / "checkpoint.pt")["at"] == 2
    assert checkpoint.load(saved / "checkpoint.previous.pt")["at"] == 1
    checkpoint.save(saved / "checkpoint.pt", big)  # once there is room
    assert checkpoint.load(saved / "checkpoint.previous.pt")["at"] == 2


def test_a_full_disk_leaves_any_other_file_in_place(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    files.write_json(path, {"sessions": 1})
    with (
        file_size_limit(100),
        pytest.raises(OSError, match=r"manifest\.json was not saved: File too large; it needs 4\.0 kB"),
    ):
        files.write_json(path, "x" * 4000)
    assert path.read_text() == '{\n  "sessions": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_too_little_space_is_seen_before_anything_is_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    monkeypatch.setattr(torch, "save", lambda *args: pytest.fail("nothing to write to"))
    with pytest.raises(OSError, match=r"checkpoint\.pt was not saved: only 1\.0 kB free; it needs 4\.1 MB"):
        checkpoint.save(saved / "checkpoint.pt", {"w": torch.zeros(1_000_000)})
    assert checkpoint.load(saved / "checkpoint.pt")["at"] == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_save_leaves_nothing(
    saved: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def half(content: Any, file: Any) -> None:
        file.write(b"half")
        raise error

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(error):
        checkpoint.save(saved / "checkpoint.pt", STATE)
    assert sorted(path.name for path in saved.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_saving_leaves_torch_as_it_was(saved: Path) -> None:
    assert torch.serialization.get_crc32_options() is True


class Code:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made by a checkpoint",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty: the disk was full, or somebody emptied it"),
        (b"hello", "it does not begin as a checkpoint does"),
        (pickle.dumps({"state": 1}), "it does not begin as a checkpoint does"),
        (pickle.dumps(Code()), "it does not begin as a checkpoint does"),
        ("code", "it would run code when it is read, which no checkpoint of ours does"),
        ("cut", "it is cut off: its end is missing"),
        ("other", "it is no checkpoint of a run"),
        (None, "it is no file"),
    ],
)
def test_why_a_checkpoint_is_refused_is_told_in_plain_words(
    tmp_path: Path, content: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "checkpoint.pt"
    if content is None:
        os.mkfifo(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(Code() if content == "code" else {"x": torch.ones(99)}, path)
        if content == "cut":
            path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(Damaged) as caught:
        checkpoint.load(path)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made by a checkpoint").exists()
