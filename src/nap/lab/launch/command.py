"""`nap sweep` once its words are read: read_state, plan, drive, and say what came of it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nap.lab.datasets import needed
from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.tasks import BOARD, home, same_command, show
from nap.lab.launch.drive import drive
from nap.lab.launch.engine import Engine, opened
from nap.lab.launch.jobs import Job, jobs
from nap.lab.launch.options import SweepOptions
from nap.lab.launch.retries import BAD_USAGE, FAILED, Tracked, tracked
from nap.lab.launch.run_state import RunState, read_state, settings_apart
from nap.lab.launch.watching import view
from nap.lab.options import Request
from nap.lab.progress import duration
from nap.lab.runner.distributed import Rank
from nap.lab.runner.folder import LOCK_NAME, RunFolder
from nap.lab.runner.lock import FolderInUse, user_of
from nap.lab.runner.run import STOPPED
from nap.lab.runner.signals import stop_requests

FINISHED = 0


def sweep(requests: Sequence[tuple[Experiment, Request]], settings: Sequence[str]) -> int:
    """Do what was asked; the exit code. All folders are checked before any work starts."""
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
    for folder in {home(experiment, options): None for experiment, _ in requests}:
        show(folder, with_report=options.report)
    return code


def driven(title: str, todo: Sequence[Job], options: SweepOptions) -> list[Tracked]:
    """Every job as far as it came on the engine that was asked for; says so where a signal stopped it."""
    found = [read_state(job.path) for job in todo]
    if options.engine == "local":  # elsewhere there may be data that are not here
        pairs = zip(todo, found, strict=True)
        needed.require(job.run.config for job, each in pairs if each.state != "finished")
    with opened(options, len(todo)) as engine, stop_requests(options.time_limit) as stop:
        _check(todo, options)
        runs = [_ready(job, each, options) for job, each in zip(todo, found, strict=True)]
        print(_announcement(title, options, runs, engine), flush=True)
        with view(title, "starting" if options.engine == "local" else "queued") as seen:
            drive(runs, engine, seen, retries=options.retries, stop=stop)
    if exit_code(runs) == STOPPED:
        left = sum(run.standing not in ("finished", "failed", "refused") for run in runs)
        print(
            f"Stopped by {stop.signal}, {left} of {len(runs)} runs are left; {same_command(options)} goes on"
        )
    return runs


def exit_code(runs: Sequence[Tracked]) -> int:
    """As that of `nap run`: a failed run, one refused, work left."""
    count = Counter(run.standing for run in runs)
    if sum(count[key] for key in ("finished", "failed", "refused")) < len(runs):
        return STOPPED
    return FAILED if count["failed"] else BAD_USAGE if count["refused"] else FINISHED


def plan(title: str, todo: Sequence[Job], found: Sequence[RunState], *, force: bool = False) -> Table:
    """What there is to do, as a table."""
    count = Counter(each.state for each in found)
    states = ", ".join(f"{count[state]} {state}" for state in dict.fromkeys(each.state for each in found))
    table = Table(title=escape(f"{title}: {len(todo)} runs, {states}"))
    for heading in ("run", "its folder says", "so", "folder"):
        table.add_column(heading, overflow="fold")
    so = {"finished": "nothing", "in use": "wait", "new": "begin"}
    for job, each in zip(todo, found, strict=True):
        words = f"{each.state}, {duration(each.seconds)} of work" if each.seconds else each.state
        if each.state in ("failed", "damaged", "in use"):
            words += f": {each.words.removeprefix(each.state).removeprefix(':').strip()}"
        then = "begin" if each.state == "new" else "start over" if force else so.get(each.state, "go on")
        table.add_row(*map(escape, (job.label, words, then, str(job.folder))))
    return table


def _check(todo: Sequence[Job], options: SweepOptions) -> None:
    """Refuse folders with other settings, and with --force those that others work in."""
    for job in todo:
        if options.force:
            if (owner := user_of(job.path / LOCK_NAME)) is not None:
                raise FolderInUse(f"{job.folder} is {owner}; wait for it or stop it, then --force")
            continue
        try:
            lines = settings_apart(job.path, job.settings(options.scale), job.run.config)
        except OSError as error:  # as `nap run` says it
            reason = f"cannot write in {job.folder}: {error.strerror}"
            raise ValueError(f"{reason}; choose another folder with --out") from error
        if lines:
            raise ValueError(
                f"{job.folder} holds a run with other settings:\n  "
                + "\n  ".join(lines)
                + "\nChoose another folder with --out, or start this one over with --force"
            )


def _ready(job: Job, found: RunState, options: SweepOptions) -> Tracked:
    """The job with its folder made ready: there, writable, with its config, and empty after --force.

    Where that cannot be because of what is in the folder, the run has failed, and the others go on.
    """
    if found.state in ("new", "begun", "failed", "damaged") or options.force:
        try:
            RunFolder.open(job.path, **job.settings(options.scale), start_over=options.force).close()
        except FolderInUse:  # in this very moment
            if options.force:
                raise
        except ValueError as error:
            if not job.path.is_dir():  # it cannot be made, and so none of them can
                raise
            return Tracked(job, "failed", f"damaged: {error}")
    if options.force:
        shutil.rmtree(job.path / BOARD, ignore_errors=True)
        found = RunState("new")
    return tracked(job, found)


def _announcement(title: str, options: SweepOptions, runs: Sequence[Tracked], engine: Engine) -> str:
    count = Counter(run.standing for run in runs)
    parts = [f"{len(runs)} run{'s' * (len(runs) > 1)}"]
    if options.shard != "1/1":
        parts[0] += f" (shard {options.shard} of them)"
    named = {"finished": "finished already", "elsewhere": "in use elsewhere", "failed": "damaged"}
    parts += [f"{count[key]} {words}" for key, words in named.items() if count[key]]  # type: ignore[index]
    others = [
        f"\n{run.job.label}: {run.words}; waiting for that" for run in runs if run.standing == "elsewhere"
    ]
    others += [f"\n{run.job.label}: {run.words}" for run in runs if run.standing == "failed"]
    threads = options.threads or 1
    return (
        f"{title}: scale {options.scale}, {', '.join(parts)}, on {engine.words}, "
        f"{threads} thread{'s' * (threads > 1)} each, into {options.out}" + "".join(others)
    )
