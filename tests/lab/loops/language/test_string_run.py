"""Training on strings: against a loop by hand, over kills and resumes, and on what it must refuse."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import nap
from nap.lab.datasets.streams import batches
from nap.lab.experiments import experiments
from nap.lab.experiments.induction import InductionConfig
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.language.settings import (
    BASELINE,
    NAP,
    NAP_NO_SCALE,
    NAP_RMS,
    NORM_ONLY,
    PROJECTION_ONLY,
    CopyingConfig,
    MemorizationConfig,
    MemorizationRunConfig,
    TransformerArm,
    parse_form,
    with_weight_decay,
)
from nap.lab.loops.language.string_run import (
    CopyingWork,
    MemorizationWork,
    StringWork,
    copied_strings,
    random_strings,
)
from nap.lab.loops.language.trainer import Trainer, build, transformer_factory
from nap.lab.runner.work import NotFinite

CPU = torch.device("cpu")
NET: dict[str, Any] = {"blocks": 1, "heads": 2, "width": 16, "vocabulary": 8, "batch_size": 8}
MEMORISING = MemorizationRunConfig(**NET, strings=20, length=9, tasks=3, steps=7, learning_rate=1e-2)
COPYING = CopyingConfig(**NET, strings=20, prefix=8, suffix=5, steps=7, eval_every=3, learning_rate=1e-2)
ARMS = [BASELINE, NORM_ONLY, NAP, NAP_NO_SCALE, PROJECTION_ONLY, NAP_RMS, with_weight_decay(0.1)]


def work(arm: TransformerArm = NAP, config: Any = MEMORISING, seed: int = 0, **options: Any) -> StringWork:
    kind = MemorizationWork if isinstance(config, MemorizationRunConfig) else CopyingWork
    return kind(NetworkRun(arm, config, seed, {"experiment": "x"}), CPU, **options)


def finished(work: StringWork) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while work.done < work.total:
        rows += work.step()
    return rows


@given(seed=st.integers(0, 99), prefix=st.integers(3, 20), data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_end_is_a_piece_of_the_beginning(seed: int, prefix: int, data: st.DataObject) -> None:
    suffix = data.draw(st.integers(1, prefix))
    strings = copied_strings(seed, count=5, prefix=prefix, suffix=suffix, vocabulary=9).tolist()
    for string in strings:
        pieces = [string[i : i + suffix] for i in range(prefix - suffix + 1)]
        assert string[prefix:] in pieces


def test_every_place_is_copied_from() -> None:
    strings = copied_strings(0, count=400, prefix=6, suffix=3, vocabulary=10**6).tolist()
    assert {string.index(string[6]) for string in strings} == {0, 1, 2, 3}


def test_strings_are_functions_of_seed_and_task() -> None:
    def draw(seed: int, task: int) -> torch.Tensor:
        return random_strings(seed, task, count=50, length=20, vocabulary=256)

    assert torch.equal(draw(1, 2), draw(1, 2))
    others = [draw(1, 3), draw(2, 2)]
    assert all((draw(1, 2) == other).float().mean() < 0.03 for other in others)
    copied = partial(copied_strings, 0, count=50, prefix=20, suffix=5, vocabulary=256)
    assert (copied() == copied(held_out=True)).float().mean() < 0.03


@pytest.mark.parametrize("arm", ARMS, ids=lambda a: a.name)
def test_a_chunk_is_what_one_does_by_hand(arm: TransformerArm) -> None:
    """An ordinary AdamW over all updates of the first data set, losses and accuracy in a plain loop."""
    config = replace(MEMORISING, tasks=1, steps=5)
    run = work(arm, config)
    model = copy.deepcopy(run.trainer.model)
    policies: dict[str, Any] = {"output": arm.output, "embeddings": arm.embeddings, "branches": arm.branches}
    projector = nap.Projector(model, **policies) if arm.project else None
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": arm.weight_decay}]
        + ([{"params": vectors, "weight_decay": 0.0}] if vectors else []),
        lr=1e-2,
    )
    strings = random_strings(0, 1, count=20, length=9, vocabulary=8)
    right, order = [], torch.cat([batches(0, 1, epoch, count=20, batch_size=8) for epoch in range(3)])
    for step in range(5):
        batch = strings[order[step]]
        logits = model(batch[:, :-1])
        right.append((logits.argmax(-1) == batch[:, 1:]).float().mean().item())
        loss = torch.stack([F.cross_entropy(logits[i], batch[i, 1:]) for i in range(8)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if projector is not None:
            projector.project_()
    rows = finished(run)
    found = dict(run.trainer.model.named_parameters())
    for name, expected in model.named_parameters():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5)
    assert rows[-1]["accuracy"] == pytest.approx(sum(right) / 5)
    assert rows[-1]["loss"] == pytest.approx(loss.item(), rel=1e-4)  # of the last update alone


@pytest.mark.parametrize("config", [MEMORISING, COPYING], ids=["memorising", "copying"])
def test_a_run_goes_on_after_any_chunk_as_if_nothing_had_happened(config: Any) -> None:
    whole = finished(work(config=config))
    for stop in (1, 2):
        first, rest = work(config=config), work(config=config)
        rows = [row for _ in range(stop) for row in first.step()]
        state = copy.deepcopy(first.state_dict())
        rest.load_state_dict(state)
        assert rows + finished(rest) == whole


def test_with_fresh_moments_a_data_set_begins_as_with_an_optimizer_of_its_own() -> None:
    fresh, plain = work(config=replace(MEMORISING, optimizer_state="reset")), work()
    first = [row for _ in range(7) for row in fresh.step()]
    assert first == [row for _ in range(7) for row in plain.step()]  # nothing to forget before it
    other = work(config=replace(MEMORISING, optimizer_state="reset"))
    state = copy.deepcopy(fresh.state_dict())
    state["trainer"]["optimizer"]["state"] = {}
    other.load_state_dict(state)
    rest = finished(fresh)
    assert finished(other) == rest != finished(plain)


def test_only_arms_that_project_keep_their_norms() -> None:
    for arm in ARMS:
        run = work(arm)
        before = {n: p.detach().norm().item() for n, p in run.trainer.model.named_parameters() if p.ndim == 2}
        finished(run)
        after = {n: p.detach().norm().item() for n, p in run.trainer.model.named_parameters() if p.ndim == 2}
        same = [after[name] == pytest.approx(before[name], rel=1e-5) for name in before]
        assert all(same) if arm.project else not any(same), arm.name


def test_parts_of_a_copied_string_are_counted_apart() -> None:
    """8 random tokens and a copy of 5: predictions 0 to 6 are of the former, 9 to 11 of the copy's rest."""
    run = work(config=COPYING)
    strings = run.strings(1)

    class Knows(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            right = F.one_hot(strings[:, 1:], 8).float()
            right[:, :7] = -right[:, :7]  # wrong on the prefix
            return right

    run.trainer.model = Knows()
    _, shares = run.trainer.loss(strings)
    assert dict(zip(run.trainer.spans, shares.tolist(), strict=True)) == {
        "retrieval": 1.0,
        "memorisation": 0.0,
    }
    assert strings[:, 1:][:, run.trainer.spans["retrieval"]].shape[1] == 5 - 2
    assert strings[:, 1:][:, run.trainer.spans["memorisation"]].shape[1] == 8 - 1


def test_rows_have_what_figures_and_claims_need() -> None:
    rows = finished(work())
    tasks = [row for row in rows if "kind" not in row]
    assert [row["task"] for row in tasks] == [1, 2, 3]
    needed = {"arm", "experiment", "seed", "accuracy", "final_accuracy", "loss", "parameter_norm"}
    assert needed <= tasks[0].keys()
    assert tasks[0]["effective_rate"] > 0
    way = [row["step"] for row in rows if row.get("kind") == "trajectory"]
    assert way == sorted(way)
    assert way[-1] == 21
    assert [row["step"] for row in finished(work(config=COPYING))] == [3, 6, 7]


def test_an_update_that_is_not_finite_is_not_made() -> None:
    run = work()
    with torch.no_grad():
        run.trainer.model.get_parameter("blocks.0.down.weight")[0, 0] = torch.inf
    before = {name: p.detach().clone() for name, p in run.trainer.model.named_parameters()}
    with pytest.raises(NotFinite, match="the loss is not finite at update 1"):
        run.step()
    for name, parameter in run.trainer.model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def trainer(**options: Any) -> Trainer:
    torch.manual_seed(0)
    model, projector = build(NAP, transformer_factory(MEMORISING, 8, 8), torch.zeros(1, 8, dtype=torch.int64))
    return Trainer(model.double(), projector, spans={"all": slice(None)}, **options)


def parameters(of: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in of.parameters]


def test_a_batch_in_parts_is_the_batch() -> None:
    strings = random_strings(0, 1, count=8, length=9, vocabulary=8)
    whole, parts = (trainer(learning_rate=1e-2) for _ in range(2))
    for _ in range(3):
        whole.update(strings)
        parts.update(*strings.split(2))
    for one, other in zip(parameters(whole), parameters(parts), strict=True):
        torch.testing.assert_close(one, other)
    assert whole.read() == pytest.approx(parts.read())


def test_long_gradients_are_cut_short() -> None:
    """Adam forgets the scale of gradients in one step, but not over several of different lengths."""
    strings = random_strings(0, 1, count=8, length=9, vocabulary=8)
    ours, plain = trainer(learning_rate=1e-2, clip=0.5), trainer(learning_rate=1e-2)
    optimizer = torch.optim.AdamW(plain.parameters, lr=1e-2, weight_decay=0.0)
    assert plain.projector is not None
    for _ in range(4):
        ours.update(strings)
        optimizer.zero_grad()
        plain.loss(strings)[0].backward()
        assert torch.nn.utils.clip_grad_norm_(plain.parameters, 0.5) > 0.5
        optimizer.step()
        plain.projector.project_()
    for one, other in zip(parameters(ours), parameters(plain), strict=True):
        torch.testing.assert_close(one, other)


def test_the_learning_rate_follows_its_schedule_over_a_resume() -> None:
    strings = random_strings(0, 1, count=8, length=9, vocabulary=8)
    whole, first, rest = (trainer(learning_rate=lambda update: 1e-2 / (1 + update)) for _ in range(3))
    for _ in range(4):
        whole.update(strings)
    for _ in range(2):
        first.update(strings)
    rest.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(2):
        rest.update(strings)
    assert rest.optimizer.param_groups[0]["lr"] == 1e-2 / 4
    for one, other in zip(parameters(whole), parameters(rest), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_a_compiled_loss_learns_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced here as for a GPU; what makes machine code of it is left out."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain, traced = finished(work()), finished(work(compile_=True))
    for one, other in zip(plain, traced, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


@pytest.mark.slow
def test_new_strings_defeat_norms_alone_but_not_nap() -> None:
    """The demo's first 8 data sets, one seed: the second half of them against the first."""
    config = replace(experiments(["strings"])["strings"].scales["demo"], tasks=8)
    settings = MemorizationRunConfig(
        **{name: getattr(config, name) for name in MemorizationConfig.__dataclass_fields__}
    )
    found = {}
    for arm in (NORM_ONLY, NAP):
        accuracy = [row["accuracy"] for row in finished(work(arm, settings)) if "kind" not in row]
        found[arm.name] = sum(accuracy[4:]) / sum(accuracy[:4])
    assert found["norm only"] < 0.9
    assert found["NaP"] > 0.95


@pytest.mark.parametrize("name", ["strings", "induction"])
@pytest.mark.parametrize("scale", ["demo", "small", "paper"])
def test_every_scale_asks_for_sound_runs(name: str, scale: str) -> None:
    experiment = experiments([name])[name]
    runs = experiment.runs(experiment.scales[scale])
    assert len({run.name for run in runs}) == len(runs)
    assert {run.config.tags["experiment"] for run in runs} == {name}
    arms = {run.config.arm.name for run in runs}
    assert len(runs) == len(arms) * experiment.scales[scale].seeds * (
        2 if (name, scale) == ("induction", "paper") else 1
    )


@pytest.mark.parametrize("steps", [7, 11, 15, 20])
def test_the_accuracy_of_a_data_set_is_the_mean_over_its_updates(steps: int) -> None:
    config = replace(MEMORISING, steps=steps, tasks=2)
    whole = [row for row in finished(work(config=config)) if "kind" not in row]
    run, one_by_one = work(config=config), []
    run.chunk, run._chunks, run.total = 1, steps, 2 * steps
    for row in finished(run):
        one_by_one += [row["accuracy"]] if row.get("kind") else []
    assert [row["accuracy"] for row in whole] == pytest.approx(
        [sum(one_by_one[:steps]) / steps, sum(one_by_one[steps:]) / steps]
    )


def test_settings_are_checked() -> None:
    assert parse_form("100+50", 7) == {"strings": 7, "prefix": 100, "suffix": 50}
    assert parse_form("9x100+50", 7) == {"strings": 9, "prefix": 100, "suffix": 50}
    with pytest.raises(ValueError, match="'100' is no form of strings"):
        parse_form("100", 7)
    with pytest.raises(ValueError, match=r"--forms 8\+12: .* suffix must be between 3 and 8"):
        InductionConfig(forms=("16+12", "8+12"))
    with pytest.raises(ValueError, match=r"--forms 0x16\+12: .* strings must be at least 128"):
        InductionConfig(forms=("0x16+12",))
    with pytest.raises(ValueError, match=r"^width is 15, which 8 heads cannot share"):
        InductionConfig(width=15)
    with pytest.raises(ValueError, match=r"strings is 512, but every form says how many it has: 200x16\+12"):
        InductionConfig(strings=512, forms=("200x16+12",))
    assert InductionConfig(strings=512).copying("412+100").strings == 512
    with pytest.raises(ValueError, match="width is 15, which sines and cosines cannot share"):
        replace(MEMORISING, width=15, heads=3, positions="sines")
    with pytest.raises(ValueError, match="3 heads cannot share"):
        replace(MEMORISING, heads=3)
    with pytest.raises(ValueError, match="suffix must be between 3 and 8"):
        replace(COPYING, suffix=9)
    with pytest.raises(ValueError, match="strings must be"):
        replace(MEMORISING, strings=7)
