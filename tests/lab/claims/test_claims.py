"""Claims on made-up rows: a world as the paper tells it, its opposite, and worlds that show too little.

Each world below is one for all claims of an experiment at once. A new claim is judged in every one of them,
so it fails here until the worlds say what it is about.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nap.lab.claims import Claim, Evidence, Region, Verdict, command, evaluate, read, table, to_json
from nap.lab.claims.claim import NotEnough
from nap.lab.claims.effects import all_of, decide
from nap.lab.claims.samples import BROKEN, DAMAGED, MIN_POINTS, RESUMABLE, UNFINISHED, Samples
from nap.lab.experiments import experiments
from nap.lab.rows import Row, RowFile, Rows
from nap.lab.runner.work import NOT_FINITE
from synthetic_worlds import (
    SEEDS,
    WORLDS,
    fig1_world,
    walk_world,
)


def two_seeds(row: Row) -> Row | None:
    return row if row["seed"] < 2 else None


def just_begun(row: Row) -> Row | None:
    if "frames" in row:
        frames = row["frames_in_game"] if "frames_in_game" in row else row["frames"]
        return row if frames < MIN_POINTS * 250_000 else None
    return row if row.get("task", 0) < MIN_POINTS and row.get("step", 0) in (0, 10, 100) else None


def other_arms(row: Row) -> Row | None:
    names = {key: f"another {row[key]}" for key in ("arm", "method", "norm") if key in row}
    return row | names


def unfinished(row: Row) -> Row | None:
    return row | {UNFINISHED: RESUMABLE, "run": "the-run"}


THIN = {
    "two seeds": (two_seeds, "2 seeds of at least 3"),
    "just begun": (just_begun, "too few"),
    "other arms": (other_arms, "no rows of"),
    "unfinished": (unfinished, "the-run is not finished"),
}


@cache
def verdicts(experiment: str, as_told: bool, thin: str = "") -> dict[str, list[Evidence]]:
    rows = list(WORLDS[experiment](as_told))
    if thin:
        rows = [kept for row in rows if (kept := THIN[thin][0](row)) is not None]
    found: dict[str, list[Evidence]] = {}
    for claim, evidence in evaluate(Rows(rows)):
        found.setdefault(claim.id, []).append(evidence)
    return found


CLAIMS = [claim for each in experiments().values() for claim in each.claims]


def by_id(claim: Claim) -> str:
    return claim.id


@pytest.mark.parametrize("claim", CLAIMS, ids=by_id)
def test_holds_in_the_papers_world(claim: Claim) -> None:
    found = verdicts(claim.experiment, True)[claim.id]
    assert [e.sentence for e in found if e.verdict is not Verdict.HOLDS] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=by_id)
def test_fails_in_the_opposite_world(claim: Claim) -> None:
    found = verdicts(claim.experiment, False)[claim.id]
    assert [e.sentence for e in found if e.verdict is not Verdict.FAILS] == []


@pytest.mark.parametrize("thin", THIN)
@pytest.mark.parametrize("claim", CLAIMS, ids=by_id)
def test_says_what_is_missing_in_a_thin_world(claim: Claim, thin: str) -> None:
    for evidence in verdicts(claim.experiment, True, thin)[claim.id]:
        assert evidence.verdict is Verdict.OPEN, evidence.sentence
        assert THIN[thin][1] in evidence.reason
        assert THIN[thin][1] in evidence.sentence


@pytest.mark.parametrize("claim", CLAIMS, ids=by_id)
def test_evidence_is_complete(claim: Claim) -> None:
    for evidence in verdicts(claim.experiment, True)[claim.id]:
        assert evidence.effect is not None
        assert evidence.low is not None
        assert evidence.high is not None
        assert evidence.low <= evidence.effect <= evidence.high
        assert evidence.seeds == SEEDS
        assert evidence.unit
        assert evidence.region is not None


def test_claims_are_told_apart_and_say_where() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    assert {claim.experiment for claim in CLAIMS} == set(WORLDS)
    assert [
        claim.id for claim in CLAIMS if not claim.statement.endswith((".", ".)")) or not claim.source
    ] == []


def test_each_network_and_stream_is_judged_apart() -> None:
    found = verdicts("fig4", True)
    everywhere = {
        f"{n}, {s}, optimizer reset" for n in ("mlp", "cnn") for s in ("random labels", "permuted labels")
    }
    assert {e.subject for e in found["fig4.nap-improves"]} == everywhere
    assert {e.subject for e in found["stats.nap-weight-norm"]} == everywhere
    assert {e.subject for e in found["fig4.random-labels-harder"]} == {
        "mlp, optimizer reset",
        "cnn, optimizer reset",
    }
    assert all(e.subject.startswith("mlp") for e in found["fig4.nap-mlp-indistinguishable"])


def test_only_experiments_with_rows_are_judged() -> None:
    assert {claim.experiment for claim, _ in evaluate(Rows(walk_world(True)))} == {"walk"}
    assert evaluate(Rows()) == []


def test_one_arm_that_stopped_early_is_named() -> None:
    rows = [row for row in fig1_world(True) if row["arm"] != "NaP" or row["task"] <= 7]
    found = {claim.id: evidence for claim, evidence in evaluate(Rows(rows))}
    assert "arm “NaP” stops at task 7 of 20" in found["fig1.nap-keeps-accuracy"].reason
    assert found["fig1.rescaled-keeps-accuracy"].verdict is Verdict.HOLDS


def test_a_hole_is_named() -> None:
    rows = [
        row | ({"accuracy": None} if (row["arm"], row["seed"], row["task"]) == ("NaP", 3, 9) else {})
        for row in fig1_world(True)
    ]
    found = {claim.id: evidence for claim, evidence in evaluate(Rows(rows))}
    assert "no accuracy at seed 3, task 9" in found["fig1.nap-keeps-accuracy"].reason


def test_arms_are_compared_on_the_seeds_that_they_share() -> None:
    rows = [row for row in fig1_world(True) if row["arm"] != "fresh" or row["seed"] < 4]
    found = {claim.id: evidence for claim, evidence in evaluate(Rows(rows))}
    assert found["fig1.nap-keeps-accuracy"].seeds == 4
    rows = [row | {"seed": row["seed"] + 50 * (row["arm"] == "fresh")} for row in fig1_world(True)]
    found = {claim.id: evidence for claim, evidence in evaluate(Rows(rows))}
    assert "share no seed" in found["fig1.nap-keeps-accuracy"].reason


def test_accuracy_at_chance_can_be_neither_kept_nor_lost() -> None:
    rows = [row | {"accuracy": 0.1} for row in fig1_world(True)]
    found = {claim.id: evidence for claim, evidence in evaluate(Rows(rows))}
    for name in ("fig1.nap-keeps-accuracy", "fig1.layernorm-accuracy-falls"):
        assert "hardly learns" in found[name].reason


def test_better_than_a_fresh_network_is_as_good_as_one() -> None:
    rows = [row | ({"accuracy": 0.9} if row["arm"] == "NaP" else {}) for row in fig1_world(True)]
    found = {claim.id: evidence for claim, evidence in evaluate(Rows(rows))}
    assert found["fig1.nap-keeps-accuracy"].verdict is Verdict.HOLDS


def test_seeds_that_disagree_decide_nothing() -> None:
    found = decide("gain", np.array([-3.0, 5.0, 1.0, -2.0]), Region(low=0), unit="accuracy points")
    assert found.verdict is Verdict.OPEN
    assert "crosses the limit" in found.sentence


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.9, Verdict.HOLDS),
        (-0.1, 0.5, Verdict.OPEN),
        (0.5, 1.5, Verdict.OPEN),
        (-1.0, 2.0, Verdict.OPEN),
        (1.0, 1.5, Verdict.FAILS),
        (-2.0, 0.0, Verdict.FAILS),
        (0.0, 0.5, Verdict.OPEN),
    ],
)
def test_a_region(low: float, high: float, verdict: Verdict) -> None:
    assert Region(0, 1).verdict(low, high) is verdict


def test_every_case_must_hold() -> None:
    def case(value: float, spread: float = 0.01) -> Evidence:
        return decide("gain", value + spread * np.arange(-2.0, 3.0), Region(low=0), unit="accuracy points")

    good, better, unsure, bad = case(1), case(2), case(0.5, 1), case(-1)
    assert all_of({"a": better, "b": good}).effect == pytest.approx(1)
    assert all_of({"a": good, "b": unsure}).verdict is Verdict.OPEN
    found = all_of({"a": good, "b": unsure, "c": bad})
    assert found.verdict is Verdict.FAILS
    assert "1 of 3, least for “c”" in found.quantity
    assert set(found.cases) == {"a", "b", "c"}


def test_the_order_of_rows_does_not_matter() -> None:
    rows = list(fig1_world(True))
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    assert to_json(evaluate(Rows(rows))) == to_json(evaluate(Rows(shuffled)))


@pytest.mark.parametrize("experiment", WORLDS)
@pytest.mark.parametrize("thin", ["", *THIN])
def test_the_table_fits_its_terminal(experiment: str, thin: str) -> None:
    rows = Rows(WORLDS[experiment](True))
    if thin:
        rows = Rows(kept for row in rows if (kept := THIN[thin][0](row)) is not None)
    text = table(evaluate(rows))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert ("✓" in text, "?" in text) == (not thin, bool(thin))


def test_a_failed_claim_is_marked() -> None:
    text = table(evaluate(Rows(walk_world(False))))
    assert "✗ Under GD, dead units still accumulate with" in text
    assert "7 claims: 0 hold, 7 fail, 0 open." in text


def write(folder: Path, rows: Iterator[Row]) -> None:
    folder.mkdir(parents=True)
    file = RowFile(folder / "rows.jsonl")
    file.append(rows)
    manifest = {"finished": "2025-01-01", "rows_bytes": file.size(), "sessions": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_the_command_answers_by_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "walk-demo" / "walks", walk_world(True))
    assert command(tmp_path) == 0
    assert "7 hold" in capsys.readouterr().out
    write(tmp_path / "walk-small" / "walks", walk_world(False))  # the same arms: not to be mixed
    assert command(tmp_path) == 1
    assert "In total 14 claims: 7 hold, 7 fail" in capsys.readouterr().out
    assert command(tmp_path / "walk-demo" / "walks") == 0


def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "walk-demo" / "walks", walk_world(True))
    assert command(tmp_path, json=True) == 0
    first, *others = json.loads(capsys.readouterr().out)
    assert first["id"] == "walk.plain-monotone"
    assert (first["verdict"], first["holds_above"], first["holds_below"]) == ("holds", None, 1.0)
    assert first["folder"].endswith("walk-demo")
    assert set(first["parts"]) == {"GD", "RMSProp"}
    assert len(others) == 6


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ('{"finished": null, "sessions": []}', RESUMABLE),
        ('{"finished": null}', DAMAGED),
        ('{"finished": "2025-', DAMAGED),
        ("", DAMAGED),
    ],
)
def test_an_unfinished_or_damaged_run_decides_nothing(tmp_path: Path, manifest: str, words: str) -> None:
    write(tmp_path / "walk-demo" / "walks", walk_world(True))
    (tmp_path / "walk-demo" / "walks" / "manifest.json").write_text(manifest)
    [rows] = read(tmp_path).values()
    assert {evidence.reason for _, evidence in evaluate(rows)} == {f"the run walks {words}"}
    assert command(tmp_path) == 1


def test_a_network_that_broke_down_is_named_as_such(tmp_path: Path) -> None:
    write(tmp_path / "walk-demo" / "walks", walk_world(True))
    left = f"{NOT_FINITE}: the loss is not finite at update 3"
    manifest: dict[str, Any] = {"finished": None, "sessions": [], "exit": left}
    (tmp_path / "walk-demo" / "walks" / "manifest.json").write_text(json.dumps(manifest))
    [rows] = read(tmp_path).values()
    assert {evidence.reason for _, evidence in evaluate(rows)} == {f"the run walks {BROKEN}"}


def test_rows_without_a_manifest_count_as_finished(tmp_path: Path) -> None:
    write(tmp_path / "walk-demo" / "walks", walk_world(True))
    (tmp_path / "walk-demo" / "walks" / "manifest.json").unlink()
    assert command(tmp_path) == 0


def test_a_folder_without_claims_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no rows.jsonl in .* `nap run` writes one"):
        command(tmp_path)
    write(tmp_path / "mine" / "run", iter([{"experiment": "mine", "seed": 0}]))
    with pytest.raises(ValueError, match="no experiment that the paper makes claims about"):
        command(tmp_path)


def test_it_needs_no_torch() -> None:
    code = "import sys, nap.lab.claims; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rows_that_do_not_say_their_task_are_not_enough() -> None:
    rows = Rows([{"experiment": "fig1", "arm": "NaP", "seed": k, "accuracy": 0.5} for k in range(3)])
    with pytest.raises(NotEnough, match="have no column 'task'"):
        Samples(rows).series("accuracy", arm="NaP")


def test_one_lucky_case_of_many_fails_no_claim() -> None:
    """Of ten cases with no effect one looks like one by chance; Holm's correction leaves it undecided."""
    generator = np.random.default_rng(0)
    region = Region(low=0)
    fine = {f"case {i}": generator.normal(1.0, 0.1, size=5) for i in range(9)}
    unlucky = np.array([-0.5, -1.0, -0.1, -0.9, -0.4])
    cases = {name: decide("gain", samples, region, unit="points") for name, samples in fine.items()}
    lucky = decide("gain", unlucky, region, unit="points")
    assert lucky.verdict is Verdict.FAILS
    assert all_of({"alone": lucky}).verdict is Verdict.FAILS
    assert all_of(cases | {"lucky": lucky}).verdict is Verdict.OPEN
    sure = decide("gain", unlucky / 10 - 1, region, unit="points")
    assert all_of(cases | {"sure": sure}).verdict is Verdict.FAILS


def test_sizes_of_weights_are_compared_with_initialisation() -> None:
    initial = [
        {
            "experiment": "fig1",
            "arm": "LayerNorm",
            "seed": seed,
            "task": 0,
            "parameter_norm": 1.0,
            "jacobian_norm": 1.0,
        }
        for seed in range(SEEDS)
    ]
    found = {claim.id: evidence for claim, evidence in evaluate(Rows([*initial, *fig1_world(True)]))}
    assert found["fig1.layernorm-parameter-norm"].effect == pytest.approx(40, rel=0.1)
    assert found["fig1.layernorm-jacobian-norm"].effect == pytest.approx(0.25, rel=0.1)


def test_treatments_of_the_optimizer_are_judged_apart() -> None:
    rows = [
        row | {"optimizer_state": state, "accuracy": row["accuracy"] * (0.5 if state == "keep" else 1)}
        for state in ("reset", "keep")
        for row in fig1_world(True)
    ]
    found = [(claim.id, e.subject) for claim, e in evaluate(Rows(rows))]
    assert len(found) == len(set(found))
    assert {subject for _, subject in found} == {"optimizer reset", "optimizer state kept"}
