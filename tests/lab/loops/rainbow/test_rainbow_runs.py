"""Runs of Rainbow agents: exact resume, real games, sequences of games, the experiments' own settings."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nap.lab.cli.main import main
from nap.lab.experiments import experiments
from nap.lab.experiments.play import agent_of
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import NAP, NAP_LINEAR, RAINBOW, Changes, RainbowArm
from nap.lab.runner import RunFolder, run_work
from nap.lab.runner.checkpoint import checksum, load, plain
from nap.lab.runner.signals import StopRequest
from tiny_agents import (
    CPU,
    agent,
    assert_same_rows_when_killed,
    finished,
    on_disk_and_back,
    run_until_killed,
)

RAINBOWS = ("fig3", "fig5-suite", "fig5-sequential", "fig6")


SEQUENCE: dict[str, Any] = {"games": ("catch", "catch-mirrored"), "intervals": 2, "frames": 320}


@functools.cache
def unbroken(variant: RainbowArm) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Rows and last weights of a run over two games."""
    run = agent(variant, **SEQUENCE)
    return finished(run), run.learner.online.state_dict()


@pytest.mark.parametrize("variant", [RAINBOW, NAP_LINEAR], ids=lambda v: v.name)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_run_goes_on_as_if_nothing_had_happened(variant: RainbowArm, at: int) -> None:
    """At any interval: within a game, and where one ends."""
    rows, weights = unbroken(variant)
    first, rest = (agent(variant, **SEQUENCE) for _ in range(2))
    again = []
    for _ in range(at):
        again += [row for row in first.step() if "kind" not in row]
    rest.load_state_dict(on_disk_and_back(first.state_dict()))
    again += finished(rest)
    assert again == rows
    for name, parameter in weights.items():
        assert torch.equal(parameter, rest.learner.online.state_dict()[name]), name


OLD_NAMES = {
    "num_envs": "lanes",
    "replay_size": "replay",
    "min_replay_size": "learn_start",
    "v_max": "limit",
    "priority_exponent": "exponent",
    "importance_exponent": "correction",
    "eval_frames": "evaluation",
    "project_every_updates": "every",
}


def under_old_names(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return {OLD_NAMES.get(name, name): under_old_names(value) for name, value in config.items()}


def test_a_folder_under_old_names_resumes(tmp_path: Path) -> None:
    def go_on(config: Any, until: int) -> None:
        stop = StopRequest()

        def progress(work: Any) -> None:
            if work.done == until:
                stop.signal = "SIGTERM"

        with RunFolder.open(tmp_path, experiment="fig3", scale="demo", run="run", config=config) as folder:
            run_work(agent(NAP), folder, device=CPU, stop=stop, on_progress=progress)

    now = agent(NAP).config
    go_on(under_old_names(asdict(now)), until=1)
    assert '"lanes"' in (tmp_path / "config.json").read_text()
    assert asdict(agent_of(tmp_path)) == asdict(now)
    with pytest.raises(ValueError, match="num_envs: 8 there, 4 now"):
        go_on(replace(now, settings=replace(now.settings, num_envs=4)), until=3)
    go_on(now, until=3)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "kind" not in row]
    assert losses == [row["loss"] for row in finished(agent(NAP))]


