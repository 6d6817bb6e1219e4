"""Every architecture of the zoo is converted without fault, or refused as it says."""

import pytest

from zoo import handmade, huggingface, stable_baselines
from zoo.entry import Entry
from zoo.judge import judge

ENTRIES = [*handmade.ENTRIES, *huggingface.ENTRIES, *stable_baselines.ENTRIES]


def test_the_zoo_is_as_large_as_promised():
    assert len(handmade.ENTRIES) >= 100
    assert len(huggingface.ENTRIES) >= 32
    assert len(stable_baselines.ENTRIES) >= 8
    names = [(entry.family, entry.name) for entry in ENTRIES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.family}: {entry.name}")
@pytest.mark.filterwarnings("default")  # what other libraries warn of is theirs
def test_conversion(entry: Entry):
    row = judge(entry)
    assert row.expected, f"{row.verdict}: " + "\n".join(row.problems)
