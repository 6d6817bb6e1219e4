"""Tied weights: one parameter under two names has one radius, whatever is done to the model around it."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import nap
from hugging_runs import Tokens, gpt2
from nap.projection.project import Projector
from projection_nets import worst

TABLE = "transformer.wte.weight"
PINNED: dict[str, Any] = {"output": "project", "embeddings": "project", "branches": "project"}


def learn(model: Any, optimizer: Any, updates: int = 3) -> None:
    ids = Tokens().ids[:8]
    for _ in range(updates):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


def test_a_tied_table_is_projected_once_and_stays_tied() -> None:
    model = gpt2(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    projector = Projector(model, **PINNED).attach(optimizer)
    assert "lm_head.weight" not in projector.plan.names()
    learn(model, optimizer)
    model.tie_weights()  # again, as Trainer and from_pretrained do
    learn(model, optimizer)
    assert worst(projector) <= 1e-6
    assert model.lm_head.weight is model.get_parameter(TABLE)
    assert projector.updates[TABLE] == 6


def test_copies_and_checkpoints_of_a_tied_model() -> None:
    model = gpt2(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    projector = Projector(model, every=2, **PINNED).attach(optimizer)
    learn(model, optimizer)  # stops off the radius
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "projector": projector.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)

    loaded = gpt2(dropout=0.0)
    for parameter in loaded.parameters():
        parameter.data *= 3
    again = Projector(loaded, every=2, **PINNED)
    loaded.load_state_dict(saved["model"])
    again.load_state_dict(saved["projector"])
    copied, beside = copy.deepcopy((model, projector))
    for other, own in ((loaded, again), (copied, beside)):
        assert other.lm_head.weight is other.get_parameter(TABLE)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
        own.attach(optimizer)
        learn(other, optimizer, 1)
        assert own.updates[TABLE] == 4
        assert worst(own) <= 1e-6
    assert_close(copied.state_dict(), loaded.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tie_that_is_made_or_cut_after_the_plan_is_refused(tied: bool) -> None:
    model = gpt2(tied=tied, dropout=0.0)
    projector = Projector(model)
    table = model.get_parameter(TABLE)
    model.lm_head.weight = nn.Parameter(table.detach().clone()) if tied else table
    words = r"lm_head\.weight \(new\)" if tied else r"lm_head\.weight \(gone\)"
    with pytest.raises(ValueError, match=rf"{words}: parameters changed since the Projector was built"):
        projector.attach(torch.optim.SGD(model.parameters(), lr=0.5))


def test_a_table_that_was_resized_is_refused_at_the_next_step() -> None:
    model = gpt2(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    nap.Projector(model, **PINNED).attach(optimizer)
    model.resize_token_embeddings(48, mean_resizing=False)
    with pytest.raises(ValueError, match=rf"{TABLE} has the shape \[48, 16\].*build a new Projector"):
        learn(model, optimizer)
