"""Transformers, made from the settings and arms that name them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

import nap
from nap.lab.loops.language.arms import TransformerArm
from nap.lab.loops.language.settings import TransformerConfig
from nap.lab.models.transformer import Transformer


def transformer_factory(
    settings: TransformerConfig, vocabulary: int, length: int, *, tied: bool = False, recompute: bool = False
) -> Callable[[], Transformer]:
    """Builds a transformer of these settings for so many tokens and positions at each call."""
    return lambda: Transformer(
        vocabulary,
        length,
        blocks=settings.blocks,
        heads=settings.heads,
        width=settings.width,
        norm=settings.backbone_norm,
        branches=settings.branches,
        positions=settings.positions,
        tied=tied,
        recompute=recompute,
    )


def build(
    arm: TransformerArm, make: Callable[[], nn.Module], tokens: Tensor
) -> tuple[nn.Module, nap.Projector | None]:
    """A fresh network, from the global random state, and its projector, if the arm projects.

    Without norms every weight can be projected too (§C.3 does so): that fixes the scale of the function.
    """
    model = make()
    if arm.norm:
        nap.normalize_(model, tokens, norm=arm.kind, affine="scale_offset" if arm.scale else "none")
        nap.fuse_relus_(model, tokens)
    if not arm.project:
        return model, None
    return model, nap.Projector(model, output=arm.output, embeddings=arm.embeddings, branches=arm.branches)
