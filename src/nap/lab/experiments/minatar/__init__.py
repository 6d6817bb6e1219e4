"""Figures 3 and 5 (right) in MinAtar: the four Rainbow agents where games are small and seeds can be many."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments import fig3
from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.loops.rainbow.games import MINATAR

BREAKOUT = "minatar/breakout"
PAPER = fig3.Fig3Config(
    games=MINATAR,
    frames=5_000_000,
    intervals=50,
    seeds=10,
    seeds_per_run=10,
    num_envs=16,
    # As in Obando-Ceron & Castro (2021), who tuned Rainbow for MinAtar, less Adam's epsilon, DQN Zoo's here.
    replay_size=100_000,
    min_replay_size=1_000,
    target_every=1_000,
    learning_rate=2.5e-4,
    hidden=128,
    stack=1,  # boards show where things are going
    last_share=0.016,  # the paper's 1e-6 of 6.25e-5: here peaks differ, for they are tuned
    noise="joint",
    tuned_on=BREAKOUT,
)
SMALL = replace(PAPER, frames=400_000, intervals=10)  # LayerNorm's effective rate then falls by half
DEMO = replace(
    PAPER,
    games=(BREAKOUT,),
    frames=10_000,
    intervals=10,
    replay_size=20_000,
    min_replay_size=480,
    target_every=50,
    steps_per_update=8,
    learning_rate=4e-3,
    hidden=32,
    atoms=21,
    v_max=5.0,
    seeds=3,
    seeds_per_run=1,
)
TUNING = Tuning(metric="score", rates=(1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3), changes={"intervals": 4})

EXPERIMENT = Experiment(
    name="minatar",
    order=9,
    package=__name__,
    like=fig3.EXPERIMENT,
    title="implicit and explicit learning-rate schedules in MinAtar's games (Figures 3 and 5, right)",
    shows="Stated for Atari: with fixed norms and a constant rate Rainbow learns worse than with LayerNorm "
    "alone; with a linear schedule it scores best.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    tuning=TUNING,
)
