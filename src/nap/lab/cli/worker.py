"""One run, done by `nap run` itself, in a process that an engine placed: `python -m nap.lab.cli.worker`.

What it adds: it knows the experiments that the driver's script added, it makes sure that its run is the one
that the driver meant, it tells how far it is, and it saves and ends when the one that started it is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

import torch

from nap.lab.cli.main import parse_requests, run_command
from nap.lab.datasets.store import DataMissing
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.experiments.running import run
from nap.lab.experiments.tasks import chosen, folder_of, home
from nap.lab.launch.heartbeat import WithHeartbeat
from nap.lab.launch.jobs import MEANT, adopt_plugins
from nap.lab.launch.retries import NO_DATA
from nap.lab.options import Request
from nap.lab.runner.work import Work


def main() -> int:
    """`nap run` with the words of this process; returns its exit code."""
    words = sys.argv[1:]
    sys.argv = ["nap", "run", *words]  # what the manifest will name: one can give that by hand
    signal.signal(signal.SIGUSR2, _terminate)  # SLURM's warning, through submitit, that time is up
    threading.Thread(target=_hold_the_leash, daemon=True).start()
    adopt_plugins()
    return run_command(["run"], lambda: _do(words))


def _hold_the_leash() -> None:
    """Wait until nobody holds the other end of standard input; then ask this process to stop."""
    while os.read(0, 1024):
        pass
    _terminate()


def _terminate(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _do(words: Sequence[str]) -> int:
    requests = parse_requests(words)
    check_is_meant(requests)
    try:
        return run(
            [(told(experiment, request), request) for experiment, request in requests], print_verdicts=False
        )
    except DataMissing as error:  # the driver need not learn that from each run
        print(f"nap run: {error}", file=sys.stderr)
        return NO_DATA


def check_is_meant(asked: Sequence[tuple[Experiment, Request]]) -> None:
    """Refuse where the words ask for another run here than where the driver read them."""
    meant = os.environ.get(MEANT)
    found = [f"{experiment.name} {each.name}" for _, experiment, each in chosen(asked)]
    if meant is not None and found != [meant]:
        raise ValueError(
            f"the driver meant the run {meant}, and here the same words ask for {', '.join(found)}: the code "
            f"is not the same, or has changed since; give the sweep again, with the same code everywhere"
        )


def told(experiment: Experiment, request: Request) -> Experiment:
    """The experiment, with runs that tell how far they are."""

    def telling(each: Run) -> Run:
        folder = folder_of(each, home(experiment, request.options))

        def start(device: torch.device) -> Work:
            return WithHeartbeat(each.start(device), folder)

        return replace(each, start=start)

    return replace(experiment, runs=lambda config: [telling(each) for each in experiment.runs(config)])


if __name__ == "__main__":
    sys.exit(main())
