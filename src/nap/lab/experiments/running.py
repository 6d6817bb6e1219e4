"""Execute the runs of a parsed `nap run` command, each in its folder, and show their progress."""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nap.lab import rows
from nap.lab.datasets.store import DataMissing, require
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.experiments.tasks import (
    BOARD,
    Task,
    distribution_error,
    experiment_folder,
    open_tasks,
    print_results,
    resume_command,
    select_runs,
)
from nap.lab.files import atomic_write
from nap.lab.options import MAX_THREADS, Request, RunOptions
from nap.lab.progress import Display, display, duration
from nap.lab.runner.distributed import (
    ProcessGroup,
    ProcessLost,
    Rank,
    follow_rank0,
    on_all_ranks,
    process_group,
    released,
    try_on_all_ranks,
)
from nap.lab.runner.run import STOPPED, run_work
from nap.lab.runner.signals import StopRequest, stop_requests
from nap.lab.runner.work import Work
from nap.lab.stored import MANIFEST, read_manifest

if TYPE_CHECKING:
    from nap.lab.board import Board

FINISHED, FAILED = 0, 1  # exit codes
FAILURE = "failure.txt"  # in a run's folder: the traceback of the error that ended it


def run(requests: Sequence[tuple[Experiment, Request]], *, print_verdicts: bool = True) -> int:
    """Execute the requested runs and return the exit code.

    Of the processes that torchrun started, rank 0 decides. A worker that does one run of many prints no
    verdicts.
    """
    options, rank = requests[0][1].options, Rank.from_environment()
    options.check()
    runs = select_runs(requests)
    if (error := distribution_error(runs, rank.world_size)) is not None:
        if rank.rank > 0:
            return FINISHED  # rank 0 reports it
        raise ValueError(error)
    if rank.rank == 0:
        require_data(runs)
    device = pick_device(options.device, rank)
    if not 0 <= options.threads <= MAX_THREADS:
        raise ValueError(f"--threads {options.threads}: it must be between 0 and {MAX_THREADS:,}")
    # with a GPU, idle threads only spin on cores that others need: they halved the speed of emulators
    if options.threads or options.scale == "demo" or device.type == "cuda":
        torch.set_num_threads(options.threads or 1)
    with process_group(rank, device, parallel=options.parallel) as group:
        if group.is_rank0:
            with released(group):
                return _run_on_rank0(requests, device, group, print_verdicts)
        _follow_rank0([run for _, _, run in runs], device, group)
        return FINISHED


def require_data(runs: Iterable[tuple[Path, Experiment, Run]]) -> None:
    """Raise `DataMissing` for all data sets that unfinished runs lack, before any run begins."""
    open_ = [run.config for path, _, run in runs if not read_manifest(path / MANIFEST)[0].get("finished")]
    require(open_)


def _follow_rank0(runs: Sequence[Run], device: torch.device, group: ProcessGroup) -> None:
    """Take part in each run that rank 0 begins, until it has no more.

    Signals are noted and ignored here: torchrun sends them to all processes, and none may die before rank 0,
    which checks for them between units, has saved.
    """
    with stop_requests():
        while (number := group.broadcast()) is not None:
            work = try_on_all_ranks(group, partial(runs[number].start, device))
            if work is not None:
                follow_rank0(work, group)
            del work
            gc.collect()  # a network may be part of a reference cycle, and the next one needs its memory


def _run_on_rank0(
    requests: Sequence[tuple[Experiment, Request]],
    device: torch.device,
    group: ProcessGroup,
    print_verdicts: bool,
) -> int:
    """All runs, then their results; the exit code. All folders are checked before any work starts."""
    options = requests[0][1].options
    folders = {experiment_folder(experiment, options): None for experiment, _ in requests}
    with contextlib.ExitStack() as stack, stop_requests(options.time_limit) as stop:
        tasks = open_tasks(requests, stack)
        for experiment, request in requests:
            print(_announcement(experiment, request, device, group))
        code = run_all(tasks, ", ".join(r.name for _, r in requests), device, options, group, stop)
    if stop.signal is not None and code != FINISHED:
        return code
    for folder in folders if print_verdicts else ():
        print_results(folder, with_report=options.report)
    return code


