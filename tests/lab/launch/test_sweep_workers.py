"""The workers of `nap sweep`: what they see and import, which run is theirs, how they end; and their lock."""

from __future__ import annotations

import errno
import fcntl
import re
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nap.lab.cli.main import BAD_USAGE, OK, main, parse_requests
from nap.lab.cli.worker import check_expected_run
from nap.lab.experiments import MODULES, experiments
from nap.lab.launch.engine import Exit
from nap.lab.launch.jobs import EXPECTED_RUN, WORKER
from nap.lab.launch.pool import GPU, Pool
from nap.lab.launch.worker_process import LOG_NAME, STOP_NAME, request_stop, run_worker
from nap.lab.machine import SIDE_BY_SIDE
from nap.lab.runner.lock import Lock, lock_owner
from sweep_jobs import asked, placed
from sweep_trials import until

pytestmark = pytest.mark.multiprocess


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.setitem(MODULES, "counting", "sweep_tiny")
    monkeypatch.chdir(tmp_path)


def test_a_worker_sees_its_slot_s_gpu_and_the_slot_is_free_again() -> None:
    code = "import os; print(*(os.environ[key] for key in ('CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS')))"
    job, pool = placed(asked("counting --threads 3")[0], code), Pool([{GPU: "5"}])
    for _ in range(2):
        worker = pool.submit(job)
        worker.worker.wait()
        assert worker.poll() == Exit(0)
    assert (job.path / LOG_NAME).read_text() == "5 3\n" * 2


def test_a_worker_knows_with_how_many_it_shares_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAP_WORKERS", "4")  # what the user says is passed on
    code = f"import os; print(os.environ[{SIDE_BY_SIDE!r}], os.environ['NAP_WORKERS'])"
    job = placed(asked("counting")[0], code)
    worker = Pool([{GPU: name} for name in "012"]).submit(job)
    worker.worker.wait()
    assert worker.poll() == Exit(0)
    assert (job.path / LOG_NAME).read_text() == "3 4\n"


def test_a_worker_ends_when_it_is_released() -> None:
    job = placed(asked("counting")[0], "import os; os.read(0, 1); raise SystemExit(75)")
    worker = Pool([{}]).submit(job)
    assert worker.poll() is None
    worker.stop()
    worker.worker.wait()
    assert worker.poll() == Exit(75)


def test_a_worker_that_does_not_end_is_killed_with_all_that_it_started() -> None:
    code = "child = subprocess.Popen(['sleep', '20']); print(child.pid, flush=True); child.wait()"
    job = placed(asked("counting")[0], "import subprocess; " + code)
    worker = Pool([{}]).submit(job)
    child = int(until(lambda: (job.path / LOG_NAME).read_text()))
    worker.kill()
    assert str(worker.poll()) == "its worker was killed by SIGKILL"
    stat = Path(f"/proc/{child}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_who_sits_beside_a_worker_lets_it_go_when_the_folder_asks_for_it() -> None:
    let_go_in_time = "75 if select.select([0], [], [], 30)[0] else 1"
    job = placed(asked("counting")[0], f"import select; raise SystemExit({let_go_in_time})")
    threading.Timer(0.3, request_stop, [job.path]).start()
    assert run_worker(job.command, Path.cwd(), job.path / LOG_NAME, {}) == 75
    assert not (job.path / STOP_NAME).exists()  # so the next one is not let go at once


def test_who_is_asked_twice_waits_until_the_worker_has_saved() -> None:
    asks = "time.sleep(0.3); os.kill(os.getppid(), signal.SIGINT); time.sleep(0.3)"
    job = placed(asked("counting")[0], f"import os, signal, time; os.read(0, 1); {asks}; print('saved')")
    request_stop(job.path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
    try:
        assert run_worker(job.command, Path.cwd(), job.path / LOG_NAME, {}) == 0
    except KeyboardInterrupt:  # it would end all tests
        pytest.fail("the worker was left alone")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (job.path / LOG_NAME).read_text() == "saved\n"


def test_a_worker_imports_nothing_from_where_it_runs() -> None:
    Path("nap.py").write_text("raise SystemExit('the wrong nap')")
    Path("torch.py").write_text("raise SystemExit('the wrong torch')")
    assert run_worker([*WORKER, "nothing"], Path.cwd(), log := Path("log"), {}) == BAD_USAGE
    assert log.read_text().startswith("nap run: no experiment 'nothing'")


def test_a_worker_has_a_folder_where_the_driver_s_is_not() -> None:
    job = placed(asked("counting")[0], "import os; print(os.getcwd())")
    nowhere = Path("/not/on/this/machine")
    assert run_worker(job.command, nowhere, job.path / LOG_NAME, {}) == 0
    assert (job.path / LOG_NAME).read_text() == f"{job.path}\n"


def test_a_worker_refuses_another_run_than_the_driver_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    job = asked("counting --runs 2")[1]
    monkeypatch.setenv(EXPECTED_RUN, job.environment[EXPECTED_RUN])
    check_expected_run(parse_requests(job.command[len(WORKER) :]))
    other = asked("counting --runs 3")[2].command[len(WORKER) :]
    with pytest.raises(ValueError, match=r"meant the run counting run-1, and here .* counting run-2"):
        check_expected_run(parse_requests(other))


# experiments of one's own


def test_an_experiment_that_workers_cannot_import_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ModuleType("made_here")
    made.EXPERIMENT = replace(experiments(["tiny"])["tiny"], name="mine")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_here", made)
    monkeypatch.setitem(MODULES, "mine", "made_here")
    assert main(["sweep", "mine"]) == BAD_USAGE
    assert "mine: workers cannot import made_here, which holds its EXPERIMENT" in capsys.readouterr().err
    assert not Path("results").exists()


@pytest.mark.slow
def test_the_documented_experiment_of_one_s_own_can_be_swept(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/lab.md").read_text("utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (affine,) = [code for code in snippets if "EXPERIMENT = Experiment(" in code]
    (mylab,) = [code for code in snippets if code.startswith("# mylab.py")]
    (tmp_path / "code").mkdir()
    (tmp_path / "code/affine.py").write_text(affine)
    (tmp_path / "code/mylab.py").write_text(mylab)
    words = "sweep affine --shard 1/3 --seeds 1 --tasks 1 --epochs 1 --images 64 --width 16"
    command = [sys.executable, str(tmp_path / "code/mylab.py"), *shlex.split(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == OK, done.stdout + done.stderr
    assert ": finished, " in done.stdout


# the lock


def test_who_looks_whether_a_folder_is_in_use_leaves_no_trace_and_disturbs_nobody(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert lock_owner(lock) is None
    assert not lock.exists()
    lock.write_text("signed by the last one")
    assert lock_owner(lock) is None
    assert lock.read_text() == "signed by the last one"
    with lock.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert lock_owner(lock) is None  # nor do two who look
        threading.Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        held = Lock(lock)
    assert str(lock_owner(lock)).startswith("in use by process")
    held.release()
    assert lock_owner(lock) is None


def test_a_lock_that_may_not_be_read_is_not_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("nap.lab.runner.lock.os.open", refuse)
    assert lock_owner(tmp_path / "lock") is None
