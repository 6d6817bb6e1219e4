"""Networks and methods, made from the settings and arms that name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from nap.lab.loops.population.arms import Strengths
from nap.lab.loops.population.settings import OneNetwork
from nap.lab.models.nets import cnn, mlp
from nap.methods import L2, L2Init, Langevin, LeakyReLU, Method, ReDo, ShrinkAndPerturb

METHODS: Mapping[str, Callable[[Strengths, float], Method]] = {  # of strengths and learning rate
    "none": lambda s, lr: Method(),
    "L2": lambda s, lr: L2(s.l2),
    "L2 Init": lambda s, lr: L2Init(s.l2_init),
    "shrink and perturb": lambda s, lr: ShrinkAndPerturb(s.shrink, s.perturb),
    "ReDo": lambda s, lr: ReDo(tau=s.redo_tau, every=s.redo_every),
    "leaky ReLU": lambda s, lr: LeakyReLU(s.leak),
    "Langevin": lambda s, lr: Langevin(std=s.noise * lr),
}


def network_factory(settings: OneNetwork, shape: Sequence[int], classes: int) -> Callable[[], nn.Module]:
    """Builds a network of these settings for images of `shape` (C, H, W) at each call."""
    if settings.network == "mlp":
        return lambda: mlp(shape, classes, width=settings.width, depth=settings.depth)
    return lambda: cnn(shape, classes, channels=settings.channels, hidden=settings.width)
