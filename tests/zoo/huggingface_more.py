"""More of Hugging Face transformers, added when the library had been tried on the first set only."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .entry import Family
from .huggingface import COMMON, GROUPED, IMAGE, TEXT, WIDTHS, Inputs, add, ids, pair, pixels, text
from .huggingface_senses import BART, SPEECH

FAMILY = Family("transformers, more")
_add = partial(add, FAMILY)


def video() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 4, 3, 16, 16)}


def sound() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 200)}


def spectrum() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 32, 16)}


def spectrum_to_text() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 16, 8), "decoder_input_ids": ids()}


def series() -> dict[str, Any]:
    return {"past_values": torch.randn(2, 16, 3)}


def _all(names: str, inputs: Inputs, settings: dict[str, Any], **about: Any) -> None:
    for name in names.split():
        _add(name, inputs, settings, **about)


_all(
    "XLMRobertaModel CamembertModel ErnieModel EsmModel Data2VecTextModel MegatronBertModel LayoutLMModel"
    " SqueezeBertModel NystromformerModel YosoModel RemBertModel SplinterModel",
    text,
    TEXT | {"max_position_embeddings": 40, "embedding_size": 32},
)
_add("IBertModel", text, TEXT | {"max_position_embeddings": 40})  # F.linear on its own copies
XLNET = COMMON | {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
_add("XLNetModel", text, XLNET, batched=False)
_add(
    "FunnelModel",
    text,
    COMMON | {"block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48},
)
_add("LongformerModel", text, TEXT | {"attention_window": 4, "max_position_embeddings": 40})
_add("BigBirdModel", text, TEXT | {"attention_type": "original_full"})
_add("CanineModel", lambda: {"input_ids": torch.randint(3, 60, (2, 16))}, TEXT | {"num_hash_buckets": 64})

SHORT = BART | {"attention_type": "original_full", "attention_window": 4}
SHORT |= {"max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32}
_all("BlenderbotModel BlenderbotSmallModel PLBartModel LEDModel BigBirdPegasusModel", pair, SHORT)
_add("UMT5Model", pair, COMMON | {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4})

_all(
    "PersimmonForCausalLM Cohere2ForCausalLM Exaone4ForCausalLM Glm4ForCausalLM HeliumForCausalLM"
    " ArceeForCausalLM Ernie4_5ForCausalLM SeedOssForCausalLM ApertusForCausalLM BitNetForCausalLM"
    " DiffLlamaForCausalLM HunYuanDenseV1ForCausalLM Olmo3ForCausalLM MinistralForCausalLM BioGptForCausalLM",
    text,
    GROUPED,
    causal=1,
)
GATED = GROUPED | {"lru_width": 32, "attention_window_size": 4}
_add("RecurrentGemmaForCausalLM", text, GATED, causal=1)  # product on parameters
ROUTED = GROUPED | {"num_experts_per_tok": 2, "num_experts": 3, "num_local_experts": 3}
ROUTED |= {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
_add("GraniteMoeForCausalLM", text, ROUTED, causal=1)
_add("PhimoeForCausalLM", text, ROUTED, causal=1)
_add("JetMoeForCausalLM", text, ROUTED, causal=1)  # routes queries, behind a detach
_add("Qwen2MoeForCausalLM", text, ROUTED, causal=1)
LATENT = GROUPED | {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
LATENT |= {"q_lora_rank": 12, "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
LATENT |= {"v_head_dim": 8, "head_dim": 4, "num_key_value_heads": 4}
LATENT |= {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
_add("DeepseekV2ForCausalLM", text, LATENT, causal=1)
_add("DeepseekV3ForCausalLM", text, LATENT, causal=1)
STATES = COMMON | {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}
_add("FalconMambaForCausalLM", text, STATES, causal=1)  # hands its weight to a function
MIXED = GROUPED | {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48}
_add("Lfm2ForCausalLM", text, MIXED, causal=1, squared=r"conv\.in_proj")  # multiplies parts of one result

_all(
    "ViTMSNModel DINOv3ViTModel Data2VecVisionModel SiglipVisionModel CLIPVisionModel IJepaModel"
    " Dinov2WithRegistersModel VitDetModel",
    pixels(),
    IMAGE,
)
_add("ViTMAEModel", pixels(), IMAGE | {"mask_ratio": 0.0})
_add("YolosModel", pixels(), IMAGE | {"image_size": [16, 16], "num_detection_tokens": 3})
_add(
    "RegNetModel",
    pixels(32),
    {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
)
_add("MobileNetV1Model", pixels(32), {"depth_multiplier": 0.25})
THREE = {"image_size": 32, "depths": [1, 1, 1], "num_attention_heads": [2, 2, 2]}
_add("LevitModel", pixels(32), THREE | {"hidden_sizes": [16, 24, 32], "key_dim": [8, 8, 8]})
FOUR = {"image_size": 32, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
_add("PvtV2Model", pixels(32), FOUR | {"num_attention_heads": [1, 2, 2, 4]})
FOCAL = {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32]}
_add("FocalNetModel", pixels(32), FOCAL | {"focal_levels": [2, 2], "focal_windows": [3, 3]})
_add(
    "BitModel",
    pixels(32),
    {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 4},
)
_all("VideoMAEModel TimesformerModel", video, IMAGE | {"num_frames": 4})

_all("UniSpeechModel SEWModel Data2VecAudioModel", sound, SPEECH | {"squeeze_factor": 1})
_add("WavLMModel", sound, SPEECH, refusal=r"multi_head_attention_forward")  # called with its modules' weights
AST = WIDTHS | {"intermediate_size": 48, "patch_size": 8, "max_length": 32, "num_mel_bins": 16}
_add("ASTModel", spectrum, AST | {"frequency_stride": 8, "time_stride": 8})
SPEAK = BART | {"input_feat_per_channel": 8, "conv_channels": 16}
_add("Speech2TextModel", spectrum_to_text, SPEAK | {"max_source_positions": 32, "max_target_positions": 32})
PATCHES = {"num_input_channels": 3, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 32}
TST = PATCHES | {"num_attention_heads": 4, "ffn_dim": 48, "num_hidden_layers": 2}
_add("PatchTSTModel", series, TST)
_add("PatchTSMixerModel", series, PATCHES | {"num_layers": 2})

ENTRIES = list(FAMILY)
