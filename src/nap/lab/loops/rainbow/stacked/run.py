"""Several agents in one process: K ordinary runs, step by step together, whose updates and turns are shared.

Each run plays its own games, and has its own random numbers, scores, schedule, rows and checkpoint. The games
of all agents play at once, while the device learns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from nap.lab.loops.common.cuda_graph import capture, compile_static
from nap.lab.loops.rainbow.actor import OnHost
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
        self.device, cuda = device, device.type == "cuda"
        graph = cuda if graph is None else graph
        memories: list[Replay] = []

        def memory(*sizes: Any, **options: Any) -> Replay:
            if not memories:
                memories.append(Replay(*sizes, agents=len(configs), **options))
            return memories[0].agent(len(self.runs))

        threads = threads or -(-cores() // len(configs))
        self.runs: list[RainbowWork] = []
        for config in configs:
            run = RainbowWork(config, device, graph=False, compile_=False, threads=threads, memory=memory)
            self.runs.append(run)
        (self.replay,) = memories
        first = self.runs[0]
        if compile_ is None:
            compile_ = cuda and first.total * first.steps_per_unit >= WORTH_COMPILING
        learners = [run.learner for run in self.runs]
        self.learner = StackedLearner(learners, self.replay, graph=graph, compile_=compile_)
        self.actor = StackedActor(self.runs, self.learner, graph=graph, compile_=compile_)
        self.total, self.steps_per_unit = first.total, first.steps_per_unit

    @property
    def done(self) -> int:
        """Chunks that all agents have behind them."""
        return self.runs[0].done

    def step(self) -> list[dict[str, Any]]:
        for run in self.runs:
            run.begin_chunk()
        self.actor.on_host.send()
        for step in range(self.runs[0].steps):
            schedules, importance_exponents = zip(
                *(run.rate_and_importance_exponent(step) for run in self.runs), strict=True
            )
            due = [run.updates_due() for run in self.runs]
            for _ in range(due[0]):
                rates = [rate(self.learner.updates) for rate in schedules]
                self.learner.update(rates, importance_exponents[0])
            for run, actions in zip(self.runs, self.actor.on_host.wait(), strict=True):
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
        """What `load_state_dict` could not go on with, in words."""
        return self.runs[0].not_restored


class StackedActor:
    """A turn of all agents: what their games did is stored, and their next actions chosen, in one graph."""

    def __init__(
        self,
        runs: Sequence[RainbowWork],
        learner: StackedLearner,
        *,
        graph: bool = False,
        compile_: bool = False,
    ):
        self.learner, self.replay, actors = learner, learner.replay, [run.actor for run in runs]
        self.actions = share_([actor.actions for actor in actors])
        names = [field.name for field in fields(Outcome)]
        self.outcome = Outcome(**{n: share_([getattr(actor.outcome, n) for actor in actors]) for n in names})
        self._v = torch.zeros(
            *self.actions.shape, learner.learners[0].online.noise_size, device=learner.device
        )
        self.on_host = OnHost(self.actions)
        self._best = compile_static(self.best) if compile_ else self.best
        self._turn: Callable[[], None] = self._take_in
        if graph:
            changing = [*self.replay.small_tensors, self.actions]
            self._turn = capture(self._take_in, changing, learner.generators)

    def turn(self) -> None:
        """Store `outcome`, what the games did with `actions`, and put the next actions in their place."""
        self._turn()
        self.on_host.send()

    @torch.no_grad()
    def best(self, v: Tensor) -> Tensor:
        """The best actions (K, N) for the newest states, by mean return; `v` draws the noise."""
        return self.learner.best(self.replay.newest(), v)

    @torch.no_grad()
    def _take_in(self) -> None:
        self.replay.add_(self.actions, self.outcome)
        for k, generator in enumerate(self.learner.generators):
            torch.rand(self._v.shape[1:], generator=generator, out=self._v[k])
        self.actions.copy_(self._best(self._v))


def _check_alike(configs: Sequence[AgentRun]) -> None:
    """Raise where agents cannot play and learn step by step together."""
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
