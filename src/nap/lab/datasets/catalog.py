"""The data sets that the lab knows, by name."""

from __future__ import annotations

from difflib import get_close_matches

from nap.lab.datasets.dataset import DataSet, ImageSet, Role, TextSet
from nap.lab.datasets.image_sets import IMAGE_SETS
from nap.lab.datasets.text_sets import TEXT_SETS

DATA_SETS: dict[str, DataSet] = {data.name: data for data in (*IMAGE_SETS, *TEXT_SETS)}


def find(name: str) -> DataSet:
    """The data set of that name, or an error that lists the names.

    >>> find("text8").size
    100000000
    """
    if name not in DATA_SETS:
        near = get_close_matches(name.lower().replace("_", "-"), DATA_SETS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no data set {name!r}; the catalogue has {', '.join(DATA_SETS)}{hint}")
    return DATA_SETS[name]


def find_images(name: str) -> ImageSet:
    """The image set of that name.

    >>> find_images("digits").classes
    10
    """
    found = find(name)
    if not isinstance(found, ImageSet):
        others = ", ".join(data.name for data in IMAGE_SETS)
        raise ValueError(f"{name} holds {found.holds()}, and no images; image sets are {others}")
    return found


def of_role(role: Role) -> dict[str, TextSet]:
    """The text sets of one role, by name.

    >>> list(of_role("questions"))
    ['lambada', 'piqa', 'siqa']
    """
    texts = {name: data for name, data in DATA_SETS.items() if isinstance(data, TextSet)}
    return {name: data for name, data in texts.items() if data.role == role}
