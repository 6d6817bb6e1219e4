"""`nap.integrations.huggingface` in real runs of Trainer, and accelerate in a loop of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader

import nap
from hugging_runs import UPDATES, Tokens, gpt2, llama, trainer
from nap.integrations.huggingface import MonitorCallback, NaPCallback
from projection_nets import worst


def radii(callback: NaPCallback) -> dict[str, Tensor]:
    assert callback.projector is not None
    return callback.projector.state_dict()["radii"]


MODELS: dict[str, Any] = {"tied GPT-2": gpt2, "GPT-2": lambda: gpt2(tied=False), "Llama": llama}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("accumulated", [1, 2])
def test_every_update_ends_on_the_radii(make: Any, accumulated: int, tmp_path: Path) -> None:
    pinned: dict[str, Any] = {"output": "project", "embeddings": "project", "branches": "project"}
    model, callback = make(), NaPCallback(**pinned)
    start = {name: p.norm().item() for name, p in model.named_parameters()}
    run = trainer(model, tmp_path, callback, gradient_accumulation_steps=accumulated)
    assert run.optimizer is None  # Trainer makes it later
    with pytest.raises(ValueError, match="the optimizer is None, so it has not been made yet; attach once"):
        nap.Projector(model).attach(run.optimizer)
    run.train()
    assert callback.projector is not None
    assert set(callback.projector.updates.values()) == {UPDATES}
    assert worst(callback.projector) < 1e-6
    names = callback.projector.plan.names("project")
    assert [model.get_parameter(n).norm().item() for n in names] == pytest.approx([start[n] for n in names])
    assert callback.projector.attached == ()
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == model.config.tie_word_embeddings
    assert ("lm_head.weight" in names) != tied


def test_bf16(tmp_path: Path) -> None:
    callback = NaPCallback()
    trainer(gpt2(), tmp_path, callback, bf16=True).train()
    assert callback.projector is not None
    assert worst(callback.projector) < 1e-6


def test_a_model_converted_in_model_init_and_the_best_one_at_the_end(tmp_path: Path) -> None:
    callback = NaPCallback()
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    saving |= {"eval_strategy": "steps", "eval_steps": 2}
    run = trainer(None, tmp_path, callback, model_init=lambda: gpt2(), load_best_model_at_end=True, **saving)
    run.train()
    assert callback.projector is not None
    assert worst(callback.projector) < 1e-6
    assert set(callback.projector.updates.values()) == {UPDATES}


# --- checkpoints


@pytest.mark.parametrize("restored_by_trainer", [False, True])
def test_a_resumed_run_equals_an_unbroken_one(restored_by_trainer: bool, tmp_path: Path) -> None:
    unbroken, whole = gpt2(), NaPCallback(every=3)
    trainer(unbroken, tmp_path / "whole", whole, max_steps=8).train()

    saving: dict[str, Any] = {
        "save_strategy": "steps",
        "save_steps": 4,
    }  # off the radius, between two projections
    trainer(gpt2(), tmp_path / "first", NaPCallback(every=3), max_steps=8, **saving).train()
    folder = (tmp_path / "first" / "checkpoint-4").rename(tmp_path / "elsewhere")

    model, callback = gpt2(), NaPCallback(every=3)
    for parameter in model.parameters():
        parameter.data *= 3  # the radii must not come from here
    restore = {"restore_callback_states_from_checkpoint": restored_by_trainer}
    resumed = trainer(model, tmp_path / "second", callback, max_steps=8, **restore)
    resumed.train(resume_from_checkpoint=str(folder))
    callback = next(c for c in resumed.callback_handler.callbacks if isinstance(c, NaPCallback))
    assert_close(radii(callback), radii(whole), rtol=0, atol=0)
    assert_close(model.state_dict(), unbroken.state_dict(), rtol=0, atol=0)
    assert callback.projector is not None
    assert whole.projector is not None
    assert callback.projector.updates == whole.projector.updates


def test_radii_are_readable_in_the_checkpoint(tmp_path: Path) -> None:
    callback = NaPCallback(output="free", exclude="transformer.wpe")
    trainer(gpt2(tied=False), tmp_path, callback, save_strategy="steps", save_steps=4).train()
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    saved = state["stateful_callbacks"]["NaPCallback"]
    assert saved["args"] == {"normalized": True, "output": "free", "exclude": "transformer.wpe"}
    assert saved["attributes"]["radii_and_counts"]["radii"].keys() == radii(callback).keys()


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    trainer(gpt2(), tmp_path / "without", **saving).train()
    trainer(gpt2(), tmp_path / "with", NaPCallback(), **saving).train()
    with pytest.raises(ValueError, match="no radii, for it was written without NaPCallback"):
        trainer(gpt2(), tmp_path / "a", NaPCallback()).train(str(tmp_path / "without" / "checkpoint-2"))
    with pytest.raises(ValueError, match=r"settings\.every: 1 in the state, 3 here"):
        trainer(gpt2(), tmp_path / "b", NaPCallback(every=3)).train(str(tmp_path / "with" / "checkpoint-2"))


# --- refusals


def test_what_would_not_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel never went through nap\.normalize_"):
        trainer(gpt2(normalize=False), tmp_path, NaPCallback()).train()
    with pytest.raises(ValueError, match="this AdamW has a Projector already"):
        trainer(gpt2(), tmp_path, NaPCallback(), NaPCallback()).train()
    with pytest.raises(ValueError, match="exclude: NaPCallback is saved as JSON"):
        NaPCallback(exclude=[torch.nn.Linear(2, 2)])
    run = trainer(gpt2(), tmp_path, NaPCallback())
    run.optimizer = torch.optim.SGD(gpt2().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="this SGD holds no parameter of the plan"):
        run.train()


def test_step_2_alone_is_a_choice(tmp_path: Path) -> None:
    callback = NaPCallback(normalized=False)
    trainer(gpt2(normalize=False), tmp_path, callback).train()
    assert callback.projector is not None
    assert worst(callback.projector) < 1e-6


# --- monitor


def test_the_monitor_logs_through_the_trainer(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trainer(gpt2(), tmp_path, NaPCallback(), report_to="tensorboard")
    probe = {"input_ids": Tokens(16).ids}
    run.add_callback(MonitorCallback(run, probe, every=2))
    run.train()
    rows = [row for row in run.state.log_history if "nap/norm/parameters" in row]
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert all(row["nap/rank/penultimate"] > 0 for row in rows)
    assert all(row["nap/norm/gradients"] > 0 for row in rows[1:])
    rate = "nap/rate/transformer.h.0.mlp.c_fc.weight"
    assert rows[0][rate] == pytest.approx(rows[2][rate], rel=1e-5)
    events = EventAccumulator(str(next(tmp_path.rglob("events.*")).parent)).Reload()
    assert f"train/{rate}" in events.Tags()["scalars"]


# --- accelerate, in a loop written by hand


def train(updates: int, *, resume: Path | None = None) -> tuple[Accelerator, Any, nap.Projector]:
    """As in docs/recipes.md, with two batches an update."""
    accelerator, model = Accelerator(cpu=True, gradient_accumulation_steps=2), gpt2(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(Tokens(), batch_size=4))
    projector = nap.Projector(model, every=3).attach(optimizer)
    accelerator.register_for_checkpointing(projector)
    if resume is not None:
        for parameter in model.parameters():
            parameter.data *= 3  # the radii must not come from here
        accelerator.load_state(str(resume))
        batches = accelerator.skip_first_batches(batches, 4)
    for batch, _ in zip(batches, range(2 * updates), strict=False):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator, model, projector


def test_accelerate_needs_two_lines(tmp_path: Path) -> None:
    _, unbroken, whole = train(4)
    assert set(whole.updates.values()) == {4}
    train(2)[0].save_state(str(tmp_path / "state"))
    _, model, projector = train(2, resume=tmp_path / "state")
    assert projector.updates == whole.updates
    assert_close(model.state_dict(), unbroken.state_dict(), rtol=0, atol=0)
