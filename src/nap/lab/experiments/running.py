"""`nap run` once its words are read: every run to its end, in its folder, with its progress shown."""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nap.lab import claims, report, rows
from nap.lab.data.images import DataMissing
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.options import How, Request
from nap.lab.progress import Display, display, duration
from nap.lab.runs.carry import STOPPED, Outcome, carry_out
from nap.lab.runs.folder import RunFolder
from nap.lab.runs.signals import StopRequest, stop_requests
from nap.lab.runs.work import Work

if TYPE_CHECKING:
    from nap.lab.board import Board

FINE, FAILED = 0, 1
FAILURE = "failure.txt"  # in a run's folder: the traceback of the error that ended it
BOARD = "tensorboard"


@dataclass(frozen=True)
class Task:
    """A run with its folder, which this process holds."""

    label: str
    run: Run
    folder: RunFolder


def run(requests: Sequence[tuple[Experiment, Request]]) -> int:
    """Do what was asked; the exit code. All folders are opened, and so checked, before any work starts."""
    how = requests[0][1].how
    device = pick_device(how.device)
    homes = {home(experiment, how): None for experiment, _ in requests}
    with contextlib.ExitStack() as held:
        tasks = _open(requests, held)
        for experiment, request in requests:
            print(_announcement(experiment, request, device))
        code = _carry_out_all(tasks, ", ".join(r.name for _, r in requests), device, how)
    if code == STOPPED:
        return code
    for folder in homes:
        print()
        try:
            claims.command(folder, False)
        except ValueError as error:  # the runs are done all the same
            print(f"No verdicts: {error}")
        pointer = f"Report: {report.command(folder)}" if how.report else f"Figures: nap report {folder}"
        print(f"\nResults: {folder}\n{pointer}")
    return code


def home(experiment: Experiment, how: How) -> Path:
    """The folder of an experiment's runs at one scale."""
    return how.out / f"{experiment.folder}-{how.scale}"


def pick_device(word: str) -> torch.device:
    """The device that `--device` names; auto is CUDA where there is one."""
    available = torch.cuda.is_available()
    if word == "cuda" and not available:
        raise ValueError(
            "--device cuda: torch sees no CUDA device here; take --device cpu, or a CUDA build of torch"
        )
    return torch.device("cuda" if word != "cpu" and available else "cpu")


def _open(requests: Sequence[tuple[Experiment, Request]], held: contextlib.ExitStack) -> list[Task]:
    """Every run with its folder; experiments that measure the same runs share them."""
    tasks: dict[Path, Task] = {}
    for experiment, request in requests:
        for run in experiment.runs(request.config):
            path = home(experiment, request.how) / run.name
            if path in tasks and tasks[path].run.config == run.config:
                continue
            folder = RunFolder.open(
                path,
                experiment=experiment.folder,
                scale=request.how.scale,
                run=run.name,
                config=run.config,
                start_over=request.how.force,
            )
            held.enter_context(folder)
            label = run.name if len(requests) == 1 else f"{experiment.name} {run.name}"
            tasks[path] = Task(label, run, folder)
            if request.how.force:
                shutil.rmtree(path / BOARD, ignore_errors=True)
    return list(tasks.values())


def _announcement(experiment: Experiment, request: Request, device: torch.device) -> str:
    runs = len(experiment.runs(request.config))
    threads = torch.get_num_threads()
    where = (
        f"cpu ({threads} thread{'s' * (threads > 1)})"
        if device.type == "cpu"
        else torch.cuda.get_device_name()
    )
    return (
        f"{experiment.name}, {experiment.title}: scale {request.how.scale}, {runs} run{'s' * (runs > 1)} "
        f"of {request.config.seeds} seeds, data {experiment.needs[request.how.scale] or 'none'}, "
        f"on {where}, into {home(experiment, request.how)}"
    )


def _carry_out_all(tasks: Sequence[Task], title: str, device: torch.device, how: How) -> int:
    """One run after another. One that fails is reported, and the others go on."""
    code = FINE
    with display(title, len(tasks)) as show, stop_requests() as stop:
        for task in tasks:
            try:
                finished = _carry_out(task, device, how, show, stop)
            except DataMissing:
                raise
            except Exception as error:
                show.say(f"{task.label}: {_failure(task.folder.path, error)}")
                code = FAILED
            else:
                if not finished:
                    return STOPPED
            show.end()
    return code


def _carry_out(task: Task, device: torch.device, how: How, show: Display, stop: StopRequest) -> bool:
    """Whether the run is finished now; if not, it was stopped."""
    if task.folder.is_finished():
        show.say(f"{task.label}: finished already")
        return True
    (task.folder.path / FAILURE).unlink(missing_ok=True)
    began = time.monotonic()
    show.begin(task.label)
    work = task.run.start(device)
    with contextlib.ExitStack() as open_:
        seen = Spectator(task, how.tensorboard, show, open_)
        if stop.signal is not None:  # it came while the run was being prepared: nothing to save
            outcome = Outcome("stopped", work.done, work.total, stop.signal)
        else:
            outcome = carry_out(
                work,
                task.folder,
                device=device,
                on_progress=seen.progress,
                on_rows=seen.rows,
                on_note=lambda text: show.say(f"{task.label}: {text}"),
            )
    if outcome.reason == "finished":
        show.say(
            f"{task.label}: finished, {work.total:,} {work.unit} in {duration(time.monotonic() - began)}"
        )
        return True
    show.say(
        f"{task.label}: stopped by {outcome.signal} at {outcome.done:,} of {outcome.total:,} {work.unit}; "
        "the same command goes on from there"
    )
    return False


class Spectator:
    """Passes on what happens in a run: to the display, and to TensorBoard if that is wanted."""

    def __init__(self, task: Task, tensorboard: bool, show: Display, open_: contextlib.ExitStack):
        self._task, self._tensorboard, self._show, self._open = task, tensorboard, show, open_
        self._board: Board | None = None

    def progress(self, work: Work) -> None:
        self._show.tick(work)
        # The first call comes once a checkpoint is taken up and the rows are cut back to it.
        if self._tensorboard and self._board is None:
            from nap.lab.board import Board

            folder = self._task.folder.path
            earlier = rows.read(folder / rows.FILE_NAME)
            self._board = self._open.enter_context(Board(folder / BOARD, earlier))

    def rows(self, new: list[rows.Row]) -> None:
        if self._board is not None:
            self._board.add(new)


def _failure(folder: Path, error: Exception) -> str:
    """The error in one line; its traceback goes to a file in the folder."""
    with contextlib.suppress(OSError):  # where the disk is full, the line says so
        (folder / FAILURE).write_text("".join(traceback.format_exception(error)), "utf-8")
    words = " ".join(str(error).split())
    return f"failed: {type(error).__name__}: {words} (more in {folder / FAILURE})"
