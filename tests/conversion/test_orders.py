"""`verify` finds norms that show an autoregressive network what it hides from itself."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.prune import random_unstructured

import nap
from nap.norms.norm import CHILD


class MaskedConv(nn.Conv2d):
    """PixelCNN: rows below, and pixels to the right, do not count."""

    mask: Tensor

    def __init__(self, inputs: int, outputs: int, itself: bool):
        super().__init__(inputs, outputs, 3, padding=1)
        mask = torch.ones_like(self.weight)
        mask[:, :, 1, 1 + itself :] = 0
        mask[:, :, 2] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=1)


class MaskedLinear(nn.Linear):
    mask: Tensor

    def __init__(self, mask: Tensor):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask.float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class Summed(nn.Module):
    """A loss or a density, which shows no order."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).square().flatten(1).sum(1)


def pixel_cnn() -> nn.Sequential:
    first, second = MaskedConv(1, 8, itself=False), MaskedConv(8, 8, itself=True)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv2d(8, 4, 1))


def made(size: int = 5) -> nn.Sequential:
    order, hidden = torch.arange(size), torch.arange(16) % (size - 1)
    enter, leave = hidden[:, None] >= order, order.repeat(2)[:, None] > hidden
    return nn.Sequential(MaskedLinear(enter), nn.ReLU(), MaskedLinear(leave))


class CausalInTime(nn.Module):
    """(batch, channels, time, frequencies), padded in front in time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(F.pad(x, (1, 1, 2, 0)))))


@pytest.fixture
def unread_masks(monkeypatch):
    """Plans that do not see what masks and causal convolutions keep apart, as those made before they did."""
    monkeypatch.setattr("nap.conversion.normalize.refuse_causal", lambda *_: None)
    monkeypatch.setattr("nap.tracing.contraction.kept_apart", lambda *_, **__: "")
    monkeypatch.setattr("nap.tracing.contraction.lacks_taps", lambda *_: False)


IMAGE = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("build", "inside"), [(pixel_cnn, ""), (lambda: Summed(pixel_cnn()), "net."), (CausalInTime, "")]
)
@pytest.mark.usefixtures("unread_masks")
def test_a_norm_over_space_breaks_an_order_in_space(build, inside: str):
    model = build()
    nap.normalize_(model, IMAGE)
    with pytest.raises(ValueError, match=rf"{inside}\w+\.nap_norm.*along axis 2.*over='position'"):
        nap.verify(model, IMAGE)
    model = build()
    nap.normalize_(model, IMAGE, over="position")
    assert nap.verify(model, IMAGE).norms > 0


@pytest.mark.usefixtures("unread_masks")
def test_a_flow_keeps_its_masked_network():
    model = Summed(made())
    nap.normalize_(model, ROWS)
    with pytest.raises(
        ValueError, match=r"net\.0\.nap_norm: mixes features that masks keep apart.*exclude=\['net\.0'\]"
    ):
        nap.verify(model, ROWS)
    model = Summed(made())
    nap.normalize_(model, ROWS, exclude=["net.0"])
    assert nap.verify(model, ROWS).norms == 0


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)),
        nn.Sequential(nn.Conv2d(1, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2)),  # patches
        nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 1, 1)),
    ],
)
def test_local_networks_have_no_order(model: nn.Module):
    image = torch.randn(2, 1, 8, 8)
    nap.normalize_(model, image)
    assert nap.verify(model, image).norms == 1


def test_plans_read_masks():
    model = pixel_cnn()
    nap.normalize_(model, IMAGE)
    assert nap.verify(model, IMAGE).norms == 2
    with pytest.raises(ValueError, match=r"net\.0: .* as in MADE"):
        nap.normalize_(Summed(made()), ROWS)


def test_plans_see_causal_convolutions():
    model = CausalInTime()
    with pytest.raises(ValueError, match=r"first: .* along axis 2 .* over='position'"):
        nap.normalize_(model, IMAGE)
    nap.normalize_(model, IMAGE, allow=["first"])
    assert CHILD in model.first._modules
    model = CausalInTime()
    nap.normalize_(model, IMAGE, over="position")
    nap.verify(model, IMAGE)


def test_pruned_layers_hide_nothing():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    for layer in (model[0], model[2]):
        random_unstructured(layer, "weight", amount=0.5)
    nap.normalize_(model, ROWS)
    assert nap.verify(model, ROWS).norms == 2
