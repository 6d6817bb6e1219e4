"""A classifier in operations that can be stacked is the same classifier."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

import nap
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, VisionArm
from nap.lab.loops.supervised.stacked.convert import (
    FRONT,
    POOL,
    BatchNormReLU2d,
    StackedBatchNorm2d,
    collect_statistics_,
    stackable,
)
from nap.lab.loops.supervised.trainer import build
from nap.lab.models.vgg import vgg


def learnt(model: nn.Module, names: nn.Module, x: Tensor) -> list[Tensor]:
    """Output, gradients, and the averages that BatchNorm keeps, with the parameters of `names`."""
    state = {name: part.detach().clone() for name, part in names.state_dict().items()}
    parameters = {name: state[name].requires_grad_() for name, _ in names.named_parameters()}
    found = functional_call(model, state, (x,))
    gradients = torch.autograd.grad(found.square().sum(), list(parameters.values()))
    return [found, *gradients, *(state[name] for name, _ in names.named_buffers())]


@pytest.mark.parametrize("size", [8, 12], ids=["even", "odd after a pooling"])
@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
def test_it_is_the_same_network(arm: VisionArm, size: int) -> None:
    torch.manual_seed(0)

    def make() -> nn.Module:
        return vgg(
            (3, size, size), 4, channels=(6, 8, 0, 5, 0, 7), global_pool=True, hidden=(), batch_norm=True
        )

    model, _ = build(arm, make, torch.randn(2, 3, size, size))
    model = model.double()
    x = torch.randn(6, 3, size, size, dtype=torch.float64)
    same = stackable(model)
    norms = [module for module in same.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(isinstance(norm, BatchNormReLU2d) for norm in norms)
    assert [norm.__dict__[POOL] for norm in norms] == [False, True, True, False]
    assert [norm.__dict__[FRONT] is not None for norm in norms] == [arm.norm] * 4
    assert not any(isinstance(module, nn.ReLU | nn.MaxPool2d) for module in same.modules())
    assert list(same.state_dict()) == list(model.state_dict())
    assert_close(learnt(same, model, x), learnt(model.train(), model, x), rtol=1e-7, atol=1e-9)


def test_what_it_does_not_know_stays() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    net = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh()),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3)),
        *(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, affine=False), nn.ReLU()),
    )
    nap.normalize_(net, x)  # with an eps that is relative to the weights
    nap.fuse_batch_norms_(net, x)
    kinds = [type(module) for module in stackable(net).children() if isinstance(module, nn.BatchNorm2d)]
    assert kinds == [StackedBatchNorm2d] * 3
    plain = stackable(nn.Sequential(*[nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]))
    assert [type(module) for module in plain.children()][1:] == [BatchNormReLU2d, nn.Identity]


def test_hooks_and_modules_of_others_stay() -> None:
    class Own(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    def line(norm: nn.Module, relu: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm, relu).double()

    hooked, twice = nn.ReLU(), nn.Identity()
    hooked.register_forward_hook(lambda module, args, output: 3 * output)
    shared = nn.Sequential(twice, nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.ReLU())
    shared.insert(3, shared[3])
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    for net in (line(nn.BatchNorm2d(4), hooked), line(Own(4), nn.ReLU()), shared.double()):
        assert_close(learnt(stackable(net), net, x), learnt(net.train(), net, x))


def test_averages_are_gathered_by_name_whatever_the_order_of_calls() -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = (
                nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), _uncounted(nn.BatchNorm2d(4)), nn.ReLU())
                for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.last(self.first(x))
            return found

    torch.manual_seed(0)
    model, x = Reversed().double(), torch.randn(3, 4, 6, 6, dtype=torch.float64)
    skeleton = stackable(model)
    shares, gathered = collect_statistics_(skeleton)
    skeleton(x)
    model.train()(x)
    assert shares == {"last.1": 0.1, "first.1": 0.1}
    for name in shares:
        norm = model.get_submodule(name)
        start = torch.zeros(4).double(), torch.ones(4).double()
        for value, average, first in zip(
            gathered[name], (norm.running_mean, norm.running_var), start, strict=True
        ):
            assert_close(first.lerp(value, 0.1), average)
        assert not dict(skeleton.named_buffers())[f"{name}.running_mean"].any()  # nothing was written


def _uncounted(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    norm.num_batches_tracked = None
    return norm


def test_one_number_has_no_variance() -> None:
    net = stackable(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()))
    with pytest.raises(ValueError, match="one number"):
        net(torch.randn(1, 3, 1, 1))
