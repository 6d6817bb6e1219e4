"""`nap.verify` believes nothing: sound models pass, and every sabotage is found and named."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.conversion.double import _grouped
from nap.conversion.verification import relative_change
from nap.norms.norm import Norm

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))


def causal() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.ReLU(), nn.Conv1d(8, 2, 1))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both, self.head = nn.Linear(8, 24), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.head(F.silu(gate) * up)


class Noise(nn.Module):
    """Draws new noise in every forward, and still must be told from one that depends on its weights' norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.layer(x)) * torch.rand(16))


SOUND = {
    "mlp": (mlp(), X),
    "convolution": (causal(), torch.randn(2, 4, 9)),
    "image": (nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1)), torch.randn(2, 3, 6, 6)),
    "BatchNorm": (nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU()), torch.randn(2, 3, 6, 6)),
    "gate": (Gated(), X),
    "attention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)),
    "noise": (Noise(), X),
}


@pytest.mark.parametrize(("model", "x"), SOUND.values(), ids=SOUND.keys())
def test_sound_models_pass_and_stay_as_they_are(model, x):
    nap.normalize_(model, x)
    model.train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    generator = torch.get_rng_state()
    result = nap.verify(model, x)
    assert result.norms >= 1
    assert result.worst_change < 1e-9
    assert "none leaks" in str(result)
    assert model.training
    assert torch.equal(torch.get_rng_state(), generator)
    torch.testing.assert_close(before, dict(model.state_dict()), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_model_that_holds_tensors_of_an_earlier_graph_can_be_tried():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 6)), nn.ReLU(), nn.Linear(6, 3))
    nap.normalize_(model, X)
    model(X).sum().backward()
    assert nap.verify(model, X).norms == 1


def converted(model: nn.Module, x: Tensor = X) -> Any:
    nap.normalize_(model, x)
    return model


class Leaky(Norm):
    """Centres over the samples too."""

    def forward(self, y: Tensor, *weights: Tensor, scale: Tensor | None = None) -> Tensor:
        return super().forward(y - y.mean(0, keepdim=True), *weights, scale=scale)


class Forward(Norm):
    """Looks at the next position."""

    def forward(self, y: Tensor, *weights: Tensor, scale: Tensor | None = None) -> Tensor:
        return super().forward(y + y.roll(-1, -1), *weights, scale=scale)


def lose_a_hook(model: Any) -> None:
    model[2]._forward_hooks.clear()


def give_a_bias(model: Any) -> None:
    model[2].bias = nn.Parameter(torch.linspace(-1, 1, 16))  # centring would cancel a constant


def make_eps_absolute(model: Any) -> None:
    model[0].nap_norm.relative = False


def mix_samples(model: Any) -> None:
    model[2].nap_norm.__class__ = Leaky


def put_an_activation_in_between(model: Any) -> None:
    model[2] = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))


def switch_a_norm_off(model: Any) -> None:
    model[0].nap_norm.__class__ = Off


class Off(Norm):
    def forward(self, y: Tensor, *weights: Tensor, scale: Tensor | None = None) -> Tensor:
        return y


class Autoregressive(nn.Module):
    """MADE: output i depends on the inputs before i alone."""

    enter: Tensor
    leave: Tensor

    def __init__(self) -> None:
        super().__init__()
        order, hidden = torch.arange(6), torch.arange(20) % 5
        self.first, self.last = nn.Linear(6, 20), nn.Linear(20, 6)
        self.register_buffer("enter", (hidden[:, None] >= order).float())
        self.register_buffer("leave", (order[:, None] > hidden).float())

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(F.linear(x, self.first.weight * self.enter, self.first.bias))
        return F.linear(hidden, self.last.weight * self.leave, self.last.bias)


def test_a_norm_over_time_is_found_though_it_does_what_it_says():
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(2, 5, 8)
    nap.normalize_(model, x)
    nap.verify(model, x)
    model[0].nap_norm = Norm(5, layout="channels", spatial=1, rows=16)
    with pytest.raises(ValueError, match=r"0\.nap_norm: mixes positions \(axis 1\)"):
        nap.verify(model, x)


def test_a_norm_over_features_that_are_kept_apart_is_found():
    def apart() -> nn.Sequential:
        return nn.Sequential(nn.Conv1d(6, 12, 1, groups=6), nn.ReLU(), nn.Conv1d(12, 6, 1, groups=6))

    model, x = apart(), torch.randn(4, 6, 3)
    nap.normalize_(model, x)
    with pytest.raises(ValueError, match=r"0.nap_norm: mixes positions \(axis 1\)"):
        nap.verify(model, x)
    left = apart()
    nap.normalize_(left, x, exclude=["0"])
    nap.verify(left, x)


def test_masks_that_keep_features_apart_are_refused_before():
    model, x = Autoregressive(), torch.randn(4, 6)
    with pytest.raises(ValueError, match=r"first\.weight: it enters relu, .* as in MADE"):
        nap.normalize_(model, x)
    nap.normalize_(model, x, allow=["first.weight"])
    nap.verify(model, x)


