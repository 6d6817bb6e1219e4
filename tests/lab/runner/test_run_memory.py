"""Of several runs in one process, the next begins when the last one's memory is free."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tiny_experiment
from nap.lab.cli.main import main
from nap.lab.experiments import MODULES
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.running import _follow_rank0
from nap.lab.runner.distributed import ProcessGroup
from two_processes import CPU

pytestmark = pytest.mark.multiprocess


class Cyclic(tiny_experiment.TinyWork):
    """Holds itself, as a network does whose method is one of its attributes; it fails midway."""

    def __init__(self, name: str):
        super().__init__(tiny_experiment.TinyConfig(mode="buggy"), name)
        self.myself = self


class Begun:
    """Runs that note which of the earlier ones are still there when they begin."""

    def __init__(self) -> None:
        self.works: list[weakref.ref[Cyclic]] = []
        self.alive: list[int] = []
        names = ("first", "second", "third")
        self.runs = [Run(name, tiny_experiment.TinyConfig(), self.start_of(name)) for name in names]

    def start_of(self, name: str) -> Any:
        def start(device: torch.device) -> Cyclic:
            self.alive.append(sum(work() is not None for work in self.works))
            work = Cyclic(name)
            self.works.append(weakref.ref(work))
            return work

        return start


@pytest.fixture(autouse=True)
def _collected_by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_run_is_gone_when_the_next_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that failed, too."""
    monkeypatch.chdir(tmp_path)
    begun, module = Begun(), ModuleType("cyclic")
    module.EXPERIMENT = replace(  # type: ignore[attr-defined]
        tiny_experiment.EXPERIMENT, name="cyclic", folder="cyclic", runs=lambda config: begun.runs
    )
    monkeypatch.setitem(sys.modules, "cyclic", module)
    monkeypatch.setitem(MODULES, "cyclic", "cyclic")
    assert main(["run", "cyclic"]) == 1
    assert begun.alive == [0, 0, 0]


class WithHeartbeat(ProcessGroup):
    """A group whose rank 0 says just this."""

    def __init__(self, *words: Any):
        super().__init__()
        self._said = iter(words)

    def broadcast(self, value: Any = None) -> Any:
        return next(self._said)


def test_nor_is_it_there_in_a_process_that_follows() -> None:
    begun = Begun()
    one = ("step",), ("step",), None
    _follow_rank0(begun.runs, CPU, WithHeartbeat(0, *one, 1, *one, 2, *one, None))
    assert begun.alive == [0, 0, 0]
