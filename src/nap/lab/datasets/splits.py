"""Images to learn from, and others to be judged on."""

from __future__ import annotations

from nap.lab.datasets.catalog import find_images
from nap.lab.datasets.images import Images, load


def split(name: str, held_out: int = 0) -> tuple[Images, Images]:
    """The images of a set for training and for tests. A set without the latter lends its last fifth.

    With `held_out`, so many of those for training are kept back, the last ones, and stand for the tests:
    settings that are chosen by them know nothing of the images for tests.

    >>> [len(part) for part in split("digits")], [len(part) for part in split("digits", held_out=38)]
    ([1438, 359], [1400, 38])
    """
    train, test = _as_published(name)
    if held_out >= len(train):
        raise ValueError(f"{held_out} of the {len(train)} images of {name} are held out; hold fewer out")
    return _cut(train, len(train) - held_out) if held_out else (train, test)


def _as_published(name: str) -> tuple[Images, Images]:
    train = load(name)
    if "test" in find_images(name).splits:
        return train, load(name, split="test")
    return _cut(train, len(train) - len(train) // 5)


def _cut(images: Images, at: int) -> tuple[Images, Images]:
    return images.part(0, at), images.part(at, len(images))
