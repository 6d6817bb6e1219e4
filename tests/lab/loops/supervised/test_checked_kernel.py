"""Kernels are used where they were right, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from nap.lab.loops.supervised.stacked import checked_kernel
from nap.lab.loops.supervised.stacked.checked_kernel import checked

HERE = torch.arange(6.0)


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_kernel, "available", lambda device: True)
    monkeypatch.setattr(checked_kernel, "_passed", {})


def test_what_was_right_is_used_without_another_look() -> None:
    assert checked("sum", lambda: HERE, lambda: HERE * (1 + 1e-4), [HERE]) is HERE
    assert checked("sum", lambda: HERE, lambda: HERE + 5, [HERE])[0] == 5
    with pytest.warns(UserWarning, match="times as far"):  # of another shape
        assert checked("sum", lambda: HERE, lambda: HERE + 5, [HERE[:2]]) is HERE


@pytest.mark.parametrize("wrong", [float("nan"), 64 / 63], ids=["nan", "a little"])
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_wrong_in_one_of_several_results_is_found_out(wrong: float, place: int) -> None:
    found = [HERE, HERE]
    found[place] = HERE * wrong
    with pytest.warns(UserWarning, match="times as far from PyTorch's as it may be"):
        checked("pair", lambda: (HERE, HERE), lambda: tuple(found), [HERE])
    assert torch.equal(checked("pair", lambda: (HERE, HERE), lambda: tuple(found), [HERE])[place], HERE)


def test_kernels_that_cannot_run_are_done_without() -> None:
    def cannot() -> torch.Tensor:
        raise RuntimeError("out of resources")

    with pytest.warns(UserWarning, match=r"cannot be computed .* \(RuntimeError: out of resources\)"):
        assert checked("sum", lambda: HERE, cannot, [HERE]) is HERE
    assert checked("sum", lambda: HERE, cannot, [HERE]) is HERE


def test_zeros_say_nothing() -> None:
    zeros = torch.zeros(3)
    assert checked("sum", lambda: zeros, lambda: zeros + 1, [zeros]) is zeros
    assert not checked_kernel._passed
