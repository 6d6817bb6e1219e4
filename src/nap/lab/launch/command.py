"""Execute a parsed `nap sweep` command: check all folders, drive the runs, print the results."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nap.lab.datasets.store import require
from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.tasks import BOARD, experiment_folder, print_results, resume_command
from nap.lab.launch.drive import drive
from nap.lab.launch.engine import Engine, open_engine
from nap.lab.launch.jobs import Job, jobs
from nap.lab.launch.options import SweepOptions
from nap.lab.launch.retries import BAD_USAGE, FAILED, OPEN, Tracked, track
from nap.lab.launch.run_state import RunState, read_state, setting_differences
from nap.lab.launch.watching import view
from nap.lab.options import Request
from nap.lab.progress import duration
from nap.lab.runner.distributed import Rank
from nap.lab.runner.folder import LOCK_NAME, RunFolder, other_settings_error
from nap.lab.runner.lock import FolderInUse, lock_owner
from nap.lab.runner.run import STOPPED
from nap.lab.runner.signals import stop_requests

FINISHED = 0


def sweep(requests: Sequence[tuple[Experiment, Request]], settings: Sequence[str]) -> int:
    """Run the sweep; returns the exit code. All folders are checked before any work starts."""
    options = requests[0][1].options
    assert isinstance(options, SweepOptions)
    options.check()
    if Rank.from_environment().world_size > 1:
        raise ValueError("torchrun started several drivers; give nap sweep without torchrun")
    todo = jobs(requests, settings)
    title = ", ".join(request.name for _, request in requests)
    if options.dry_run:
        _check(todo, options)
        Console().print(plan(title, todo, [read_state(job.path) for job in todo], force=options.force))
        return FINISHED
    code = exit_code(driven(title, todo, options))
    if code == STOPPED:
        return code
    for folder in {experiment_folder(experiment, options): None for experiment, _ in requests}:
        print_results(folder, with_report=options.report)
    return code


def driven(title: str, todo: Sequence[Job], options: SweepOptions) -> list[Tracked]:
    """Drive the jobs on the engine of the options until they end or a signal stops them."""
    states = [read_state(job.path) for job in todo]
    if options.engine == "local":  # other machines may have data that this one lacks
        pairs = zip(todo, states, strict=True)
        require(job.run.config for job, each in pairs if each.state != "finished")
    with open_engine(options, len(todo)) as engine, stop_requests(options.time_limit) as stop:
        _check(todo, options)
        runs = [_prepare(job, each, options) for job, each in zip(todo, states, strict=True)]
        print(_announcement(title, options, runs, engine), flush=True)
        with view(title, "starting" if options.engine == "local" else "queued") as progress:
            drive(runs, engine, progress, retries=options.retries, stop=stop)
    if exit_code(runs) == STOPPED:
        left = sum(run.status in OPEN for run in runs)
        again = resume_command(options)
        print(f"Stopped by {stop.signal}, {left} of {len(runs)} runs are left; {again} resumes them")
    return runs


def exit_code(runs: Sequence[Tracked]) -> int:
    """The exit code as of `nap run`."""
    count = Counter(run.status for run in runs)
    if any(run.status in OPEN for run in runs):
        return STOPPED
    return FAILED if count["failed"] else BAD_USAGE if count["refused"] else FINISHED


def plan(title: str, todo: Sequence[Job], states: Sequence[RunState], *, force: bool = False) -> Table:
    """The table of --dry-run: state, action and folder of each run."""
    counts = Counter(each.state for each in states)  # in order of appearance
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    table = Table(title=escape(f"{title}: {len(todo)} runs, {listed}"))
    for heading in ("run", "state", "action", "folder"):
        table.add_column(heading, overflow="fold")
    actions = {"finished": "nothing", "in use": "wait", "new": "start"}
    for job, each in zip(todo, states, strict=True):
        state = f"{each.state}, {duration(each.seconds)} of work" if each.seconds else each.state
        if each.state in ("failed", "damaged", "in use"):
            state += f": {each.detail.removeprefix(each.state).removeprefix(':').strip()}"
        action = "start over" if force and each.state != "new" else actions.get(each.state, "resume")
        table.add_row(*map(escape, (job.label, state, action, str(job.folder))))
    return table


def _check(todo: Sequence[Job], options: SweepOptions) -> None:
    """Refuse folders with other settings; with --force, folders that are in use."""
    for job in todo:
        if options.force:
            if (owner := lock_owner(job.path / LOCK_NAME)) is not None:
                raise FolderInUse(f"{job.folder} is {owner}; wait for it or stop it, then --force")
            continue
        try:
            lines = setting_differences(job.path, job.settings(options.scale), job.run.config)
        except OSError as error:  # as `nap run` says it
            reason = f"cannot write in {job.folder}: {error.strerror}"
            raise ValueError(f"{reason}; choose another folder with --out") from error
        if lines:
            raise other_settings_error(job.folder, lines)


def _prepare(job: Job, state: RunState, options: SweepOptions) -> Tracked:
    """Create the job's folder, or empty it with --force; a damaged folder makes the run a failed one."""
    if state.state in ("new", "begun", "failed", "damaged") or options.force:
        try:
            RunFolder.open(job.path, **job.settings(options.scale), start_over=options.force).close()
        except FolderInUse:  # since a moment ago
            if options.force:
                raise
        except ValueError as error:
            if not job.path.is_dir():  # no folder can be created here
                raise
            return Tracked(job, "failed", f"damaged: {error}")
    if options.force:
        shutil.rmtree(job.path / BOARD, ignore_errors=True)
        state = RunState("new")
    return track(job, state)


def _announcement(title: str, options: SweepOptions, runs: Sequence[Tracked], engine: Engine) -> str:
    count = Counter(run.status for run in runs)
    parts = [f"{len(runs)} run{'s' * (len(runs) > 1)}"]
    if options.shard != "1/1":
        parts[0] += f" (shard {options.shard} of them)"
    named = {"finished": "finished already", "elsewhere": "in use elsewhere", "failed": "damaged"}
    parts += [f"{count[key]} {state}" for key, state in named.items() if count[key]]  # type: ignore[index]
    lines = [f"{run.job.label}: {run.detail}; waiting for that" for run in runs if run.status == "elsewhere"]
    lines += [f"{run.job.label}: {run.detail}" for run in runs if run.status == "failed"]
    threads = options.threads or 1
    first = (
        f"{title}: scale {options.scale}, {', '.join(parts)}, on {engine.description}, "
        f"{threads} thread{'s' * (threads > 1)} each, into {options.out}"
    )
    return "\n".join([first, *lines])
