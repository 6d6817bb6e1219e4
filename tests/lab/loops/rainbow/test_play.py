"""`nap play`: films of an agent before and after its training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nap.lab.cli.main import main
from nap.lab.experiments.play import agent_of, episode, picture, play, small
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import NAP
from nap.lab.loops.rainbow.stacked.run import StackedRainbowWork
from nap.lab.report import command as report
from nap.lab.report.films import films_of
from nap.lab.runner import RunFolder, run_work
from tiny_agents import CPU, agent

JOINT = replace(NAP, noise="joint", project_every_updates=2)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., tuple[Path, RainbowWork]]:
    def run(**options: object) -> tuple[Path, RainbowWork]:
        work = agent(JOINT, **options)  # type: ignore[arg-type]
        about = {"experiment": "fig3", "scale": "demo", "run": "run", "config": work.config}
        with RunFolder.open(tmp_path / "run", **about) as home:  # type: ignore[arg-type]
            run_work(work, home, device=CPU)
        return tmp_path / "run", work

    return run


def test_two_films_of_the_same_episode(
    made: Callable[..., tuple[Path, RainbowWork]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: the networks that the run began with; after: those that it ended with."""
    folder, work = made()
    assert main(["play", str(folder), "--steps", "40", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    begun = agent(JOINT)
    for name, run in (("before", begun), ("after", work)):
        frames, score = episode(run.learner, "catch", full_actions=False, seed=3, steps=40)
        assert f"{folder / name}.gif: score {score:g}\n" in out
        with Image.open(folder / f"{name}.gif") as film:
            assert film.size == (168, 168)
            assert 2 <= getattr(film, "n_frames", 0) <= len(frames)  # frames that do not differ are one
            film.seek(0)
            np.testing.assert_array_equal(np.asarray(film.convert("RGB")), picture(frames[0]))


def test_an_agent_is_the_one_that_its_folder_says(made: Callable[..., tuple[Path, RainbowWork]]) -> None:
    folder, work = made()
    assert asdict(agent_of(folder)) == asdict(work.config)
    first = small(work.config).learner.online.state_dict()
    for name, value in agent(JOINT).learner.online.state_dict().items():
        assert torch.equal(first[name], value), name


def test_of_a_sequence_any_game_can_be_played(made: Callable[..., tuple[Path, RainbowWork]]) -> None:
    folder, _ = made(games=("catch", "catch-mirrored"), intervals=2, frames=160)
    both = [play(folder, game=game, steps=30) for game in ("catch", "catch-mirrored")]
    assert [file.name for file, _ in both[1]] == ["before.gif", "after.gif"]
    with pytest.raises(ValueError, match="has played catch, catch-mirrored, not 'pong'"):
        play(folder, game="pong")


def test_of_several_agents_in_one_run_the_first_plays(tmp_path: Path) -> None:
    what = replace(agent(JOINT).config, seeds_per_run=2)
    work = StackedRainbowWork(what.agents(), CPU)
    about = {"experiment": "fig3", "scale": "demo", "run": "run", "config": what}
    with RunFolder.open(tmp_path / "run", **about) as home:  # type: ignore[arg-type]
        run_work(work, home, device=CPU)
    _, (_, score) = play(tmp_path / "run", steps=40, seed=3)
    first = work.runs[0].learner
    assert score == episode(first, "catch", full_actions=False, seed=3, steps=40)[1]


def test_the_report_embeds_the_films(made: Callable[..., tuple[Path, RainbowWork]]) -> None:
    folder, _ = made()
    assert films_of(folder) == []
    (_, before), (_, after) = play(folder, steps=40)
    assert [film.caption for film in films_of(folder)] == [
        f"catch, {when} training: score {score:g}" for when, score in (("before", before), ("after", after))
    ]
    page = report(folder.parent).read_text("utf-8")
    assert page.count("data:image/gif;base64,R0lGOD") == 2
    (folder / "after.gif").unlink()
    assert [film.file.name for film in films_of(folder)] == ["before.gif"]
    (folder / "films.json").write_text("[{]")
    assert films_of(folder) == []


def test_what_is_no_agent_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"not the folder of a run: it has no config\.json"):
        play(tmp_path)
    (tmp_path / "config.json").write_text('{"config": {"width": 64}}')
    with pytest.raises(ValueError, match="not a run of an agent that plays games"):
        play(tmp_path)
    assert main(["play", str(tmp_path / "none")]) == 2
    assert "no folder" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--steps 0"):
        play(tmp_path, steps=0)


def test_an_episode_is_filmed_to_its_end() -> None:
    """Catch: at side 8 each ball falls for 8 steps; three lives."""
    frames, score = episode(agent().learner, "catch", full_actions=False, seed=0, steps=500)
    assert (len(frames) - 1) % 8 == 7
    assert -3 <= score <= 10


def test_channels_have_colours() -> None:
    board = np.zeros((4, 10, 10), np.uint8)
    board[0, 0, 0] = board[1, 0, 0] = board[2, 9, 9] = 255
    shown = picture(board)
    assert shown.shape == (170, 170, 3)
    assert shown[0, 0].tolist() == [230, 159, 0]  # of two things the later one
    assert shown[-1, -1].tolist() == [0, 158, 115]
    assert not shown[80, 80].any()
