"""Small Rainbow agents for the built-in game, for tests."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nap.lab.loops.rainbow.games import Games, Step
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import RAINBOW, AgentConfig, AgentRun, RainbowArm
from nap.lab.runner import RunFolder, run_work
from nap.lab.runner.work import Work
from sessions import start

CPU = torch.device("cpu")
TINY = AgentConfig(
    num_envs=8, replay_size=2_000, min_replay_size=64, steps_per_update=4, target_every=10, batch_size=16,
    hidden=32, atoms=21, v_max=4.0, discount=0.95, learning_rate=1e-3,
)  # fmt: skip


def agent(
    variant: RainbowArm = RAINBOW, *, games: tuple[str, ...] = ("catch",), **changes: Any
) -> RainbowWork:
    """A run of 3 intervals a game; `changes` are of the run or of the agent's settings."""
    own = {name: changes.pop(name) for name in list(changes) if name in vars(TINY)}
    options = {"frames": 480, "intervals": 3, "seed": 0, **changes}
    return RainbowWork(AgentRun(variant, replace(TINY, **own), games, **options), CPU)


def finished(run: Work) -> list[dict[str, Any]]:
    """The rows of all that is left of a run, those of layers left out."""
    rows: list[dict[str, Any]] = []
    while run.done < run.total:
        rows += [row for row in run.step() if "kind" not in row]
    return rows


def scores_until(run: Work, enough: float) -> list[float]:
    """The score of each interval, up to the first that is high enough."""
    scores: list[float] = []
    while run.done < run.total and (not scores or scores[-1] < enough):
        scores += [row["score"] for row in run.step() if "kind" not in row]
    return scores


def run_until_killed(work: Work, path: Path, kill_at: int) -> None:
    """Run, with a checkpoint after every unit, and be killed after one of them; ends the process."""

    def killed(work: Work) -> None:
        if work.done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with RunFolder.open(path, experiment="fig3", scale="demo", run="run", config={"agent": "NaP"}) as home:
        run_work(work, home, device=CPU, checkpoint_every_seconds=0, save_share=1, on_progress=killed)
    os._exit(0)


def assert_same_rows_when_killed(session: Callable[..., None], folder: Path, *, scores: int) -> None:
    """A `session`, killed after units 1, 3 and 4 and resumed, ends with the rows of an unbroken one."""
    for name, kills in (("unbroken", [-1]), ("killed", [1, 3, 4, -1])):
        for kill_at in kills:
            process, events = start(session, folder / name, kill_at)
            process.join()
            assert process.exitcode == (-signal.SIGKILL if kill_at > 0 else 0)
            events.close()
    one, other = ((folder / name / "rows.jsonl").read_text() for name in ("unbroken", "killed"))
    assert one == other
    assert one.count('"score"') == scores


def on_disk_and_back(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def play(games: Games, actions: np.ndarray) -> list[Step]:
    steps = []
    for each in actions:
        games.send(each)
        steps.append(games.recv())
    return steps
