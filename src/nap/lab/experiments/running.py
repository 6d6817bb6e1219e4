"""`nap run` once its words are read: every run to its end, in its folder, with its progress shown."""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nap.lab import rows
from nap.lab.datasets.images import DataMissing
from nap.lab.experiments.ending import same_command
from nap.lab.experiments.ending import show as show_what_came
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.experiments.tasks import BOARD, Task, chosen, home, not_spread, open_tasks
from nap.lab.options import MOST_THREADS, How, Request
from nap.lab.progress import Display, display, duration
from nap.lab.runner.carry import STOPPED, carry_out
from nap.lab.runner.crew import Crew, CrewLost, Place, joined
from nap.lab.runner.durable import written_aside
from nap.lab.runner.leading import attempt, ended, follow, led
from nap.lab.runner.signals import StopRequest, stop_requests
from nap.lab.runner.work import Work

if TYPE_CHECKING:
    from nap.lab.board import Board

FINE, FAILED = 0, 1
FAILURE = "failure.txt"  # in a run's folder: the traceback of the error that ended it


def run(requests: Sequence[tuple[Experiment, Request]], *, judge: bool = True) -> int:
    """Do what was asked; the exit code. Of the processes that torchrun started, the first one leads.

    With `judge` it ends with the verdicts; not so in a worker that does one run of many.
    """
    how, place = requests[0][1].how, Place.from_environment()
    runs = chosen(requests)
    if (reason := not_spread(runs, place.size)) is not None:
        if place.rank:
            return FINE  # the first process says why
        raise ValueError(reason)
    device = pick_device(how.device, place)
    if not 0 <= how.threads <= MOST_THREADS:
        raise ValueError(f"--threads {how.threads}: it must be between 0 and {MOST_THREADS:,}")
    # beside a GPU, idle threads only spin on cores that others need: emulators ran at half their speed
    if how.threads or how.scale == "demo" or device.type == "cuda":
        torch.set_num_threads(how.threads or 1)
    with joined(place, device, sharing=how.spread) as crew:
        if crew.leads:
            with ended(crew):
                return _lead(requests, device, crew, judge)
        _follow_all([run for _, _, run in runs], device, crew)
        return FINE


def _follow_all(runs: Sequence[Run], device: torch.device, crew: Crew) -> None:
    """Share the runs that the first process begins, until it has no more.

    Signals are noted and nothing follows: torchrun sends them to all processes, and none may die before
    the first one, which looks at them between two units, has saved.
    """
    with stop_requests():
        while (number := crew.shared()) is not None:
            work = attempt(crew, partial(runs[number].start, device))
            if work is not None:
                follow(work, crew)
            del work
            gc.collect()  # before the next one takes its memory: a network may be part of a cycle


def _lead(
    requests: Sequence[tuple[Experiment, Request]], device: torch.device, crew: Crew, judge: bool
) -> int:
    """All runs, and what they show; the exit code. All folders are checked before any work starts."""
    how = requests[0][1].how
    homes = {home(experiment, how): None for experiment, _ in requests}
    with contextlib.ExitStack() as held, stop_requests() as stop:
        tasks = open_tasks(requests, held)
        for experiment, request in requests:
            print(_announcement(experiment, request, device, crew))
        code = _carry_out_all(tasks, ", ".join(r.name for _, r in requests), device, how, crew, stop)
    if stop.signal is not None and code != FINE:
        return code
    for folder in homes if judge else ():
        show_what_came(folder, with_report=how.report)
    return code


