"""Table 1, CIFAR-10: networks with norms, and with NaP, end as good as the baseline."""

from __future__ import annotations

from nap.lab.experiments.common.images.claims import BASELINE, NAP, NORM, ImageTable

CIFAR = ImageTable(
    experiment="table1-cifar",
    data="cifar10",
    images="CIFAR-10 after 400,000 updates",
    updates=400_000,
    stated={BASELINE: 94.65, NORM: 94.47, NAP: 94.64},
    std={BASELINE: 0.08, NORM: 0.18, NAP: 0.12},
)
CLAIMS = CIFAR.claims()
