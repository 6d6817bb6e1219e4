"""`nap sweep`: what there is to do, what follows when a worker ends, the view, and mistakes in its words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from nap.lab.cli import BAD_USAGE, FINE, IN_USE, main
from nap.lab.experiments.experiment import MODULES, experiments
from nap.lab.options import How
from nap.lab.runs import RunFolder
from nap.lab.runs.signals import StopRequest
from nap.lab.sweep import beat, watching
from nap.lab.sweep.attempts import Next, after
from nap.lab.sweep.command import exit_code
from nap.lab.sweep.drive import Tracked, drive, tracked
from nap.lab.sweep.engine import End, NotPlaced
from nap.lab.sweep.found import Found, look, mark
from nap.lab.sweep.how import Sweeping
from nap.lab.sweep.jobs import Job, jobs
from nap.lab.sweep.launch import LOG_NAME
from nap.lab.sweep.pool import GPU, Pool, slots, slots_here
from small_work import run as sitting


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.setitem(MODULES, "counting", "sweep_tiny")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nap(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    """A command line → exit code, standard output, standard error."""

    def run(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return code, printed.out, printed.err

    return run


def asked(line: str) -> list[Job]:
    from nap.lab.cli import requested

    words = line.split()
    first_option = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return jobs(requested(words, Sweeping), words[first_option:])


# what there is to do


def test_a_job_is_nap_run_with_one_part_of_it() -> None:
    found = asked("counting --runs 3 --engine ray --out here --workers 7 --force --report --steps=9")
    assert [job.label for job in found] == ["run-0", "run-1", "run-2"]
    assert [str(job.folder) for job in found] == [f"here/counting-demo/run-{n}" for n in range(3)]
    passed_on = "counting --runs 3 --out here --steps 9 --threads 1 --part"
    assert [" ".join(job.command[3:]) for job in found] == [f"{passed_on} {n}/3" for n in (1, 2, 3)]
    assert found[0].path == Path.cwd() / "here/counting-demo/run-0"


def test_a_part_of_a_sweep_has_the_same_jobs_as_the_whole() -> None:
    whole, part = asked("counting --runs 5"), asked("counting --runs 5 --part 2/2")
    assert [(job.label, job.command) for job in part] == [(job.label, job.command) for job in whole[1::2]]


def test_several_experiments_that_share_runs_share_jobs() -> None:
    found = asked("fig4 stats walk --seeds 3")
    assert len(found) == len({job.folder for job in found}) == 15
    assert found[-1].label == "walk walks"
    assert found[-1].command[3:6] == ("fig4", "stats", "walk")
    assert found[-1].command[-1] == "15/15"


def test_a_folder_says_what_there_is_to_do(tmp_path: Path) -> None:
    assert look(tmp_path) == Found("new")
    stop = StopRequest()
    stop.signal = "SIGTERM"
    sitting(tmp_path, stop=stop)
    assert look(tmp_path).state == "begun"
    assert look(tmp_path).words == "stopped by SIGTERM"
    with RunFolder.open(
        tmp_path, experiment="fig1", scale="demo", run="nap", config={"seeds": 1, "lr": 1e-2}
    ):
        found = look(tmp_path)
        assert found.state == "in use"
        assert found.words.startswith("in use by process")
    before = mark(tmp_path)
    sitting(tmp_path)
    assert mark(tmp_path) != before
    assert look(tmp_path).state == "finished"
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("{}\n")
    assert look(tmp_path).state == "failed"
    assert "was edited" in look(tmp_path).words


def test_a_dry_run_shows_the_plan_and_touches_nothing(nap) -> None:
    code, out, err = nap("sweep counting --runs 2 --dry-run")
    assert (code, err) == (FINE, "")
    assert "counting: 2 runs, 2 new" in out
    assert "results/counting-demo/run-1" in out
    assert not Path("results").exists()
    assert nap("run counting --runs 3 --part 1/3 --seconds-per-step 0")[0] == FINE
    # the number of runs is a setting of this experiment, so these are the same ones
    code, out, _ = nap("sweep counting --runs 3 --dry-run")
    assert "3 runs, 1 finished, 2 new" in out


# where


def test_slots_are_cores_or_shares_of_gpus() -> None:
    def gpus(how: Sweeping) -> list[str]:
        return [slot[GPU] for slot in slots(how, cores=8, visible=["0", "1", "GPU-a"])]

    assert gpus(Sweeping()) == ["0", "1", "GPU-a"]
    assert gpus(Sweeping(per_gpu=2)) == ["0", "1", "GPU-a"] * 2
    assert gpus(Sweeping(per_gpu=2, workers=4)) == ["0", "1", "GPU-a", "0"]
    assert gpus(Sweeping(gpus=(2,))) == ["GPU-a"]
    assert slots(Sweeping(), cores=8, visible=[]) == [{}] * 8
    assert slots(Sweeping(threads=3), cores=8, visible=[]) == [{}] * 2
    assert slots(Sweeping(threads=16), cores=8, visible=[]) == [{}]
    with pytest.raises(ValueError, match="let more runs share a GPU with --per-gpu"):
        gpus(Sweeping(workers=4))
    with pytest.raises(ValueError, match="--gpus 3: there are 3 GPUs here, counted from 0"):
        gpus(Sweeping(gpus=(3,)))
    with pytest.raises(ValueError, match="sees no GPU"):
        slots(Sweeping(per_gpu=2), cores=8, visible=[])


def test_this_machine_s_gpus_are_those_that_torch_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GPU, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert slots_here(Sweeping()) == [{GPU: "0"}, {GPU: "1"}]
    assert slots_here(Sweeping(device="cpu", workers=3)) == [{}] * 3
    monkeypatch.setenv(GPU, "3,5")
    assert slots_here(Sweeping(gpus=(1,))) == [{GPU: "5"}]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="sees no CUDA device"):
        slots_here(Sweeping(device="cuda"))


def placed(job: Job, code: str) -> Job:
    job.path.mkdir(parents=True)
    return replace(job, command=(sys.executable, "-c", code))


def test_a_worker_sees_its_slot_s_gpu_and_the_slot_is_free_again() -> None:
    code = "import os; print(*(os.environ[key] for key in ('CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS')))"
    job, pool = placed(asked("counting --threads 3")[0], code), Pool([{GPU: "5"}])
    for _ in range(2):
        seated = pool.place(job)
        seated.worker.wait(30)
        assert seated.ended() == End(0)
    assert (job.path / LOG_NAME).read_text() == "5 3\n" * 2


def test_a_worker_ends_when_it_is_let_go() -> None:
    job = placed(asked("counting")[0], "import os; os.read(0, 1); raise SystemExit(75)")
    seated = Pool([{}]).place(job)
    assert seated.ended() is None
    seated.stop()
    seated.worker.wait(30)
    assert seated.ended() == End(75)


def test_a_worker_that_does_not_end_is_killed() -> None:
    seated = Pool([{}]).place(placed(asked("counting")[0], "import time; time.sleep(60)"))
    seated.kill()
    assert str(seated.ended()) == "its worker was killed by SIGKILL"


# what follows


@pytest.mark.parametrize(
    ("end", "found", "moved", "vain", "expected"),
    [
        (End(0), Found("finished"), True, 2, Next("finished", 0)),
        (End(-9), Found("finished"), False, 0, Next("finished", 0)),  # killed a moment too late
        (End(None, "lost"), Found("finished"), False, 0, Next("finished", 0)),
        (End(1), Found("failed", "failed: OSError"), False, 0, Next("again", 1)),
        (End(1), Found("failed", "failed: OSError"), False, 2, Next("failed", 3)),
        (End(1), Found("failed", "failed: OSError"), True, 2, Next("again", 0)),
        (End(1), Found("failed", "not finite: step 2"), True, 0, Next("failed", 0)),
        (End(2), Found("new"), False, 0, Next("refused", 0)),
        (End(3), Found("begun", "killed"), False, 1, Next("elsewhere", 1)),
        (End(None, "lost"), Found("in use", "in use by process 3"), False, 1, Next("elsewhere", 1)),
        (End(-9), Found("begun", "killed"), False, 0, Next("again", 1)),
        (End(75), Found("begun", "stopped by SIGTERM"), True, 1, Next("again", 0)),
        (End(0), Found("new"), False, 0, Next("again", 1)),  # a worker that did nothing
    ],
)
def test_after(end: End, found: Found, moved: bool, vain: int, expected: Next) -> None:
    assert after(end, found, moved=moved, vain=vain, retries=2) == expected


class Listener:
    """A view that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, runs: Any) -> None:
        pass


