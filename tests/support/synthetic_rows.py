"""Rows as the experiments write them, made up: shapes and names are real, the numbers are smooth fiction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
METHODS = ("none", "L2", "L2 Init", "shrink and perturb", "ReDo", "leaky ReLU", "Langevin")
MANIFEST = {
    "started": "2025-11-15T10:00:00+00:00",
    "finished": "2025-11-15T10:01:40+00:00",
    "seconds": 100.0,
    "exit": "finished",
    "versions": {"nap": "0.1.0", "python": "3.12.1", "torch": "2.11.0", "numpy": "2.1.0"},
    "commit": "abc1234567",
    "dirty": False,
    "platform": "Linux",
    "device": "cpu (x86_64)",
    "threads": 2,
    "sessions": [
        {"started": "2025-11-15T10:00:00+00:00", "notes": ["checkpoint.pt was damaged"], "exit": "finished"}
    ],
}


def fig1(tasks: int = 30, seeds: int = 5) -> Iterator[Row]:
    """Six arms: no norm collapses, LayerNorm fades, the others stay."""
    shape = {  # arm: accuracy lost, growth of weights, of gradients, of the Jacobian
        "no norm": (0.5, 30.0, 200.0, 400.0),
        "LayerNorm": (0.3, 12.0, 0.05, 0.2),
        "LayerNorm, rescaled each task": (0.05, 1.2, 0.8, 1.0),
        "NaP": (0.02, 1.0, 1.0, 1.1),
        "fresh": (0.0, 1.05, 1.1, 1.0),
        "fresh, no norm": (0.0, 1.3, 1.5, 1.4),
    }
    for arm, (lost, weights, gradients, jacobian) in shape.items():
        for seed in range(seeds):
            draws = np.random.default_rng((len(arm), seed))
            for task in range(1, tasks + 1):
                age = (task - 1) / max(1, tasks - 1)
                wobble = draws.normal(1.0, 0.04, size=4)
                yield {
                    "experiment": "fig1",
                    "run": arm,
                    "arm": arm,
                    "seed": seed,
                    "task": task,
                    "accuracy": float(np.clip((0.85 - lost * age) * wobble[0], 0, 1)),
                    "parameter_norm": float(20 * weights**age * wobble[1]),
                    "gradient_norm": float(1.5 * gradients**age * wobble[2]),
                    "jacobian_norm": float(3 * jacobian**age * wobble[3]),
                    "start_gradient_norm": float(2.0 * gradients**age * wobble[3]),
                    "weight_norm": float(18 * weights**age * wobble[1]),
                    "loss": 0.4,
                    "final_accuracy": 0.9,
                    "effective_rate": None if "no norm" in arm else 1e-3,
                }


def fig2(measurements: int = 40, seeds: int = 5) -> Iterator[Row]:
    """Four modes of rescaling; the free twin is the same in all."""
    size = {"exact": 0.0, "per layer": 0.02, "global": 0.1, "none": 1.0}
    for arm, gap in size.items():
        for seed in range(seeds):
            draws = np.random.default_rng((7, seed))
            for step in range(0, 100 * measurements, 100):
                age = step / (100 * measurements)
                free = 0.1 + 0.6 * (1 - np.exp(-5 * age)) + draws.normal(0, 0.01)
                distance = gap * age * (1 + 0.2 * draws.normal())
                yield {
                    "experiment": "fig2",
                    "run": arm,
                    "arm": arm,
                    "seed": seed,
                    "step": step,
                    "loss_free": 2.3 - 2 * free,
                    "loss_projected": 2.3 - 2 * free - 0.2 * distance,
                    "accuracy_free": free,
                    "accuracy_projected": free + 0.05 * distance,
                    "loss_gap": -0.2 * distance,
                    "accuracy_gap": 0.05 * distance,
                    "function_distance": abs(distance),
                    "norm_growth": 1 + age,
                    "rate_multiplier": 1 / (1 + age),
                }


def fig4(
    tasks: int = 20,
    seeds: int = 5,
    methods: Iterable[str] = METHODS,
    streams: Iterable[str] = ("random labels", "permuted labels"),
) -> Iterator[Row]:
    """Two networks by two streams by the methods, without and with NaP."""
    for network in ("mlp", "cnn"):
        for stream in streams:
            for number, method in enumerate(methods):
                for nap in (False, True):
                    for seed in range(seeds):
                        yield from _fig4_run(network, stream, number, method, nap, seed, tasks)


def _fig4_run(
    network: str, stream: str, number: int, method: str, nap: bool, seed: int, tasks: int
) -> Iterator[Row]:
    draws = np.random.default_rng((number, nap, seed))
    level = (0.5 if nap else 0.2 + 0.05 * number) + (0.1 if network == "cnn" else 0.0)
    for task in range(1, tasks + 1):
        age = task / tasks
        wobble = draws.normal(1.0, 0.05, size=5)
        yield {
            "experiment": "fig4",
            "run": f"{network}-{stream}-{method}-{nap}",
            "arm": f"NaP + {method}" if nap else method,
            "network": network,
            "stream": stream,
            "method": method,
            "nap": nap,
            "seed": seed,
            "task": task,
            "accuracy": float(np.clip((level + (0.05 if nap else -0.1) * age) * wobble[0], 0, 1)),
            "linearized_units": float(np.clip((0.05 if nap else 0.6 * age) * wobble[1], 0, 1)),
            "feature_rank": float((200 if nap else 200 - 20 * number * age) * wobble[2]),
            "parameter_norm": float(30 * (1 if nap else 20**age) * wobble[3]),
            "gradient_norm": float(2 * (1 if nap else 60**age) * wobble[4]),
        }


def revival(tasks: int = 5, looks: int = 12, seeds: int = 5) -> Iterator[Row]:
    """Three norms by two optimizers; units die when the task changes and come back where there is a norm."""
    for norm, back in (("none", 0.02), ("LayerNorm", 0.5), ("RMSNorm", 0.4)):
        for optimizer, harm in (("Adam", 0.25), ("SGD", 0.08)):
            for seed in range(seeds):
                draws = np.random.default_rng((len(norm), len(optimizer), seed))
                dead = 0.02
                for number in range(tasks * looks):
                    task, within = number // looks, number % looks
                    dead = min(1.0, dead + harm * (within == 0 and task > 0) * draws.uniform(0.8, 1.2))
                    dead *= 1 - 0.3 * back
                    yield {
                        "experiment": "revival",
                        "run": f"{norm}-{optimizer}",
                        "arm": f"{'no norm' if norm == 'none' else norm}, {optimizer}",
                        "norm": norm,
                        "optimizer": optimizer,
                        "seed": seed,
                        "task": task + 1,
                        "step": 10 * number,
                        "step_in_task": 10 * within,
                        "dead_units": float(dead),
                        "revived": float(np.clip(back * draws.uniform(0.7, 1.3), 0, 1)) if number else None,
                        "died": 0.01,
                        "accuracy": 0.5 + 0.4 * within / looks,
                    }


def walk(steps: int = 1000, every: int = 10, seeds: int = 8) -> Iterator[Row]:
    """Six models; half of the indices start dead."""
    fate = {
        "GD": 1.0,
        "RMSProp": 1.0,
        "GD + norm": 0.7,
        "RMSProp + norm": 0.5,
        "GD + norm + centring": 0.65,
        "RMSProp + norm + centring": 0.52,
    }
    for arm, end in fate.items():
        for seed in range(seeds):
            draws = np.random.default_rng((len(arm), seed))
            path = draws.normal(size=8)
            for step in range(0, steps + 1, every):
                dead = end - (end - 0.5) * np.exp(-step / 120) + draws.normal(0, 0.01)
                common = {"experiment": "walk", "run": "walks", "arm": arm, "seed": seed, "step": step}
                yield common | {"dead": float(np.clip(dead, 0, 1)), "largest_share": 0.1 + 0.5 * step / steps}
                path = path + draws.normal(size=8)
                if seed == 0:
                    yield from (
                        common | {"kind": "trajectory", "index": index, "value": float(value)}
                        for index, value in enumerate(path)
                    )


EXPERIMENTS = {"fig1": fig1, "fig2": fig2, "fig4": fig4, "revival": revival, "walk": walk}


def write_run(
    home: Path,
    rows: Iterable[Row],
    *,
    experiment: str,
    config: dict[str, Any] | None = None,
    scale: str = "demo",
    **manifest: Any,
) -> Path:
    """A run's folder as `nap run` leaves it."""
    home.mkdir(parents=True)
    about = {"experiment": experiment, "scale": scale, "run": home.name, "config": config or {}}
    (home / "config.json").write_text(json.dumps(about), "utf-8")
    held = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (home / "rows.jsonl").write_bytes(held)
    noted = {"rows_bytes": len(held), "rows_sha256": hashlib.sha256(held).hexdigest()}
    (home / "manifest.json").write_text(json.dumps(MANIFEST | noted | manifest), "utf-8")
    return home


def write_experiment(results: Path, name: str, **sizes: Any) -> Path:
    """The folder of an experiment, one run for each value of `run` in its rows."""
    by_run: dict[str, list[Row]] = {}
    for row in EXPERIMENTS[name](**sizes):  # type: ignore[operator]
        by_run.setdefault(row["run"], []).append(row)
    folder = results / f"{name}-demo"
    for run, rows in by_run.items():
        home = folder / run.replace(" ", "-").replace(",", "")
        arm = {"arm": run, "uses_norm": run != "no norm"}
        write_run(home, rows, experiment=name, config={"learning_rate": 1e-3, "seeds": 5, "batch": 64} | arm)
    return folder
