"""`nap doctor`: factories, logs of several kinds, folders of runs, and bad usage."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nap.lab import doctor, logs
from nap.lab.cli.main import BAD_USAGE, OK, PROBLEMS, main

SOURCE = """
import torch
from torch import nn

print("a greeting from the user's file")

def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), torch.randn(64, 8)

def make():
    return parts()

def make_with_loss():
    return *parts(), lambda output: output.square().mean()

def make_dead():
    model, optimizer, batch = parts()
    nn.init.constant_(model[0].bias, -100.0)
    return model, optimizer, {"input": batch}, lambda output: output.square().mean()

def make_model_only():
    return parts()[0]

def make_odd_batch():
    model, optimizer, _ = parts()
    return model, optimizer, "a batch"
"""

ROWS: list[dict[str, Any]] = [
    {"step": 100 * i, "nap/dead/1": dead, "nap/rate/0.weight": 1e-3, "nap/norm/parameters": 4.0}
    for i, dead in enumerate((0.1, 0.3, 0.7, 0.9))
]


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SOURCE)
    return str(tmp_path / "train.py")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["doctor", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_healthy_factory(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, f"{file}:make_with_loss")
    assert code == OK
    assert "Nothing found that stops learning." in out
    assert "a greeting" in err
    code, out, _ = printed(capsys, f"{file}:make")
    assert code == OK
    assert "gradients, and layers that have none" in out.partition("Not looked at:")[2]


def test_a_factory_of_a_dead_network_as_text_and_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, f"{file}:make_dead")
    assert code == PROBLEMS
    assert "warning: units are dead (1)" in out
    assert "100% of the units of 1 are 0 on every input (limit 50%)" in out
    code, out, _ = printed(capsys, f"{file}:make_dead", "--json")
    found = json.loads(out)
    assert code == PROBLEMS
    assert found["healthy"] is False
    assert found["numbers"]["dead/1"] == 1.0
    assert {"name", "severity", "where", "measure", "advice"} == set(found["findings"][0])


def test_a_table_in_a_terminal(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    doctor.show(doctor.diagnose_target(f"{file}:make_dead"), as_json=False)
    out = capsys.readouterr().out
    assert "likely reason" in out
    assert "what to try" in out


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.csv", "there is no nowhere.csv"),
        ("{file}:make_with_los", "did you mean make_with_loss"),
        ("{file}:make_model_only", "return (model, optimizer, batch)"),
        ("{file}:make_odd_batch", "give a tensor, a tuple or a dict"),
        ("{folder}/empty", "holds no log that nap reads"),
        ("{folder}/words.csv", "no measure that nap knows"),
        ("{folder}/torn.jsonl", "line 2 is no JSON"),
    ],
)
def test_bad_usage(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.csv").write_text("step,accuracy\n1,0.5\n")
    (tmp_path / "torn.jsonl").write_text('{"nap/dead/1": 0.1}\n{"nap/de\n')
    code, _, err = printed(capsys, target.format(file=file, folder=tmp_path))
    assert code == BAD_USAGE
    assert words in err
    assert "Traceback" not in err


def write_csv(path: Path) -> None:
    """As Lightning's CSVLogger does it: measures and losses on lines of their own."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["epoch", "step", "train_loss", *list(ROWS[0])[1:]])
        writer.writeheader()
        for row in ROWS:
            writer.writerow(row)
            writer.writerow({"epoch": 0, "step": row["step"], "train_loss": 1.0})


def write_events(path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(path.parent)) as board:
        for row in ROWS:
            for name, value in row.items():
                if name != "step":
                    board.add_scalar(name, value, row["step"])


WRITERS = {
    "metrics.csv": write_csv,
    "progress.csv": write_csv,
    "log.jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in ROWS)),
    "trainer_state.json": lambda path: path.write_text(json.dumps({"global_step": 3, "log_history": ROWS})),
    "events": write_events,
}


