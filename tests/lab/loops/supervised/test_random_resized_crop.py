"""Random resized crops and center crops: areas, shapes and places, flips, and what Pillow would cut out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nap.lab.datasets.image_files import load_image_folders
from nap.lab.loops.supervised.imagenet_run import normalised
from nap.lab.loops.supervised.random_resized_crop import ResizedCrops, center_box, random_box
from small_images import picture, write_folders


@pytest.fixture
def images(tmp_path: Path) -> str:
    return str(write_folders(tmp_path / "images"))


def boxes(width: int, height: int, min_crop_area: float, count: int = 4000) -> np.ndarray:
    draws = np.random.default_rng(0)
    return np.array([random_box(width, height, rng=draws, min_area=min_crop_area) for _ in range(count)])


@pytest.mark.parametrize("min_crop_area", [0.08, 0.25])
def test_random_parts_have_the_areas_shapes_and_places_that_they_should(min_crop_area: float) -> None:
    left, top, right, bottom = boxes(1000, 1000, min_crop_area).T
    assert left.min() >= 0
    assert top.min() >= 0
    assert max(right.max(), bottom.max()) <= 1000
    width, height = right - left, bottom - top
    share, shape = width * height / 1e6, np.log(width / height) / np.log(4 / 3)
    assert share.min() > min_crop_area - 0.001
    assert np.abs(shape).max() < 1.02
    always_fit = share < 0.5  # of these none is left out for its shape
    quantiles = np.linspace(0.1, 0.9, 9)
    shares = min_crop_area + (0.5 - min_crop_area) * quantiles
    np.testing.assert_allclose(np.quantile(share[always_fit], quantiles), shares, atol=0.02)
    np.testing.assert_allclose(np.quantile(shape[always_fit], quantiles), 2 * quantiles - 1, atol=0.1)
    for place, room in ((left, 1000 - width), (top, 1000 - height)):
        np.testing.assert_allclose(
            np.quantile(place[always_fit] / room[always_fit], quantiles), quantiles, atol=0.05
        )
    assert np.mean(always_fit) > (0.5 - min_crop_area) / (1 - min_crop_area), (
        "large ones are left out more often"
    )


@pytest.mark.parametrize(("width", "height"), [(1000, 10), (10, 1000)])
def test_of_a_long_strip_the_middle_is_seen(width: int, height: int) -> None:
    long, short = (0, 1) if width > height else (1, 0)
    for box in boxes(width, height, 0.9, 20):
        assert (box[long], box[long + 2]) == (493, 506)
        assert (box[short], box[short + 2]) == (0, 10)
    assert np.ptp(center_box(width, height, share=0.5)[long::2]) == 5


def test_half_of_the_images_are_mirrored(images: str) -> None:
    train, _ = load_image_folders(Path(images))
    crops = ResizedCrops(0, size=18, resize=18, min_area=0.2, flip=True)
    mirrored = 0
    for epoch in range(200):
        plain, found = (replace(crops, flip=flip).sample(train, 1, epoch) for flip in (False, True))
        mirrored += not np.array_equal(plain, found)
        assert np.array_equal(found, plain) or np.array_equal(found, plain[:, ::-1])
    assert 75 < mirrored < 125


def test_to_be_judged_an_image_is_scaled_and_its_middle_is_seen(images: str) -> None:
    _, val = load_image_folders(Path(images))
    val.path(1).write_bytes(picture(0, 1, "PNG", width=48, height=32))
    with Image.open(val.path(1)) as image:
        expected = image.resize((24, 16), Image.Resampling.BILINEAR).crop((8, 4, 16, 12))
    found = ResizedCrops(0, size=8, resize=16, min_area=0.5, flip=True).center(val, 1)
    np.testing.assert_array_equal(found, np.asarray(expected))


def test_the_smallest_part_may_be_all_of_an_image(images: str) -> None:
    train, _ = load_image_folders(Path(images))
    train.path(1).write_bytes(picture(0, 1, "PNG", width=32, height=32))
    crops = ResizedCrops(0, size=8, resize=8, min_area=1.0, flip=False)
    for epoch in range(5):
        np.testing.assert_array_equal(crops.sample(train, 1, epoch), crops.center(train, 1))
        assert not np.array_equal(
            replace(crops, min_area=0.2).sample(train, 1, epoch), crops.center(train, 1)
        )


def test_levels_are_standardised_as_is_usual_for_imagenet() -> None:
    pixels = torch.arange(2 * 4 * 5 * 3, dtype=torch.uint8).view(2, 4, 5, 3)
    found = normalised(pixels)
    assert found.is_contiguous(memory_format=torch.channels_last)
    usual = ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))  # red, green, blue, of levels from 0 to 1
    for channel, (mean, std) in enumerate(usual):
        torch.testing.assert_close(found[:, channel], (pixels[..., channel] / 255 - mean) / std)