class Script:
    """An engine whose workers do as they are told: do nothing and end so, or finish the run."""

    words = "a script"

    def __init__(self, *ends: int | str, workers: int = 1):
        self.ends, self.workers, self.placed = list(ends), workers, 0

    def place(self, job: Job) -> NotPlaced:
        self.placed += 1
        end = self.ends.pop(0)
        if end == "finish":
            Path(job.path).mkdir(parents=True, exist_ok=True)
            (job.path / "rows.jsonl").write_text("")
            manifest = {"finished": "now", "rows_bytes": 0, "sittings": [], "seconds": 3}
            (job.path / "manifest.json").write_text(json.dumps(manifest))
            end = 0
        return SimpleNamespace(ended=lambda: End(end))  # type: ignore[return-value,arg-type]


def driven(line: str, engine: Script, retries: int = 2) -> tuple[list[Tracked], list[str]]:
    view, runs = Listener(), [tracked(job, look(job.path)) for job in asked(line)]
    drive(runs, engine, view, retries=retries)
    return runs, view.said


def test_what_fails_is_placed_again_until_it_was_in_vain_too_often() -> None:
    engine = Script(1, "finish", 1, 1)  # the second comes before what was tried in vain
    runs, said = driven("counting --runs 2", engine)
    assert [run.standing for run in runs] == ["failed", "finished"]
    assert (engine.placed, exit_code(runs)) == (4, 1)
    why = "its worker ended with exit code 1"
    assert said == [
        f"run-0: {why}; to go on from its last checkpoint (in vain 1 of 3 times)",
        "run-1: finished, 0:03 of work",
        f"run-0: {why}; to go on from its last checkpoint (in vain 2 of 3 times)",
        f"run-0: failed: {why}; given up, 3 times in a row in vain",
    ]


