"""Table 1, ImageNet: a ResNet-50 with norms, and with NaP, ends as good as the baseline."""

from __future__ import annotations

from nap.lab.experiments.common.images.claims import BASELINE, NAP, NORM, ImageTable

EPOCHS, UPDATES_OF_ONE = 90, 1_281_167 // 256  # of ImageNet's images in batches of 256

IMAGENET = ImageTable(
    experiment="table1-imagenet",
    data="imagenet",
    images=f"ImageNet, here after {EPOCHS} epochs or {EPOCHS * UPDATES_OF_ONE:,} updates",
    updates=EPOCHS * UPDATES_OF_ONE,
    stated={BASELINE: 77.08, NORM: 77.45, NAP: 77.26},
    std={BASELINE: 0.11, NORM: 0.08, NAP: 0.04},
)
CLAIMS = IMAGENET.claims()
