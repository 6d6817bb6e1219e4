"""Sweeps as real processes, and what befalls them: for tests that kill drivers and workers."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

SUPPORT = Path(__file__).resolve().parent
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GIT_DIR": os.devnull,  # rows name no commit: somebody may commit between two sessions
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # a cluster runs what it is sent: only these tests may send it something
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


def command(*words: str) -> list[str]:
    """`nap WORDS`, with the experiment `counting`."""
    return [sys.executable, str(SUPPORT / "sweep_tiny.py"), *words]


class Driver:
    """`nap sweep counting WORDS`, under way; its output goes to a file, which its children may keep open."""

    def __init__(self, *words: str, **environment: str):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command("sweep", "counting", *words),
            env=ENVIRONMENT | environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def so_far(self) -> str:
        """What it has said."""
        self._log.seek(0)
        return self._log.read()

    def said(self, code: int = 0) -> str:
        """What it said, once it has ended with that exit code."""
        self.process.wait()
        assert self.process.returncode == code, self.so_far()
        assert "Traceback" not in self.so_far()
        return self.so_far()

    def kill(self) -> None:
        """End it without a warning."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._log.close()


@contextmanager
def sweeping(*words: str, **environment: str) -> Iterator[Driver]:
    """A driver that does not outlive the block."""
    driver = Driver(*words, **environment)
    try:
        yield driver
    finally:
        driver.close()


def until(condition: Callable[[], Any], driver: Driver | None = None) -> Any:
    """What `condition` gives once that is something; the driver must live as long."""
    while not (found := condition()):
        assert driver is None or driver.process.poll() is None, driver.so_far()
        time.sleep(0.02)
    return found


def workers(out: str) -> dict[str, int]:
    """Runs that are being worked at below a folder, and the process that does it."""
    found = {}
    for lock in Path(out).rglob("lock"):
        try:
            pid = int(json.loads(lock.read_bytes())["pid"])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):  # nobody has signed it, or nobody is there any more
            continue
        if b"nap.lab.cli.worker" in words:
            found[lock.parent.name] = pid
    return found


def advanced(out: str) -> list[int]:
    """Workers that have done some steps."""
    return [pid for run, pid in workers(out).items() if rows(out).get(run, b"").count(b"\n") > 2]


def parent(pid: int) -> int:
    """The engine's process that started a worker; FileNotFoundError where that is gone already."""
    found = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    words = Path(f"/proc/{found}/cmdline").read_bytes()
    if b"ray::" not in words and b"submitit.core._submit" not in words:
        raise FileNotFoundError(f"process {pid} was adopted by {words!r}")
    return found


def kill(pid: int) -> bool:
    """Whether it was there to be killed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_at_work(out: str, driver: Driver) -> None:
    """Kill a worker that has done some steps: its folder must tell of a session that was killed."""
    until(lambda: any(map(kill, advanced(out)[:1])), driver)


def kill_at_random(
    out: str,
    driver: Driver,
    draws: random.Random,
    kills: int,
    victim: Callable[[int], int] = lambda pid: pid,
) -> None:
    """Kill that many workers, or others of their processes, at random moments.

    On a busy machine this process may come too late: one kill is enough then, if all is finished after it.
    """
    killed = 0

    def found() -> list[int] | Literal["too late"]:
        late = killed and driver.process.poll() is not None
        return "too late" if late else sorted(workers(out).values())

    while killed < kills:
        pids = until(found, None if killed else driver)
        if pids == "too late":
            return
        time.sleep(draws.uniform(0.0, 0.4))
        try:
            killed += kill(victim(draws.choice(pids)))
        except FileNotFoundError:  # it has ended in between
            continue


def rows(out: str) -> dict[str, bytes]:
    """The rows of each run below a folder."""
    return {path.parent.name: path.read_bytes() for path in Path(out).rglob("rows.jsonl")}


def files(out: str) -> dict[tuple[str, str], bytes]:
    """All that must not depend on how runs were disturbed."""
    names = ("rows.jsonl", "config.json", "checkpoint.pt")
    return {(p.parent.name, p.name): p.read_bytes() for name in names for p in Path(out).rglob(name)}


def sessions(out: str) -> dict[str, list[str]]:
    """How each session at each run ended."""
    found = {}
    for path in Path(out).rglob("manifest.json"):
        found[path.parent.name] = [each["exit"] for each in json.loads(path.read_text())["sessions"]]
    return found


def assert_same(out: str, undisturbed: Path, runs: int) -> None:
    """Each run was finished once, with the rows and the state of one that nobody disturbed."""
    ends = sessions(out)
    assert sorted(ends) == [f"run-{n}" for n in range(runs)]
    for each in ends.values():
        assert each.count("finished") == 1, ends
        assert each[-1] == "finished"
    expected = files(str(undisturbed))
    assert files(out) == {key: expected[key] for key in expected if key[0] in ends}


def undisturbed(folder: Path, *words: str) -> Path:
    """Two such runs by `nap run`, one after another."""
    subprocess.run(
        command("run", "counting", *words, "--runs", "2", "--seconds-per-step", "0"),
        cwd=folder,
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
    )
    return folder / "results"