def test_what_is_refused_is_told_in_the_worker_s_words_and_not_tried_again() -> None:
    log = Path("results/counting-demo/run-0/worker.log")
    log.parent.mkdir(parents=True)
    log.write_text("counting: ...\nnap run: cifar10 is not complete; run: nap data fetch cifar10\n")
    runs, said = driven("counting --runs 1", engine := Script(2))
    assert said == ["run-0: failed: cifar10 is not complete; run: nap data fetch cifar10"]
    assert (engine.placed, exit_code(runs)) == (1, BAD_USAGE)


def test_what_is_finished_is_not_placed() -> None:
    driven("counting --runs 1", Script("finish"))
    runs, said = driven("counting --runs 1", engine := Script())
    assert (engine.placed, said, exit_code(runs)) == (0, [], 0)


def test_a_folder_in_use_is_waited_for() -> None:
    job = asked("counting --runs 1")[0]
    held = RunFolder.open(job.path, **job.settings("demo"))
    runs = [tracked(job, look(job.path))]
    assert runs[0].standing == "elsewhere"

    class LetGo(Listener):
        def show(self, runs: Any) -> None:
            held.close()

    drive(runs, engine := Script("finish"), LetGo(), retries=0)
    assert (engine.placed, exit_code(runs)) == (1, 0)


def test_a_stop_leaves_the_rest_for_another_time() -> None:
    stop, runs = StopRequest(), [tracked(job, Found("new")) for job in asked("counting --runs 2")]
    stop.signal = "SIGTERM"
    drive(runs, Script(), Listener(), retries=0, stop=stop)
    assert exit_code(runs) == 75


# the view


def two_runs() -> list[Tracked]:
    runs = [tracked(job, Found("new")) for job in asked("counting --runs 3")]
    runs[0].standing, runs[1].standing = "placed", "placed"
    runs[0].job.path.mkdir(parents=True)
    return runs


def tell(run: Tracked, done: int) -> None:
    (run.job.path / beat.FILE_NAME).write_text(json.dumps({"done": done, "total": 100, "unit": "steps"}))


