"""Hugging Face transformers with two inputs or none of text: encoder-decoders, images, sound."""

from __future__ import annotations

from functools import partial

import torch

from .entry import Family
from .huggingface import COMMON, IMAGE, TEXT, WIDTHS, add, ids, pair, pixels, text

FAMILY = Family("transformers")
_add = partial(add, FAMILY)

T5 = COMMON | {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_add("T5ForConditionalGeneration", pair, T5)
_add("MT5ForConditionalGeneration", pair, T5 | {"feed_forward_proj": "gated-gelu"})
BART = (
    COMMON
    | {"d_model": 32, "max_position_embeddings": 32, "decoder_start_token_id": 2}
    | {
        f"{side}_{what}": count
        for side in ("encoder", "decoder")
        for what, count in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 48))
    }
)
for name in ("BartModel", "PegasusModel", "MBartModel", "MarianModel", "M2M100Model"):
    _add(name, pair, BART)
_add(
    "WhisperModel",
    lambda: {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": ids()},
    BART | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16, "pad_token_id": 0},
)

for name in (
    "ViTForImageClassification",
    "DeiTForImageClassification",
    "BeitForImageClassification",
    "Dinov2Model",
):
    _add(name, pixels(), IMAGE)
STAGES = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}
_add("SwinForImageClassification", pixels(32), STAGES)
_add("Swinv2ForImageClassification", pixels(32), STAGES)
_add(
    "ConvNextForImageClassification",
    pixels(32),
    {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
)
_add(
    "ConvNextV2ForImageClassification",
    pixels(32),
    {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
)
_add(
    "SegformerForImageClassification",
    pixels(32),
    {
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "hidden_sizes": [16, 32],
        "sr_ratios": [2, 1],
        "mlp_ratios": [2, 2],
    }
    | {"num_attention_heads": [2, 4], "patch_sizes": [7, 3], "strides": [4, 2], "decoder_hidden_size": 32},
)
_add(
    "PoolFormerModel",
    pixels(32),
    {"hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1], "mlp_ratio": 2.0},
)
_add(
    "ResNetForImageClassification",
    pixels(32),
    {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]},
)
_add(
    "CLIPModel",
    lambda: text() | pixels()(),
    {"text_config": TEXT | {"projection_dim": 24}, "vision_config": IMAGE | {"projection_dim": 24}}
    | {"projection_dim": 24},
    batched=False,  # every image meets every text
)
SPEECH = (
    WIDTHS
    | {"intermediate_size": 48, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2]}
    | {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
)
for name in ("Wav2Vec2Model", "HubertModel"):
    _add(name, lambda: {"input_values": torch.randn(2, 200)}, SPEECH | {"feat_extract_norm": "layer"})

ENTRIES = list(FAMILY)
