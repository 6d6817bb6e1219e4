"""Frames per second of a Rainbow agent end to end, and of its parts: games, turn, update.

    python benchmarks/rainbow.py --device cuda                     one agent, each variant in turn
    python benchmarks/rainbow.py --device cuda --agents 4          four at once, a process each
    python benchmarks/rainbow.py --num-envs 8 --replay 20000          on this machine's CPU

DQN Zoo's algorithm and replay ratio: one update on 32 transitions for 16 frames. "games" is the emulators
alone with random actions; "turn" stores a step of all games and acts; "update" is one update. "limit" is the
frames per second that each part would allow if it were alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nap.lab.loops.rainbow.games import make
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import FOUR, AgentConfig, AgentRun, RainbowArm

VARIANTS = {variant.name: variant for variant in FOUR}


def seconds_of(work: Callable[[], object], device: torch.device, *, at_least: float = 1.0) -> float:
    """Seconds of one call, mean over as many as fit."""
    work()
    calls, began = 0, _now(device)
    while True:
        for _ in range(5):
            work()
        calls += 5
        if (passed := _now(device) - began) >= at_least:
            return passed / calls


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def built(variant: RainbowArm, options: argparse.Namespace, seed: int = 0) -> RainbowWork:
    settings = AgentConfig(
        num_envs=options.num_envs,
        replay_size=options.replay,
        min_replay_size=min(20_000, options.replay // 4),
    )
    what = AgentRun(variant, settings, (options.game,), frames=200_000_000, intervals=200, seed=seed)
    device = torch.device(options.device)
    return RainbowWork(what, device, threads=options.threads, compile_=options.compile)


def end_to_end(
    run: RainbowWork, options: argparse.Namespace, ready: Callable[[], object] = lambda: None
) -> float:
    """Frames per second once learning is under way, and `ready` has returned."""
    while run.stored < run.config.settings.min_replay_size + 4 * run.steps * options.num_envs:
        run.step()
    device, frames = run.device, run.steps * options.num_envs * run.games.frames_per_step
    ready()
    done, began = 0, _now(device)
    while (passed := _now(device) - began) < options.seconds:
        run.step()
        done += frames
    return done / passed


def parts(run: RainbowWork, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds of each part, and the frames per second that it allows."""
    learner, num_envs, per_step = run.learner, options.num_envs, run.games.frames_per_step
    games = make(options.game, num_envs, threads=options.threads)
    games.reset(0)
    actions = np.random.default_rng(0).integers(games.actions, size=(64, num_envs))

    def play() -> None:
        games.send(actions[np.random.randint(64)])
        games.recv()

    def turn() -> None:
        run.actor.turn()
        run.actor.chosen()

    timed = {
        "games": (seconds_of(play, torch.device("cpu")), num_envs * per_step),
        "turn": (seconds_of(turn, run.device), num_envs * per_step),
        "update": (seconds_of(lambda: learner.update(1e-5, 0.5), run.device), 4 * per_step),
    }
    return {name: {"ms": 1e3 * each, "limit": frames / each} for name, (each, frames) in timed.items()}


def _agent(queue: Any, everyone: Any, variant: RainbowArm, options: argparse.Namespace, seed: int) -> None:
    _settings()
    queue.put(end_to_end(built(variant, options, seed), options, everyone.wait))


def _settings() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    if torch.cuda.is_available():
        torch.set_num_threads(1)  # as `nap run` does: idle ones spin on the emulators' cores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--replay", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--compile", action="store_true", help="the networks through torch.compile")
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    _settings()
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(
        f"{name}, torch {torch.__version__}, {options.game}, {options.num_envs} environments, "
        f"{options.agents} agents"
    )
    rows = []
    for variant in (VARIANTS[name] for name in options.variants):
        if options.agents == 1:
            run = built(variant, options)
            row = {"variant": variant.name, "frames/s": end_to_end(run, options), **parts(run, options)}
            pieces = ", ".join(
                f"{part} {row[part]['ms']:.2f} ms (limit {row[part]['limit']:,.0f})"
                for part in ("games", "turn", "update")
            )
        else:
            row = {"variant": variant.name, "agents": options.agents, "frames/s": _together(variant, options)}
            pieces = f"{options.agents} agents together"
        rows.append(row)
        print(f"{variant.name:<15} {row['frames/s']:>9,.0f} frames/s   {pieces}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def _together(variant: RainbowArm, options: argparse.Namespace) -> float:
    """Frames per second of several agents in the same seconds, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue, everyone = context.Queue(), context.Barrier(options.agents)
    agents = [
        context.Process(target=_agent, args=(queue, everyone, variant, options, seed))
        for seed in range(options.agents)
    ]
    for agent in agents:
        agent.start()
    rates = [queue.get() for _ in agents]
    for agent in agents:
        agent.join()
    return sum(rates)


if __name__ == "__main__":
    main()