def pick_device(name: str, rank: Rank | None = None) -> torch.device:
    """The device for `--device`; auto is CUDA if available. With several processes, each has its own GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ValueError(
            "--device cuda: torch sees no CUDA device here; take --device cpu, or a CUDA build of torch"
        )
    device = torch.device("cuda" if name != "cpu" and available else "cpu")
    if device.type == "cuda":
        if rank is not None and rank.world_size > 1:
            if rank.local_rank >= (count := torch.cuda.device_count()):
                raise ValueError(
                    f"torchrun started process {rank.local_rank + 1} on a machine with {count} CUDA "
                    f"device{'s' * (count > 1)}; start one for each, or take --device cpu"
                )
            device = torch.device("cuda", rank.local_rank)
        torch.set_float32_matmul_precision("high")  # TF32; work that needs more precision uses float64
        torch.backends.cudnn.benchmark = True
    return device


def _announcement(experiment: Experiment, request: Request, device: torch.device, group: ProcessGroup) -> str:
    runs = experiment.runs(request.config)
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    config = runs[0].config
    if not hasattr(config, "seed") or len(config.seeds) > 1:  # else each seed is a run
        count += f" of {request.config.seeds} seeds"
    if request.options.shard != "1/1":
        count += f" (shard {request.options.shard} of them)"
    threads = torch.get_num_threads()
    on_cpu = f"cpu ({threads} thread{'s' * (threads > 1)})"
    hardware = on_cpu if device.type == "cpu" else torch.cuda.get_device_name()
    if group.world_size > 1:
        hardware += f" × {group.world_size} processes ({group.parallel})"
    return (
        f"{experiment.name}, {experiment.title}: scale {request.options.scale}, {count}, "
        f"{_data(request.config)}, on {hardware}, into {experiment_folder(experiment, request.options)}"
    )


def _data(config: Any) -> str:
    """The games, texts or data set of a config, in words."""
    if games := getattr(config, "games", ()):
        return f"games {', '.join(games[:5])}{' and more' * (len(games) > 5)}"
    if text := getattr(config, "text", ()):
        return f"text {', '.join(text)}"
    return f"data {getattr(config, 'data', 'none')}"


def run_all(
    tasks: Sequence[Task],
    title: str,
    device: torch.device,
    options: RunOptions,
    group: ProcessGroup,
    stop: StopRequest,
) -> int:
    """Execute the tasks one after another; the exit code. One that fails is reported, and the others go on.

    Once a stop is requested, no further task begins. If the current one cannot be saved then, its failure is
    the exit code: running again would not help.
    """
    code = FINISHED
    with display(title, len(tasks)) as show:
        for task in tasks:
            if stop.signal is not None:
                command = resume_command(options)
                show.say(f"{task.label}: not started ({stop.signal}); {command} continues there")
                return STOPPED
            try:
                finished = _run_one(task, device, options, show, group, stop)
            except DataMissing:
                raise
            except ProcessLost as error:  # the other ranks are gone
                _save_failure(task.folder.path, error)
                raise
            except Exception as error:
                show.say(f"{task.label}: {_save_failure(task.folder.path, error)}")
                code = FAILED
                if stop.signal is not None:
                    return FAILED
            else:
                if not finished:
                    return STOPPED
            show.end()
    return code


def _run_one(
    task: Task,
    device: torch.device,
    options: RunOptions,
    show: Display,
    group: ProcessGroup,
    stop: StopRequest,
) -> bool:
    """Execute one task; False if it was stopped before its end."""
    if task.folder.is_finished():
        show.say(f"{task.label}: finished already")
        return True
    (task.folder.path / FAILURE).unlink(missing_ok=True)
    began = time.monotonic()
    show.begin(task.label)
    gc.collect()  # the last run's network may be part of a reference cycle, and this one needs its memory
    group.broadcast(task.number)
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(on_all_ranks(group.on_all_ranks(partial(task.run.start, device)), group))
        reporter = ProgressReporter(task, options.tensorboard, show, stack)
        outcome = run_work(
            work,
            task.folder,
            stop=stop,
            device=device,
            on_progress=reporter.progress,
            on_rows=reporter.rows,
            on_note=lambda text: show.say(f"{task.label}: {text}"),
        )
    if outcome.reason == "finished":
        seconds = duration(time.monotonic() - began)
        show.say(f"{task.label}: finished, {work.total:,} {work.unit} in {seconds}")
        return True
    show.say(
        f"{task.label}: stopped by {outcome.signal} at {outcome.done:,} of {outcome.total:,} {work.unit}; "
        f"{resume_command(options)} goes on from there"
    )
    return False


class ProgressReporter:
    """Passes a run's progress to the display and, if requested, its rows to TensorBoard."""

    def __init__(self, task: Task, tensorboard: bool, show: Display, stack: contextlib.ExitStack):
        self._task, self._tensorboard, self._show, self._stack = task, tensorboard, show, stack
        self._board: Board | None = None

    def progress(self, work: Work) -> None:
        self._show.tick(work)
        # The first call comes once the checkpoint is loaded and the rows are cut back to it.
        if self._tensorboard and self._board is None:
            from nap.lab.board import Board

            folder = self._task.folder.path
            earlier = rows.read(folder / rows.FILE_NAME)
            self._board = self._stack.enter_context(Board(folder / BOARD, earlier))

    def rows(self, new: list[rows.Row]) -> None:
        if self._board is not None:
            self._board.add(new)


def _save_failure(folder: Path, error: Exception) -> str:
    """Write the traceback to a file in the folder; the error in one line."""
    line = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
    try:
        with atomic_write(folder / FAILURE) as file:
            file.write("".join(traceback.format_exception(error)).encode())
    except OSError:  # a full disk, which the line names
        return line
    return f"{line} (more in {folder / FAILURE})"