def test_lines_in_a_log_say_how_far_all_runs_are() -> None:
    now, out, runs = [0.0], StringIO(), two_runs()
    lines = watching.Lines(Console(file=out, width=40), "queued", clock=lambda: now[0])
    for second in range(21):
        now[0] = float(second)
        tell(runs[0], second)
        lines.show(runs)
    assert out.getvalue().splitlines() == [
        "0/3 runs finished, 1 at work, 1 queued, 1 to do  4:50 left",
        "0/3 runs finished, 1 at work, 1 queued, 1 to do  4:40 left",
    ]


def test_bars_in_a_terminal_show_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_EVERY_SECONDS", 0.0)
    runs, out = two_runs(), StringIO()
    tell(runs[0], 25)
    console = Console(file=out, width=100, height=20, force_terminal=True, color_system=None)
    with watching.view("counting", console=console) as show:
        show.show(runs)
        runs[1].standing, runs[1].words = "elsewhere", "in use by process 7"
        show.show(runs)
        runs[0].standing = "finished"
        show.show(runs)
        show.say("a note")
    text = out.getvalue()
    for words in ("25/100 steps", "in use by process 7", "a note", "1/3 runs finished, 1 in use elsewhere"):
        assert words in text


# words


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sweep", "name an experiment first: nap sweep fig1"),
        ("sweep tyni", "Did you mean tiny?"),
        ("sweep tiny --enigne ray", "Did you mean --engine?"),
        ("sweep tiny --engine rya", "--engine rya: expected one of local, ray, slurm"),
        ("sweep tiny --workers -1", "--workers -1: it must be at least 0"),
        ("sweep tiny --per-gpu 0", "--per-gpu 0: it must be at least 1"),
        ("sweep tiny --retries many", "--retries many: expected a whole number"),
        ("sweep tiny --steps -5", "steps=-5"),
        ("sweep tiny --part 3/2", "--part 3/2: expected two numbers like 2/4"),
        ("sweep tiny --device cpu --gpus 0", "--gpus and --per-gpu: torch sees no GPU here"),
        ("sweep tiny --engine slurm --slurm gpu", "--slurm gpu: expected KEY=VALUE"),
        ("sweep tiny --engine slurm --slurm cluster=local slurm_patrition=x", "Unknown argument 'patrition'"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(nap, line: str, message: str) -> None:
    code, out, err = nap(line)
    assert (code, out) == (BAD_USAGE, "")
    assert message in err
    assert err.startswith("nap sweep: ")
    assert err.count("\n") == 1
    assert not Path("results/tiny-demo").exists()


@pytest.mark.parametrize("line", ["sweep -h", "sweep tiny -h"])
def test_help_has_examples(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(line.split())
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert "  nap sweep " in shown
    assert "exit codes" in shown or "CPU threads of each worker; 0 takes one." in shown


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named(nap, engine: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"nap.lab.sweep.{engine}_engine", raising=False)
    code, _, err = nap(f"sweep tiny --engine {engine}")
    assert code == BAD_USAGE
    assert f"needs {package}, which is not installed; pip install 'normalize-and-project[lab,sweep]'" in err


def test_other_settings_and_force_on_a_folder_in_use_are_refused(nap) -> None:
    assert nap("run tiny")[0] == FINE
    code, _, err = nap("sweep tiny --rate 0.25")
    assert code == BAD_USAGE
    assert "config.rate: 0.5 there, 0.25 now" in err
    job = asked("tiny")[0]
    with RunFolder.open(job.path, **job.settings("demo")):
        code, _, err = nap("sweep tiny --force")
    assert code == IN_USE
    assert "is in use by process" in err


def test_finished_runs_are_skipped_and_judged(nap) -> None:
    assert nap("run tiny")[0] == FINE
    code, out, _ = nap("sweep tiny --report")
    assert code == FINE
    assert out.startswith("tiny: scale demo, 2 runs, 2 finished already, on ")
    assert out.endswith("Results: results/tiny-demo\nReport: results/tiny-demo/report.html\n")


def test_no_setting_of_an_experiment_has_the_name_of_one_of_the_sweep() -> None:
    own = {field.name for field in fields(Sweeping)} - {field.name for field in fields(How)}
    for name, experiment in experiments().items():
        for config in experiment.scales.values():
            assert not own & {field.name for field in fields(config)}, name
