"""Tuned learning rates as a file: what `nap tune` writes and `nap run --tuned FILE` reads."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nap.lab import aliases, files
from nap.lab.experiments.experiment import Experiment, Run, Tuning
from nap.lab.runner.folder import differences

FILE_NAME = "tuned.json"
IGNORED = (  # settings that may differ between tuning and run
    "learning_rate", "seeds", "first_seed", "seed", "seeds_per_run", "tags", "name",
)  # fmt: skip


@dataclass(frozen=True)
class Sensitivity:
    """Results of one group of runs by learning rate, a number for each tuning seed."""

    results: Mapping[float, tuple[float | None, ...]]  # None: that seed's run diverged
    config: Mapping[str, Any]  # of the runs, without the ignored settings

    def mean(self, rate: float) -> float | None:
        """The mean over seeds; None if one of them diverged."""
        values = [value for value in self.results[rate] if value is not None]
        return fmean(values) if len(values) == len(self.results[rate]) else None

    def best(self, tuning: Tuning) -> float | None:
        """The rate with the best mean; None if every rate diverged."""
        sign = 1 if tuning.goal == "highest" else -1
        means = {rate: mean for rate in self.results if (mean := self.mean(rate)) is not None}
        return max(means, key=lambda rate: (sign * means[rate], -rate)) if means else None

    def beyond(self, tuning: Tuning, factor: float) -> float | None:
        """The next rate to try, beyond the end of the grid at which the best lies; None if it lies inside."""
        rates, best = sorted(self.results), self.best(tuning)
        if best is None:
            return rates[0] / factor
        if best == rates[-1]:
            return best * factor
        return best / factor if best == rates[0] else None


@dataclass(frozen=True)
class Tuned:
    """The tuned learning rates of an experiment at one scale, with the results behind them."""

    experiment: str
    scale: str
    tuning: Tuning
    seeds: Sequence[int]
    groups: Mapping[str, Sensitivity]
    labels: Mapping[str, str] = field(default_factory=dict)  # of groups, for people

    def rate(self, run: Run) -> float:
        """The learning rate of a run; ValueError if it was not tuned, or with other settings."""
        names = [run.tuned_as, *aliases.run_names(run.tuned_as)]
        if (group := next((self.groups[name] for name in names if name in self.groups), None)) is None:
            raise ValueError(
                f"--tuned: {run.name} takes the learning rate of {run.tuned_as}, which was not tuned; "
                f"tuned are {', '.join(self.groups)}: give nap tune the same settings"
            )
        settings = comparable(run, self.tuning)
        config = aliases.config(group.config, settings, self.experiment)
        changed = list(differences(config, settings)) if run.decides else []
        if changed:
            raise ValueError(
                f"--tuned: {run.tuned_as} was tuned with other settings: {'; '.join(changed)}; "
                "tune again with these"
            )
        best = group.best(self.tuning)
        assert best is not None, "save() refuses a group without a result"
        return best

    def applied(self, experiment: Experiment) -> Experiment:
        """The experiment with each run at the rate of its group."""

        def runs(config: Any) -> list[Run]:
            plain = experiment.runs(config)
            rates = {run.name: self.rate(run) for run in plain}
            at_rate = {
                rate: {run.name: run for run in experiment.runs(replace(config, learning_rate=rate))}
                for rate in set(rates.values())
            }
            return [at_rate[rates[run.name]][run.name] for run in plain]

        return replace(experiment, runs=runs)

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "scale": self.scale,
            "metric": self.tuning.metric,
            "goal": self.tuning.goal,
            "over": self.tuning.over,
            "seeds": list(self.seeds),
            "labels": dict(self.labels),
            "learning_rates": {name: group.best(self.tuning) for name, group in self.groups.items()},
            "results": {
                name: {f"{rate:g}": list(group.results[rate]) for rate in sorted(group.results)}
                for name, group in self.groups.items()
            },
            "configs": {name: dict(group.config) for name, group in self.groups.items()},
        }


def comparable(run: Run, tuning: Tuning) -> dict[str, Any]:
    """The settings that a run must share with the runs that its rate was tuned on."""

    ignored = {*IGNORED, *tuning.changes}

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(inner) for key, inner in value.items() if key not in ignored}
        return value

    return plain(json.loads(json.dumps(dataclasses.asdict(run.config))))


def label(run: Run) -> str:
    """A run's arm for people, with its network, stream, form or game, and treatment of the optimizer."""
    tags = getattr(run.config, "tags", {})
    subjects = [tags.get(key) for key in ("network", "stream", "form", "game")]
    state = tags.get("optimizer_state")
    arm = getattr(getattr(run.config, "arm", None), "name", run.name)
    return ", ".join(
        [*(str(word) for word in subjects if word), arm, *([f"optimizer {state}"] if state else [])]
    )


def _check_results(groups: Mapping[str, Sensitivity]) -> None:
    """Refuse results that `nap tune` does not write: invalid rates or values, and groups without any."""
    for name, group in groups.items():
        if not all(0 < rate < math.inf for rate in group.results):
            raise ValueError(f"a learning rate of {name} is not a finite number above 0")
        values = [value for seeds in group.results.values() for value in seeds if value is not None]
        if any(isinstance(v, bool) or not isinstance(v, int | float) or not math.isfinite(v) for v in values):
            raise ValueError(f"a result of {name} is not a finite number")
        if all(not seeds or group.mean(rate) is None for rate, seeds in group.results.items()):
            raise ValueError(f"{name} has no rate that worked")


def read(path: Path, experiment: Experiment, scale: str) -> Tuned:
    """The tuned rates in a file, which must be for this experiment and scale."""
    try:
        content = files.parse_json(files.content(path))
        results = {
            name: {float(rate): tuple(values) for rate, values in by_rate.items()}
            for name, by_rate in content["results"].items()
        }
        tuned_for = (content["experiment"], content["scale"])
        seeds, configs = content["seeds"], content["configs"]
        groups = {name: Sensitivity(by_rate, configs[name]) for name, by_rate in results.items()}
        _check_results(groups)
        finished, labels = content.get("finished", True), content.get("labels", {})
        goal = content["goal"]
    except OSError as error:
        raise ValueError(f"--tuned {path}: {error.strerror}; nap tune writes such a file") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--tuned {path} is not a file that nap tune wrote: {error!r}") from error
    if not finished:
        raise ValueError(f"--tuned {path}: this tuning is not finished; run the same nap tune again")
    if tuned_for != (experiment.name, scale):
        raise ValueError(
            f"--tuned {path} is for {tuned_for[0]} at scale {tuned_for[1]}, not {experiment.name} at {scale}"
        )
    if experiment.tuning is None:
        raise ValueError(f"{experiment.name} tunes no learning rate; leave --tuned out")
    return Tuned(*tuned_for, replace(experiment.tuning, goal=goal), seeds, groups, labels)
