"""SGD and projection in kernels of our own: against PyTorch's SGD, then `nap.Projector`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu import CUDA, DEVICE
from nap.lab.loops.supervised.cifar_trainer import CifarTrainer
from nap.lab.loops.supervised.random_crop import PaddedImages
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, CifarConfig, VisionArm
from nap.lab.loops.supervised.trainer import build, vgg_factory

pytestmark = pytest.mark.cuda
SHAPES = [(3,), (40, 60), (2,), (16, 8, 3, 3), (3000,), (5, 3, 1, 1)]  # some of more than one block
HALF = 2**-8 if CUDA else 2**-7  # how far a number in bfloat16 may be: Triton's interpreter rounds down
RATE, MOMENTUM, DECAY = 0.1, 0.9, 0.05
pytest.importorskip("nap.lab.loops.supervised.fused_sgd", reason="needs Triton", exc_type=ImportError)


def parameters() -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(shape, device=DEVICE) for shape in SHAPES]
    made[3] = made[3].to(memory_format=torch.channels_last)
    return [p.requires_grad_() for p in made]


def sgd(these: list[Tensor]) -> torch.optim.SGD:
    groups = [
        {"params": [p for p in these if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in these if p.ndim < 2], "weight_decay": DECAY / 2},
    ]
    for group, rate in zip(groups, (RATE, RATE / 3), strict=True):
        group["lr"] = torch.tensor(rate, device=DEVICE)
    optimizer = torch.optim.SGD(groups, momentum=MOMENTUM, nesterov=True)
    for p in these:
        optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer


@pytest.mark.parametrize("on_spheres", [(), (1, 3)], ids=["free", "projected"])
def test_a_few_steps_are_those_of_sgd_and_the_projection(on_spheres: tuple[int, ...]) -> None:
    from nap.lab.loops.supervised.fused_sgd import FusedSGD

    ours, theirs = parameters(), parameters()
    first, second = sgd(ours), sgd(theirs)
    radii = {k: ours[k].detach().norm().view(1) for k in on_spheres}
    skip = torch.zeros((), device=DEVICE)
    descent = FusedSGD([first], ours, radii, skip)
    for _ in range(3):
        gradients = [torch.randn_like(leaf) for leaf in descent.leaves]
        gradients[3] = gradients[3].contiguous()  # not as the weight lies in memory
        norms = descent.gradient_norms(gradients)
        assert_close(norms, torch.stack([g.float().norm() for g in gradients]))
        descent.step_()
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g.float().to(memory_format=torch.channels_last) if p.ndim == 4 else g.float()
        second.step()
        with torch.no_grad():
            for k, radius in radii.items():
                theirs[k].mul_(radius / theirs[k].norm())
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, rtol=1e-5, atol=1e-6)
            buffers = (first.state[one]["momentum_buffer"], second.state[other]["momentum_buffer"])
            assert_close(*buffers, rtol=1e-5, atol=1e-6)
        for k, half in descent.copies.items():
            assert_close(half.float(), ours[k], rtol=HALF, atol=0)
    assert sorted(descent.copies) == [1, 3, 5]


def test_nothing_moves_where_it_must_not() -> None:
    from nap.lab.loops.supervised.fused_sgd import FusedSGD

    ours = parameters()
    optimizer = sgd(ours)
    before = [p.detach().clone() for p in ours]
    radii = {1: ours[1].detach().norm().view(1)}
    descent = FusedSGD([optimizer], ours, radii, torch.ones((), device=DEVICE))
    halves = {k: half.detach().clone() for k, half in descent.copies.items()}
    norms = descent.gradient_norms([torch.full_like(leaf, torch.nan) for leaf in descent.leaves])
    descent.step_()
    assert norms.isnan().all()
    for one, other in zip(ours, before, strict=True):
        assert_close(one, other, rtol=1e-6, atol=0)  # projected where they are
        assert not optimizer.state[one]["momentum_buffer"].any()
    for k, half in descent.copies.items():
        assert_close(half, halves[k], rtol=HALF, atol=0)


def test_a_weight_without_direction_stays_as_it_is() -> None:
    from nap.lab.loops.supervised.fused_sgd import FusedSGD

    weight = torch.zeros(3, 2, device=DEVICE).requires_grad_()
    descent = FusedSGD(
        [sgd([weight])], [weight], {0: torch.ones(1, device=DEVICE)}, torch.zeros((), device=DEVICE)
    )
    descent.gradient_norms([torch.zeros_like(descent.leaves[0])])
    descent.step_()
    assert not weight.any()


@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
def test_a_network_learns_what_it_learns_by_the_slow_way(arm: VisionArm) -> None:
    quick, slow = (network(arm, quick) for quick in (True, False))
    order = torch.arange(12, device=DEVICE).view(3, 4)
    for one in (quick, slow):  # one update: after it, rounding sets them apart
        one.train_epoch(order[:1], 0, lambda step: (0.05, 0.03), 0)
    for (name, found), expected in zip(
        quick.model.state_dict().items(), slow.model.state_dict().values(), strict=True
    ):
        assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)
    assert quick.read(4) == pytest.approx(slow.read(4), rel=1e-4)
    again = network(arm, True, seed=1)  # its own norms are others
    again.load_state_dict(copy.deepcopy(quick.state_dict()))
    assert quick._fused_sgd is not None
    quick._fused_sgd.refresh_(quick.radii())  # the interpreter had rounded its copies down
    for one in (quick, again):
        one.train_epoch(order, 1, lambda step: (0.05, 0.03), 3)
    for found, expected in zip(again.parameters, quick.parameters, strict=True):
        assert_close(found, expected, rtol=1e-2 if CUDA else 0, atol=1e-3 if CUDA else 0)


@pytest.mark.parametrize("options", [{"half": False}, {"momentum": 0.0}], ids=str)
def test_what_it_cannot_do_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="for bfloat16 and SGD with momentum"):
        network(NAP, True, **options)


def network(
    arm: VisionArm, quick: bool, *, seed: int = 0, half: bool = True, momentum: float = 0.9
) -> CifarTrainer:
    torch.manual_seed(seed)
    settings = CifarConfig(channels=(4, 0, 8, 0), hidden=(8,), batch_size=4, momentum=momentum)
    model, projector = build(arm, vgg_factory(settings, (3, 8, 8), 10), torch.randn(2, 3, 8, 8))
    torch.manual_seed(0)
    pixels = torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8, device=DEVICE)
    crops = PaddedImages.of(pixels, torch.full((3,), 128.0), torch.full((3,), 60.0), padding=1)
    labels = torch.randint(10, (12,), device=DEVICE)
    model = model.to(DEVICE).to(memory_format=torch.channels_last)
    return CifarTrainer(model, projector, crops, labels, settings, half=half, fused=quick)
