"""Table 1 (ImageNet): how the networks learn, and where they end beside the paper's."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments.common.images.figure import LOOKS, accuracies, figures, missing
from nap.lab.experiments.table1_imagenet.claims import IMAGENET

__all__ = ["LOOKS", "figures", "missing", "table"]

table = partial(accuracies, stated=IMAGENET)
