"""Classifiers of timm and torchvision with random weights, smallest sizes; for machines that have them."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from .entry import Entry, Family

CLASSES = 10

# name: side of the example image, where the architecture does not take 64
TIMM: dict[str, int] = dict.fromkeys(
    (
        "resnet18", "resnet26d", "resnet50", "resnetv2_50", "resnetv2_50x1_bit", "resnext50_32x4d",
        "seresnet50", "ecaresnet26t", "skresnet18", "res2net50_26w_4s", "resnest14d", "densenet121",
        "vgg11", "vgg11_bn", "mobilenetv2_100", "mobilenetv3_small_050", "mobilenetv4_conv_small",
        "mnasnet_small", "efficientnet_b0", "efficientnetv2_rw_t", "tf_efficientnet_lite0",
        "regnetx_002", "regnety_002", "convnext_atto", "convnextv2_atto", "poolformer_s12",
        "poolformerv2_s12", "caformer_s18", "nfnet_f0", "nf_resnet26", "ghostnet_050",
        "hrnet_w18_small", "dpn48b", "dla34", "darknet53", "cspresnet50", "vovnet39a", "repvgg_a0",
        "selecsls42", "rexnet_100", "tinynet_e", "lcnet_050", "mobileone_s0", "edgenext_xx_small",
        "fastvit_t8", "nextvit_small", "inception_next_atto", "starnet_s1", "repvit_m0_9",
        "efficientvit_b0", "mambaout_femto", "hgnetv2_b0",
        "gernet_s", "xcit_nano_12_p16_224",
    ),
    64,
) | dict.fromkeys(
    ("inception_v3", "inception_v4", "inception_resnet_v2", "xception41", "legacy_xception"), 96
) | dict.fromkeys(
    (
        "vit_tiny_patch16_224", "vit_small_patch32_224", "vit_relpos_small_patch16_224",
        "deit_tiny_patch16_224", "deit3_small_patch16_224", "swin_tiny_patch4_window7_224",
        "mixer_s32_224", "resmlp_12_224", "gmlp_ti16_224", "gmixer_12_224", "cait_xxs24_224",
        "coat_tiny", "coatnet_nano_rw_224", "levit_128s", "pit_ti_224", "tnt_s_patch16_224",
        "twins_pcpvt_small", "twins_svt_small", "volo_d1_224", "beit_base_patch16_224", "davit_tiny",
        "focalnet_tiny_srf", "mvitv2_tiny", "crossvit_tiny_240", "convit_tiny", "visformer_tiny",
        "nest_tiny", "sequencer2d_s", "pvt_v2_b0", "hiera_tiny_224", "convmixer_768_32",
        "botnet26t_256", "halonet26t", "lambda_resnet26t", "bat_resnext26ts", "gcresnext26ts",
        "maxvit_pico_rw_256", "eva02_tiny_patch14_224", "mobilevit_xxs", "mobilevitv2_050",
        "swinv2_tiny_window8_256", "samvit_base_patch16_224", "flexivit_small", "tiny_vit_5m_224",
        "gcvit_xxtiny", "efficientformer_l1", "efficientvit_m0",
    ),
    0,  # its own size
)  # fmt: skip
OPTIONS = {"sequencer2d_s": {"rnn": "layernorm"}}
REFUSED = {
    "davit_tiny": "runs over positions, not over features",  # attention between channels
    "gcvit_xxtiny": r"conv_pw: which of its features reach softmax is unclear",  # pooled over and over
}
TORCHVISION: dict[str, int] = {
    "alexnet": 64, "resnet18": 64, "vgg11": 64, "vgg11_bn": 64, "squeezenet1_1": 64, "densenet121": 64,
    "googlenet": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "mnasnet0_5": 64, "shufflenet_v2_x0_5": 64,
    "regnet_y_400mf": 64, "efficientnet_b0": 64, "convnext_tiny": 64, "inception_v3": 96, "vit_b_32": 224,
    "swin_t": 64, "swin_v2_t": 64, "maxvit_t": 224,
}  # fmt: skip


def _timm(name: str, size: int) -> tuple[nn.Module, torch.Tensor]:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=CLASSES)
    channels, height, width = model.pretrained_cfg.get("input_size", (3, 224, 224))
    return model, torch.randn(2, channels, size or height, size or width)


def _torchvision(name: str, size: int) -> tuple[nn.Module, torch.Tensor]:
    from torchvision import models

    extra = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, num_classes=CLASSES, **extra), torch.randn(2, 3, size, size)


def available() -> tuple[list[Entry], list[str]]:
    """The entries that the installed libraries can build, and the names that they cannot."""
    found: list[Entry] = []
    missing: list[str] = []
    for library, names, build in (("timm", TIMM, _timm), ("torchvision", TORCHVISION, _torchvision)):
        known, family = _known(library), Family(library)
        for name, size in names.items():
            if name in known:
                options, refusal = OPTIONS.get(name, {}), REFUSED.get(name)
                family.add(name, partial(build, name, size), options=options, refusal=refusal)
            else:
                missing.append(f"{library} {name}")
        found += family
    return found, missing


def _known(library: str) -> set[str]:
    """The models that an installed library lists; none where it is not installed."""
    try:
        if library == "timm":
            import timm

            return set(timm.list_models())
        from torchvision import models

        return set(models.list_models())
    except ImportError:
        return set()
