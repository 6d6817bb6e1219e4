"""Random walks of dead units: the equations against autograd, what must always hold, what comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import vjp

from nap.lab.experiments.walk import EXPERIMENT, MODELS, WalkConfig
from nap.lab.experiments.walk.runs import Walk, gated, pulled_back, relu_input, update_of
from nap.lab.rows import Rows
from nap.lab.runner.work import NotFinite

CPU = torch.device("cpu")
SMALL = WalkConfig(seeds=3, width=32, steps=60, record_every=7, trajectories=4)
MODEL = {model.arm: model for model in MODELS}


def walked(config: WalkConfig) -> Rows:
    work = Walk(config, CPU)
    return Rows(row for _ in range(work.total) for row in work.step())


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("centring", [False, True])
def test_the_closed_form_is_autograd_s_pull_back(centring: bool) -> None:
    v, z = noise(2, 9)

    def layer(v: Tensor) -> Tensor:
        u = v - v.mean() if centring else v
        return (u / u.norm()).relu()

    expected = vjp(layer, v, z)[1]
    torch.testing.assert_close(pulled_back(v, z, centring=centring), expected, rtol=1e-12, atol=1e-14)


def test_a_batch_of_walks_is_each_walk_alone() -> None:
    v, z = noise(2, 5, 9)
    for model in MODELS:
        together = update_of(model, v, z, SMALL)
        alone = torch.stack([update_of(model, *pair, SMALL) for pair in zip(v, z, strict=True)])
        torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)


def test_the_first_equation_as_printed_and_with_a_relu_s_derivative() -> None:
    v, z = torch.tensor([2.0, -3.0, 0.5]), torch.tensor([10.0, 10.0, -10.0])
    assert gated(v, z, "value").tolist() == [20.0, 0.0, -5.0]
    assert gated(v, z, "relu").tolist() == [10.0, 0.0, -10.0]
    # to RMSProp they are the same
    assert torch.equal(gated(v, z, "value").sign(), gated(v, z, "relu").sign())


def test_rms_scaling_only_lengthens_steps() -> None:
    v, z = noise(2, 16)
    long = update_of(MODEL["GD + norm"], v, z, replace(SMALL, width=16, norm="rms"))
    torch.testing.assert_close(long, 4 * update_of(MODEL["GD + norm"], v, z, replace(SMALL, width=16)))


@pytest.mark.parametrize("gate", ["value", "relu"])
@pytest.mark.parametrize("arm", ["GD", "RMSProp"])
def test_without_a_norm_a_dead_unit_never_moves_again(arm: str, gate: Any) -> None:
    work = Walk(replace(SMALL, gate=gate), CPU)
    while work.done < work.total:
        before, dead = work.v[arm], work.v[arm] <= 0
        work.step()
        assert torch.equal(work.v[arm][dead], before[dead])
    assert dead.any()


@pytest.mark.parametrize("arm", ["RMSProp + norm", "RMSProp + norm + centring"])
def test_with_a_norm_and_steps_of_one_size_dead_units_move_as_far_as_others(arm: str) -> None:
    work = Walk(SMALL, CPU)
    work.step()
    before, dead = work.v[arm], relu_input(work.v[arm], centring=MODEL[arm].centring) <= 0
    work.step()
    torch.testing.assert_close((work.v[arm] - before)[dead].abs(), torch.ones_like(before[dead]))


def test_normalised_updates_are_tangent_so_the_norm_only_grows() -> None:
    work = Walk(SMALL, CPU)
    for _ in range(20):
        before = work.v["GD + norm"]
        work.step()
        after = work.v["GD + norm"]
        step = after - before
        torch.testing.assert_close(
            after.square().sum(-1), before.square().sum(-1) + step.square().sum(-1)
        )  # Pythagoras


def test_rows_say_what_the_walk_did() -> None:
    rows = walked(SMALL)
    counts, paths = rows.where(kind=None), rows.where(kind="trajectory")
    assert counts.unique("arm") == list(MODEL)
    assert counts.unique("step") == [0, *range(7, 60, 7), 60]
    assert len(counts) == len(MODELS) * 3 * 10
    assert all(0 <= row["dead"] <= 1 and 0 <= row["revived"] <= 1 for row in counts)
    assert set(paths.unique("index")) == {0, 1, 2, 3}
    # the walks share their noise, so they start from one place
    start = counts.where(step=0, seed=1)
    assert len({row["dead"] for row in start if "centring" not in row["arm"]}) == 1
    assert counts.where(arm="GD").unique("revived") == [0.0]
    assert max(counts.where(arm="RMSProp + norm").values("revived")) > 0


def test_everyone_starts_alive_if_asked() -> None:
    rows = walked(replace(SMALL, start="alive", steps=7))
    assert rows.where(arm="GD", step=0).unique("dead") == [0.0]


def test_seed_k_walks_alike_whatever_the_number_of_seeds() -> None:
    few, many = walked(SMALL), walked(replace(SMALL, seeds=5))
    assert list(few.where(seed=2)) == list(many.where(seed=2))
    assert list(few.where(seed=2)) != [row | {"seed": 2} for row in few.where(seed=1)]


def test_a_resumed_walk_equals_an_unbroken_one() -> None:
    unbroken, first, second = (Walk(SMALL, CPU) for _ in range(3))
    rows = [row for _ in range(60) for row in unbroken.step()]
    cut = [row for _ in range(23) for row in first.step()]
    second.load_state_dict(first.state_dict())
    cut += [row for _ in range(37) for row in second.step()]
    assert cut == rows
    assert all(torch.equal(second.v[arm], unbroken.v[arm]) for arm in MODEL)


def test_an_update_that_is_not_finite_stops_the_walk_before_it() -> None:
    work = Walk(SMALL, CPU)
    work.v["GD"][1, 3] = torch.inf
    with pytest.raises(NotFinite, match="step 1 of 'GD'"):
        work.step()
    assert work.done == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": -5}, r"steps=-5.*at least 1"),
        ({"width": 1}, r"width=1.*at least 2"),
        ({"step_size": float("nan")}, r"step_size=nan.*between"),
        ({"record_every": 1001, "steps": 1000}, r"record_every=1001.*between 1 and 1000"),
        ({"trajectories": 33}, r"trajectories=33.*between 0 and 32"),
    ],
)
def test_settings_out_of_range_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_what_the_paper_says_of_its_walks() -> None:
    """At 1000 steps: a norm slows GD's dying, does not end it; under RMSProp it ends it."""
    config = replace(EXPERIMENT.scales["demo"], width=128, record_every=100, trajectories=0)
    rows = walked(config)
    dead = {arm: rows.where(arm=arm).matrix("dead", by=("seed", "step"))[0] for arm in MODEL}
    assert (dead["GD"][:, -1] == 1).all()
    assert (dead["GD + norm"][:, -1] < dead["GD"][:, -1]).all()
    assert (dead["GD + norm"][:, -1] > dead["GD + norm"][:, 1]).all()
    for arm in ("GD", "RMSProp"):
        assert (torch.tensor(dead[arm]).diff(dim=1) >= 0).all()
    falls = torch.tensor(dead["RMSProp + norm"]).diff(dim=1) < 0
    assert falls.any(dim=1).all()
