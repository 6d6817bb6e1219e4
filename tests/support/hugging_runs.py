"""Small language models, their data and a quiet Trainer that the tests of Hugging Face's libraries share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import nap

UPDATES = 4


class Tokens(Dataset[Any]):
    def __init__(self, size: int = 32):
        self.ids = torch.randint(40, (size, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def gpt2(*, tied: bool = True, normalize: bool = True, dropout: float = 0.1) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 40, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    sizes |= {"initializer_range": 0.1}
    drops: dict[str, Any] = dict.fromkeys(["attn_pdrop", "embd_pdrop", "resid_pdrop"], dropout)
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(tie_word_embeddings=tied, **sizes, **drops, **ends))
    return converted(model) if normalize else model


def llama() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.1,
    }
    return converted(LlamaForCausalLM(LlamaConfig(vocab_size=40, max_position_embeddings=8, **sizes)))


def converted(model: Any) -> Any:
    nap.normalize_(model, (), {"input_ids": torch.zeros(2, 8, dtype=torch.long)})
    return model


def trainer(model: Any, folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"max_steps": UPDATES, "per_device_train_batch_size": 4, "learning_rate": 0.01}
    settings |= {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "seed": 0}
    settings |= {"logging_strategy": "no", "lr_scheduler_type": "constant", "dataloader_pin_memory": False}
    model_init = options.pop("model_init", None)
    arguments = TrainingArguments(output_dir=str(folder), **settings | options)
    data: dict[str, Any] = {"train_dataset": Tokens(), "eval_dataset": Tokens(8)}
    return Trainer(model, arguments, **data, model_init=model_init, callbacks=list(callbacks))
