"""Which data sets runs need that are not on this machine, before any of them begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from nap.lab.datasets.catalog import DATA_SETS
from nap.lab.datasets.dataset import DataSet
from nap.lab.datasets.store import DataMissing, data_home, place

SETTINGS = ("data", "text", "tokenizer", "eval_sets")  # that name data sets


def require(configs: Iterable[Any]) -> None:
    """Raise `DataMissing`, which names all data sets of these configs that are not here.

    It looks for files and hashes nothing: what is damaged or half there is named when it is read.
    """
    names = dict.fromkeys(name for config in configs for name in named(config))
    gone = [name for name in names if not _is_here(DATA_SETS[name])]
    if gone:
        listed = " and ".join(filter(None, [", ".join(gone[:-1]), gone[-1]]))
        verb = "is" if len(gone) == 1 else "are"
        raise DataMissing(f"{listed} {verb} not in {data_home()}; run: nap data fetch {' '.join(gone)}")


def _is_here(data: DataSet) -> bool:
    return any((place(data) / file.name).exists() for file in data.files)


def named(config: Any) -> Iterator[str]:
    """The data sets of the catalogue, with files of their own, that the settings of a run name.

    >>> list(named({"settings": {"data": "digits", "text": ["text8", "mine.txt"], "eval_sets": ["piqa"]}}))
    ['text8', 'piqa']
    """
    values = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Mapping):
            yield from named(value)
        elif key in SETTINGS:
            words = [value] if isinstance(value, str) else value
            yield from (word for word in words if word in DATA_SETS and DATA_SETS[word].files)
