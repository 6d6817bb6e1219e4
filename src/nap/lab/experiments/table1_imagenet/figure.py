"""Table 1 (ImageNet): how the networks learn, and where they end beside the paper's."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments.common.images.figure import EXPECTED_ARMS, STYLES, accuracies, figures
from nap.lab.experiments.table1_imagenet.claims import IMAGENET

__all__ = ["EXPECTED_ARMS", "STYLES", "figures", "table"]

table = partial(accuracies, stated=IMAGENET)