@pytest.mark.parametrize("name", WRITERS)
def test_logs_of_all_kinds_say_the_same(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    WRITERS[name](folder / name)
    (found,) = doctor.diagnose_target(str(folder)).values()
    (finding,) = found.findings
    assert finding.measure == "90% of the units of 1 are 0 on every input (limit 50%), since step 200"
    if name != "events":
        assert doctor.diagnose_target(str(folder / name))[""].findings == (finding,)


def lab_row(arm: str, seed: int, task: int, **numbers: Any) -> dict[str, Any]:
    return {"arm": arm, "seed": seed, "task": task, **numbers}


def test_runs_of_the_lab_are_told_apart_by_arm_and_joined_over_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        lab_row(arm, seed, task, dead_units=dead * task / 10, feature_rank=100.0, parameter_norm=10.0)
        for arm, dead in (("NaP", 0.01), ("no norm", 0.9))
        for seed in range(3)
        for task in range(1, 11)
    ]
    folder = tmp_path / "fig1" / "run"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = printed(capsys, str(tmp_path / "fig1"))
    assert code == PROBLEMS
    healthy, _, broken = out.partition("== no norm")
    assert healthy.strip() == "== NaP\nNothing found that stops learning."
    assert "since task 6; so in 3 of 3 seeds" in " ".join(broken.split())
    code, out, _ = printed(capsys, str(folder / "rows.jsonl"), "--json")
    assert json.loads(out)["NaP"]["healthy"] is True


def test_rows_of_single_layers_become_rates() -> None:
    rows = [
        {"arm": "NaP", "seed": 0, "frames": 100, "kind": "layer", "layer": "conv", "effective_rate": 0.1},
        {"arm": "NaP", "seed": 0, "frames": 100, "kind": "episode", "score": 1.0},
    ]
    assert logs._of_lab(rows) == {("NaP", "0"): [{"frames": 100, "rate/conv": 0.1}]}


DEEP = "[" * 100_000 + "]" * 100_000
ODD_LOGS = {
    "deep.json": DEEP,
    "deep.jsonl": '{"loss": 1}\n' + DEEP + "\n",
    "huge.json": '[{"loss": ' + "9" * 400 + "}]",
    "mixed.jsonl": '{"step": 1, "loss": 1}\n{"step": "two", "loss": 2}\n{"step": null, "loss": 2}\n',
    "quote.csv": '"' + "a" * 200_000,
    "latin.csv": "caf\xe9\n1\n",
}


@pytest.mark.parametrize("name", ODD_LOGS)
def test_no_log_ends_in_a_traceback(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / name).write_bytes(ODD_LOGS[name].encode("latin-1"))
    for target in (folder / name, folder):
        assert printed(capsys, str(target))[0] in (OK, PROBLEMS, BAD_USAGE)


@pytest.mark.parametrize("name", ["metrics.csv", "a.jsonl", "rows.jsonl", "events.out.tfevents.1"])
def test_a_pipe_or_a_device_is_no_log(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / name)
    for target in (tmp_path, tmp_path / name, Path("/dev/zero")):
        code, _, error = printed(capsys, str(target))
        assert (code, "no file" in error or f"no {name}" in error) == (BAD_USAGE, True), error


@pytest.mark.parametrize("batch", ["torch.randn(64, 5)", "{'zzz': torch.randn(64, 8)}"])
def test_a_model_that_fails_on_its_batch_is_bad_usage(
    batch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = SOURCE + f"\ndef broken():\n    return *parts()[:2], {batch}\n"
    source += "\ndef broken_loss():\n    return *parts(), lambda output: 1 / 0\n"
    (tmp_path / "train.py").write_text(source)
    for name in ("broken", "broken_loss"):
        code, _, error = printed(capsys, f"{tmp_path / 'train.py'}:{name}")
        assert (code, "fails on its batch" in error) == (BAD_USAGE, True)


def test_help_answers_without_torch() -> None:
    code = "import sys; from nap.lab.cli.main import main\ntry: main(['doctor', '--help'])\n"
    code += "except SystemExit: pass\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nap doctor train.py:make" in done.stdout
