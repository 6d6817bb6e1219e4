"""Rows as the paper would have them, and as it would not: a world for each experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from nap.lab.experiments.fig4 import layer_norm_with
from nap.lab.experiments.fig4.claims import METHODS
from nap.lab.rows import Row
from synthetic_rainbow_rows import WORLDS as RAINBOW_WORLDS

SEEDS, TASKS = 5, 20
Curve = Sequence[float] | np.ndarray  # a metric's values, in order of time
World = Callable[[bool], Iterator[Row]]  # as the paper says, or the opposite


def rows_of(
    keys: Row, metrics: Mapping[str, Curve], times: Sequence[Row], noise: float = 0.01
) -> Iterator[Row]:
    """Rows for every seed; seeds differ by a factor, which is the same at all times."""
    generator = np.random.default_rng(len(str(keys)))
    for seed in range(SEEDS):
        factors = {name: 1 + noise * float(generator.normal()) for name in metrics}
        for i, time in enumerate(times):
            values = {name: factors[name] * float(path[i]) for name, path in metrics.items()}
            yield {**keys, "seed": seed, **time, **values}


def lines(**ends: tuple[float, float]) -> dict[str, np.ndarray]:
    return {name: np.linspace(*pair, TASKS) for name, pair in ends.items()}


def tasks() -> list[Row]:
    return [{"task": task} for task in range(1, TASKS + 1)]


def fig1_world(as_told: bool) -> Iterator[Row]:
    good, bad = (0.6, 0.6), (0.6, 0.2)
    kept, lost = (good, bad) if as_told else (bad, (0.6, 0.62))
    same, up, down = (10.0, 10.5), (10.0, 40.0), (10.0, 2.0)
    arms = {
        "no norm": {
            "accuracy": lost,
            "parameter_norm": up if as_told else same,
            "gradient_norm": up if as_told else down,
            "jacobian_norm": up if as_told else same,
        },
        "LayerNorm": {
            "accuracy": lost,
            "parameter_norm": up if as_told else same,
            "gradient_norm": down if as_told else up,
            "jacobian_norm": down if as_told else same,
            "effective_rate": down if as_told else same,
        },
        "LayerNorm, rescaled each task": {"accuracy": kept},
        "NaP": {"accuracy": kept, "effective_rate": same if as_told else down},
        "NaP, no affine": {"accuracy": kept if as_told else (0.6, 0.62)},
        "fresh": {"accuracy": good},
    }
    for arm, ends in arms.items():
        yield from rows_of({"experiment": "fig1", "arm": arm}, lines(**ends), tasks())


def fig2_world(as_told: bool) -> Iterator[Row]:
    steps = np.arange(0, 1100, 100)
    free = 0.3 + 2 * np.exp(-steps / 300)
    # mode → (distance between functions, gap between losses, of which 2 is the height)
    told = {"exact": (1e-9, 0), "per layer": (1e-5, 1e-5), "global": (0.05, 0.004), "none": (0.3, 0.06)}
    opposite = {"exact": (0.1, 0.5), "per layer": (0.1, 0.5), "global": (1e-4, 0.5), "none": (0.3, 0.4)}
    for mode, (distance, gap) in (told if as_told else opposite).items():
        metrics = {
            "function_distance": np.where(steps > 0, distance, 0.0),
            "loss_free": free,
            "loss_projected": free + np.where(steps > 0, gap, 0.0),
        }
        times = [{"step": int(step)} for step in steps]
        # The twins' losses share a seed's factor only if it is one: noise would be a gap of its own.
        yield from rows_of({"experiment": "fig2", "arm": mode}, metrics, times, noise=0)


def fig4_world(as_told: bool) -> Iterator[Row]:
    told_base = dict(zip(METHODS, (0.2, 0.22, 0.48, 0.3, 0.49, 0.25, 0.21), strict=True))
    told_nap = dict(zip(METHODS, (0.5, 0.51, 0.52, 0.51, 0.5, 0.52, 0.5), strict=True))
    for network, stream, method, nap in product(
        ("mlp", "cnn"), ("random labels", "permuted labels"), METHODS, (False, True)
    ):
        permuted = stream == "permuted labels"
        if as_told:
            level = told_nap[method] + 0.1 * permuted if nap else told_base[method] + 0.12 * permuted
            change = 0.01
        else:
            redo = method == "ReDo"
            level = (0.4 if redo else 0.2) if nap else 0.28 if method in ("ReDo", "L2 Init") else 0.3
            level -= 0.05 * (permuted and not nap)
            change = -0.3 if redo else -0.05
        norm, units, rank = (10.0, 40.0), (0.1, 0.8), (100.0, 20.0)
        if nap == as_told:
            norm, units, rank = (10.0, 10.0), (0.1, 0.2), (100.0, 90.0)
        ends = {
            "accuracy": (level - change / 2, level + change / 2),
            "parameter_norm": norm,
            "weight_norm": norm,
            "linearized_units": units,
            "feature_rank": rank,
        }
        keys = {"experiment": "fig4", "network": network, "stream": stream, "optimizer_state": "reset"}
        yield from rows_of(keys | {"method": method, "nap": nap}, lines(**ends), tasks(), noise=0.002)
        if nap and method in ("none", "shrink and perturb"):
            alone = level - 0.1 if as_told else level + 0.1
            yield from rows_of(
                keys | {"method": layer_norm_with(method), "nap": False},
                lines(accuracy=(alone, alone)),
                tasks(),
                noise=0.002,
            )


def revival_world(as_told: bool) -> Iterator[Row]:
    tasks, moments = 6, 5
    times = [
        {"task": task + 1, "step_in_task": 10 * m, "step": 10 * (task * moments + m)}
        for task, m in product(range(tasks), range(moments))
    ]
    comes_and_goes = np.tile([0.1, 0.3, 0.2, 0.15, 0.1], tasks)
    piles_up = np.repeat(np.linspace(0.1, 0.9, tasks), moments)
    at_changes, between = np.tile([0.1, 0, 0, 0, 0], tasks), np.tile([0, 0.1, 0.1, 0.1, 0.1], tasks)
    for norm, optimizer in product(("none", "LayerNorm", "RMSNorm"), ("Adam", "SGD")):
        recovers = (norm != "none") == as_told
        dead, revived = (comes_and_goes, 0.4) if recovers else (piles_up, 0.0)
        if optimizer == "SGD":
            dead, revived = np.full(len(times), 0.4), 0.2
        metrics = {
            "dead_units": dead,
            "revived": np.full(len(times), revived),
            "died": at_changes if as_told else between,
        }
        yield from rows_of({"experiment": "revival", "norm": norm, "optimizer": optimizer}, metrics, times)


def walk_world(as_told: bool) -> Iterator[Row]:
    steps = np.arange(0, 1100, 100)
    rises, slowly = 1 - 0.5 * np.exp(-steps / 50), 0.5 + 0.3 * steps / 1000
    wavers = 0.5 + 0.1 * np.sin(steps) ** 2
    hump = 0.5 + 0.4 * np.sin(np.pi * steps / 1000)
    gone = np.linspace(0.5, 0.1, len(steps))
    told = {
        "GD": (rises, 0.1),
        "RMSProp": (rises, 0.1),
        "GD + norm": (slowly, 0.1),
        "RMSProp + norm": (wavers, 0.1),
        "GD + norm + centring": (slowly, 0.3),
        "RMSProp + norm + centring": (wavers, 0.8),
    }
    opposite = {
        "GD": (wavers, 0.1),
        "RMSProp": (wavers, 0.1),
        "GD + norm": (hump, 0.3),
        "RMSProp + norm": (rises, 0.3),
        "GD + norm + centring": (gone, 0.1),
        "RMSProp + norm + centring": (gone, 0.1),
    }
    times = [{"step": int(step)} for step in steps]
    for arm, (dead, share) in (told if as_told else opposite).items():
        metrics = {"dead": dead, "largest_share": np.full(len(steps), share)}
        yield from rows_of({"experiment": "walk", "arm": arm}, metrics, times)
    yield {
        "experiment": "walk",
        "kind": "trajectory",
        "arm": "GD",
        "seed": 0,
        "step": 0,
        "index": 0,
        "value": 1.0,
    }


def strings_world(as_told: bool) -> Iterator[Row]:
    # arm → (first accuracy, last accuracy)
    told = {
        "baseline": (0.5, 0.2),
        "norm only": (0.5, 0.3),
        "NaP": (0.5, 0.51),
        "NaP, no scale": (0.55, 0.56),
        "weight decay 0.1": (0.5, 0.4),
        "weight decay 1": (0.5, 0.5),
    }
    opposite = {
        "baseline": (0.5, 0.5),
        "norm only": (0.5, 0.5),
        "NaP": (0.5, 0.3),
        "NaP, no scale": (0.3, 0.2),
        "weight decay 0.1": (0.5, 0.4),
        "weight decay 1": (0.5, 0.5),
    }
    growth = (10.0, 20.0) if as_told else (10.0, 10.0)
    for arm, ends in (told if as_told else opposite).items():
        keys = {"experiment": "strings", "arm": arm, "chance": 1 / 16}
        yield from rows_of(keys, lines(accuracy=ends, parameter_norm=growth), tasks())
        yield {**keys, "kind": "trajectory", "seed": 0, "task": 1, "step": 10, "accuracy": 0.3}


def induction_world(as_told: bool) -> Iterator[Row]:
    steps = np.arange(100, 1100, 100)
    # arm → (step at which half is learnt, accuracy of copying in the end)
    told = {"baseline": 500, "projection only": 400, "norm only": 350, "NaP": 200, "NaP, no scale": 300}
    opposite = {"baseline": 200, "projection only": 350, "norm only": 300, "NaP": 450, "NaP, no scale": 400}
    best = 0.95 if as_told else 0.5
    for form, (arm, half) in product(("412+100", "65536x100+50"), (told if as_told else opposite).items()):
        learnt = 1 / (1 + np.exp((half - steps) / 50))
        metrics = {"retrieval": best * learnt, "unseen": best * learnt, "memorisation": 0.3 * learnt}
        keys = {"experiment": "induction", "arm": arm, "form": form}
        yield from rows_of(keys, metrics, [{"step": int(step)} for step in steps])


def language_world(as_told: bool) -> Iterator[Row]:
    steps = [{"step": step} for step in range(100, 1100, 100)]
    points = {"baseline": 0.40, "norm only": 0.405, "NaP": 0.42 if as_told else 0.38}
    for arm, accuracy in points.items():
        keys = {"experiment": "table1-language", "arm": arm}
        yield from rows_of(keys, {"accuracy": np.linspace(0.1, accuracy, 10)}, steps)
        for eval_set in ("held out", "lambada", "piqa"):
            result = {"accuracy": np.array([accuracy])}
            if eval_set != "held out":
                result["answer_accuracy"] = np.array([accuracy + 0.1])
            yield from rows_of(keys | {"kind": "evaluation", "eval_set": eval_set}, result, steps[-1:])


def cifar_world(as_told: bool) -> Iterator[Row]:
    told = {"baseline": 0.9465, "norm only": 0.9447, "NaP": 0.9464}
    opposite = {"baseline": 0.93, "norm only": 0.92, "NaP": 0.91}
    return image_world("table1-cifar", "cifar10", 400_000, told if as_told else opposite, as_told)


def imagenet_world(as_told: bool) -> Iterator[Row]:
    told = {"baseline": 0.7708, "norm only": 0.7745, "NaP": 0.7726}
    opposite = {"baseline": 0.75, "norm only": 0.74, "NaP": 0.73}
    return image_world("table1-imagenet", "imagenet", 450_360, told if as_told else opposite, as_told)


def image_world(
    experiment: str, data: str, updates: int, ends: Mapping[str, float], as_told: bool
) -> Iterator[Row]:
    steps = [{"step": step} for step in (100, *range(updates // 10, updates + 1, updates // 10))]
    for arm, accuracy in ends.items():
        keys = {"experiment": experiment, "arm": arm, "data": data}
        start = 0.6 if (arm == "baseline") == as_told else 0.5  # the lines cross: it is the end that counts
        path = {"test_accuracy": np.linspace(start, accuracy, len(steps))}
        yield from rows_of(keys, path, steps, noise=0.0005)


WORLDS: dict[str, World] = {
    "table1-cifar": cifar_world,
    "table1-imagenet": imagenet_world,
    "table1-language": language_world,
    "strings": strings_world,
    "induction": induction_world,
    "fig1": fig1_world,
    "fig2": fig2_world,
    "fig4": fig4_world,
    "stats": fig4_world,
    "revival": revival_world,
    "walk": walk_world,
    **RAINBOW_WORLDS,
}
