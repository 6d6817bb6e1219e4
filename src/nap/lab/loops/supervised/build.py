"""Networks, projectors and learning rates, made from the settings and arms that name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

import nap
from nap.lab.loops.supervised.arms import VisionArm
from nap.lab.loops.supervised.classifier import Rates, Recipe
from nap.lab.loops.supervised.settings import CifarConfig, ImageNetConfig
from nap.lab.models.resnet import ResNetV2
from nap.lab.models.vgg import vgg

EPS = 1e-5  # absolute: as fast as a norm written by hand, and weights on their sphere never come near it


def vgg_factory(config: CifarConfig, shape: Sequence[int], classes: int) -> Callable[[], nn.Module]:
    """Builds a network of these settings for images of `shape` (C, H, W) at each call."""
    return lambda: vgg(
        shape,
        classes,
        channels=config.channels,
        global_pool=config.global_pool,
        hidden=config.hidden,
        batch_norm=config.batch_norm,
        dropout=config.dropout,
        init_std_scale=config.init_std_scale,
        weight_norm=config.weight_norm,
    )


def resnet_factory(config: ImageNetConfig, classes: int) -> Callable[[], nn.Module]:
    """Builds a network of these settings at each call."""
    return lambda: ResNetV2(
        3, classes, blocks=config.blocks, width=config.width, small_stem=config.small_stem
    )


def build(
    arm: VisionArm, make: Callable[[], nn.Module], images: Tensor, **options: Any
) -> tuple[Any, nap.Projector | None]:
    """A new network of this arm, drawn from the global random state, and its projector.

    `options` are further options of `nap.normalize_`.
    """
    model = make()
    if arm.norm:
        # on sums, so that each BatchNorm has one to join
        nap.normalize_(model, images, eps=EPS, residual="sum", **options)
        nap.fuse_batch_norms_(model, images)
    if not arm.project:
        return model, None
    return model, nap.Projector(model, output=arm.output, branches=arm.branches)


def learning_rates(arm: VisionArm, planned: Callable[[int], float], steps: int, recipe: Recipe) -> Rates:
    """The learning rates of each of `steps` updates; `planned` are those of the settings."""
    if not arm.translated:
        return lambda step: (planned(step), planned(step))
    translated = nap.schedules.weight_decay_rates(
        map(planned, range(steps)), recipe.weight_decay, momentum=recipe.momentum
    ).tolist()
    return lambda step: (translated[step], planned(step))
