"""Agents in a stack compute what each computes alone; they are saved, resumed and stopped like them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nap.lab.loops.rainbow.learner import build
from nap.lab.loops.rainbow.replay import Replay
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import LAYER_NORM, NAP, NAP_LINEAR, RAINBOW, RainbowArm
from nap.lab.loops.rainbow.stacked.blocks import BLOCK, Blocks, share_
from nap.lab.loops.rainbow.stacked.network import StackedNet
from nap.lab.loops.rainbow.stacked.run import StackedRainbowWork
from nap.lab.models.rainbow_net import RainbowNet, noise_of
from nap.lab.runner.work import NotFinite
from tiny_agents import (
    CPU,
    agent,
    assert_same_rows_when_killed,
    finished,
    on_disk_and_back,
    run_until_killed,
)

JOINT = replace(NAP, noise="joint")
VARIANTS = {
    "Rainbow": RAINBOW,
    "weight decay": replace(LAYER_NORM, weight_decay=0.3),
    "separate radii": NAP,
    "joint radii": JOINT,
    "noise free, output free": replace(NAP, noise="free", output="free"),
    "affine joint, schedule": replace(NAP_LINEAR, noise="joint", affine="joint"),
    "affine decay": replace(JOINT, affine="decay", decay=0.01),
    "projected every 5": replace(JOINT, project_every_updates=5),
    "no offsets": replace(JOINT, offsets=False),
}


@pytest.fixture
def double() -> Iterator[None]:
    """Networks, rewards and returns in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def stack(runs: Sequence[RainbowWork], **options: Any) -> StackedRainbowWork:
    """A stack of agents like these."""
    return StackedRainbowWork([run.config for run in runs], CPU, **options)


def parameters(run: RainbowWork) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in run.learner.online.named_parameters()}


def assert_alike(
    stacked: StackedRainbowWork, alone: Sequence[RainbowWork], *, rtol: float, atol: float
) -> None:
    """Rows, weights, targets, moments and priorities of every agent, at the end of its run."""
    rows = finished(stacked)
    for run, other in zip(stacked.runs, alone, strict=True):
        own = [row for row in rows if row["seed"] == run.config.seed and row["arm"] == run.variant.name]
        for row, expected in zip(own, finished(other), strict=True):
            assert row.keys() == expected.keys()
            for key, value in expected.items():
                same = pytest.approx(value, rel=rtol, abs=atol) if isinstance(value, float) else value
                assert row[key] == same, key
        close = partial(torch.testing.assert_close, rtol=rtol, atol=atol)
        close(parameters(run), parameters(other))
        mine, its = run.state_dict()["learner"], other.state_dict()["learner"]
        close(mine["target"], its["target"])
        close(mine["optimizer"], its["optimizer"])
        close(run.replay.mass, other.replay.mass)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_each_agent_of_a_stack_is_the_agent_alone(variant: RainbowArm) -> None:
    alone = [agent(variant, seed=seed, frames=168, learning_rate=3e-3) for seed in (3, 4)]
    assert_alike(stack(alone), alone, rtol=1e-9, atol=1e-11)


def test_they_are_alike_in_single_precision() -> None:
    alone = [agent(JOINT, seed=seed, frames=168) for seed in range(3)]
    assert_alike(stack(alone), alone, rtol=2e-3, atol=2e-4)


