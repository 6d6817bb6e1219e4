"""Variants of Rainbow, and the settings of an agent and of its runs: DQN Zoo's unless changed.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from nap.validation import check_range as check

LAST_RATE = 1e-6  # §4.2: where schedules end
FIRST_RATE, WARM_UP = 1e-8, 1000  # Appendix B.2: the cosine's warm-up


@dataclass(frozen=True)
class RainbowArm:
    """One arm of the Rainbow experiments."""

    name: str
    norm: bool = False
    project: bool = False
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    end_at: float = 0.5  # fraction of training at which the line ends
    affine: Literal["free", "joint", "decay"] = "free"  # scales and offsets, where weights are projected
    output: Literal["project", "free"] = "project"
    decay: float = 1e-3  # how far scales and offsets are pulled back at each update, if they are
    noise: Literal["joint", "separate", "free"] = "separate"  # radii of noisy layers' means and noise
    last_share: float = 0.0  # of the peak rate: where schedules end; 0: at the paper's rate
    project_every_updates: int = 1
    offsets: bool = True  # of the inserted norms
    weight_decay: float = 0.0  # AdamW's, of weights; biases, scales and offsets have none

    def rate(self, peak: float, updates: int) -> Callable[[int], float]:
        """The learning rate of each update, counted from 0, in a training of so many."""
        from nap.schedules import linear_value, warmup_cosine_value  # here: they come with torch

        last = peak * self.last_share if self.last_share else LAST_RATE
        if self.schedule == "linear":
            value = partial(linear_value, total_steps=updates, end_value=last, end_at=self.end_at)
        elif self.schedule == "cosine":
            value = partial(
                warmup_cosine_value,
                warmup_steps=min(WARM_UP, updates // 10),
                total_steps=updates,
                init_value=FIRST_RATE,
                end_value=last,
            )
        else:
            return lambda update: peak
        return lambda update: value(update, peak)


RAINBOW = RainbowArm("Rainbow")
LAYER_NORM = RainbowArm("LayerNorm", norm=True)
NAP = RainbowArm("NaP", norm=True, project=True)
NAP_LINEAR = RainbowArm("NaP + schedule", norm=True, project=True, schedule="linear")
FOUR = (RAINBOW, LAYER_NORM, NAP, NAP_LINEAR)


@dataclass(frozen=True)
class AgentConfig:
    """How the agent plays and learns. A step is one action, four frames of an Atari game."""

    num_envs: int = 64
    """parallel environments; 1 gives DQN Zoo's order of events"""
    replay_size: int = 1_000_000
    """replay capacity, in transitions"""
    min_replay_size: int = 20_000
    """transitions in the replay before learning begins"""
    steps_per_update: int = 4
    """environment steps per update"""
    target_every: int = 2_000
    """updates between two copies of the online network to the target network"""
    batch_size: int = 32
    """transitions per update"""
    learning_rate: float = 6.25e-5
    """Adam's learning rate; the peak, where there is a schedule"""
    adam_eps: float = 0.005 / 32
    """Adam's epsilon"""
    clip: float = 10.0
    """largest gradient norm, of all parameters together"""
    discount: float = 0.99
    """discount factor of a step"""
    n_steps: int = 3
    """n of the n-step returns"""
    priority_exponent: float = 0.5
    """exponent of priorities in prioritized replay (alpha)"""
    importance_exponent: float = 0.4
    """exponent of importance-sampling weights at the start (beta); it rises to 1"""
    hidden: int = 512
    """hidden units of the value stream and of the advantage stream"""
    atoms: int = 51
    """atoms of the return distributions (C51)"""
    v_max: float = 10.0
    """largest return that they represent; the smallest is its negative"""
    stack: int = 4
    """frames stacked in a state"""
    eval_frames: int = 0
    """frames of evaluation without learning, for each row's score; 0: scores of training"""
    save_replay: bool = True
    """save the replay in checkpoints (7 GB at 1M frames); else it refills after a resume"""

    def __post_init__(self) -> None:
        counts = ("num_envs", "steps_per_update", "target_every", "batch_size", "n_steps", "hidden", "stack")
        for name in counts:
            check(self, name, getattr(self, name), 1)
        check(self, "atoms", self.atoms, 2)
        check(self, "min_replay_size", self.min_replay_size, self.num_envs * self.n_steps, self.replay_size)
        check(self, "learning_rate", self.learning_rate, 1e-12, 1.0)
        check(self, "adam_eps", self.adam_eps, 1e-12, 1.0)
        check(self, "clip", self.clip, 1e-6)
        check(self, "v_max", self.v_max, 1e-6)
        check(self, "eval_frames", self.eval_frames, 0)
        for name in ("discount", "priority_exponent", "importance_exponent"):
            check(self, name, getattr(self, name), 0, 1)
        least = self.num_envs * 2 * (self.stack + self.n_steps)
        check(self, "replay_size", self.replay_size, least)


@dataclass(frozen=True)
class Changes:
    """What is made new when the game changes, besides optimizer and schedule."""

    new_replay: bool = True
    """empty the replay"""
    new_target: bool = True
    """copy the online network to the target network"""


@dataclass(frozen=True)
class AgentRun:
    """All that determines the rows of one agent, or of a few that differ in their seeds alone."""

    variant: RainbowArm
    settings: AgentConfig
    games: tuple[str, ...]  # played one after the other
    frames: int  # of each of them
    intervals: int  # into which those are divided; a row each
    seed: int
    changes: Changes = Changes()
    full_actions: bool = False  # all 18, whatever the game needs
    tags: Mapping[str, Any] = field(default_factory=dict)  # more fields of each row
    seeds_per_run: int = 1  # agents, of this seed and the next ones, that learn in one update

    def __post_init__(self) -> None:
        check(self, "frames", self.frames, 1)
        check(self, "intervals", self.intervals, 1)
        check(self, "seeds_per_run", self.seeds_per_run, 1)

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds_per_run)

    def agents(self) -> list[AgentRun]:
        return [replace(self, seed=seed, seeds_per_run=1) for seed in self.seeds]
