"""A change of task is seen in the loss, soon and once; a loss that falls, or is noisy, is no change."""

import json
import math

import pytest
import torch

from nap.rates.change import ChangeDetector


def stream(*tasks: tuple[float, float, int], seed: int = 0, noise: float = 0.1) -> list[float]:
    """Losses that fall from `start` towards `end` in each task, with noise."""
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for start, end, updates in tasks:
        fall = end + (start - end) * torch.exp(-torch.arange(updates) / (updates / 5))
        losses += (fall + noise * torch.randn(updates, generator=generator)).tolist()
    return losses


def alarms(losses: list[float], **settings: float) -> list[int]:
    detector = ChangeDetector(**settings)  # type: ignore[arg-type]
    return [step for step, loss in enumerate(losses) if detector.update(loss)]


@pytest.mark.parametrize("seed", range(5))
def test_each_change_is_seen_within_ten_updates_and_once(seed: int) -> None:
    losses = stream((2.3, 0.5, 400), (2.3, 0.5, 300), (2.3, 0.5, 500), seed=seed)
    seen = alarms(losses)
    assert len(seen) == 2
    assert all(0 <= at - change < 10 for at, change in zip(seen, (400, 700), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_falls_or_only_has_noise_is_no_change(seed: int) -> None:
    assert alarms(stream((5.0, 0.1, 2000), seed=seed)) == []
    assert alarms(stream((1.0, 1.0, 2000), seed=seed), threshold=20.0) == []


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e4])
def test_the_scale_of_the_loss_does_not_matter(factor: float) -> None:
    losses = stream((2.3, 0.5, 300), (2.3, 0.5, 300))
    assert alarms([factor * loss for loss in losses]) == alarms(losses)


def test_a_higher_threshold_is_later_never_earlier() -> None:
    losses = stream((2.3, 0.5, 300), (1.0, 0.5, 300))
    at = [min(alarms(losses, threshold=threshold), default=math.inf) for threshold in (2.0, 8.0, 30.0)]
    assert at == sorted(at)


def test_it_goes_on_where_its_state_was_taken() -> None:
    losses = stream((2.3, 0.5, 300), (2.3, 0.5, 300))
    whole, first, second = ChangeDetector(), ChangeDetector(), ChangeDetector()
    expected = [whole.update(loss) for loss in losses]
    got = [first.update(loss) for loss in losses[:250]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    got += [second.update(torch.tensor(loss, dtype=torch.float64)) for loss in losses[250:]]
    assert got == expected
    assert (second.changes, True in expected) == (1, True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"memory": 1}, "memory"),
        ({"threshold": math.nan}, "threshold"),
        ({"allowance": -1.0}, "allowance"),
        ({"settle": -1}, "settle"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ChangeDetector(**settings)


def test_a_loss_that_is_not_finite_and_a_foreign_state_are_refused() -> None:
    with pytest.raises(ValueError, match="the loss is nan"):
        ChangeDetector().update(math.nan)
    with pytest.raises(ValueError, match="memory=7"):
        ChangeDetector().load_state_dict(ChangeDetector(memory=7).state_dict())
    with pytest.raises(ValueError, match="no state of a ChangeDetector"):
        ChangeDetector().load_state_dict({})
