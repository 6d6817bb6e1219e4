"""One run, done by `nap run` itself, in a process that an engine placed: `python -m nap.lab.sweep.worker`.

What it adds: it tells how far it is, and it saves and ends when the one that started it is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from nap.lab.cli import answered, requested
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.experiments.running import run
from nap.lab.experiments.tasks import home
from nap.lab.options import Request
from nap.lab.runs.lock import FolderInUse
from nap.lab.runs.work import Work

from .beat import Told

PATIENCE_SECONDS = 1.0  # a driver that looks whether a folder is in use holds it for a moment


def main() -> int:
    """`nap run` with the words of this process; returns its exit code."""
    words = sys.argv[1:]
    sys.argv = ["nap", "run", *words]  # what the manifest will name: one can give that by hand
    signal.signal(signal.SIGUSR2, _terminate)  # SLURM's warning, through submitit, that time is up
    threading.Thread(target=_hold_the_leash, daemon=True).start()
    return answered(["run"], lambda: _patiently(words))


def _hold_the_leash() -> None:
    """Wait until nobody holds the other end of standard input; then ask this process to stop."""
    while os.read(0, 1024):
        pass
    _terminate()


def _terminate(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _patiently(words: Sequence[str]) -> int:
    """Do it; where the folder is in use, look again for a moment."""
    late = time.monotonic() + PATIENCE_SECONDS
    asked = [(told(experiment, request), request) for experiment, request in requested(words)]
    while True:
        try:
            return run(asked, judge=False)
        except FolderInUse:
            if time.monotonic() > late:
                raise
            time.sleep(PATIENCE_SECONDS / 10)


def told(experiment: Experiment, request: Request) -> Experiment:
    """The experiment, with runs that tell how far they are."""

    def telling(each: Run) -> Run:
        folder = home(experiment, request.how) / each.name

        def start(device: torch.device) -> Work:
            return Told(each.start(device), folder)

        return replace(each, start=start)

    return replace(experiment, runs=lambda config: [telling(each) for each in experiment.runs(config)])


if __name__ == "__main__":
    sys.exit(main())
