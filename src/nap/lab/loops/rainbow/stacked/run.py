"""Several agents in one process: K ordinary runs, step by step together, whose updates and turns are shared.

Each run plays its own games, and has its own random numbers, scores, schedule, rows and checkpoint. The games
of all agents play at once, while the device learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from nap.lab.loops.common.cuda_graph import graph_and_compile
from nap.lab.loops.rainbow.actor import Actor
from nap.lab.loops.rainbow.replay import Outcome, Replay
from nap.lab.loops.rainbow.run import WORTH_COMPILING, RainbowWork
from nap.lab.loops.rainbow.settings import AgentRun
from nap.lab.loops.rainbow.stacked.blocks import share_
from nap.lab.loops.rainbow.stacked.learner import StackedLearner
from nap.lab.machine import cores
from nap.lab.runner.work import NotFinite

ALIKE = ("games", "frames", "intervals", "changes", "full_actions")  # what agents of a stack have in common


class StackedRainbowWork:
    """The `Work` of K agents, whose rows are those of K runs of one agent."""

    unit = "chunks"

    def __init__(
        self,
        configs: Sequence[AgentRun],
        device: torch.device,
        *,
        graph: bool | None = None,
        compile_: bool | None = None,
        threads: int = 0,
    ):
        _check_alike(configs)
        self.device = device
        replays: list[Replay] = []

        def replay_of_next(*sizes: Any, **options: Any) -> Replay:
            if not replays:
                replays.append(Replay(*sizes, agents=len(configs), **options))
            return replays[0].agent(len(self.runs))

        self.runs: list[RainbowWork] = []
        alone: dict[str, Any] = {"graph": False, "compile_": False, "make_replay": replay_of_next}
        for config in configs:
            run = RainbowWork(config, device, threads=threads or -(-cores() // len(configs)), **alone)
            self.runs.append(run)
        (self.replay,), first = replays, self.runs[0]
        self.total, self.steps_per_unit = first.total, first.steps_per_unit
        updates = self.total * self.steps_per_unit
        graph, compile_ = graph_and_compile(device, updates, WORTH_COMPILING, graph=graph, compile_=compile_)
        options: dict[str, Any] = {"graph": graph, "compile_": compile_}
        self.learner = StackedLearner([run.learner for run in self.runs], self.replay, **options)
        actors = [run.actor for run in self.runs]
        outcomes = [actor.outcome for actor in actors]
        outcome = {f.name: share_([getattr(one, f.name) for one in outcomes]) for f in fields(Outcome)}
        self.actor = Actor(
            self.replay,
            self.learner.greedy_actions,
            first.learner.online.noise_size,
            self.learner.generators,
            shared=(share_([actor.actions for actor in actors]), Outcome(**outcome)),
            **options,
        )

    @property
    def done(self) -> int:
        """Chunks that all agents have behind them."""
        return self.runs[0].done

    def step(self) -> list[dict[str, Any]]:
        for run in self.runs:
            run.begin_chunk()
        self.actor.send()
        for step in range(self.runs[0].steps):
            schedules, importance_exponents = zip(
                *(run.rate_and_importance_exponent(step) for run in self.runs), strict=True
            )
            due = [run.updates_due() for run in self.runs]
            for _ in range(due[0]):
                rates = [rate(self.learner.updates) for rate in schedules]
                self.learner.update(rates, importance_exponents[0])
            for run, actions in zip(self.runs, self.actor.chosen(), strict=True):
                run.games.send(actions)
            for run in self.runs:
                run.receive()
            self.actor.turn()
        rows = []
        for run in self.runs:
            try:
                rows += run.end_chunk()
            except NotFinite as error:
                raise NotFinite(f"seed {run.config.seed}: {error}") from error
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {"agents": [run.state_dict() for run in self.runs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for run, saved in zip(self.runs, state["agents"], strict=True):
            run.load_state_dict(saved)

    @property
    def not_restored(self) -> str:
        return self.runs[0].not_restored


def _check_alike(configs: Sequence[AgentRun]) -> None:
    first = configs[0]
    for config in configs[1:]:
        differ = [name for name in ALIKE if getattr(config, name) != getattr(first, name)]
        mine, its = vars(first.settings), vars(config.settings)
        differ += [name for name in mine if mine[name] != its[name] and name != "learning_rate"]
        if differ:
            raise ValueError(
                f"agents of one stack differ in {', '.join(differ)}; they may differ in seed, learning rate "
                "and variant: stack the others apart"
            )
