"""Architectures of Hugging Face transformers from tiny random configurations; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .entry import Entry, Family

FAMILY = Family("transformers")
LENGTH, VOCABULARY = 7, 60
COMMON = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = COMMON | WIDTHS | {"intermediate_size": 48, "max_position_embeddings": 32}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
IMAGE = WIDTHS | {"intermediate_size": 48, "image_size": 16, "patch_size": 8}

Inputs = Callable[[], dict[str, Any]]


def ids() -> Tensor:
    return torch.randint(3, VOCABULARY, (2, LENGTH))


def text() -> dict[str, Any]:
    return {"input_ids": ids()}


def pair() -> dict[str, Any]:
    return {"input_ids": ids(), "decoder_input_ids": ids()}


def pixels(size: int = 16) -> Inputs:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


def add(family: Family, name: str, inputs: Inputs, settings: dict[str, Any], **about: Any) -> None:
    """Adds `XModel` or `XForY`, whose configuration class is found through its model class."""

    def build() -> tuple[nn.Module, tuple[()], dict[str, Any]]:
        import transformers

        cls = getattr(transformers, name)
        config = cls.config_class(**settings)
        config._experts_implementation = "eager"  # the default's grouped product knows no float64
        return cls(config), (), inputs()

    family.add(name, build, **about)


_add = partial(add, FAMILY)


def _encoder(name: str, **settings: Any) -> None:
    _add(name, text, TEXT | {"max_position_embeddings": 40} | settings)


def _decoder(name: str, settings: dict[str, Any], **about: Any) -> None:
    _add(name, text, settings, causal=1, **about)


for name in (
    "BertForMaskedLM",
    "RobertaForMaskedLM",
    "ElectraForPreTraining",
    "MobileBertModel",
    "MPNetModel",
):
    _encoder(name)
_encoder("AlbertModel", embedding_size=16)
_encoder("DistilBertModel", dim=32, n_layers=2, n_heads=4, hidden_dim=48)
_encoder("DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
_encoder("RoFormerModel", embedding_size=32)
_encoder(
    "ModernBertModel", cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2, reference_compile=False
)
_encoder("FNetModel", tpu_short_seq_length=LENGTH)
_encoder("ConvBertModel", embedding_size=32)

GPT = COMMON | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 48}
_decoder("GPT2LMHeadModel", GPT)
_decoder("GPTBigCodeForCausalLM", GPT)
_decoder("GPTJForCausalLM", GPT | {"rotary_dim": 4})
_decoder("CodeGenForCausalLM", GPT | {"rotary_dim": 4})
_decoder("OpenAIGPTLMHeadModel", GPT)
_decoder(
    "GPTNeoForCausalLM",
    COMMON
    | {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 32}
    | {"attention_types": [[["global", "local"], 1]], "window_size": 4},
)
_decoder("GPTNeoXForCausalLM", TEXT)
_decoder("OPTForCausalLM", TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32})
_decoder("BloomForCausalLM", COMMON | {"hidden_size": 32, "n_layer": 2, "n_head": 4})
_decoder("FalconForCausalLM", TEXT | {"new_decoder_architecture": True, "num_kv_heads": 2})
_decoder("MptForCausalLM", COMMON | {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32})
_decoder("XGLMForCausalLM", COMMON | {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4})
for name in (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "PhiForCausalLM", "Phi3ForCausalLM", "StableLmForCausalLM",
    "OlmoForCausalLM", "Olmo2ForCausalLM", "CohereForCausalLM", "Starcoder2ForCausalLM", "GraniteForCausalLM",
    "GlmForCausalLM", "NemotronForCausalLM", "SmolLM3ForCausalLM",
):  # fmt: skip
    _decoder(name, GROUPED)
EXPERTS = GROUPED | {"num_experts_per_tok": 2}
_decoder("MixtralForCausalLM", EXPERTS | {"num_local_experts": 3})
_decoder("Qwen3MoeForCausalLM", EXPERTS | {"num_experts": 3, "moe_intermediate_size": 24})
_decoder(
    "GptOssForCausalLM",
    EXPERTS | {"num_local_experts": 3, "sliding_window": 4},
)
_decoder("OlmoeForCausalLM", EXPERTS | {"num_experts": 3})
_decoder(
    "DbrxForCausalLM",
    COMMON
    | {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 32}
    | {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 100.0}}
    | {"ffn_config": {"ffn_hidden_size": 48, "hidden_size": 32, "moe_num_experts": 3, "moe_top_k": 2}},
)
_decoder(
    "MambaForCausalLM",
    COMMON | {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "time_step_rank": 6},
)
_decoder(
    "Mamba2ForCausalLM",
    COMMON
    | {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 8,
        "head_dim": 8,
        "num_heads": 8,
        "n_groups": 2,
    }
    | {"chunk_size": 8},
)
_decoder("RwkvForCausalLM", COMMON | {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2})

ENTRIES = list(FAMILY)


def available(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """Of the entries, those that the installed version can build, and the names that it does not have."""
    import transformers

    found = [entry for entry in entries if hasattr(transformers, entry.name)]
    return found, [f"transformers {entry.name}" for entry in entries if entry not in found]
