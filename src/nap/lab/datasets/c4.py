"""C4, cleaned pages of the web: too large to fetch (300 GB), so it is streamed, page by page.

Through the library `datasets`, which the tests do without: pip install 'normalize-and-project[c4]'.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Literal

from nap.lab.datasets.store import DataMissing

NAME = "c4"
REPOSITORY, CONFIGURATION = "allenai/c4", "en"


def documents(split: Literal["train", "validation"]) -> Iterator[str]:
    """The pages of a split, in the order of the hub's files; nothing is kept on disk."""
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise DataMissing(
            f"{NAME} is streamed with the library datasets, which is not installed: "
            "pip install 'normalize-and-project[c4]', or take c4-sample instead"
        ) from error
    count = 0
    try:
        for row in library.load_dataset(REPOSITORY, CONFIGURATION, split=split, streaming=True):
            yield row["text"]
            count += 1
    except Exception as error:  # of whatever the library is built on: it has no class of its own for them
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataMissing(
            f"{NAME} broke off after {count:,} documents ({reason}): it needs the Hugging Face hub; "
            "try again where that can be reached, or take c4-sample or files of your own"
        ) from error