@pytest.mark.usefixtures("double")
def test_variants_and_learning_rates_of_one_shape_can_share_a_stack() -> None:
    """With norms alone, projected, and on a schedule: one network, three treatments."""
    variants = (LAYER_NORM, replace(JOINT, name="joint"), NAP, NAP_LINEAR)
    rates = (1e-3, 2e-3, 1e-3, 4e-3)
    alone = [agent(v, frames=168, learning_rate=rate) for v, rate in zip(variants, rates, strict=True)]
    assert_alike(stack(alone), alone, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("double")
def test_sequences_of_games_and_evaluations_are_alike() -> None:
    """A new game resets optimizer, target and replay of each; lives are lost in all of them."""
    options: dict[str, Any] = {"games": ("catch", "catch-mirrored"), "intervals": 2, "frames": 320}
    alone = [agent(JOINT, seed=seed, eval_frames=64, **options) for seed in (0, 1)]
    assert_alike(stack(alone), alone, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("double")
def test_it_holds_in_minatar() -> None:
    alone = [agent(JOINT, games=("minatar/breakout",), seed=seed, stack=1, frames=168) for seed in (0, 1)]
    assert_alike(stack(alone), alone, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_it_holds_in_atari() -> None:
    options: dict[str, Any] = {
        "games": ("pong",),
        "frames": 480,
        "intervals": 1,
        "num_envs": 4,
        "min_replay_size": 60,
        "batch_size": 4,
    }
    alone = [agent(JOINT, seed=seed, **options) for seed in (0, 1)]
    assert_alike(stack(alone), alone, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("variant", [RAINBOW, JOINT], ids=lambda v: v.name)
@pytest.mark.parametrize("shape", [(84, 84), (8, 8), (4, 10, 10)], ids=str)
def test_a_stack_of_networks_is_each_of_them(variant: RainbowArm, shape: tuple[int, ...]) -> None:
    """On images of Atari, Catch and MinAtar, with a draw of noise for each image."""
    torch.manual_seed(0)
    frames = torch.randint(0, 256, (2, 3, 4, *shape), dtype=torch.uint8)
    make = partial(RainbowNet, 3, shape, hidden=16, atoms=5)
    nets = [build(variant, lambda: make().double(), frames[0].double())[0] for _ in range(2)]
    named = [dict(net.named_parameters()) for net in nets]
    stacked = StackedNet(nets[0])
    weights = {g: torch.stack([torch.stack([n[name] for n in named]) for name in g]) for g in stacked.groups}
    u = torch.rand(2, 3, nets[0].noise_size, dtype=torch.float64)
    for k, net in enumerate(nets):
        torch.testing.assert_close(stacked(weights, frames, u)[k], net(frames[k], noise_of(u[k])))


def test_blocks_hold_parameters_of_any_layout() -> None:
    """Each tensor keeps its values and strides, and is a view of the one memory."""
    torch.manual_seed(0)
    agents = [
        {
            "conv": torch.randn(6, 5, 4, 4, dtype=torch.float64).to(memory_format=torch.channels_last),
            "mean": torch.randn(40, 40, dtype=torch.float64),
            "noise": torch.randn(40, 40, dtype=torch.float64),
            "bias": torch.randn(7, dtype=torch.float64),
        }
        for _ in range(3)
    ]
    before = [{name: tensor.clone() for name, tensor in own.items()} for own in agents]
    blocks = Blocks(agents[0], [("conv",), ("mean", "noise"), ("bias",)], 3)
    memory = blocks.new()
    for k, own in enumerate(agents):
        blocks.adopt_(memory, k, own)
        assert own["conv"].is_contiguous(memory_format=torch.channels_last)
    assert memory.shape == (3 * (1 + 2 + 2 + 1), BLOCK)
    pair = blocks.view(memory, ("mean", "noise"))
    squares = blocks.squares(memory)
    for k, old in enumerate(before):
        for name, tensor in agents[k].items():
            assert torch.equal(tensor, old[name])
            torch.testing.assert_close(squares[blocks.names.index(name), k], old[name].square().sum())
        assert torch.equal(pair[1, k], old["noise"])
    factors = torch.arange(1.0, 13.0, dtype=torch.float64).view(4, 3)
    memory.mul_(blocks.of_parameters(factors))
    torch.testing.assert_close(agents[1]["bias"], before[1]["bias"] * factors[3, 1])
    torch.testing.assert_close(agents[2]["conv"], before[2]["conv"] * factors[0, 2])
    with pytest.raises(ValueError, match="conv, mean are not of one shape"):
        Blocks(agents[0], [("conv", "mean"), ("noise",), ("bias",)], 3)


def test_shared_memory_draws_for_each_agent_from_its_own_part() -> None:
    shared = Replay(2, 20, (3, 3), stack=2, steps=2, agents=3)
    shared.begin_(torch.zeros(3, 2, 3, 3, dtype=torch.uint8))
    for k in range(3):  # slots 0 to 5 of agent k's games hold action k
        one = shared.agent(k)
        one.actions[:, :6] = k
        one.mass[:, :6] = 1.0
    batch = shared.draw(torch.rand(3, 50, dtype=torch.float64))
    assert torch.equal(batch.actions, torch.arange(3).unsqueeze(1).expand(3, 50))
    assert batch.states.shape == (3, 50, 2, 3, 3)
    shared.update_(batch.slots, torch.arange(1.0, 4.0).unsqueeze(1).expand(3, 50))
    assert shared.largest.tolist() == [1.0, 2.0, 3.0]
    assert shared.agent(2).mass.max().item() == pytest.approx(3.0**0.5)
    assert shared.agent(0).mass.max().item() == 1.0


def two_agents() -> list[RainbowWork]:
    options: dict[str, Any] = {"games": ("catch", "catch-mirrored"), "intervals": 2, "frames": 320}
    return [agent(NAP_LINEAR, seed=seed, **options) for seed in (5, 6)]


@cache
def unbroken() -> list[dict[str, Any]]:
    """The rows of a stack of these agents that nobody stops."""
    return finished(stack(two_agents()))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_stack_goes_on_as_if_nothing_had_happened(at: int) -> None:
    """Within a game and where one ends; an agent of it can go on alone, for its state is an agent's."""
    alone, rows = two_agents(), unbroken()
    first, rest = stack(alone), stack(alone)
    again = [row for _ in range(at) for row in first.step() if "kind" not in row]
    saved = on_disk_and_back(first.state_dict())
    rest.load_state_dict(saved)
    assert again + finished(rest) == rows
    one = alone[1]
    one.load_state_dict(saved["agents"][1])
    for row, expected in zip(finished(one), [r for r in rows if r["seed"] == 6][at:], strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def session(path: Path, kill_at: int, events: Any) -> None:
    agents = [agent(JOINT, games=("minatar/breakout",), stack=1, seed=seed, intervals=5) for seed in (0, 1)]
    run_until_killed(stack(agents), path, kill_at)


@pytest.mark.slow
def test_a_stack_killed_again_and_again_ends_with_the_same_rows(tmp_path: Path) -> None:
    assert_same_rows_when_killed(session, tmp_path, scores=10)


def test_an_agent_that_breaks_is_named_and_the_others_learn_on() -> None:
    work = stack([agent(seed=seed) for seed in (0, 1)])
    work.step()
    broken, sound = work.runs
    with torch.no_grad():
        broken.learner.online.value_head.sigma.bias[0] = torch.inf
    before, others = parameters(broken), parameters(sound)
    with pytest.raises(NotFinite, match="seed 0: the loss is not finite at update 1 of this interval"):
        work.step()
    torch.testing.assert_close(parameters(broken), before, rtol=0, atol=0)
    assert not torch.equal(parameters(sound)["torso.0.weight"], others["torso.0.weight"])


def test_what_cannot_share_a_stack_is_refused() -> None:
    with pytest.raises(ValueError, match=r"differ in frames, batch_size; they may differ in seed"):
        stack([agent(), agent(frames=240, batch_size=8)])
    with pytest.raises(ValueError, match=r"networks of one shape, and these differ in .*nap_norm"):
        stack([agent(RAINBOW), agent(NAP)])
    with pytest.raises(ValueError, match="every 1 and every 5; stack them apart"):
        stack([agent(NAP), agent(replace(NAP, project_every_updates=5))])


def test_shared_tensors_keep_their_identity() -> None:
    one, two = torch.zeros(()), torch.ones(())
    whole = share_([one, two])
    whole += 1
    two += 5
    assert (one.item(), whole.tolist()) == (1.0, [1.0, 7.0])


@pytest.mark.slow
def test_a_compiled_stack_learns_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced here as for a GPU; what makes machine code of it is left out."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    runs = [agent(JOINT, seed=seed) for seed in (0, 1)]
    plain, traced = stack(runs), stack(runs, compile_=True)
    for one, other in zip(finished(plain), finished(traced), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