@pytest.mark.parametrize("at", [1, 3, 5])
def test_an_interval_can_be_laid_down_in_the_middle(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long intervals are made of chunks; the rows are still one an interval."""
    monkeypatch.setattr("nap.lab.loops.rainbow.run.CHUNK_STEPS", 64)
    whole, first, rest = (agent(NAP, frames=384, intervals=2) for _ in range(3))
    assert (whole.total, whole.chunks_per_interval) == (6, 3)
    rows = finished(whole)
    assert [row["frames"] for row in rows] == [192, 384]
    again = [row for _ in range(at) for row in first.step() if "kind" not in row]
    rest.load_state_dict(on_disk_and_back(first.state_dict()))
    assert again + finished(rest) == rows


def test_without_its_replay_a_run_refills_it_before_it_learns() -> None:
    first = agent(save_replay=False, min_replay_size=100)
    first.step()
    assert first.state_dict()["replay"] is None
    rest = agent(save_replay=False, min_replay_size=100)
    rest.load_state_dict(on_disk_and_back(first.state_dict()))
    assert rest.not_restored == "the replay was not saved (--no-save-replay) and fills anew"
    assert first.not_restored == ""
    made = rest.learner.updates
    rest.step()
    assert rest.learner.updates - made == (160 - 104) // 4  # the first update once 100 steps are there


def test_a_killed_run_folder_resumes(tmp_path: Path) -> None:
    def folder() -> RunFolder:
        config = {"agent": "NaP"}
        return RunFolder.open(tmp_path / "run", experiment="fig3", scale="demo", run="run", config=config)

    stop = StopRequest()

    def after_one(work: Any) -> None:
        if work.done == 1:
            stop.signal = "SIGTERM"

    with folder() as home:
        assert run_work(agent(NAP), home, device=CPU, stop=stop, on_progress=after_one).reason == "stopped"
    with folder() as home:
        assert run_work(agent(NAP), home, device=CPU).reason == "finished"
        lines = (home.path / "rows.jsonl").read_text().splitlines()
        left = {file.name for file in home.path.glob("checkpoint*")}
        assert left == {"checkpoint.pt"}  # of a finished run one is enough, and without its replay
        assert load(home.path / "checkpoint.pt")["work"]["replay"] is None
    assert sum('"score"' in line for line in lines) == 3


def session(path: Path, kill_at: int, events: Any) -> None:
    run_until_killed(agent(NAP, games=("catch", "catch-mirrored")), path, kill_at)


@pytest.mark.slow
def test_an_agent_killed_again_and_again_ends_with_the_same_rows(tmp_path: Path) -> None:
    """kill -9 within a game, at its end and within the next: replay and games are restored."""
    assert_same_rows_when_killed(session, tmp_path, scores=6)


def test_what_is_new_when_the_game_changes() -> None:
    games = ("catch", "catch-mirrored")
    run = agent(NAP, games=games, intervals=2, frames=320)
    finished_once = [run.step(), run.step()]
    assert len(finished_once) == 2
    weights = {name: p.clone() for name, p in run.learner.online.named_parameters()}
    run._enter(1)
    assert run.replay.count() == 0
    assert all((value == 0).all() for s in run.learner.optimizer.state.values() for value in s.values())
    for name, parameter in run.learner.target.named_parameters():
        assert torch.equal(parameter, weights[name])
        assert torch.equal(dict(run.learner.online.named_parameters())[name], weights[name])
    kept = agent(
        NAP, games=games, intervals=2, frames=320, changes=Changes(new_replay=False, new_target=False)
    )
    kept.step()
    kept.step()
    count = kept.replay.count()
    target = {name: p.clone() for name, p in kept.learner.target.named_parameters()}
    kept._enter(1)
    assert kept.replay.count() > count - 20
    assert all(torch.equal(p, target[name]) for name, p in kept.learner.target.named_parameters())


def test_rows_of_a_sequence_say_where_they_are() -> None:
    rows = finished(agent(games=("catch", "catch-mirrored") * 2, intervals=2, frames=320))
    assert [row["visit"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [row["cycle"] for row in rows] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [row["frames_in_game"] for row in rows] == [160, 320] * 4
    assert [row["frames"] for row in rows] == list(range(160, 1281, 160))


@pytest.mark.slow
def test_it_plays_real_games() -> None:
    """Pong, then Boxing with the same network: all 18 actions, frames of 84×84, four to a step."""
    run = agent(
        NAP,
        games=("pong", "boxing"),
        intervals=2,
        frames=640,
        num_envs=4,
        min_replay_size=60,
        full_actions=True,
    )
    assert run.learner.online.actions == 18
    rows = finished(run)
    assert [row["frames"] for row in rows] == [320, 640, 960, 1280]
    assert rows[-1]["loss"] > 0


@pytest.mark.slow
def test_a_real_game_goes_on_with_new_episodes_and_its_replay() -> None:
    options: dict[str, Any] = {
        "games": ("pong",),
        "frames": 640,
        "intervals": 2,
        "num_envs": 4,
        "min_replay_size": 60,
    }
    first, rest = agent(NAP, **options), agent(NAP, **options)
    first.step()
    stored = on_disk_and_back(first.state_dict())
    rest.load_state_dict(stored)
    assert rest.not_restored.startswith("emulators cannot be saved, so the episodes under way were given up")
    assert checksum(plain(rest.state_dict())) == checksum(
        plain(stored)
    )  # or `nap run` would refuse the checkpoint
    count = rest.replay.count()
    (row,) = finished(rest)
    assert row["frames"] == 640
    assert rest.replay.count() > count
    assert rest.learner.updates == first.learner.updates + 20


def test_games_with_other_actions_need_the_whole_joystick() -> None:
    with pytest.raises(ValueError, match="needs all 18"):
        finished(agent(games=("pong", "boxing"), intervals=1, frames=160, num_envs=2))


def test_without_its_replay_a_game_that_can_be_saved_keeps_its_score() -> None:
    first, rest = (agent(save_replay=False) for _ in range(2))
    first.step()
    rest.load_state_dict(on_disk_and_back(first.state_dict()))
    running = rest.scores.running.copy()
    assert running.any()
    rest.steps = 0
    rest.step()
    assert (rest.scores.running == running).all()


@pytest.mark.parametrize("name", RAINBOWS)
@pytest.mark.parametrize("scale", ["demo", "small", "paper"])
def test_every_scale_asks_for_sound_runs(name: str, scale: str) -> None:
    experiment = experiments([name])[name]
    runs = experiment.runs(experiment.scales[scale])
    assert len({run.name for run in runs}) == len(runs)
    assert {run.config.tags["experiment"] for run in runs} == {experiment.folder}
    assert all(run.config.seed < experiment.scales[scale].seeds for run in runs)


def test_bad_words_are_refused_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--games", "pogn"], "the nearest names are pong"),
        (["--end-at", "0"], "end_at must be between"),
        (["--min-replay-size", "3"], "min_replay_size must be between 112"),
        (["--arms"], "name an arm, a method or a game"),
    ):
        assert main(["run", "fig3", "--out", str(tmp_path), *words]) == 2, words
        assert said in " ".join(capsys.readouterr().err.split()), words
    assert not list(tmp_path.rglob("rows.jsonl"))


@pytest.mark.parametrize("scale", ["demo", "small", "paper"])
def test_the_suite_has_the_runs_of_figure_3(scale: str) -> None:
    found = experiments(["fig3", "fig5-suite"])
    few, many = ({r.name: r.config for r in e.runs(e.scales[scale])} for e in found.values())
    assert few.items() <= many.items()
    assert found["fig3"].folder == found["fig5-suite"].folder


def test_the_paper_s_settings_are_dqn_zoo_s() -> None:
    config = experiments(["fig5-suite"])["fig5-suite"].scales["paper"]
    assert len(config.games) == 57
    assert (config.frames, config.replay_size, config.batch_size, config.n_steps) == (
        200_000_000,
        1_000_000,
        32,
        3,
    )
    assert config.steps_per_update * 4 == 16  # frames
    assert config.target_every * 16 == 32_000  # frames
    assert config.adam_eps == 0.005 / 32


def test_seeds_can_share_a_run() -> None:
    """Runs of three seeds and one of the last; an agent is the same, however many are in its run."""
    experiment = experiments(["fig3"])["fig3"]
    config = replace(experiment.scales["demo"], games=("catch",), arms=("NaP",), seeds=4)
    alone, shared = experiment.runs(config), experiment.runs(replace(config, seeds_per_run=3))
    assert [run.name for run in shared] == ["catch-nap-seeds-0-2", "catch-nap-seed-3"]
    assert [list(run.config.seeds) for run in shared] == [[0, 1, 2], [3]]
    assert shared[0].config.agents() == [run.config for run in alone[:3]]
    assert shared[1].config == alone[3].config
    assert len({run.tuned_as for run in (*alone, *shared)}) == 1


@pytest.mark.slow
def test_a_demo_run_ends_with_rows_for_its_claims() -> None:
    experiment = experiments(["fig6"])["fig6"]
    config = replace(experiment.scales["demo"], games=("catch",), frames=800, seeds=1, ends=(0.5,))
    (run,) = experiment.runs(config)
    work = run.start(CPU)
    assert isinstance(work, RainbowWork)
    rows = finished(work)
    assert rows[0]["arm"] == "NaP, ends at 0.5"
    assert rows[0]["end_at"] == 0.5
    assert rows[-1]["learning_rate"] == pytest.approx(1e-6)
