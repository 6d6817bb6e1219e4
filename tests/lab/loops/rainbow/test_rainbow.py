"""The Rainbow agent: its update by hand, its target network, its schedule of events, all four variants."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import nap
from nap.lab.loops.rainbow import c51, diagnostics
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import FOUR, LAYER_NORM, NAP, NAP_LINEAR, RAINBOW, RainbowArm
from nap.lab.runner.work import NotFinite
from tiny_agents import TINY, agent, finished, scores_until

JOINT = replace(NAP, name="NaP, joint noise", noise="joint")


def values(net: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


@pytest.mark.parametrize("variant", [RAINBOW, NAP, JOINT], ids=lambda v: v.name)
def test_an_update_is_what_one_does_by_hand(variant: RainbowArm) -> None:
    """Sample by sample, with an ordinary Adam, on the batch and noise that the same seed gives."""
    run = agent(variant)
    run.step()
    learner, settings = run.learner, run.config.settings
    before, moments = copy.deepcopy(learner.online), copy.deepcopy(learner.optimizer.state_dict())
    target, mass = copy.deepcopy(learner.target), run.replay.mass.clone()

    learner.generator.manual_seed(5)
    batch = run.replay.sample(settings.batch_size, learner.generator)
    noise = before.noise(3, learner.generator)
    learner.generator.manual_seed(5)
    learner.update(2e-3, 0.7)

    optimizer = torch.optim.Adam(before.parameters(), lr=2e-3, eps=settings.adam_eps, foreach=False)
    optimizer.load_state_dict(moments)
    optimizer.param_groups[0].update(lr=2e-3, fused=False)
    projector = nap.Projector(before, noise=variant.noise) if variant.project else None
    losses = []
    for i in range(settings.batch_size):
        state, after = batch.states[i : i + 1].float(), batch.next_states[i : i + 1].float()
        with torch.no_grad():
            best = (before(after, noise[1:2]).softmax(-1) @ learner.atoms)[0].argmax()
            future = target(after, noise[2:3])[0, best].softmax(-1)
            goal = c51.project_distribution(
                future[None], batch.rewards[i : i + 1], batch.discounts[i : i + 1], learner.atoms
            )
        log_p = before(state, noise[:1])[0, batch.actions[i]].log_softmax(-1)
        losses.append(-(goal[0] * log_p).sum())
    weights = batch.probabilities**-0.7
    weights = (weights / weights.max()).float()
    total = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / settings.batch_size
    optimizer.zero_grad()
    assert isinstance(total, Tensor)
    total.backward()
    torch.nn.utils.clip_grad_norm_(before.parameters(), settings.clip)
    optimizer.step()
    if projector is not None:
        projector.project_()
    found = values(learner.online)
    for name, expected in values(before).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=2e-6)
    new = run.replay.mass.flatten()[batch.slots]
    torch.testing.assert_close(new, torch.stack(losses).detach().sqrt(), rtol=1e-4, atol=1e-5)
    untouched = torch.ones_like(mass.flatten(), dtype=torch.bool)
    untouched[batch.slots] = False
    assert torch.equal(run.replay.mass.flatten()[untouched], mass.flatten()[untouched])


def test_the_target_network_is_a_copy_now_and_then() -> None:
    run = agent(target_every=7)
    run.step()
    learner = run.learner
    learner.updates = 0
    before = values(learner.target)
    for made in range(1, 8):
        learner.update(1e-3, 0.5)
        same = [torch.equal(p, before[name]) for name, p in learner.target.named_parameters()]
        assert all(same) == (made < 7)
    online = values(learner.online)
    assert all(torch.equal(p, online[name]) for name, p in learner.target.named_parameters())


@pytest.mark.parametrize("num_envs", [1, 8])
def test_learning_keeps_its_ratio_to_playing(num_envs: int) -> None:
    run = agent(num_envs=num_envs, min_replay_size=64, steps_per_update=4)
    finished(run)
    steps = run.total * run.steps * num_envs
    assert steps == 480
    assert run.learner.updates == (steps - 64) // 4


def test_frames_are_counted_and_rates_follow_the_schedule() -> None:
    rows = finished(agent(NAP_LINEAR, intervals=6))
    assert [row["frames"] for row in rows] == [80, 160, 240, 320, 400, 480]
    rates = [row["learning_rate"] for row in rows]
    assert 1e-3 > rates[1] > rates[2] > rates[3]
    assert rates[3:] == pytest.approx([1e-6] * 3)  # it ends halfway
    cosine = RainbowArm("cosine", schedule="cosine").rate(1e-3, 100)
    assert cosine(0) == pytest.approx(1e-8)
    assert cosine(10) == pytest.approx(1e-3)
    assert cosine(100) == pytest.approx(1e-6)


@pytest.mark.parametrize("variant", [*FOUR, JOINT], ids=lambda v: v.name)
def test_what_each_variant_does_to_norms(variant: RainbowArm) -> None:
    run = agent(variant, learning_rate=3e-3)
    table = nap.weight_groups(run.learner.online)
    before = values(run.learner.online)
    rows = finished(run)
    after = values(run.learner.online)
    names = [row.name for row in table.of(*nap.weights.WEIGHT_ROLES)]
    grown = {name: (after[name].norm() / before[name].norm()).item() for name in names}
    moved = max((after[name] - before[name]).norm().item() for name in names)
    assert moved > 0.1
    if variant.project:
        ratios = run.learner.projector.norm_ratios()  # type: ignore[union-attr]
        assert ratios.keys() == grown.keys()
        assert all(abs(ratio - 1) < 1e-5 for ratio in ratios.values())
    else:
        assert max(grown.values()) > 1.02
    if variant.noise == "joint":
        shares = [abs(ratio - 1) for name, ratio in grown.items() if "sigma" in name]
        assert min(shares) > 1e-3
    has_norm = any("nap_norm" in name for name in after)
    assert has_norm == variant.norm
    assert ("effective_rate" in rows[-1]) == variant.norm


def test_rows_say_what_the_paper_argues_with() -> None:
    run = agent(LAYER_NORM)
    run.step()
    rows = run.step()
    main, layers = rows[0], rows[1:]
    for key in (
        "score",
        "episodes",
        "loss",
        "gradient_norm",
        "parameter_norm",
        "weight_norm",
        "effective_rate",
    ):
        assert math.isfinite(main[key]), key
    assert 0 <= main["linearized_units"] <= 1
    assert main["feature_rank"] >= 1
    assert {row["layer"] for row in layers} >= {
        "torso.0.weight",
        "value.mu.weight",
        "value_head.sigma.weight",
    }
    followed = {row["layer"] for row in layers if "effective_rate" in row}
    assert "torso.2.weight" in followed
    assert "value_head.mu.weight" not in followed


def test_evaluation_plays_games_of_its_own_and_changes_nothing() -> None:
    plain, evaluated = agent(), agent(eval_frames=640)
    rows, others = finished(plain), finished(evaluated)
    assert [row["loss"] for row in rows] == [row["loss"] for row in others]
    assert [row["score"] for row in rows] == [row["training_score"] for row in others]
    assert [row["score"] for row in others] != [row["score"] for row in rows]
    assert all(8 <= row["episodes"] <= 30 for row in others)  # 80 steps of 8 games, 21 to 79 steps each


def test_seeds_reproduce_and_differ() -> None:
    one, again, other = (finished(agent(seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert [row["loss"] for row in one] != [row["loss"] for row in other]


def test_a_gradient_that_is_not_finite_is_named() -> None:
    run = agent()
    run.step()
    weight = run.learner.online.get_parameter("torso.2.weight")
    weight.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(NotFinite, match=r"the gradient of torso\.2\.weight is not finite at update 1 "):
        run.step()


def test_an_update_that_is_not_finite_is_not_made() -> None:
    run = agent()
    run.step()
    with torch.no_grad():
        run.learner.online.value_head.sigma.bias[0] = torch.inf
    before = values(run.learner.online)
    with pytest.raises(NotFinite, match="the loss is not finite at update 1 of this interval"):
        run.step()
    assert all(torch.equal(p, before[name]) for name, p in run.learner.online.named_parameters())


@pytest.mark.slow
def test_a_compiled_objective_learns_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced here as for a GPU; what makes machine code of it is left out."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain = agent(NAP)
    traced = RainbowWork(plain.config, plain.device, compile_=True)
    for one, other in zip(finished(plain), finished(traced), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["score"] == other["score"]


@pytest.mark.slow
@pytest.mark.parametrize("variant", [RAINBOW, NAP_LINEAR], ids=lambda v: v.name)
def test_the_plainest_and_the_fullest_variant_learn_the_small_game(variant: RainbowArm) -> None:
    """Random play scores about −1 and the best there is 10."""
    settings: dict[str, Any] = {
        "num_envs": 16,
        "steps_per_update": 4,
        "min_replay_size": 400,
        "target_every": 50,
    }
    settings |= {"learning_rate": 3e-3, "batch_size": 32, "n_steps": 7, "hidden": 64, "replay_size": 8_000}
    scores = scores_until(agent(variant, **settings, frames=6_000, intervals=10), 4)
    assert scores[0] < 0
    assert scores[-1] >= 4


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="replay_size must be at least 112"):
        agent(replay_size=100)
    with pytest.raises(ValueError, match="min_replay_size"):
        agent(min_replay_size=10_000)
    with pytest.raises(ValueError, match="min_replay_size must be between 24"):
        agent(min_replay_size=23)  # nothing could be drawn yet
    assert finished(agent(min_replay_size=24, num_envs=8))
    assert TINY.replay_size == 2_000


def test_rare_projections_come_at_their_time() -> None:
    run = agent(replace(JOINT, project_every_updates=5), learning_rate=3e-3)
    learner = run.learner
    assert learner.projector is not None
    run.step()
    away: dict[int, float] = {}
    for _ in range(11):
        learner.update(3e-3, 0.5)
        ratios = learner.projector.norm_ratios().values()
        away[learner.updates] = max(abs(ratio - 1) for ratio in ratios)
    assert [update for update, far in away.items() if far < 1e-6] == [u for u in away if u % 5 == 0]
    assert max(away.values()) > 1e-4


def test_weight_decay_is_adamw_s_and_of_weights_alone() -> None:
    """θ − η·(λ·θ + step) for weights; the rest is left to Adam."""
    plain, decayed = (agent(replace(LAYER_NORM, weight_decay=decay)) for decay in (0.0, 0.5))
    for run in (plain, decayed):
        run.step()
    decayed.learner.load_state_dict(copy.deepcopy(plain.learner.state_dict()))
    decayed.replay.load_state_dict(copy.deepcopy(plain.replay.state_dict()))
    before = values(plain.learner.online)
    for run in (plain, decayed):
        run.learner.generator.manual_seed(3)
        run.learner.update(1e-2, 0.5)
    ours, theirs = values(decayed.learner.online), values(plain.learner.online)
    for name, old in before.items():
        expected = theirs[name] - 1e-2 * 0.5 * old if old.ndim > 1 else theirs[name]
        torch.testing.assert_close(ours[name], expected, rtol=1e-5, atol=1e-6)


def test_without_offsets_norms_have_scales_alone() -> None:
    names = {name for name, _ in agent(replace(NAP, offsets=False)).learner.online.named_parameters()}
    assert any(name.endswith("nap_norm.weight") for name in names)
    assert not any(name.endswith("nap_norm.bias") for name in names)


def test_rates_of_noisy_layers_are_those_of_means_and_noise_together() -> None:
    run = agent(JOINT, learning_rate=3e-3)
    finished(run)
    rows = {row["layer"]: row for row in diagnostics.by_layer(run.learner)}
    mean, noise = rows["value.mu.weight"], rows["value.sigma.weight"]
    assert noise["noise_of"] == "value.mu.weight"
    assert mean["joint_norm"] == pytest.approx(math.hypot(mean["norm"], noise["norm"]))
    assert mean["joint_rate"] == pytest.approx(run.learner.rate.item() / mean["joint_norm"], rel=1e-5)
    own = [rows[name]["effective_rate"] for name in ("torso.0.weight", "torso.2.weight")]
    joint = [rows[f"{layer}.mu.weight"]["joint_rate"] for layer in ("value", "advantage")]
    typical = math.exp(sum(map(math.log, [*own, *joint])) / 4)
    states = run.replay.sample(8, run.learner.generator).states
    assert diagnostics.numbers(run.learner, states)["effective_rate"] == pytest.approx(typical, rel=1e-5)
