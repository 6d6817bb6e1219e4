"""MinAtar's games: those of the package, step by step; what an agent is shown; how episodes end."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nap.lab.cli import main
from nap.lab.experiments import experiments
from nap.lab.loops.rainbow import minatar
from nap.lab.loops.rainbow.games import MINATAR, make
from nap.lab.loops.rainbow.minatar import MinAtar
from nap.lab.loops.rainbow.replay import Replay
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import NAP, AgentConfig, AgentRun
from nap.lab.models.rainbow_net import RainbowNet
from tiny_agents import CPU, agent, finished, on_disk_and_back, scores_until

installed = pytest.mark.skipif(find_spec("minatar") is None, reason="MinAtar is not installed")
BREAKOUT = "minatar/breakout"


@installed
@pytest.mark.parametrize("game", MINATAR)
def test_a_game_is_the_packages_own(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards, scores and ends over several episodes, with its sticky actions and ramping."""
    for drawing in ("matplotlib", "seaborn"):  # heavy to import, and not needed
        monkeypatch.setitem(sys.modules, drawing, None)
    monkeypatch.setattr(logging, "warning", lambda *args: None)  # which it remarks on
    from minatar import Environment

    ours = MinAtar(game, 2)
    ours.reset(seed=5)
    seeds = np.random.SeedSequence(5).generate_state(2)
    theirs = Environment(game.partition("/")[2])
    theirs.seed(seeds[1])
    theirs.reset()
    legal, rng = theirs.minimal_action_set(), np.random.default_rng(0)
    ended = steps = 0
    while ended < 2 and steps < 3_000:
        steps += 1
        actions = rng.integers(ours.actions, size=2)
        ours.send(actions)
        step = ours.recv()
        if step.first[1]:
            theirs.reset()
            score, over = 0, False
        else:
            score, over = theirs.act(legal[actions[1]])
        assert step.scores[1] == score
        assert step.ended[1] == over
        assert np.array_equal(step.frames[1], 255 * theirs.state().transpose(2, 0, 1))
        ended += over
    assert ended
    assert not step.life_lost.any()


@installed
def test_loading_a_game_draws_nothing() -> None:
    minatar._game.cache_clear()
    before = set(sys.modules)
    MinAtar(BREAKOUT, 1)
    assert not {"matplotlib", "seaborn", "pandas", "minatar"} & (set(sys.modules) - before)


@installed
def test_one_agent_can_play_all_games() -> None:
    games = [make(game, 2, full_actions=True) for game in MINATAR]
    assert {(game.actions, game.shape) for game in games} == {(6, (10, 10, 10))}
    alone = [make(game, 2) for game in MINATAR]
    assert [game.actions for game in alone] == [5, 3, 3, 6, 4]
    assert [game.shape[0] for game in alone] == [4, 4, 7, 10, 6]


@installed
def test_ends_by_a_clock_keep_their_future() -> None:
    freeway = MinAtar("minatar/freeway", 1, sticky=0.0)
    for turn in range(2_501):
        freeway.send(np.zeros(1, np.int64))
        step = freeway.recv()
        assert step.ended.item() == (turn == 2_500)
    assert not step.terminal.item()
    capped = MinAtar("minatar/space_invaders", 1, frame_cap=3)
    flags = []
    for _ in range(5):
        capped.send(np.zeros(1, np.int64))
        step = capped.recv()
        flags.append((step.ended.item(), step.terminal.item(), step.first.item()))
    assert flags == [
        (False, False, False),
        (False, False, False),
        (True, False, False),
        (False, False, True),
        (False, False, False),
    ]


@installed
def test_stickiness_is_an_option() -> None:
    """Without it a paddle goes where it is sent."""
    straight, sticky = (MinAtar(BREAKOUT, 64, sticky=p) for p in (0.0, 0.9))
    moved = []
    for games in (straight, sticky):
        games.reset(seed=0)
        games.send(np.full(64, 1))  # left
        moved.append((games.recv().frames[:, 0, 9, 3] == 255).mean())
    assert moved[0] == 1.0
    assert moved[1] < 0.4
    with pytest.raises(ValueError, match="0 ≤ sticky < 1"):
        MinAtar(BREAKOUT, 1, sticky=1.0)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minatar, "find_spec", lambda name: None)
    minatar._game.cache_clear()
    with pytest.raises(ValueError, match="pip install --no-deps MinAtar"):
        make(BREAKOUT, 1)
    minatar._game.cache_clear()


@pytest.mark.parametrize("experiment", ["minatar", "minatar-ends", "minatar-sequential", "ablations"])
def test_its_experiments_do_without_ale_py(
    experiment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)  # so that its import fails
    assert main(["sweep", experiment, "--scale", "small", "--out", str(tmp_path), "--dry-run"]) == 0


