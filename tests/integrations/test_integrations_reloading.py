"""Models that come back from what each library writes, with their norms; and words where they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3 import PPO
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

import nap
from hugging_runs import Tokens, gpt2, llama
from hugging_runs import trainer as hugging_trainer
from lightning_runs import Classifier, data, trainer
from nap.integrations import huggingface
from nap.integrations.lightning import NaPCallback, load_from_checkpoint
from nap.integrations.stable_baselines3 import NaPActorCriticPolicy

quiet_lightning = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")
IDS = Tokens(4).ids


def frozen(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def assert_equal_models(model: Any, again: Any) -> None:
    assert type(again) is type(model)
    assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert frozen(again) == frozen(model)
    assert not any(tensor.is_meta for tensor in [*again.parameters(), *again.buffers()])
    assert str(nap.weight_groups(again)) == str(nap.weight_groups(model))


# --- Hugging Face


@pytest.mark.parametrize(
    ("make", "kind"), [(gpt2, GPT2LMHeadModel), (gpt2, AutoModelForCausalLM), (llama, AutoModelForCausalLM)]
)
def test_a_pretrained_model_has_its_norms(make: Any, kind: Any, tmp_path: Path) -> None:
    model = make()
    for number, parameter in enumerate(model.parameters()):  # norms that do something
        if parameter.ndim == 1 and parameter.requires_grad:
            nn.init.normal_(parameter, 0.1, generator=torch.Generator().manual_seed(number))
    huggingface.save_pretrained(model, tmp_path / "first")
    again = huggingface.from_pretrained(kind, tmp_path / "first")
    assert_equal_models(model.eval(), again)
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert again.training == model.training

    again.save_pretrained(tmp_path / "second", max_shard_size="20KB")  # the config has the plan by now
    half = huggingface.from_pretrained(kind, tmp_path / "second", dtype=torch.float64)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float64}
    assert_close(half(IDS).logits.float(), model(IDS).logits)


def test_a_checkpoint_of_the_trainer_is_a_pretrained_model(tmp_path: Path) -> None:
    run = hugging_trainer(gpt2(), tmp_path, huggingface.NaPCallback(), save_strategy="steps", save_steps=2)
    run.train()
    last = sorted(tmp_path.glob("checkpoint-*"))[-1]
    assert_equal_models(run.model, huggingface.from_pretrained(GPT2LMHeadModel, last))


def test_plain_models_are_answered_with_the_way(tmp_path: Path) -> None:
    plain = gpt2(normalize=False)
    with pytest.raises(ValueError, match=r"has no layers of nap; call nap\.normalize_ first"):
        huggingface.save_pretrained(plain, tmp_path)
    plain.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no plan of nap.*GPT2LMHeadModel\.from_pretrained, then nap\.norm"):
        huggingface.from_pretrained(GPT2LMHeadModel, tmp_path)


# --- Lightning


class Sized(Classifier):
    """With arguments that Lightning writes into the checkpoint, and a hook of its own."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(width=width)
        self.save_hyperparameters()
        self.seen: list[str] = []

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen.append("on_load_checkpoint")


@quiet_lightning
def test_a_lightning_module_has_its_norms(tmp_path: Path) -> None:
    model, path = Sized(width=20), tmp_path / "last.ckpt"
    run = trainer(tmp_path, NaPCallback(normalize={"norm": "rms"}))
    run.fit(model, data())
    run.save_checkpoint(path)
    again = load_from_checkpoint(Sized, path, weights_only=True)
    assert_equal_models(model, again)
    assert (again.hparams.width, again.seen) == (20, ["on_load_checkpoint"])
    callback = NaPCallback(normalize={"norm": "rms"})  # and it goes on where the other one stopped
    trainer(tmp_path, callback, max_epochs=2).fit(again, data(), ckpt_path=path)
    assert callback.projector is not None
    assert max(callback.projector.norm_ratios().values()) == pytest.approx(1, abs=1e-6)


@quiet_lightning
def test_a_plain_lightning_checkpoint_is_answered_with_the_way(tmp_path: Path) -> None:
    class ByItself(Classifier):
        def __init__(self) -> None:
            super().__init__()
            nap.normalize_(self.net, torch.zeros(2, 5))

    run, path = trainer(tmp_path), tmp_path / "plain.ckpt"
    run.fit(Classifier(), data())
    run.save_checkpoint(path)
    with pytest.raises(ValueError, match=r"no plan of nap.*Classifier\.load_from_checkpoint, then nap\.norm"):
        load_from_checkpoint(Classifier, path)
    with pytest.raises(RuntimeError, match=r"the state dict has no layers of nap"):
        ByItself.load_from_checkpoint(path)


# --- Stable-Baselines3


def test_a_plain_agent_is_answered_with_the_way(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}, "device": "cpu", "n_steps": 16}
    plain = PPO("MlpPolicy", "CartPole-v1", batch_size=16, **settings)
    plain.save(tmp_path / "plain.zip")
    agent = PPO(NaPActorCriticPolicy, "CartPole-v1", batch_size=16, **settings)
    with pytest.raises(RuntimeError, match="the state dict has no layers of nap"):
        agent.set_parameters(str(tmp_path / "plain.zip"), device="cpu")
    policy_class = {"policy_class": NaPActorCriticPolicy}
    with pytest.raises(RuntimeError, match="the state dict has no layers of nap"):
        PPO.load(tmp_path / "plain.zip", device="cpu", custom_objects=policy_class)
