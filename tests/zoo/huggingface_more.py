"""More of Hugging Face transformers: longer attention, other modalities, hybrids; added after the first set."""

from __future__ import annotations

from typing import Any

import torch

from .entry import Entry
from .huggingface import (
    BART,
    COMMON,
    GROUPED,
    IMAGE,
    SPEECH,
    TEXT,
    WIDTHS,
    Family,
    add,
    ids,
    pair,
    pixels,
    text,
)

FAMILY = Family("transformers, more")


def _add(name: str, inputs: Any, settings: dict[str, Any], **about: Any) -> None:
    add(FAMILY, name, inputs, settings, **about)


for name in (
    "XLMRobertaModel", "CamembertModel", "ErnieModel", "NezhaModel", "EsmModel", "Data2VecTextModel",
    "MegatronBertModel", "LayoutLMModel", "SqueezeBertModel", "IBertModel", "XmodModel", "NystromformerModel",
    "YosoModel", "RemBertModel", "SplinterModel",
):  # fmt: skip
    _add(name, text, TEXT | {"max_position_embeddings": 40, "embedding_size": 32})
_add("XLNetModel", text, COMMON | {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48})
_add(
    "FunnelModel",
    text,
    COMMON | {"block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48},
)
_add("LongformerModel", text, TEXT | {"attention_window": 4, "max_position_embeddings": 40})
_add("BigBirdModel", text, TEXT | {"attention_type": "original_full"})
_add("CanineModel", lambda: {"input_ids": torch.randint(3, 60, (2, 16))}, TEXT | {"num_hash_buckets": 64})

for name in (
    "BlenderbotModel", "BlenderbotSmallModel", "PLBartModel", "LEDModel", "BigBirdPegasusModel", "ProphetNetModel",
):  # fmt: skip
    _add(name, pair, BART | {"attention_type": "original_full", "attention_window": 4} | {"hidden_size": 32}
         | {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_encoder_attention_heads": 4}
         | {"num_decoder_attention_heads": 4, "max_encoder_position_embeddings": 32}
         | {"max_decoder_position_embeddings": 32})  # fmt: skip
_add("UMT5Model", pair, COMMON | {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4})

for name in (
    "PersimmonForCausalLM", "Cohere2ForCausalLM", "Exaone4ForCausalLM", "Glm4ForCausalLM", "HeliumForCausalLM",
    "ArceeForCausalLM", "Ernie4_5ForCausalLM", "SeedOssForCausalLM", "ApertusForCausalLM", "BitNetForCausalLM",
    "DiffLlamaForCausalLM", "HunYuanDenseV1ForCausalLM", "Olmo3ForCausalLM", "MinistralForCausalLM",
    "RecurrentGemmaForCausalLM", "BioGptForCausalLM",
):  # fmt: skip
    _add(name, text, GROUPED | {"lru_width": 32, "attention_window_size": 4}, causal=1)
ROUTED = GROUPED | {
    "num_experts_per_tok": 2,
    "num_experts": 3,
    "num_local_experts": 3,
    "moe_intermediate_size": 24,
}
LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
for name in ("PhimoeForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM", "JetMoeForCausalLM"):
    _add(name, text, ROUTED | {"shared_expert_intermediate_size": 24}, causal=1)
for name in ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"):
    _add(name, text, ROUTED | LATENT | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1}
         | {"num_key_value_heads": 4}, causal=1)  # fmt: skip
_add(
    "FalconMambaForCausalLM",
    text,
    COMMON | {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
    causal=1,
)
_add(
    "Lfm2ForCausalLM",
    text,
    GROUPED | {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48},
    causal=1,
)

for name in (
    "ViTMAEModel", "ViTMSNModel", "YolosModel", "DINOv3ViTModel", "Data2VecVisionModel", "SiglipVisionModel",
    "CLIPVisionModel", "IJepaModel", "Dinov2WithRegistersModel", "HieraModel", "VitDetModel",
):  # fmt: skip
    _add(name, pixels(), IMAGE | ({"mask_ratio": 0.0} if "MAE" in name else {}))
_add("ConvNextModel", pixels(32), {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2})
_add(
    "RegNetModel",
    pixels(32),
    {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
)
_add("EfficientNetModel", pixels(32), {"width_coefficient": 0.3, "depth_coefficient": 0.1, "hidden_dim": 32})
_add("MobileNetV1Model", pixels(32), {"depth_multiplier": 0.25})
_add("MobileNetV2Model", pixels(32), {"depth_multiplier": 0.35})
_add("MobileViTModel", pixels(32), {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32],
                                    "image_size": 32})  # fmt: skip
_add("LevitModel", pixels(32), {"image_size": 32, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2],
                                "depths": [1, 1, 1], "key_dim": [8, 8, 8]})  # fmt: skip
_add("PvtV2Model", pixels(32), {"image_size": 32, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
                                "num_attention_heads": [1, 2, 2, 4]})  # fmt: skip
_add("CvtModel", pixels(32), {"embed_dim": [16, 16, 32], "num_heads": [1, 2, 2], "depth": [1, 1, 1]})
_add("FocalNetModel", pixels(32), {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32],
                                   "focal_levels": [2, 2], "focal_windows": [3, 3]})  # fmt: skip
_add(
    "BitModel",
    pixels(32),
    {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 4},
)
_add("VideoMAEModel", lambda: {"pixel_values": torch.randn(2, 4, 3, 16, 16)}, IMAGE | {"num_frames": 4})
_add("TimesformerModel", lambda: {"pixel_values": torch.randn(2, 4, 3, 16, 16)}, IMAGE | {"num_frames": 4})

for name in ("WavLMModel", "UniSpeechModel", "SEWModel", "Data2VecAudioModel"):
    _add(name, lambda: {"input_values": torch.randn(2, 200)}, SPEECH | {"squeeze_factor": 1})
_add("ASTModel", lambda: {"input_values": torch.randn(2, 32, 16)},
     WIDTHS | {"intermediate_size": 48, "patch_size": 8, "max_length": 32, "num_mel_bins": 16,
               "frequency_stride": 8, "time_stride": 8})  # fmt: skip
_add("Speech2TextModel", lambda: {"input_features": torch.randn(2, 16, 8), "decoder_input_ids": ids()},
     BART | {"input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 32,
             "max_target_positions": 32})  # fmt: skip
_add("PatchTSTModel", lambda: {"past_values": torch.randn(2, 16, 3)},
     {"num_input_channels": 3, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 32,
      "num_attention_heads": 4, "ffn_dim": 48, "num_hidden_layers": 2})  # fmt: skip
_add("PatchTSMixerModel", lambda: {"past_values": torch.randn(2, 16, 3)},
     {"num_input_channels": 3, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 16,
      "num_layers": 2})  # fmt: skip

ENTRIES: list[Entry] = list(FAMILY)
