"""A small real training run, and processes that carry it out and can be killed.

The processes are forked from a server that has torch imported already, so that each starts in
milliseconds, and with the commit looked up once: it must not change between two runs to be compared.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nap.lab.runs import NotFinite, Outcome, RunFolder, Work, carry_out, provenance

provenance.source()

FORKSERVER = mp.get_context("forkserver")
FORKSERVER.set_forkserver_preload([__name__])


class Training:
    """An MLP with Adam on labels that change with every unit; all draws depend on (seed, unit) alone."""

    unit = "epochs"
    steps_per_unit = 2

    def __init__(self, total: int = 30, *, seed: int = 0, hidden: int = 32, nan_at: int | None = None):
        self.total, self.done, self.seed, self.nan_at = total, 0, seed, nan_at
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def advance(self) -> list[dict[str, Any]]:
        draws = torch.Generator().manual_seed(1000 * self.seed + self.done)
        for _ in range(self.steps_per_unit):
            x = torch.randn(16, 8, generator=draws)
            loss = F.cross_entropy(self.model(x), torch.randint(4, (16,), generator=draws))
            loss = loss * (torch.nan if self.done == self.nan_at else 1.0)
            if not loss.isfinite():
                raise NotFinite(f"step {2 * self.done}, member {self.seed}: the loss is {loss.item()}")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.done += 1
        return [{"arm": "Adam", "seed": self.seed, "task": self.done, "loss": loss.item()}]

    def state_dict(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def parameters(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


Training()  # the first optimizer makes torch import its compiler: a second, not in every process

CONFIG = {"experiment": "fig1", "scale": "demo", "run": "nap", "config": {"seeds": 1, "lr": 1e-2}}


def run(path: Path, work: Training | None = None, **options: Any) -> Outcome:
    """One sitting, with a checkpoint after every unit unless `options` say otherwise."""
    often: dict[str, Any] = {"checkpoint_every_seconds": 0.0, "save_share": 1e6}
    with RunFolder.open(path, **CONFIG) as folder:  # type: ignore[arg-type]
        return carry_out(work or Training(), folder, **(often | options))


def sitting(path: Path, total: int, save_ms: float, events: Connection) -> None:
    """What a process does: a sitting that tells of each unit and save and exits with the run's code."""
    torch.set_num_threads(1)
    if save_ms:
        slow_down_saves(save_ms, events)
    outcome = run(path, Training(total), on_progress=lambda work: events.send(("unit", work.done)))
    os._exit(outcome.exit_code)


def slow_down_saves(milliseconds: float, events: Connection) -> None:
    """Make every fsync and rename take time, before and after, so that kills fall into all phases."""

    def slowly(act: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any) -> Any:
            events.send((act.__name__, 0))
            time.sleep(milliseconds / 2000)
            result = act(*args)
            time.sleep(milliseconds / 2000)
            return result

        return slow

    setattr(os, "fsync", slowly(os.fsync))  # noqa: B010
    setattr(os, "replace", slowly(os.replace))  # noqa: B010


def sitting_killed_at(path: Path, total: int, operation: int, events: Connection) -> None:
    """A sitting that is killed just before its n-th fsync or rename."""
    torch.set_num_threads(1)
    left = operation

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return act(*args)

        return count

    setattr(os, "fsync", counted(os.fsync))  # noqa: B010
    setattr(os, "replace", counted(os.replace))  # noqa: B010
    os._exit(run(path, Training(total)).exit_code)


def sitting_on_a_full_disk(path: Path, total: int, full_at: int, events: Connection) -> None:
    """A sitting whose files may not grow over 4 KB from some unit on; sends the error's message."""

    def fill(work: Work) -> None:
        if work.done == full_at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    try:
        run(path, Training(total), on_progress=fill)
    except OSError as error:
        events.send(str(error))
        os._exit(1)


def long_unit(path: Path, events: Connection) -> None:
    """A sitting that is deep in a long unit; exits with 130 when that is aborted."""

    class Long(Training):
        def advance(self) -> list[dict[str, Any]]:
            events.send("deep in it")
            time.sleep(60)
            return super().advance()

    try:
        run(path, Long())
    except KeyboardInterrupt:
        os._exit(130)


def hold(path: Path, events: Connection) -> None:
    """Open the folder and keep it."""
    with RunFolder.open(path, **CONFIG):  # type: ignore[arg-type]
        events.send("open")
        time.sleep(60)


def open_as_nobody(path: Path, events: Connection) -> None:
    """Try to open the folder without the rights of root; sends the message."""
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        run(path)
    except ValueError as error:
        events.send(str(error))


def start(target: Callable[..., None], *args: Any) -> tuple[ForkServerProcess, Connection]:
    """A process that runs `target(*args, events)`, and the events it sends."""
    with mock.patch.dict(os.environ, {"PYTHONPATH": str(Path(__file__).parent)}):
        forkserver.ensure_running()  # Python 3.11 does not give the server our sys.path
    events, theirs = FORKSERVER.Pipe(duplex=False)
    process = FORKSERVER.Process(target=target, args=(*args, theirs))
    process.start()
    theirs.close()
    return process, events


def wait_for_unit(events: Connection, done: int) -> None:
    """Return when the process has told that `done` units are done."""
    while True:
        kind, number = events.recv()
        if kind == "unit" and number >= done:
            return


def finish(path: Path, total: int) -> None:
    """Carry the run to its end in a process that nobody disturbs."""
    process, events = start(sitting, path, total, 0.0)
    process.join(60)
    assert process.exitcode == 0
    events.close()


def files(path: Path) -> dict[str, bytes]:
    """The files of a finished run that must not depend on how it was interrupted."""
    return {name: (path / name).read_bytes() for name in ("config.json", "rows.jsonl", "checkpoint.pt")}
