"""Images in parquet shards: against direct reading; what is packed when, and what is wrong with shards."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nap.lab.datasets import parquet_images
from nap.lab.datasets.image_files import BrokenImage, decode_crop
from nap.lab.datasets.imagenet import load_imagenet
from nap.lab.datasets.parquet_images import all_shards, load_parquet_images, pack_shards
from nap.lab.datasets.store import DataMissing
from small_images import shard_rows, write_shards


@pytest.fixture(autouse=True)
def _data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "home"))


def test_shards_hold_what_pyarrow_reads(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = write_shards(tmp_path / "hub")
    train, val = load_parquet_images(tmp_path / "hub")
    expected = [*rows["train-00000-of-00002"], *rows["train-00001-of-00002"]]
    for pictures, of in ((train, expected), (val, rows["validation-00000-of-00001"])):
        assert [pictures.encoded(n) for n in range(len(pictures))] == [row["image"]["bytes"] for row in of]
        assert pictures.labels.tolist() == [row["label"] for row in of]
    assert train.name(8).startswith(f"row 1 of {tmp_path / 'hub' / 'data' / 'train-00001-of-00002.parquet'}")
    assert train.classes == 3
    assert pickle.loads(pickle.dumps(train)).encoded(3) == train.encoded(3)


def test_shards_are_packed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    write_shards(tmp_path / "hub")
    first, _ = load_parquet_images(tmp_path / "hub")
    assert capsys.readouterr().err.count("packing") == 2
    again, _ = load_parquet_images(tmp_path / "hub")
    assert capsys.readouterr().err == ""
    assert again.fingerprint == first.fingerprint
    assert len(packs(tmp_path)) == 2, "nothing half-made is left"


def test_packed_shards_of_earlier_versions_are_found(tmp_path: Path) -> None:
    """The folder's name is a checksum of the shards' names, sizes and times of change."""
    shard = tmp_path / "train-00000-of-00001.parquet"
    shard.write_bytes(b"rows")
    os.utime(shard, ns=(10**18, 10**18))
    packed = tmp_path / "home" / "packed" / "train-d73c1e3f309d4b09"
    packed.mkdir(parents=True)
    (packed / "images.bin").write_bytes(b"an image")
    index: dict[str, Any] = {"labels": [0], "starts": [0, 8], "firsts": [0], "shards": [str(shard)]}
    np.savez(packed / "index.npz", **index)
    assert pack_shards([shard], "train") == packed
    assert parquet_images.ParquetImages(packed, [shard]).encoded(0) == b"an image"


def whole(width: int, height: int) -> tuple[float, float, float, float]:
    return 0, 0, width, height


def packs(tmp_path: Path) -> list[Path]:
    """Folders with packed shards, half-made ones among them."""
    return sorted(path for path in (tmp_path / "home" / "packed").iterdir() if path.is_dir())


def replace_(file: Path, content: bytes) -> None:
    """Another file in its place: as large, and of another time."""
    assert len(content) == file.stat().st_size
    later = file.stat().st_mtime_ns + 1_000_000
    file.write_bytes(content)
    os.utime(file, ns=(later, later))


def test_a_shard_that_was_replaced_is_packed_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = write_shards(tmp_path / "hub")["train-00000-of-00002"]
    first, _ = load_parquet_images(tmp_path / "hub")
    before = packs(tmp_path)[0]
    assert capsys.readouterr().err.count("older") == 0
    rows[1]["label"], rows[2]["label"] = rows[2]["label"], rows[1]["label"]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "swapped", row_group_size=3)
    replace_(tmp_path / "hub" / "data" / "train-00000-of-00002.parquet", (tmp_path / "swapped").read_bytes())
    second, _ = load_parquet_images(tmp_path / "hub")
    assert second.labels[:7].tolist() == [row["label"] for row in rows] != first.labels[:7].tolist()
    assert second.fingerprint != first.fingerprint, "the images are the same, and so are their places"
    assert f"{before} is of older ones, delete it if no run uses it" in capsys.readouterr().err


def test_a_broken_image_in_a_shard_is_mended_by_a_good_shard(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = write_shards(tmp_path / "hub")["train-00001-of-00002"]
    shard = tmp_path / "hub" / "data" / "train-00001-of-00002.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), shard, compression="none")
    good, image = shard.read_bytes(), rows[1]["image"]["bytes"]
    replace_(shard, good.replace(image, bytes(4) + image[4:]))
    train, _ = load_parquet_images(tmp_path / "hub")
    with pytest.raises(BrokenImage) as caught:
        decode_crop(train, 8, whole, 8)
    assert str(caught.value).startswith(f"row 1 of {shard} (packed in ")
    pack = Path(train.name(8).partition("packed in ")[2][:-1]).parent
    assert str(caught.value).endswith(
        f"fetch that shard again or, if it is good, delete {pack}; it is packed anew"
    )
    replace_(shard, good)
    train, _ = load_parquet_images(tmp_path / "hub")
    assert train.encoded(8) == image
    assert decode_crop(train, 8, whole, 8).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        ("images.bin", lambda path: os.truncate(path, 100), r"images.bin has 100 of [\d,]+ bytes"),
        ("images.bin", Path.unlink, "images.bin is missing"),
        ("index.npz", Path.unlink, "index.npz is missing"),
        ("index.npz", lambda path: os.truncate(path, 0), "index.npz cannot be read"),
        ("index.npz", lambda path: os.truncate(path, 200), "index.npz cannot be read"),
        ("index.npz", lambda path: path.write_bytes(b"<html>" * 99), "index.npz cannot be read"),
    ],
)
def test_a_damaged_pack_is_packed_anew(
    tmp_path: Path, file: str, damage: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    write_shards(tmp_path / "hub")
    first, _ = load_parquet_images(tmp_path / "hub")
    damage(packs(tmp_path)[0] / file)
    capsys.readouterr()
    again, _ = load_parquet_images(tmp_path / "hub")
    said = capsys.readouterr().err
    assert re.search(rf"packed/train-\w+ is damaged \({reason}\) and is made anew\npacking 2 train", said)
    assert again.fingerprint == first.fingerprint
    assert [again.encoded(n) for n in range(12)] == [first.encoded(n) for n in range(12)]


def test_a_packed_image_with_a_flipped_bit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_images, "rows", lambda file: [(b"one image", 0), (b"another", 1)])
    shard = tmp_path / "train-0.parquet"
    shard.write_bytes(b"")
    folder = parquet_images.pack_shards([shard], "train")
    with (folder / "images.bin").open("r+b") as file:
        file.seek(3)
        file.write(b"x")
    pictures = parquet_images.ParquetImages(folder, [shard])
    assert pictures.encoded(1) == b"another"
    with pytest.raises(ValueError, match="its bytes are not those that were packed"):
        pictures.encoded(0)


def test_a_pack_is_on_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    write_shards(tmp_path / "hub")
    synced: list[int] = []

    def noted(handle: int) -> None:
        assert all(path.suffix == ".part" for path in packs(tmp_path) if path.name.startswith("train-"))
        synced.append(os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fsync", noted)
    pack_shards(all_shards(tmp_path / "hub", "train"), "train")
    assert synced == [(packs(tmp_path)[0] / name).stat().st_size for name in ("images.bin", "index.npz")]


def test_all_shards_must_be_there(tmp_path: Path) -> None:
    def found(*names: str) -> int:
        for old in tmp_path.glob("*.parquet"):
            old.unlink()
        for name in names:
            (tmp_path / f"{name}.parquet").touch()
        return len(all_shards(tmp_path, "train"))

    assert found("train-0000-of-0002", "train-0001-of-0002") == 2
    assert found("train-0000-of-0002-6cf8a", "train-0001-of-0002-90ba1") == 2, "as older exports name them"
    assert found("train-1-of-2", "train-2-of-2") == 2, "some count from 1"
    assert found("train-first", "train-second") == 2, "these names do not say of how many"
    for names, message in (
        (
            ["train-0000-of-0003", "train-0002-of-0003"],
            "2 of 3 train shards; fetch train-0001-of-0003.parquet",
        ),
        (["train-2-of-2"], "1 of 2 train shards; fetch train-1-of-2.parquet"),
        (
            ["train-0-of-1", "train-0-of-1-6cf8a"],
            "twice, train-0-of-1-6cf8a.parquet and train-0-of-1.parquet",
        ),
        (
            ["train-0-of-1", "train-0-of-2", "train-1-of-2"],
            "two exports, train-0-of-1.parquet and train-0-of-2",
        ),
        ([], r"no shards train-\*.parquet"),
    ):
        with pytest.raises(DataMissing, match=message):
            found(*names)


def test_nothing_is_packed_before_all_shards_are_there(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write_shards(tmp_path / "hub")
    (tmp_path / "hub" / "data" / "validation-00000-of-00001.parquet").unlink()
    with pytest.raises(DataMissing, match=r"has no shards validation-\*.parquet"):
        load_imagenet("imagenet", str(tmp_path / "hub"))
    (tmp_path / "hub" / "data" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(DataMissing, match=r"hub.data has 1 of 2 train shards; fetch train-00001-of-00002"):
        load_imagenet("imagenet", str(tmp_path / "hub"))
    assert not (tmp_path / "home").exists()


def test_shards_that_are_wrong_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write_shards(tmp_path / "hub")
    shard = tmp_path / "hub" / "data" / "train-00001-of-00002.parquet"

    def refused(message: str, *columns: Any) -> None:
        if columns:
            parquet.write_table(pa.Table.from_pylist(list(columns)), shard)
        with pytest.raises(DataMissing, match=message):
            load_parquet_images(tmp_path / "hub")
        assert packs(tmp_path) == []

    refused(r"00001-of-00002.parquet has the columns pixels, label; expected", {"pixels": 1, "label": 1})
    refused(r"row 0 of .* has no bytes", {"image": {"bytes": None, "path": "x"}, "label": 1})
    refused(r"row 0 of .* has the label -1", {"image": {"bytes": b"x", "path": "x"}, "label": -1})
    for path in shard.parent.glob("train-*"):  # of the same columns, and no rows
        parquet.write_table(pa.Table.from_pylist(shard_rows(1, 1)).slice(1), path)
    refused(r"00000-of-00002.parquet and the shards after it have no rows")
    shard.write_bytes(b"nothing")
    refused(r"00001-of-00002.parquet cannot be read")
    monkeypatch.setattr("shutil.disk_usage", lambda path: Room())
    refused("needs .* bytes and has 5; make room")


class Room:
    free = 5
