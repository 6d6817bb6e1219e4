"""The run of an agent, chunk by chunk; one game after another where there are several.

Everything random is a function of (seed, chunk) and all else is in the state, so a resumed run equals an
unbroken one. Only Atari's emulators cannot be saved: they begin new episodes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch

from nap.lab.loops.common.cuda_graph import graph_and_compile
from nap.lab.loops.common.optimizer import reset_
from nap.lab.loops.common.work import Row, seeded
from nap.lab.loops.rainbow import diagnostics
from nap.lab.loops.rainbow.actor import Actor
from nap.lab.loops.rainbow.evaluation import NUM_EVAL_ENVS, Scoreboard, evaluate
from nap.lab.loops.rainbow.games import Games, make
from nap.lab.loops.rainbow.learner import Learner, build
from nap.lab.loops.rainbow.replay import Replay
from nap.lab.loops.rainbow.settings import AgentRun
from nap.lab.models.rainbow_net import RainbowNet

PROBE = 256  # states that units and rank are measured on
WORTH_COMPILING = 50_000  # updates: compiling takes about 40 s and saves about 0.6 ms of each
CHUNK_STEPS = 1024  # steps of all environments together, at most, between two checkpoints


class RainbowWork:
    """The `Work` of one agent: `step` is a chunk of play; an interval of one or more chunks ends in a row."""

    unit = "chunks"

    def __init__(
        self,
        config: AgentRun,
        device: torch.device,
        *,
        graph: bool | None = None,
        compile_: bool | None = None,
        threads: int = 0,
        make_replay: Callable[..., Replay] = Replay,
    ):
        self.config, self.device, self.threads = config, device, threads
        settings, self.variant = config.settings, config.variant
        num_envs = settings.num_envs
        self.games = self._make(config.games[0], num_envs)
        shape = self.games.shape
        interval_steps = config.frames / (config.intervals * num_envs * self.games.frames_per_step)
        self.chunks_per_interval = max(1, math.ceil(interval_steps * num_envs / CHUNK_STEPS))
        self.steps = max(
            1, round(interval_steps / self.chunks_per_interval)
        )  # of each environment in a chunk
        self.chunks_per_game = config.intervals * self.chunks_per_interval
        self.total, self.done = len(config.games) * self.chunks_per_game, 0
        self.steps_per_unit = max(1, self.steps * num_envs // settings.steps_per_update)
        self.replay = make_replay(
            num_envs,
            settings.replay_size // num_envs,
            shape,
            stack=settings.stack,
            steps=settings.n_steps,
            priority_exponent=settings.priority_exponent,
            device=device,
        )

        def make_net() -> RainbowNet:
            sizes: dict[str, Any] = {
                "stack": settings.stack,
                "hidden": settings.hidden,
                "atoms": settings.atoms,
            }
            net = RainbowNet(self.games.actions, shape, **sizes).to(device)
            if device.type == "cuda":  # convolutions in TF32 are fastest so
                net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            return net

        with seeded(_number("start", config.seed)):
            states = torch.randint(0, 256, (2, settings.stack, *shape)).float().to(device)
            online, projector = build(self.variant, make_net, states)
        updates = self.total * self.steps_per_unit
        graph, compile_ = graph_and_compile(device, updates, WORTH_COMPILING, graph=graph, compile_=compile_)
        options: dict[str, Any] = {"graph": graph, "compile_": compile_}
        self.learner = Learner(online, projector, self.variant, self.replay, settings, **options)
        self.actor = Actor(
            self.replay, self.learner.greedy_actions, online.noise_size, self.learner.generators, **options
        )
        self.scores = Scoreboard.of(num_envs)
        self.stored = self.owed = 0
        self._no_replay = self._no_episodes = False  # what a resume could not restore

    def step(self) -> list[Row]:
        self.begin_chunk()
        for step in range(self.steps):
            rate, importance_exponent = self.rate_and_importance_exponent(step)
            for _ in range(self.updates_due()):
                self.learner.update(rate(self.learner.updates), importance_exponent)
            self.games.send(self.actor.chosen())  # chosen before these updates, which go on meanwhile
            self.receive()
            self.actor.turn()
        return self.end_chunk()

    def begin_chunk(self) -> None:
        """Seed the chunk's random numbers; start a game, or restart one that could not be restored."""
        visit, chunk = divmod(self.done, self.chunks_per_game)
        self.learner.generator.manual_seed(_number("play", self.config.seed, self.done))
        if self._no_replay:
            self.replay.clear_()  # refilled before learning continues
            self.stored = 0
        if chunk == 0:
            self._enter(visit)
        elif self._no_replay or self._no_episodes:
            if self._no_episodes:
                self.scores.running[:] = 0
            self._begin()
        self._no_replay = self._no_episodes = False

    def rate_and_importance_exponent(self, step: int) -> tuple[Callable[[int], float], float]:
        """The learning-rate schedule, and the exponent of importance weights at a step of this chunk."""
        visit, chunk = divmod(self.done, self.chunks_per_game)
        settings = self.config.settings
        progress = (chunk * self.steps + step) / (self.chunks_per_game * self.steps)
        rate = self.variant.rate(settings.learning_rate, self.updates_in(visit))
        return rate, settings.importance_exponent + progress * (1 - settings.importance_exponent)

    def updates_due(self) -> int:
        """How many updates a step of all environments brings; none before `min_replay_size`."""
        settings = self.config.settings
        if self.stored < settings.min_replay_size:
            return 0
        due, self.owed = divmod(self.owed + settings.num_envs, settings.steps_per_update)
        return due

    def receive(self) -> None:
        step = self.games.recv()
        self.scores.note(step)
        self.actor.receive(step, self.config.settings.discount)
        self.stored += self.config.settings.num_envs

    def end_chunk(self) -> list[Row]:
        """The rows of an interval that is over; raises where an update was not finite."""
        visit, chunk = divmod(self.done, self.chunks_per_game)
        self.learner.monitor.check()
        self.done += 1
        interval, rest = divmod(chunk + 1, self.chunks_per_interval)
        return [] if rest else self._rows(visit, interval)

    def updates_in(self, visit: int) -> int:
        """How many updates this visit to a game will bring."""
        settings, fills = self.config.settings, visit == 0 or self.config.changes.new_replay
        steps = self.steps * self.chunks_per_game * settings.num_envs - (
            settings.min_replay_size if fills else 0
        )
        return max(1, steps // settings.steps_per_update)

    def state_dict(self) -> dict[str, Any]:
        between_games = self.done % self.chunks_per_game == 0
        keeps_replay = self.config.settings.save_replay and self.done < self.total  # not at the end
        return {
            "done": self.done,
            "learner": self.learner.state_dict(),
            "actor": self.actor.state_dict(),
            "replay": self.replay.state_dict() if keeps_replay else None,
            "games": None if between_games else self.games.state_dict(),
            "running": None if between_games else torch.from_numpy(self.scores.running.copy()),
            "finished": list(self.scores.finished),
            "stored": self.stored,
            "owed": self.owed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done, self.stored, self.owed = state["done"], state["stored"], state["owed"]
        self.learner.load_state_dict(state["learner"])
        self.actor.load_state_dict(state["actor"])
        self.scores.finished = list(state["finished"])
        if state["replay"] is not None:
            self.replay.load_state_dict(state["replay"])
        self._no_replay = state["replay"] is None
        if state["games"] is None:
            return  # the next step enters a game
        visit = self.done // self.chunks_per_game
        if visit > 0:
            self._play(self.config.games[visit])
        self.games.load_state_dict(state["games"])
        self.scores.running = state["running"].numpy().copy()
        self._no_episodes = not self.games.saves_exactly

    @property
    def not_restored(self) -> str:
        """What `load_state_dict` could not restore, for people; "" where it restored everything."""
        lost = []
        if self._no_episodes:
            lost.append("emulators cannot be saved, so the episodes under way were given up for new ones")
        if self._no_replay and self.done < self.total:
            lost.append("the replay was not saved (--no-save-replay) and fills anew")
        return "; ".join(lost)

    def _make(self, game: str, num_envs: int) -> Games:
        return make(game, num_envs, full_actions=self.config.full_actions, threads=self.threads)

    def _play(self, game: str) -> None:
        self.games.close()
        self.games = self._make(game, self.config.settings.num_envs)
        if self.games.actions != self.learner.online.actions:
            raise ValueError(
                f"{game} has {self.games.actions} actions, and the agent {self.learner.online.actions}; "
                "one agent for several games needs all 18 (full_actions)"
            )

    def _enter(self, visit: int) -> None:
        """Begin the game of this visit; after the first, with a new optimizer and the other changes."""
        if visit > 0:
            self._play(self.config.games[visit])
            reset_(self.learner.optimizer)
            self.learner.updates = 0
            if self.config.changes.new_target:
                self.learner.copy_to_target_()
            if self.config.changes.new_replay:
                self.replay.clear_()
                self.stored = 0
        self.owed = 0
        self.scores = Scoreboard.of(self.config.settings.num_envs)
        self.games.reset(_number("game", self.config.seed, visit))
        self._begin()

    def _begin(self) -> None:
        self.replay.begin_(torch.from_numpy(self.games.frames).to(self.device))
        self.actor.begin()

    def _evaluate(self, visit: int, interval: int) -> dict[str, Any]:
        games = self._make(self.config.games[visit], min(NUM_EVAL_ENVS, self.config.settings.num_envs))
        try:
            return evaluate(
                self.learner.online,
                self.learner.atoms,
                games,
                self.config.settings.eval_frames,
                stack=self.config.settings.stack,
                seed=_number("evaluation", self.config.seed, visit, interval),
            )
        finally:
            games.close()

    def _rows(self, visit: int, interval: int) -> list[Row]:
        config = self.config
        chunk_frames = self.steps * config.settings.num_envs * self.games.frames_per_step
        per_interval = self.chunks_per_interval * chunk_frames
        common = {"arm": self.variant.name, **config.tags, "game": config.games[visit], "seed": config.seed}
        common |= {"frames": (visit * config.intervals + interval) * per_interval}
        if len(config.games) > 1 or "cycle" in common:
            cycle = config.games[:visit].count(config.games[visit]) + 1
            place = {"visit": visit, "cycle": cycle, "frames_in_game": interval * per_interval}
            common = place | common  # a fresh agent's visit is the one its tags say
        row = common | self.scores.read() | self.learner.monitor.read()
        if config.settings.eval_frames:
            row |= {"training_score": row["score"]} | self._evaluate(visit, interval)
        row["learning_rate"] = self.learner.rate.item()
        if self.stored >= config.settings.min_replay_size:
            row |= diagnostics.numbers(self.learner, self.replay.sample(PROBE, self.learner.generator).states)
        layers = [common | {"kind": "layer"} | layer for layer in diagnostics.by_layer(self.learner)]
        return [row, *layers]


def _number(*key: object) -> int:
    """A seed that is a function of its key alone."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")
