"""Results and commands under old names: they are found, continued and read as if they had the new ones."""

from __future__ import annotations

import dataclasses
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import small_work
from nap.lab import aliases, rows, stored
from nap.lab.claims import evaluate, read
from nap.lab.cli.main import main, parse_requests
from nap.lab.cli.options import parse
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.tasks import run_folder, select_runs
from nap.lab.launch.run_state import read_state, setting_differences
from nap.lab.report.facts import read_run
from nap.lab.runner import Outcome, RunFolder, run_work
from tiny_experiment import EXPERIMENT, TinyConfig

EVIDENCE = Path(__file__).parents[2] / "evidence"
TABLES = ("SETTINGS", "ARMS", "KINDS", "COLUMNS", "OPTIONS", "MANIFEST")
COMMANDS = {  # archive: a command that asks for its runs, with what was the default in its time written out
    "fig1-small": "fig1 --scale small --optimizer-state legacy --affine decay",
    "fig2-small": "fig2 --scale small",
    "fig3-small": "fig3 --scale small --games boxing freeway pong --seeds 2 --no-save-replay",
    "fig4-small": "fig4 --scale small --optimizer-state legacy --affine decay",
    "fig5-sequential-small": "fig5-sequential --scale small --no-save-replay",
    "induction-sines-paper": "induction --scale paper --forms 100+50 --positions sines --clip 0 --every 100",
    "strings-paper": "strings --scale paper --optimizer-state legacy --clip 0",
    "table1-cifar-paper": "table1-cifar --scale paper",
    "table1-imagenet-small": "table1-imagenet --scale small",
    "table1-language-small": "table1-language --scale small "
    "--exams c4=carry/ex/c4.jsonl pile=carry/ex/pile.jsonl wikitext-103 lambada siqa piqa",
    "walk-small": "walk --scale small",
}


def unpacked(archive: str, where: Path) -> Path:
    with tarfile.open(EVIDENCE / f"{archive}.tar.xz") as packed:
        packed.extractall(where, filter="data")
    return where / archive


def settings(run: Run, folder: Path) -> dict[str, Any]:
    there = json.loads((folder / "config.json").read_text())
    config = json.loads(json.dumps(dataclasses.asdict(run.config)))
    return {"experiment": there["experiment"], "scale": there["scale"], "run": run.name, "config": config}


@pytest.mark.parametrize("archive", COMMANDS)
def test_stored_runs_are_those_that_the_same_command_asks_for_today(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = unpacked(archive, tmp_path)
    monkeypatch.chdir(tmp_path)
    for word in COMMANDS[archive].split():
        if file := word.partition("=")[2]:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).touch()
    runs = [run for _, _, run in select_runs(parse_requests(COMMANDS[archive].split()))]
    there = [(run, run_folder(run, home)) for run in runs if run_folder(run, home).is_dir()]
    assert len(there) >= 0.7 * len(list(home.rglob("manifest.json")))
    for run, folder in there:
        assert setting_differences(folder, settings(run, folder), run.config) == []
        assert read_state(folder).state == "finished"


@pytest.mark.parametrize("table", TABLES)
def test_a_name_of_today_is_no_old_one(table: str) -> None:
    entries: dict[str, str] = getattr(aliases, table)
    assert list(entries) == sorted(entries)
    assert not {new for old, new in entries.items() if "/" not in old} & set(entries)


def test_values_of_today_are_no_old_ones() -> None:
    assert list(aliases.VALUES) == sorted(aliases.VALUES)
    for renamed in aliases.VALUES.values():
        assert not set(renamed) & set(renamed.values())


@dataclass(frozen=True)
class Arm:
    name: str = "NaP"
    method: str = "l2_init"


@dataclass(frozen=True)
class Config:
    """A config of today."""

    arm: Arm = Arm()
    seeds: int = 1
    num_envs: int = 16
    newer: bool = False