def pick_device(word: str, place: Place | None = None) -> torch.device:
    """The device that `--device` names; auto is CUDA where there is one. Several processes have one each."""
    available = torch.cuda.is_available()
    if word == "cuda" and not available:
        raise ValueError(
            "--device cuda: torch sees no CUDA device here; take --device cpu, or a CUDA build of torch"
        )
    device = torch.device("cuda" if word != "cpu" and available else "cpu")
    if device.type == "cuda":
        if place is not None and place.size > 1:
            if place.local >= (count := torch.cuda.device_count()):
                raise ValueError(
                    f"torchrun started process {place.local + 1} on a machine with {count} CUDA "
                    f"device{'s' * (count > 1)}; start one for each, or take --device cpu"
                )
            device = torch.device("cuda", place.local)
        torch.set_float32_matmul_precision("high")  # products in TF32; what needs more runs in float64
        torch.backends.cudnn.benchmark = True
    return device


def _announcement(experiment: Experiment, request: Request, device: torch.device, crew: Crew) -> str:
    runs = experiment.runs(request.config)
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    what = runs[0].config
    if not hasattr(what, "seed") or getattr(what, "together", 1) > 1:  # else each seed is a run
        count += f" of {request.config.seeds} seeds"
    if request.how.part != "1/1":
        count += f" (part {request.how.part} of them)"
    threads = torch.get_num_threads()
    where = (
        f"cpu ({threads} thread{'s' * (threads > 1)})"
        if device.type == "cpu"
        else torch.cuda.get_device_name()
    )
    if crew.size > 1:
        where += f" × {crew.size} processes ({crew.sharing})"
    return (
        f"{experiment.name}, {experiment.title}: scale {request.how.scale}, {count}, "
        f"{_subject(request.config)}, "
        f"on {where}, into {home(experiment, request.how)}"
    )


def _subject(config: Any) -> str:
    """What the runs are about: their data, text or games."""
    if games := getattr(config, "games", ()):
        return f"games {', '.join(games[:5])}{' and more' * (len(games) > 5)}"
    if text := getattr(config, "text", ()):
        return f"text {', '.join(text)}"
    return f"data {getattr(config, 'data', 'none')}"


def _carry_out_all(
    tasks: Sequence[Task], title: str, device: torch.device, how: How, crew: Crew, stop: StopRequest
) -> int:
    """One run after another; the exit code. One that fails is reported, and the others go on.

    Once a stop is asked for, none begins any more. If the one under way cannot be saved then, that is
    the exit code: to run again does not mend it.
    """
    code = FINE
    with display(title, len(tasks)) as show:
        for task in tasks:
            if stop.signal is not None:
                again = same_command(how)
                show.say(f"{task.label}: not begun, because of {stop.signal}; {again} goes on there")
                return STOPPED
            try:
                finished = _carry_out(task, device, how, show, crew, stop)
            except DataMissing:
                raise
            except CrewLost as error:  # the others are gone
                _failure(task.folder.path, error)
                raise
            except Exception as error:
                show.say(f"{task.label}: {_failure(task.folder.path, error)}")
                code = FAILED
                if stop.signal is not None:
                    return FAILED
            else:
                if not finished:
                    return STOPPED
            show.end()
    return code


def _carry_out(
    task: Task, device: torch.device, how: How, show: Display, crew: Crew, stop: StopRequest
) -> bool:
    """Whether the run is finished now; if not, it was stopped."""
    if task.folder.is_finished():
        show.say(f"{task.label}: finished already")
        return True
    (task.folder.path / FAILURE).unlink(missing_ok=True)
    began = time.monotonic()
    show.begin(task.label)
    gc.collect()  # the last run's network may be part of a cycle, and this one needs its memory
    crew.shared(task.number)
    with contextlib.ExitStack() as open_:
        work = open_.enter_context(led(crew.together(partial(task.run.start, device)), crew))
        seen = Spectator(task, how.tensorboard, show, open_)
        outcome = carry_out(
            work,
            task.folder,
            stop=stop,
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
        f"{same_command(how)} goes on from there"
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
    line = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
    try:
        with written_aside(folder / FAILURE) as file:
            file.write("".join(traceback.format_exception(error)).encode())
    except OSError:  # a full disk, as the line says already
        return line
    return f"{line} (more in {folder / FAILURE})"
