"""Every architecture of the zoo is converted without fault, or refused as it says."""

from copy import deepcopy

import pytest

import nap
from zoo import handmade, huggingface, huggingface_more, huggingface_senses, stable_baselines
from zoo.entry import Entry
from zoo.judge import judge

ENTRIES = [
    *handmade.ENTRIES,
    *huggingface.ENTRIES,
    *huggingface_senses.ENTRIES,
    *huggingface_more.ENTRIES,
    *stable_baselines.ENTRIES,
]


def test_the_zoo_is_as_large_as_promised():
    assert len(handmade.ENTRIES) >= 100
    assert len(huggingface.ENTRIES + huggingface_senses.ENTRIES + huggingface_more.ENTRIES) >= 100
    assert len(stable_baselines.ENTRIES) >= 8
    names = [(entry.family, entry.name) for entry in ENTRIES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.family}: {entry.name}")
@pytest.mark.filterwarnings("default")  # what other libraries warn of is theirs
def test_conversion(entry: Entry):
    row = judge(entry)
    assert row.expected, f"{row.verdict}: " + "\n".join(row.problems)


def mlp_entry() -> Entry:
    return next(entry for entry in ENTRIES if entry.name == "mlp module ReLU")


def test_a_conversion_that_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nap, "normalize_", lambda model, *args, **options: None)
    row = judge(mlp_entry())
    assert (row.verdict, row.needed, row.healed) == ("incomplete", 2, 0)
    assert any(problem.startswith("0.weight still reaches") for problem in row.problems)


def test_a_norm_too_many_is_caught(monkeypatch: pytest.MonkeyPatch):
    convert = nap.normalize_

    def convert_and_add_one(model, args, kwargs):
        convert(model, args, kwargs)
        model[4].nap_norm = deepcopy(model[2].nap_norm)

    monkeypatch.setattr(nap, "normalize_", convert_and_add_one)
    assert judge(mlp_entry()).wrong_norms == ["4.nap_norm"]


def passed_through(result, *rest):
    return result


def test_a_norm_that_was_lost_is_caught(monkeypatch: pytest.MonkeyPatch):
    convert = nap.normalize_

    def convert_and_lose_one(model, args, kwargs):
        convert(model, args, kwargs)
        model[2].nap_norm.forward = passed_through

    monkeypatch.setattr(nap, "normalize_", convert_and_lose_one)
    row = judge(mlp_entry())
    assert (row.verdict, row.healed) == ("incomplete", 1)


def test_a_fault_of_the_library_is_no_refusal(monkeypatch: pytest.MonkeyPatch):
    def fail(*args, **options):
        raise RuntimeError("broken")

    monkeypatch.setattr(nap, "normalize_", fail)
    row = judge(mlp_entry())
    assert (row.verdict, row.expected) == ("error", False)
