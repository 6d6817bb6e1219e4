"""Data sets that are there: read as images, checked once, and listed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nap.lab.datasets import store
from nap.lab.datasets.catalog import DATA_SETS, IMAGE_SETS, find
from nap.lab.datasets.dataset import ImageSet, Web
from nap.lab.datasets.fetch import fetch
from nap.lab.datasets.images import DataMissing, Images, load, read_idx
from nap.lab.datasets.store import describe
from small_data import BATCHES, COLOUR_SET, GREY, GREY_SET, LABELS, PIXELS, write

# ---- reading ------------------------------------------------------------------------------------------


def test_binary_batches_are_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "colours", BATCHES)
    for split, rows in (("train", slice(0, 8)), ("test", slice(8, 10))):
        images = load(COLOUR_SET, split=split, folder=tmp_path)
        assert (images.name, images.classes, len(images)) == ("colours", 5, len(PIXELS[rows]))
        assert (images.pixels.dtype, images.labels.dtype) == (torch.uint8, torch.int64)
        assert torch.equal(images.pixels, torch.from_numpy(PIXELS[rows]))
        assert images.labels.tolist() == LABELS[rows].tolist()


def test_idx_files_are_read_in_order(tmp_path: Path) -> None:
    write(tmp_path / "greys", GREY)
    images = load(GREY_SET, folder=tmp_path, count=7)
    assert torch.equal(images.pixels, torch.from_numpy(PIXELS[:7, :1]))
    assert images.labels.tolist() == LABELS[:7].tolist()


@given(st.integers(1, 8))
def test_the_first_images_need_their_own_files_only(
    tmp_path_factory: pytest.TempPathFactory, count: int
) -> None:
    home = tmp_path_factory.mktemp("home")
    write(home / "colours", {"one.bin": BATCHES["one.bin"]} | ({} if count <= 4 else BATCHES))
    images = load(COLOUR_SET, folder=home, count=count)
    assert torch.equal(images.pixels, torch.from_numpy(PIXELS[:count]))
    assert images.labels.tolist() == LABELS[:count].tolist()


@pytest.mark.parametrize("count", [0, -1, 9])
def test_a_count_outside_of_the_split(count: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"count is {count}.*from 1 to 8"):
        load(COLOUR_SET, folder=tmp_path, count=count)


def test_an_unknown_split_or_set_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no split 'valid'; it has train, test"):
        load(COLOUR_SET, split="valid", folder=tmp_path)
    with pytest.raises(ValueError, match=r"no data set 'CIFAR_10'.*did you mean 'cifar10'"):
        load("CIFAR_10")


def test_missing_data_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=r"data_batch_1.bin is missing.*run: nap data fetch cifar10"):
        load("cifar10", count=1)


@pytest.mark.parametrize("harm", ["flip", "cut", "empty"])
def test_damage_is_seen(harm: str, tmp_path: Path) -> None:
    path = write(tmp_path / "colours", BATCHES) / "two.bin"
    load(COLOUR_SET, folder=tmp_path)
    good, before = path.read_bytes(), path.stat()
    flipped = bytes([good[0] ^ 1]) + good[1:]
    path.write_bytes({"flip": flipped, "cut": good[:-1], "empty": b""}[harm])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as after bit rot
    with pytest.raises(DataMissing, match=r"two\.bin is damaged; run: nap data fetch colours"):
        load(COLOUR_SET, folder=tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0\0\x0d\1\0\0\0\0", b"\0\0\x08\1\0\0\0\5abc"])
def test_what_is_no_idx_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, {"file": content}) / "file"
    with pytest.raises(ValueError, match=r"no idx file of bytes|ends early: 13 bytes are needed, 11 there"):
        read_idx(path)


def test_digits_come_with_scikit_learn(tmp_path: Path) -> None:
    told: list[str] = []
    digits = load("digits")
    assert digits.pixels.shape == (1797, 1, 8, 8)
    assert (int(digits.pixels.min()), int(digits.pixels.max())) == (0, 255)
    assert len(digits.pixels.unique()) == 17
    assert torch.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert torch.equal(load("digits", count=100).labels, digits.labels[:100])
    assert fetch("digits", folder=tmp_path, tell=told.append).name == "sklearn"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_normalised_pixels(dtype: torch.dtype, tolerance: float) -> None:
    pixels = torch.from_numpy(PIXELS).clone()
    pixels[:, 1] //= 50  # channels of very different mean and spread
    images = Images("some", pixels, torch.from_numpy(LABELS).long(), 5)
    found = images.normalised(dtype)
    assert (found.dtype, found.shape) == (dtype, pixels.shape)
    channels = found.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(channels.mean(1), torch.zeros(3).double(), atol=tolerance, rtol=0)
    torch.testing.assert_close(channels.std(1, correction=0), torch.ones(3).double(), atol=tolerance, rtol=0)


def test_a_channel_of_one_value_cannot_be_normalised() -> None:
    images = Images("flat", torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(2).long(), 5)
    with pytest.raises(ValueError, match="flat have a channel of one value"):
        images.normalised()


# ---- the catalogue ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", IMAGE_SETS, ids=lambda data: data.name)
def test_the_catalogue_agrees_with_itself(data: ImageSet) -> None:
    assert find(data.name) is data
    size = np.prod(data.shape)
    for split in data.splits.values():
        sizes = [file.size for file in split.files]
        if data.layout == "idx":
            assert sizes == [16 + split.images * size, 8 + split.images]
        elif data.layout == "cifar":
            assert sum(sizes) == split.images * (1 + size)
            assert len(set(sizes)) == 1, "the reader counts on batches of one size"
    names = [file.name for file in data.files]
    digests = [file.sha256 for file in data.files]
    assert len(set(names)) == len(names)
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 and int(digest, 16) for digest in digests)
    assert bool(data.sources) == bool(data.files)
    for text in (data.licence, data.cite, *names, *digests, *map(str, data.sources)):
        assert text in str(data)
    for source in data.sources:
        assert source.by_hand() in data.by_hand()
        if isinstance(source, Web):
            tarred_or_each = [name for name in source.containers if name.endswith(".tar.gz")] or [
                name.removesuffix(".gz") for name in source.containers
            ]
            assert tarred_or_each in (names, ["cifar-10-binary.tar.gz"])
            assert source.base.endswith("/")


def test_every_set_tries_the_official_source_before_a_registry() -> None:
    for data in IMAGE_SETS:
        kinds = [isinstance(source, Web) for source in data.sources]
        assert kinds == sorted(kinds, reverse=True)
        assert not kinds or not all(kinds), "a registry serves where no data hub can be reached"


def test_the_table_says_where_each_set_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path))
    lines = dict(zip(["head", *DATA_SETS], describe().splitlines(), strict=True))
    assert lines["digits"].endswith("in scikit-learn")
    assert "50,000 train + 10,000 test of 3×32×32" in lines["cifar10"]
    assert lines["cifar10"].endswith("184 MB   not fetched: nap data fetch cifar10")
    for file in find("cifar10").files:
        (tmp_path / "cifar10").mkdir(exist_ok=True)
        with (tmp_path / "cifar10" / file.name).open("wb") as sparse:
            sparse.truncate(file.size)
        if file.name == "data_batch_2.bin":
            assert "2 of 6 files: nap data fetch cifar10" in describe()
    assert str(tmp_path / "cifar10") in describe()


def test_where_data_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NAP_DATA", raising=False)
    assert store.place(find("mnist")) == tmp_path / ".cache" / "nap" / "data" / "mnist"
    monkeypatch.setenv("NAP_DATA", "~/elsewhere")
    assert store.place(find("mnist")) == tmp_path / "elsewhere" / "mnist"
    assert store.place(find("mnist"), "here") == Path("here/mnist")


def test_fetching_needs_no_torch() -> None:
    code = "import sys, nap.lab.datasets.fetch, nap.lab.datasets.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
