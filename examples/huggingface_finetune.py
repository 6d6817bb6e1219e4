"""A small GPT-2 with NaP in Hugging Face's Trainer: trained on one text, then fine-tuned on another.

The model starts from random weights, so nothing is fetched. The texts are patterns of characters; the second
run continues from the checkpoint of the first, radii included.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

import nap
from nap.integrations.huggingface import MonitorCallback, NaPCallback

FIRST = "the quick brown fox jumps over the lazy dog. "
SECOND = "pack my box with five dozen liquor jugs. "
LETTERS = sorted(set(FIRST + SECOND))
LENGTH = 32


class Characters(Dataset[Any]):
    """Pieces of a text that repeats itself, each beginning one character later."""

    def __init__(self, text: str, size: int = 512):
        self.ids = torch.tensor([LETTERS.index(letter) for letter in text])
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self.ids[(torch.arange(LENGTH) + index) % len(self.ids)]
        return {"input_ids": piece, "labels": piece}


def make_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(LETTERS), **sizes, **ends))
    nap.normalize_(model, (), {"input_ids": torch.zeros(2, LENGTH, dtype=torch.long)})  # step 1
    return model


def make_trainer(text: str, steps: int, folder: str) -> tuple[Trainer, NaPCallback]:
    quiet: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no"}
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        save_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        use_cpu=True,
        dataloader_pin_memory=False,
        **quiet,
    )
    callback = NaPCallback()  # step 2; the table that is tied to the output stays free, so that logits grow
    trainer = Trainer(make_model(), arguments, train_dataset=Characters(text), callbacks=[callback])
    probe = {"input_ids": torch.stack([Characters(text)[index]["input_ids"] for index in range(64)])}
    trainer.add_callback(MonitorCallback(trainer, probe, every=100))
    trainer.remove_callback(PrinterCallback)
    return trainer, callback


def loss(trainer: Trainer, text: str) -> float:
    return trainer.evaluate(Characters(text, 64))["eval_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="on each text")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer, _ = make_trainer(FIRST, args.steps, folder)
        start = loss(trainer, FIRST)
        trainer.train()
        print(f"loss on the first text {start:.3f} → {loss(trainer, FIRST):.3f}")

        tuned, callback = make_trainer(SECOND, 2 * args.steps, folder)
        start = loss(trainer, SECOND)
        tuned.train(resume_from_checkpoint=str(Path(folder) / f"checkpoint-{args.steps}"))
        print(f"loss on the second text {start:.3f} → {loss(tuned, SECOND):.3f}")
    ranks = [row["nap/rank/penultimate"] for row in tuned.state.log_history if "nap/rank/penultimate" in row]
    print(f"rank of the last features, of 64, over both runs: {[int(rank) for rank in ranks]}")
    assert callback.projector is not None
    ratios = callback.projector.norm_ratios().values()
    print(f"norms over those at the start of the first run: {min(ratios):.6f} to {max(ratios):.6f}")


if __name__ == "__main__":
    main()
