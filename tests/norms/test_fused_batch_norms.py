"""A norm and the BatchNorm after it, computed together: the same function, with fewer passes."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nap
from fused_models import batch_norms, compared
from nap.lab.models.resnet import ResNetV2
from nap.norms.fused_batchnorm import FusedBatchNorm2d


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def images(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(4, 3, 8, 8, dtype=dtype)


def small_resnet(**options: Any) -> nn.Module:
    model = ResNetV2(3, 5, blocks=(1, 1), width=4, small_stem=True).double()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 2.0)
            nn.init.normal_(norm.bias)
    nap.normalize_(model, images(), **options)
    return model


@pytest.mark.parametrize("eps", ["relative", 1e-5])
@pytest.mark.parametrize("affine", ["scale_offset", "none"])
def test_it_is_the_same_function_with_the_same_gradients_and_statistics(eps, affine):
    plain = small_resnet(eps=eps, affine=affine)
    fused = copy.deepcopy(plain)
    assert nap.fuse_batch_norms_(fused, images()) == {
        "stem": "blocks.0.norm1",
        "blocks.0.conv1": "blocks.0.norm2",
        "blocks.0.conv2": "blocks.0.norm3",
        "blocks.1.conv1": "blocks.1.norm2",
        "blocks.1.conv2": "blocks.1.norm3",
    }
    model: Any = fused
    if (eps, affine) in (("relative", "scale_offset"), (1e-5, "none")):  # tracing takes seconds
        model = torch.compile(fused, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compared(model, plain, images())
    model.eval(), plain.eval()
    compared(model, plain, images())


@pytest.mark.parametrize("options", [{"momentum": None}, {"affine": False}, {"track_running_stats": False}])
def test_every_kind_of_batch_norm_is_followed(options):
    batch_norm = nn.BatchNorm2d(4, **options)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), batch_norm, nn.ReLU(), nn.Conv2d(4, 2, 3)).double()
    nap.normalize_(plain, images())
    fused = copy.deepcopy(plain)
    assert nap.fuse_batch_norms_(fused, images()) == {"0": "1"}
    compiled: Any = torch.compile(fused, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        compared(compiled, plain, images())
    compiled.eval(), plain.eval()
    compared(compiled, plain, images())


def test_the_batch_norm_is_not_computed_by_itself():
    fused = small_resnet()
    nap.fuse_batch_norms_(fused, images())
    assert batch_norms(fused, images()) == 2  # after a sum: before the second block, and at the end
    assert batch_norms(small_resnet(), images()) == 7


def test_without_the_compiler_nothing_changes():
    plain = small_resnet()
    fused = copy.deepcopy(plain)
    nap.fuse_batch_norms_(fused, images())
    compared(fused, plain, images())


def test_copies_and_files_hold_fused_models_of_their_own():
    fused = small_resnet()
    nap.fuse_batch_norms_(fused, images())
    x = images()
    twins: list[Any] = [copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))]
    for twin in twins:
        assert isinstance(twin.blocks[0].norm1, FusedBatchNorm2d)
        torch.testing.assert_close(torch.compile(twin.eval(), backend="aot_eager")(x), fused.eval()(x))
        fused.train()
    assert fused.state_dict().keys() == small_resnet().state_dict().keys()


class Twice(nn.Module):
    """What the first layer gives goes to a BatchNorm and past it; the second layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, 4, 3, padding=1, bias=False) for n in (3, 4))
        self.norm, self.other, self.last = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.norm(y).relu() + y.relu()
        z = self.other(self.second(self.second(z).relu())).relu()
        return self.last(z)


def test_what_others_use_stays_and_a_layer_called_twice_is_left_alone():
    plain = Twice().double()
    nap.normalize_(plain, images())
    fused = copy.deepcopy(plain)
    assert nap.fuse_batch_norms_(fused, images()) == {"first": "norm"}
    compared(torch.compile(fused, backend="aot_eager", fullgraph=True), plain, images())  # type: ignore[arg-type]


class InPlace(nn.Module):
    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.norm = nn.Conv2d(3, 4, 3), between, nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.between(self.first(x))).relu())


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return x


@pytest.mark.parametrize(
    "between",
    [nn.ReLU(inplace=True), Shift(), nn.Dropout2d(0.9, inplace=True)],
    ids=lambda m: type(m).__name__,
)
def test_what_is_changed_in_place_in_between_is_not_fused(between):
    model = InPlace(between).double()
    nap.normalize_(model, images())
    assert nap.fuse_batch_norms_(model, images()) == {}


def test_one_number_a_channel_is_refused_in_training_as_torch_does():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).double()
    nap.normalize_(model, images())
    nap.fuse_batch_norms_(model, images())
    with pytest.raises((ValueError, RuntimeError), match="more than 1 value per channel"):
        torch.compile(model, backend="eager")(images()[:1, :, :3, :3])
    assert all(buffer.isfinite().all() for buffer in model.buffers())


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


def test_inside_a_checkpoint_it_is_compiled_too():
    plain = Recomputed().double()
    nap.normalize_(plain, images())
    fused = copy.deepcopy(plain)
    assert nap.fuse_batch_norms_(fused, images()) == {"body.0": "body.1"}
    compiled: Any = torch.compile(fused, backend="aot_eager", fullgraph=True)
    out = compiled(images())
    assert out.shape == (4, 2, 6, 6)
    x = images()
    compiled.eval(), plain.eval()
    plain.load_state_dict(fused.state_dict())
    torch.testing.assert_close(compiled(x), plain(x))


def test_a_batch_norm_that_was_replaced_leaves_nothing_behind():
    model = small_resnet()
    nap.fuse_batch_norms_(model, images())
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(model).eval()
    x = images()
    torch.testing.assert_close(torch.compile(synced, backend="aot_eager")(x), synced(x))
    copy.deepcopy(synced)


def test_fusing_again_finds_nothing_more():
    fused = small_resnet()
    assert nap.fuse_batch_norms_(fused, images())
    assert nap.fuse_batch_norms_(fused, images()) == {}


def test_a_model_without_norms_of_step_1_is_refused_and_so_are_inputs_that_do_not_fit():
    with pytest.raises(ValueError, match=r"call nap\.normalize_ on it first"):
        nap.fuse_batch_norms_(nn.Linear(3, 2), torch.randn(2, 3))
    with pytest.raises(ValueError, match="fails on the example inputs"):
        nap.fuse_batch_norms_(small_resnet(), torch.randn(2, 3))


def tripled(module: nn.Module, args: tuple[Tensor]) -> None:
    args[0].mul_(3)


def test_a_hook_of_others_on_a_batch_norm_keeps_it_apart_from_the_norm_on_its_input() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
            self.head = nn.Sequential(nn.ReLU(), nn.Conv2d(8, 2, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.a(x) + self.b(x)))

    x = torch.randn(4, 3, 5, 5)
    plain, watched = Sum(), Sum()
    for net in (plain, watched):
        nap.normalize_(net, x, residual="sum")
    watched.norm.register_forward_pre_hook(tripled)
    assert nap.fuse_batch_norms_(plain, x) == {"norm": "norm"}
    assert nap.fuse_batch_norms_(watched, x) == {}


@pytest.mark.parametrize("kind", ["batch_norms_", "relus_"])
def test_the_old_names_still_work(kind):
    with pytest.warns(DeprecationWarning, match=f"nap.join_{kind} is now nap.fuse_{kind}"):
        assert getattr(nap, f"join_{kind}") is getattr(nap, f"fuse_{kind}")