OLD: dict[str, Any] = {"arm": {"name": "NaP of old", "method": "regrowing"}, "seeds": 1, "lanes_of_old": 16}
NEW: dict[str, Any] = {"experiment": "fig1", "scale": "demo", "run": "nap", "config": Config()}
OLDER: dict[str, Any] = {"experiment": "fig1", "scale": "demo", "run": "nap-of-old", "config": OLD}


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, names of folders, rows and options have changed."""
    monkeypatch.setitem(aliases.SETTINGS, "lanes_of_old", "num_envs")
    monkeypatch.setitem(aliases.SETTINGS, "tiny/pace_of_old", "rate")
    monkeypatch.setitem(aliases.VALUES, "method", {"regrowing": "l2_init"})
    monkeypatch.setitem(aliases.VALUES, "mode", {"mild_of_old": "calm"})
    monkeypatch.setitem(aliases.ARMS, "NaP of old", "NaP")
    monkeypatch.setitem(aliases.KINDS, "exam_of_old", "evaluation")
    monkeypatch.setitem(aliases.COLUMNS, "task_of_old", "task")
    monkeypatch.setitem(aliases.OPTIONS, "share_of_old", "shard")


class Named(small_work.Training):
    """A work whose rows have names of their time."""

    def __init__(self, arm: str, task: str, kind: str):
        super().__init__()
        self.names = arm, task, kind

    def step(self) -> list[dict[str, Any]]:
        arm, task, kind = self.names
        return [
            {"arm": arm, "experiment": "fig1", "seed": 0, task: self.done, "kind": kind}
            | {"loss": row["loss"]}
            for row in super().step()
        ]


def carry(path: Path, about: dict[str, Any], names: tuple[str, str, str], stop: int = 30) -> Outcome:
    work = Named(*names)
    work.total = stop
    with RunFolder.open(path, **about) as folder:
        return run_work(work, folder, device=torch.device("cpu"), checkpoint_every_seconds=0.0)


OLD_ROWS, NEW_ROWS = ("NaP of old", "task_of_old", "exam_of_old"), ("NaP", "task", "evaluation")


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the lock, which says when it was taken last."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "lock"}


def test_an_old_folder_is_finished_already_and_stays_as_it_is(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    carry(tmp_path / "nap-of-old", OLDER, OLD_ROWS)
    before = contents(tmp_path / "nap-of-old")
    request.getfixturevalue("renamed")
    with RunFolder.open(tmp_path / "nap-of-old", **NEW) as folder:
        assert folder.is_finished()
        assert folder.config_hash == stored.config_hash(OLDER)
    assert contents(tmp_path / "nap-of-old") == before
    row = read_run(tmp_path / "nap-of-old").rows[0]
    assert (row["arm"], row["task"], row["kind"]) == ("NaP", 1, "evaluation")
    assert rows.read(tmp_path)[0] == row
    config = read_run(tmp_path / "nap-of-old").config
    assert config == {"arm": {"name": "NaP", "method": "l2_init"}, "seeds": 1, "num_envs": 16}


def test_a_half_done_folder_goes_on_under_the_names_of_its_rows(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    carry(tmp_path / "unbroken", OLDER, OLD_ROWS)

    class Stops(Exception):
        pass

    broken = Named(*OLD_ROWS)

    def stop(work: Any) -> None:
        if work.done == 12:
            raise Stops

    with RunFolder.open(tmp_path / "broken", **OLDER) as folder, pytest.raises(Stops):
        run_work(broken, folder, device=torch.device("cpu"), checkpoint_every_seconds=0.0, on_progress=stop)
    request.getfixturevalue("renamed")
    assert carry(tmp_path / "broken", NEW, NEW_ROWS).exit_code == 0
    for file in ("rows.jsonl", "config.json"):
        assert (tmp_path / "broken" / file).read_bytes() == (tmp_path / "unbroken" / file).read_bytes()


@pytest.mark.usefixtures("renamed")
def test_a_new_folder_has_the_new_names(tmp_path: Path) -> None:
    carry(tmp_path, NEW, NEW_ROWS)
    assert json.loads((tmp_path / "config.json").read_text())["config"]["num_envs"] == 16
    assert '"task": 1' in (tmp_path / "rows.jsonl").read_text()


@pytest.mark.usefixtures("renamed")
def test_another_value_under_an_old_name_is_another_setting(tmp_path: Path) -> None:
    carry(tmp_path, OLDER | {"config": OLD | {"lanes_of_old": 8}}, OLD_ROWS)
    with pytest.raises(ValueError, match=r"config\.num_envs: 8 there, 16 now"):
        RunFolder.open(tmp_path, **NEW)


def test_a_folder_whose_manifest_has_sittings_resumes_with_sessions(tmp_path: Path) -> None:
    small_work.stop_at(tmp_path, 2)
    path = tmp_path / stored.MANIFEST
    old = json.loads(path.read_text())
    old["sittings"] = old.pop("sessions")
    old[stored.CHECKSUM] = stored.checksum(old)
    path.write_text(json.dumps(old))
    assert read_state(tmp_path).state == "begun"
    assert small_work.run(tmp_path).reason == "finished"
    new = small_work.manifest(tmp_path)
    assert [session["exit"] for session in new["sessions"]] == ["stopped by SIGTERM", "finished"]
    assert "sittings" not in new
    old["sittings"][0]["exit"] = "finished"
    path.write_text(json.dumps(old))
    assert "its checksum does not match its content" in stored.read_manifest(path)[1]


@pytest.mark.usefixtures("renamed")
def test_an_old_name_that_still_means_something_else_is_left_alone(tmp_path: Path) -> None:
    config = {"lanes_of_old": 8}
    RunFolder.open(tmp_path, **NEW | {"config": config}).close()
    assert aliases.config(config, config) == config


def test_stored_rows_under_other_names_give_the_same_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = unpacked("fig1-small", tmp_path)
    before = {folder: evaluate(of) for folder, of in read(home).items()}
    for file in home.rglob("rows.jsonl"):
        text = file.read_text().replace('"accuracy"', '"hits_of_old"').replace('"arm": "NaP', '"arm": "PaN')
        file.write_text(text)
        manifest = json.loads((file.parent / "manifest.json").read_text())
        manifest["rows_bytes"] = len(text)
        (file.parent / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setitem(aliases.COLUMNS, "hits_of_old", "accuracy")
    for row in rows.read(home):
        if str(row["arm"]).startswith("PaN"):
            monkeypatch.setitem(aliases.ARMS, row["arm"], row["arm"].replace("PaN", "NaP"))
    assert {folder: evaluate(of) for folder, of in read(home).items()} == before


@pytest.mark.usefixtures("renamed")
def test_old_options_and_values_work() -> None:
    words = ["--pace-of-old", "0.25", "--mode=mild_of_old", "--share_of_old", "1/2"]
    asked = parse("tiny", EXPERIMENT.scales, words)
    assert asked.config == TinyConfig(rate=0.25, mode="calm")
    assert asked.options.shard == "1/2"
    assert asked.words == ["--rate", "0.25", "--mode", "calm", "--shard", "1/2"]
    assert len(asked.notes) == 3
    with pytest.raises(ValueError, match=r"tiny has no setting --lanes-of-old 4; it has --scale"):
        parse("tiny", EXPERIMENT.scales, ["--lanes-of-old", "4"])


@pytest.mark.usefixtures("renamed")
def test_an_old_option_is_mentioned_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "walk", "--share-of-old", "9/1", "--share-of-old", "8/1"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "nap run: deprecated: --share-of-old is now --shard; old names will go"
    assert len(said) == 2


def test_a_misspelt_option_is_no_old_one() -> None:
    with pytest.raises(ValueError, match=r"no setting --stpes 3; .*Did you mean --steps\?"):
        parse("tiny", EXPERIMENT.scales, ["--stpes", "3"])


def test_a_switch_that_became_a_choice() -> None:
    """`--fresh-moments` of strings is now a value of --optimizer-state, which other experiments share."""
    for old, state in (("--fresh-moments", "reset"), ("--no-fresh-moments", "legacy")):
        asked = parse_requests(["strings", "--scale", "demo", old])
        assert {run.config.settings.optimizer_state for _, _, run in select_runs(asked)} == {state}
    stored_then = {"settings": {"steps": 1000, "fresh_moments": True}}
    now = {"settings": {"steps": 1000, "optimizer_state": "reset"}}
    assert aliases.config(stored_then, now, "strings") == now
