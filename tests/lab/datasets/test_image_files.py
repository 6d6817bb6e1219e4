"""Images in files: class folders, shards and stand-ins against direct reading; what is wrong with them."""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nap.lab.datasets import parquet_images
from nap.lab.datasets.image_files import BrokenImage, ImageFolder, decode_crop, load_image_folders
from nap.lab.datasets.imagenet import load_imagenet, stand_in
from nap.lab.datasets.images import split
from nap.lab.datasets.parquet_images import all_shards, load_parquet_images, pack_shards
from nap.lab.datasets.store import DataMissing
from small_images import CLASSES, shard_rows, write_folders, write_shards


@pytest.fixture(autouse=True)
def _data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "home"))


def whole(width: int, height: int) -> tuple[float, float, float, float]:
    return 0, 0, width, height


def test_folders_hold_what_their_files_hold(tmp_path: Path) -> None:
    train, val = load_image_folders(write_folders(tmp_path / "set"))
    assert (len(train), len(val), train.classes) == (30, 12, 3)
    found = {(train.class_names[train.labels[n]], train.path(n).name): train.encoded(n) for n in range(30)}
    files = (tmp_path / "set" / "train").glob("*/*")
    assert found == {(f.parent.name, f.name): f.read_bytes() for f in files if f.suffix != ".txt"}
    assert sorted(found) == list(found), "in the order of their names"
    copy = pickle.loads(pickle.dumps(val))  # as a worker process gets it
    assert copy.encoded(5) == val.encoded(5)
    assert copy.fingerprint == val.fingerprint != train.fingerprint


def test_a_fingerprint_tells_sets_apart_and_not_places(tmp_path: Path) -> None:
    one, other = (load_image_folders(write_folders(tmp_path / name))[0] for name in ("one", "other"))
    assert one.fingerprint == other.fingerprint
    (tmp_path / "other" / "train" / "cat" / "000.JPEG").rename(
        tmp_path / "other" / "train" / "dog" / "x.JPEG"
    )
    assert ImageFolder(tmp_path / "other" / "train").fingerprint != one.fingerprint


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


def test_a_look_is_what_pillow_cuts_out_and_scales(tmp_path: Path) -> None:
    train, _ = load_image_folders(write_folders(tmp_path))
    for number in range(4):
        image = Image.open(train.path(number)).convert("RGB")
        assert np.array_equal(decode_crop(train, number, whole, 24), np.asarray(image.resize((24, 24), 2)))
        if number % 2:  # a PNG file is always decoded whole
            cut = np.asarray(image.crop((3, 2, 19, 18)).resize((8, 8), 2))
            found = decode_crop(train, number, lambda width, height: (3, 2, 19, 18), 8)
            inner = slice(1, -1)  # at the edges the average reaches past the cut
            assert np.array_equal(found[inner, inner], cut[inner, inner])


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, x = np.mgrid[0:600, 0:800]
    levels = np.stack([x / 800, y / 600, 0.5 + 0.5 * np.sin(x / 40)], -1) * 255
    for part in ("train", "val"):
        (tmp_path / part / "one").mkdir(parents=True)
        Image.fromarray(levels.astype(np.uint8)).save(tmp_path / part / "one" / "large.JPEG", quality=95)
    pictures, _ = load_image_folders(tmp_path)
    sizes, convert = [], Image.Image.convert

    def noted(self: Image.Image, mode: str) -> Image.Image:
        sizes.append(self.size)
        return convert(self, mode)

    monkeypatch.setattr(Image.Image, "convert", noted)
    boxes: list[tuple[float, float, float, float]] = [(0, 0, 800, 600), (100, 50, 500, 450), (7, 9, 107, 109)]
    for box in boxes:
        found = decode_crop(pictures, 0, lambda width, height, box=box: box, 50)  # type: ignore[misc]
        plain = Image.fromarray(levels.astype(np.uint8)).resize((50, 50), 2, box=box)
        assert np.abs(found.astype(int) - np.asarray(plain).astype(int)).max() <= 8, box
    assert sizes == [(100, 75), (100, 75), (400, 300)], "an eighth, an eighth, a half"


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_images_of_other_kinds_become_red_green_and_blue(tmp_path: Path, mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    for part in ("train", "val"):
        (tmp_path / part / "one").mkdir(parents=True)
        Image.new("RGB", (9, 7), (204, 204, 204)).convert(mode).save(
            tmp_path / part / "one" / f"x.{kind}", kind
        )
    found = decode_crop(load_image_folders(tmp_path)[0], 0, whole, 5)
    assert found.shape == (5, 5, 3)
    assert np.abs(found.astype(int) - 204).max() <= 2


@pytest.mark.parametrize("ending", ["bmp", "jfif", "pgm", "PPM", "tif", "tiff", "WebP"])
def test_images_in_files_of_other_kinds_are_read(tmp_path: Path, ending: str) -> None:
    kind = {"jfif": "JPEG", "pgm": "PPM", "tif": "TIFF"}.get(ending, ending)
    for part in ("train", "val"):
        (tmp_path / part / "one").mkdir(parents=True)
        image = Image.new("L" if ending == "pgm" else "RGB", (9, 7), "#cccccc")
        image.save(tmp_path / part / "one" / f"x.{ending}", kind.upper())
    found = decode_crop(load_image_folders(tmp_path)[0], 0, whole, 5)
    assert np.abs(found.astype(int) - 204).max() <= 2


@pytest.mark.parametrize(("kind", "mode"), [("png", "I;16"), ("tif", "I;16"), ("tif", "I"), ("tif", "F")])
def test_more_than_8_bits_are_refused(tmp_path: Path, kind: str, mode: str) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "one").mkdir(parents=True)
        Image.new(mode, (9, 7), 1000).save(tmp_path / part / "one" / f"x.{kind}")
    with pytest.raises(BrokenImage, match=rf"x.{kind} .*\(its levels have more than 8 bits.*write it with 8"):
        decode_crop(load_image_folders(tmp_path)[0], 0, whole, 5)