class Guarded(nn.Module):
    """Fails where values leave the range that norms keep them in, as distributions do with NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.layer(x))
        if hidden.abs().max() > 4:  # a normalised feature of 16 is at most √15
            raise ValueError("out of range")
        return self.head(hidden)


def test_a_model_that_fails_without_its_norms_can_be_tried():
    model = Guarded()
    nap.normalize_(model, X)
    result = nap.verify(model, X)
    assert result.norms == 1
    assert "not compared without norms, samples (axis 0): out of range" in str(result)


class Merged(nn.Module):
    """LoRA that calls its layer in eval mode alone, with merged weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.a, self.b = nn.Linear(8, 16), nn.Linear(8, 2, False), nn.Linear(2, 16, False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.layer(x)
        return F.linear(x, self.layer.weight + self.b.weight @ self.a.weight, self.layer.bias)


def test_a_norm_that_does_not_run_while_training_is_found():
    model = nn.Sequential(Merged(), nn.ReLU(), nn.Linear(16, 3))
    nap.normalize_(model, X)
    with pytest.raises(
        ValueError, match=r"0\.layer\.nap_norm does not run in train mode.*exclude=\['0\.layer'\]"
    ):
        nap.verify(model, X)
    model = nn.Sequential(Merged(), nn.ReLU(), nn.Linear(16, 3))
    nap.normalize_(model, X, exclude=["0.layer"])
    nap.verify(model, X)


SABOTAGE = [
    (lose_a_hook, "norms of 2 no longer run"),
    (give_a_bias, r"2\.weight is not scale-invariant"),
    (make_eps_absolute, r"0\.weight is not scale-invariant"),
    (mix_samples, r"2\.nap_norm mixes what lies along axis 0"),
    (put_an_activation_in_between, r"2\.0 still enters tanh"),
    (switch_a_norm_off, r"0\.weight is not scale-invariant"),
]


@pytest.mark.parametrize(("sabotage", "message"), SABOTAGE, ids=[s.__name__ for s, _ in SABOTAGE])
def test_every_sabotage_is_named(sabotage, message):
    model = converted(mlp())
    sabotage(model)
    with pytest.raises(ValueError, match=message):
        nap.verify(model, X)


def test_a_norm_that_looks_ahead_in_time_is_named():
    x = torch.randn(2, 4, 9)
    model = converted(causal(), x)
    model[0].nap_norm.__class__ = Forward
    with pytest.raises(ValueError, match=r"0\.nap_norm mixes what lies along axis 2"):
        nap.verify(model, x)


def test_an_absolute_eps_is_reported_as_what_it_is_not_as_a_fault():
    model = mlp()
    nap.normalize_(model, X, eps=1e-5)
    assert nap.verify(model, X).scale_invariant == 0
    assert nap.weight_groups(model)["0.weight"].role == nap.Role.NORMALISED


def test_what_was_left_alone_is_said_again():
    model = nn.Sequential(mlp(), nn.Sigmoid())
    nap.normalize_(model, X, exclude=["0.2"])
    assert set(nap.verify(model, X).left_alone) == {"0.2", "0.4"}
    assert "left alone: 0.2" in str(nap.verify(model, X))


def test_a_model_that_was_never_converted():
    with pytest.raises(ValueError, match=r"never converted; call nap\.normalize_"):
        nap.verify(mlp(), X)


def test_a_change_is_measured_against_the_largest_entry_and_nan_is_infinite():
    a, b = torch.tensor([4.0, 0.0]), torch.tensor([4.0, 1.0])
    assert relative_change([a], [b]) == 0.25
    assert relative_change([a], [torch.tensor([float("nan"), 0.0])]) == float("inf")
    assert relative_change([torch.tensor([1, 2])], [torch.tensor([3, 4])]) == 0.0


class Casting(nn.Module):
    """Makes float32 tensors on the way, casts to float32, and holds one that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.mix = nn.Linear(8, 16), nn.Linear(16, 3), torch.eye(16)

    def forward(self, x: Tensor) -> Tensor:
        held = torch.zeros(len(x), 16, dtype=torch.float32)
        held += F.relu(self.layer(x.to(torch.float32) @ torch.eye(8))).float() @ self.mix
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            return self.head(held.to(torch.float32))


def test_a_model_that_makes_float32_tensors_is_tried_in_float64():
    result = nap.verify(converted(Casting()), X)
    assert (result.norms, result.scale_invariant) == (1, 1)
    assert result.worst_change < 1e-12
    assert torch.get_default_dtype() == torch.float32


needs_grouped_mm = pytest.mark.skipif(
    not hasattr(torch, "_grouped_mm"), reason="torch before 2.8 has no torch._grouped_mm"
)


class Grouped(nn.Module):
    """Experts as transformers run them: sorted tokens, one grouped product."""

    ends: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head = nn.Parameter(torch.randn(3, 8, 16)), nn.Linear(16, 3)
        self.register_buffer("ends", torch.tensor([1, 1, 3], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch._grouped_mm(x, self.up, offs=self.ends).relu())


@needs_grouped_mm
def test_experts_with_a_grouped_product_are_tried_in_float64():
    model = Grouped()
    nap.normalize_(model, X)
    assert nap.verify(model, X).scale_invariant == 1


@needs_grouped_mm
@pytest.mark.parametrize(
    ("a", "b"), [((8, 4), (2, 4, 16)), ((2, 5, 4), (4, 8)), ((4, 8), (8, 4))], ids=["rows", "columns", "sums"]
)
def test_grouped_products_in_float64_are_those_of_torch(a, b):
    a, b = torch.randn(a), torch.randn(b)
    ends = torch.tensor([3, 8], dtype=torch.int32)
    torch.testing.assert_close(_grouped(a, b, ends), torch._grouped_mm(a, b, offs=ends))


def test_complex_weights_are_scaled_in_double_precision_too() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8, 3, dtype=torch.cfloat))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(torch.einsum("bix,iox->box", torch.fft.rfft(x), self.w), n=5)

    torch.manual_seed(0)
    model, x = nn.Sequential(Spectral(), nn.GELU(), nn.Linear(5, 2)), torch.randn(2, 8, 5)
    nap.normalize_(model, x)
    assert nap.weight_groups(model)["0.w"].role is nap.Role.SCALE_INVARIANT
    nap.verify(model, x)
