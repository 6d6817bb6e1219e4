"""Images to learn from, and others to be judged on."""

from __future__ import annotations

from nap.lab.data.catalog import find_images
from nap.lab.data.images import Images, load


def split(name: str) -> tuple[Images, Images]:
    """The images of a set for training and for tests. A set without the latter lends its last fifth.

    >>> [len(part) for part in split("digits")]
    [1438, 359]
    """
    train = load(name)
    if "test" in find_images(name).splits:
        return train, load(name, split="test")
    first = len(train) - len(train) // 5
    return train.part(0, first), train.part(first, len(train))
