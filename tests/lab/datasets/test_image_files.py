"""Images in files: class folders and stand-ins against direct reading; what is wrong with them."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nap.lab.datasets.image_files import BrokenImage, ImageFolder, decode_crop, load_image_folders
from nap.lab.datasets.imagenet import load_imagenet, stand_in
from nap.lab.datasets.images import split
from nap.lab.datasets.store import DataMissing
from small_images import CLASSES, write_folders


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


def test_a_crop_is_what_pillow_cuts_out_and_scales(tmp_path: Path) -> None:
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