@pytest.mark.parametrize("data", ["digits", "imagenet"])
def test_without_pillow_it_is_said_before_anything_is_done(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write_folders(tmp_path / "set")) if data == "imagenet" else ""
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataMissing, match=r"Pillow, which is not installed: pip install .*\[imagenet\]"):
        load_imagenet(data, folder)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("damage", ["cut short", "empty", "no image", "gone"])
def test_a_broken_image_names_itself(tmp_path: Path, damage: str) -> None:
    train, _ = load_image_folders(write_folders(tmp_path))
    for number in (0, 1):  # JPEG and PNG
        path = train.path(number)
        if damage == "gone":
            path.unlink()
        else:
            content = {"cut short": path.read_bytes()[:300], "empty": b"", "no image": b"<html>" * 99}[damage]
            path.write_bytes(content)
        with pytest.raises(BrokenImage) as caught:
            decode_crop(train, number, whole, 8)
        assert str(caught.value).startswith(f"{path} cannot be read as an image (")
        assert "begin anew with --force" in str(caught.value)


def test_folders_that_are_wrong_are_named_with_the_way_out(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(DataMissing, match=message):
            load_imagenet("imagenet", str(tmp_path / "set"))

    refused(r"no images in .*set: no such folder.*image-net.org.*--images")
    (tmp_path / "set").mkdir()
    refused("neither train/ and val/ nor parquet shards")
    write_folders(tmp_path / "set")
    val = tmp_path / "set" / "val"
    assert load_imagenet("imagenet", str(tmp_path / "set")).about == "set (3 classes, 30 + 12 images)"
    extra = val / "fox"
    extra.mkdir()
    refused("the class folder .*fox has no image")
    (extra / "1.png").write_bytes((val / "cat" / "101.PNG").read_bytes())
    refused("train has 3 class folders and val 4, and fox is in val alone")
    (val / "dog" / "extra.GIF").write_bytes(b"GIF89a")
    refused(r"dog.extra.GIF is of a kind that is not read .*write it as PNG, or take it out")
    (val / "dog" / "extra.GIF").unlink()
    (val / "cat" / "100.JPEG").rename(val / "100.JPEG")
    refused(r"val holds 1 loose images: .*move each into a folder of its class.*valprep.sh")
    for path in sorted(val.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    refused("val has no class folders")
    val.rmdir()
    refused("there is no folder .*val")
    with pytest.raises(DataMissing, match=r"home.imagenet: no such folder"):
        load_imagenet("imagenet")


def test_stand_ins_are_written_once_and_hold_the_images(tmp_path: Path) -> None:
    found = load_imagenet("digits")
    assert found.about == "digits (stand-in)"
    train, test = split("digits")
    assert np.bincount(found.train.labels).tolist() == np.bincount(train.labels).tolist()
    assert len(found.test) == len(test)
    image = Image.open(io.BytesIO(found.train.encoded(0)))
    assert (image.size, image.mode) == ((32, 32), "L")
    number = int(Path(found.train.name(0)).stem)
    small = np.asarray(image.resize((8, 8), Image.Resampling.BOX)).astype(int)
    assert np.abs(small - train.pixels[number, 0].numpy()).mean() < 20
    written = stand_in("digits").stat().st_mtime_ns
    assert load_imagenet("digits").train.fingerprint == found.train.fingerprint
    assert stand_in("digits").stat().st_mtime_ns == written
    left = {path.name for path in (tmp_path / "home" / "stand-ins").iterdir()}
    assert left == {"digits-32", "digits-32.lock"}


def test_class_folders_are_the_classes(tmp_path: Path) -> None:
    train, _ = load_image_folders(write_folders(tmp_path))
    assert tuple(train.class_names) == CLASSES
    for number in range(len(train)):
        colours = decode_crop(train, number, whole, 4).mean((0, 1))
        assert int(colours.argmax()) == train.labels[number]
