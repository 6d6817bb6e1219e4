"""`python -m nap.lab.cli.worker`: `nap run` for one run of a sweep.

It also registers the driver's own experiments, checks that its run is the one that the driver meant, writes
heartbeats, and saves and exits when the process that started it closes its standard input or dies.
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
from nap.lab.experiments.tasks import experiment_folder, run_folder, select_runs
from nap.lab.launch.heartbeat import WithHeartbeat
from nap.lab.launch.jobs import EXPECTED_RUN, adopt_plugins
from nap.lab.launch.retries import NO_DATA
from nap.lab.options import Request
from nap.lab.runner.work import Work


def main() -> int:
    """Execute `nap run` with the arguments of this process; returns its exit code."""
    words = sys.argv[1:]
    sys.argv = ["nap", "run", *words]  # for the manifest, whose command then works by hand
    signal.signal(signal.SIGUSR2, _terminate)  # SLURM's warning before the time limit, through submitit
    threading.Thread(target=_stop_when_stdin_closes, daemon=True).start()
    adopt_plugins()
    return run_command(["run"], lambda: _run(words))


def _stop_when_stdin_closes() -> None:
    while os.read(0, 1024):
        pass
    _terminate()


def _terminate(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _run(words: Sequence[str]) -> int:
    requests = parse_requests(words)
    check_expected_run(requests)
    try:
        return run([(with_heartbeats(*each), each[1]) for each in requests], print_verdicts=False)
    except DataMissing as error:  # with an exit code of its own, the driver starts no more of these runs
        print(f"nap run: {error}", file=sys.stderr)
        return NO_DATA


def check_expected_run(requests: Sequence[tuple[Experiment, Request]]) -> None:
    """Refuse a command line that means another run here than it did for the driver."""
    expected = os.environ.get(EXPECTED_RUN)
    names = [f"{experiment.name} {each.name}" for _, experiment, each in select_runs(requests)]
    if expected is not None and names != [expected]:
        raise ValueError(
            f"the driver meant the run {expected}, and here the same words ask for {', '.join(names)}: the "
            f"code is not the same, or has changed since; give the sweep again, with the same code everywhere"
        )


def with_heartbeats(experiment: Experiment, request: Request) -> Experiment:
    """The experiment, with runs that write heartbeats."""

    def beating(each: Run) -> Run:
        folder = run_folder(each, experiment_folder(experiment, request.options))

        def start(device: torch.device) -> Work:
            return WithHeartbeat(each.start(device), folder)

        return replace(each, start=start)

    return replace(experiment, runs=lambda config: [beating(each) for each in experiment.runs(config)])


if __name__ == "__main__":
    sys.exit(main())
