"""The images of the ImageNet experiment: ImageNet in a folder, or a small stand-in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nap.lab.datasets.atomic import atomic_dir
from nap.lab.datasets.image_files import EncodedImages, load_image_folders, pillow_image
from nap.lab.datasets.images import Images, split
from nap.lab.datasets.parquet_images import load_parquet_images, shards
from nap.lab.datasets.store import DataMissing, data_home
from nap.lab.files import expanded

IMAGENET = "imagenet"
IMAGENET_SIZES = (1000, 1_281_167, 50_000)  # classes, training images, test images
STAND_INS = {"digits": 32, "cifar10": 32}  # name → width and height of its image files
WAY_OUT = (
    "ImageNet (ILSVRC 2012) is free for research after registration at image-net.org. Put it there as "
    "train/CLASS/*.JPEG and val/CLASS/*.JPEG, or as the shards train-*.parquet and validation-*.parquet of "
    "the Hugging Face hub (ILSVRC/imagenet-1k), or name its folder with --images"
)


@dataclass(frozen=True, eq=False)
class ImageNetData:
    """Training and test images; `about` is their name in rows."""

    about: str
    train: EncodedImages
    test: EncodedImages


def load_imagenet(data: str, folder: str = "") -> ImageNetData:
    """ImageNet from `folder` or the data home; or a stand-in, which is written to files the first time."""
    pillow_image()  # if Pillow is missing, fail here and not in a data loader
    if data in STAND_INS:
        return ImageNetData(f"{data} (stand-in)", *load_image_folders(stand_in(data)))
    where = expanded(folder) if folder else data_home() / IMAGENET
    train, test = _load(where)
    sizes = (train.classes, len(train), len(test))
    about = f"{where.resolve().name} ({sizes[0]} classes, {sizes[1]} + {sizes[2]} images)"
    return ImageNetData(IMAGENET if sizes == IMAGENET_SIZES else about, train, test)


def _load(where: Path) -> tuple[EncodedImages, EncodedImages]:
    if not where.is_dir():
        raise DataMissing(f"there are no images in {where}: no such folder. {WAY_OUT}")
    if (where / "train").is_dir() or (where / "val").is_dir():
        return load_image_folders(where)
    if shards(where, "train") or shards(where, "validation"):
        return load_parquet_images(where)
    raise DataMissing(f"{where} has neither train/ and val/ nor parquet shards in it. {WAY_OUT}")


def stand_in(name: str) -> Path:
    """A folder with the images of a data set as PNG files in class folders."""
    size = STAND_INS[name]

    def fill(empty: Path) -> None:
        for part, images in zip(("train", "val"), split(name), strict=True):
            _write(images, empty / part, size)

    return atomic_dir(data_home() / "stand-ins" / f"{name}-{size}", fill)


def _write(images: Images, folder: Path, size: int) -> None:
    """Write each image as a PNG file of this width and height to the folder of its class."""
    pillow = pillow_image()
    for label in range(images.classes):
        (folder / str(label)).mkdir(parents=True)
    for number, (pixels, label) in enumerate(zip(images.pixels, images.labels.tolist(), strict=True)):
        image = pillow.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy())
        if image.size != (size, size):
            image = image.resize((size, size), pillow.Resampling.BILINEAR)
        image.save(folder / str(label) / f"{number:05}.png")