def test_the_network_s_size_is_that_of_minatar_s_authors() -> None:
    """16 filters of 3×3, then 128 units; what it computes is linear in channels and frames of the past."""
    net = RainbowNet(3, (4, 10, 10), stack=1, hidden=128)
    assert [p.shape for p in net.torso.parameters()] == [(16, 4, 3, 3), (16,)]
    assert net.value.mu.weight.shape == (128, 16 * 8 * 8)
    frames = torch.randint(0, 2, (5, 1, 4, 10, 10)) * 255
    assert net(frames, net.noise(1)).shape == (5, 3, 51)
    deep = RainbowNet(3, (4, 10, 10), stack=2)
    assert deep.torso[0].weight.shape == (16, 8, 3, 3)


def test_a_replay_holds_frames_with_channels() -> None:
    replay = Replay(2, 20, (3, 4, 5), stack=2, steps=1)
    first, second = torch.randint(0, 256, (2, 2, 3, 4, 5), dtype=torch.uint8)
    replay.begin_(first)
    from nap.lab.loops.rainbow.replay import Outcome

    no = torch.zeros(2, dtype=torch.bool)
    replay.add_(torch.zeros(2, dtype=torch.int64), Outcome(torch.ones(2), torch.ones(2), no, no, second))
    newest = replay.newest()
    assert torch.equal(newest, torch.stack([first, second], 1))


@installed
@pytest.mark.parametrize("at", [1, 3])  # within a game, and in the second one
def test_a_run_in_minatar_resumes_exactly(at: int) -> None:
    def run() -> RainbowWork:
        games = (BREAKOUT, "minatar/asterix")
        return agent(NAP, games=games, intervals=2, frames=320, stack=1, full_actions=True)

    whole, first, rest = run(), run(), run()
    rows = finished(whole)
    assert [row["game"] for row in rows] == [BREAKOUT] * 2 + ["minatar/asterix"] * 2
    again = [row for _ in range(at) for row in first.step() if "kind" not in row]
    rest.load_state_dict(on_disk_and_back(first.state_dict()))
    assert again + finished(rest) == rows


@installed
@pytest.mark.slow
def test_an_agent_learns_breakout() -> None:
    """Random play scores 0.4."""
    settings = AgentConfig(
        num_envs=16, replay_size=20_000, min_replay_size=480, target_every=50, steps_per_update=8, hidden=32,
        atoms=21, learning_rate=4e-3, stack=1, v_max=5.0,
    )  # fmt: skip
    what: Any = AgentRun(NAP, settings, (BREAKOUT,), 6_000, 4, seed=0)
    scores = scores_until(RainbowWork(what, CPU), 1.2)
    assert scores[0] < 0.8
    assert scores[-1] >= 1.2


def test_one_game_decides_the_learning_rate_of_all() -> None:
    experiment = experiments(["minatar"])["minatar"]
    config = replace(experiment.scales["small"], games=("minatar/asterix", BREAKOUT), first_seed=7, seeds=2)
    runs = experiment.runs(config)
    assert {(run.tuned_as, run.decides) for run in runs} == {
        (arm, game == BREAKOUT)
        for arm in ("rainbow", "layernorm", "nap", "nap-schedule")
        for game in config.games
    }
    assert runs[0].name == "minatar-asterix-rainbow-seeds-7-8"  # both agents in one run
    assert list(runs[0].config.seeds) == [7, 8]
    alone = experiment.runs(replace(config, seeds_per_run=1))
    assert [run.name for run in alone[:2]] == [f"minatar-asterix-rainbow-seed-{seed}" for seed in (7, 8)]
    assert [list(run.config.seeds) for run in alone[:2]] == [[7], [8]]
    apart = experiment.runs(replace(config, tuned_on=""))
    assert {run.tuned_as for run in apart} >= {"minatar-asterix-nap", "minatar-breakout-nap"}
    assert all(run.decides for run in apart)
    assert {run.config.variant.noise for run in runs if run.config.variant.project} == {"joint"}


def test_schedules_end_at_the_paper_s_share_of_any_peak() -> None:
    """6.25e-5 → 1e-6, a factor of 62.5, whatever rate is found by tuning."""
    experiment = experiments(["minatar"])["minatar"]
    runs = experiment.runs(replace(experiment.scales["small"], arms=("NaP", "NaP + schedule"), seeds=1))
    constant, scheduled = (run.config.variant for run in runs[:2])
    assert scheduled.rate(6.25e-5, 100)(50) == pytest.approx(1e-6)
    assert scheduled.rate(1e-3, 100)(99) == pytest.approx(1e-3 / 62.5)
    assert constant.rate(1e-3, 100)(99) == 1e-3
    assert replace(scheduled, last_share=0.0).rate(1e-3, 100)(99) == pytest.approx(1e-6)
