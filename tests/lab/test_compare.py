"""`nap compare`: a user's training in three arms, tuned on seeds apart, judged on others; it resumes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nap.lab.claims.samples import Samples
from nap.lab.cli.main import main
from nap.lab.compare import Trial, compare
from nap.lab.experiments import MODULES
from nap.lab.experiments.compare.claims import lead
from nap.lab.rows import Rows
from nap.lab.seeds import for_tuning

TRAIN = '''
import torch
from torch import nn
from sklearn.datasets import load_digits


def train(trial):
    """Online accuracy on digits with new random labels for each of two tasks."""
    data = load_digits()
    x, count = torch.tensor(data.data / 16, dtype=torch.float32), len(data.target)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = trial.prepare(model, x[:2], preset="continual")
    for task in range(2):
        labels, right = torch.randint(10, (count,)), 0.0
        for _ in range(20):
            i = torch.randint(count, (64,))
            logits = model(x[i])
            right += (logits.argmax(1) == labels[i]).float().mean().item() / 20
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, labels[i]).backward()
            optimizer.step()
        yield right


def loss(trial):
    w = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = trial.prepare(w, torch.randn(2, 2), preset="rl")
    for _ in range(3):
        optimizer.zero_grad()
        value = w(torch.ones(4, 2)).square().mean()
        value.backward()
        optimizer.step()
    return value.item()
'''
SHORT = ["--rates", "1e-3", "1e-2", "--extend", "0", "--tuning-seeds", "1"]


@pytest.mark.parametrize("arm", ["plain", "norm only", "NaP"])
def test_a_trial_asks_for_a_preset_by_name(arm: Any) -> None:
    trial = Trial(arm, 1e-3, 0, torch.device("cpu"))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"say which preset.*'rl', 'language', 'vision', 'continual'"):
        trial.prepare(model, torch.randn(2, 4))


def peak(trial: Trial) -> float:
    """Best at 1e-3 in "plain", at 4e-3 elsewhere; NaP is better by one."""
    best = 1e-3 if trial.arm == "plain" else 4e-3
    bonus = 1.0 if trial.arm == "NaP" else 0.0
    return bonus + 0.01 * (trial.seed % 3) - abs(math.log2(trial.lr / best))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_training_on_digits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "train.py:train", *SHORT, "--seeds", "3", "--report"]
    assert main(words) == 0
    said = capsys.readouterr().out
    for line in ("NaP is better than plain training", "NaP is better than its normalization alone"):
        assert line in said
    assert "plain-seed-0: finished, 1 training " in said
    page = (folder / "results/compare-train-train/report.html").read_text("utf-8")
    assert "Learning rates · by arm" in page
    assert "scale demo" not in page
    assert "In the paper:" not in page
    assert "Not in this folder" not in page
    assert main(words) == 0  # again: nothing is trained
    assert ": finished, " not in capsys.readouterr().out


def test_each_arm_has_its_best_rate_and_the_verdict_is_on_other_seeds(tmp_path: Path) -> None:
    found = compare(peak, rates=[1e-3, 2e-3], seeds=4, tuning_seeds=2, out=tmp_path)
    rates = {row["arm"]: row["learning_rate"] for row in found.rows}
    assert rates == {"plain": 1e-3, "norm only": 4e-3, "NaP": 4e-3}  # past the end of the grid
    assert found.tuned is not None
    assert all(map(for_tuning, found.tuned.seeds))
    assert not any(for_tuning(row["seed"]) for row in found.rows)
    verdicts = {claim.id: str(evidence.verdict) for claim, evidence in found.results}
    assert verdicts == {
        "compare.nap-plain": "holds",
        "compare.nap-norm-only": "holds",
        "compare.norm-only-plain": "fails",
    }
    effect = {claim.id: evidence.effect for claim, evidence in found.results}["compare.nap-plain"]
    assert effect == pytest.approx(1.0)


def test_the_lowest_is_the_best_where_that_is_asked_for(tmp_path: Path) -> None:
    found = compare(lambda trial: -peak(trial), goal="lowest", rates=[1e-3, 2e-3], seeds=3, out=tmp_path)
    assert {row["arm"]: row["learning_rate"] for row in found.rows}["NaP"] == 4e-3
    claim, evidence = found.results[0]
    assert (claim.id, str(evidence.verdict)) == ("compare.nap-plain", "holds")
    assert evidence.effect == pytest.approx(1.0)
    assert "plain minus NaP" in evidence.quantity


@pytest.mark.slow
def test_workers_do_the_same(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arms = ["--arms", "nap", "--goal", "lowest", "--seeds", "1", "--device", "cpu"]
    words = ["compare", "train.py:loss", *SHORT, *arms]
    assert main([*words, "--engine", "local", "--workers", "2", "--out", "there"]) == 0
    assert main([*words, "--out", "here"]) == 0
    there, here = (
        sorted(
            (row["arm"], row["seed"], row["learning_rate"], row["result"])
            for path in Path(out).rglob("rows.jsonl")
            for row in map(json.loads, path.read_text().splitlines())
        )
        for out in ("there", "here")
    )
    assert there == here
    assert {row[0] for row in here} == {"NaP"}


def test_what_the_arms_do_to_a_model() -> None:
    def made(arm: Any) -> tuple[Any, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        trial = Trial(arm, 0.1, 0, torch.device("cpu"))
        return model, trial.prepare(model, torch.randn(2, 4), preset="continual", weight_decay=0.1)

    norms = {}
    for arm in ("plain", "norm only", "NaP"):
        torch.manual_seed(0)
        model, optimizer = made(arm)
        before = model[2].weight.norm().item()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        norms[arm] = model[2].weight.norm().item() / before
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert (model[0].bias is None) == (arm != "plain")
        decays = {group["weight_decay"] for group in optimizer.param_groups}
        assert decays == ({0.1} if arm != "NaP" else {0.0, 0.1} & decays)
    assert norms["NaP"] == pytest.approx(1, abs=1e-5)
    assert all(abs(norms[arm] - 1) > 0.01 for arm in ("plain", "norm only"))


def test_a_rate_at_which_training_breaks_down_is_not_chosen(tmp_path: Path) -> None:
    def fragile(trial: Trial) -> float:
        if trial.lr > 1.5e-3:
            raise ValueError("probabilities are NaN")
        return math.nan if trial.lr > 1.2e-3 else trial.lr

    found = compare(fragile, rates=[5e-4, 1e-3, 1.3e-3, 2e-3], seeds=3, tuning_seeds=1, out=tmp_path)
    assert {row["learning_rate"] for row in found.rows} == {1e-3}


def test_an_error_in_the_function_ends_it_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(trial: Trial) -> float:
        raise KeyError("label")

    assert compare(wrong, out=tmp_path).code == 1
    said = capsys.readouterr().out
    assert said.count("failed: KeyError") == 1
    assert "No training finished" in said
    assert compare(lambda trial: "good", out=tmp_path / "b").code == 1  # type: ignore[arg-type,return-value]
    assert "the function gave a str" in capsys.readouterr().out


def test_changed_code_is_another_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "train.py:loss", *SHORT, "--seeds", "1", "--arms", "plain"]
    assert main(words) == 0
    (folder / "train.py").write_text(TRAIN + "\n# changed")
    assert main(words) == 2
    assert "sha256_of_target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian.py:train"], "did you mean train.py"),
        (["train.py:tran"], "did you mean train?"),
        (["train.py:train", "--arms", "plan"], "there is no arm 'plan'"),
        (["train.py"], "FILE.py:FUNCTION"),
        (["train.py:train", "--rates", "1e-3"], "name two or more"),
        (["train.py:train", "--seeds", "101"], "for tuning"),
    ],
)
def test_bad_words(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["compare", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "results").exists()


def test_a_function_that_exits_is_a_failed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def leaves(trial: Trial) -> float:
        raise SystemExit(4)

    found = compare(leaves, rates=[0.1, 0.2], seeds=1, tuning_seeds=1, extend=0, out=tmp_path)
    assert found.code == 1
    assert "the function called sys.exit(4)" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [0, -1])
def test_too_few_seeds_are_refused_before_anything_is_trained(tmp_path: Path, seeds: int) -> None:
    with pytest.raises(ValueError, match=f"--seeds {seeds}: it must be at least 1"):
        compare(lambda trial: 1.0, seeds=seeds, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_it_is_not_one_of_the_papers() -> None:
    assert "compare" not in MODULES


def test_seeds_are_compared_in_pairs() -> None:
    def row(arm: str, seed: int, result: float) -> dict[str, Any]:
        return {"arm": arm, "seed": seed, "step": 1, "result": result, "goal": "highest"}

    rows = [row(arm, seed, 10.0 * seed + (arm == "NaP")) for arm in ("NaP", "plain") for seed in range(3)]
    evidence = lead(Samples(Rows(rows)), "NaP", "plain")
    assert (evidence.effect, evidence.low, evidence.high) == pytest.approx((1, 1, 1))
