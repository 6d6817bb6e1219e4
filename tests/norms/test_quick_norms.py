"""LayerNorm behind one weight on a CPU: the short way computes what the long one does."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nap
from nap.norms.norm import Norm
from nap.norms.quick import quick_norm
from nap.norms.weight_size import row_rms


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e6, 1e12])  # the ends leave the short way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_computes_what_the_norm_does(scale: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, values = (torch.randn(4, 8, generator=generator, dtype=dtype) for _ in range(2))
    norm, weight = Norm(4, dtype=dtype), nn.Parameter(scale * values[:4])
    with torch.no_grad():
        for part in norm.parameters():
            part.add_(torch.randn(4, generator=generator, dtype=dtype))
    y = (x @ weight.detach().T).requires_grad_()
    slow = y.detach().clone().requires_grad_()
    quick, other = quick_norm(norm, weight, y), norm(slow, scale=row_rms([weight]))
    assert (quick is None) is (scale in (1e-12, 1e12))
    if quick is not None:
        torch.testing.assert_close(quick, other)
        quick.square().sum().backward()
        other.square().sum().backward()
        assert y.grad is not None
        assert slow.grad is not None
        torch.testing.assert_close(scale * y.grad, scale * slow.grad, rtol=1e-4, atol=1e-4)


KNOWN = "_known_square"  # what a norm remembers of its weight


def converted(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nap.normalize_(model, torch.randn(2, 4))
    return model


def by_definition(model: Any, x: Tensor) -> Tensor:
    """The same function with eps·s² of the weight as it is now."""
    weight, norm = model[0].weight, model[0].nap_norm
    y = x @ weight.T
    eps = norm.eps * weight.square().sum() / len(weight)
    hat = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
    hidden: Tensor = model[1](hat * norm.weight + norm.bias)
    out: Tensor = model[2](hidden)
    return out


def in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.mul_(1e-3)


def through_data(weight: nn.Parameter) -> None:
    weight.data.mul_(1e-3)


def through_detach(weight: nn.Parameter) -> None:
    weight.detach().mul_(1e-3)


def other_data(weight: nn.Parameter) -> None:
    weight.data = 1e-3 * weight.data


def by_copy_of_data(weight: nn.Parameter) -> None:
    weight.data.copy_(1e-3 * weight.detach())


def through_numpy(weight: nn.Parameter) -> None:
    weight.detach().numpy()[...] *= 1e-3


@pytest.mark.parametrize(
    "write", [in_place, through_data, through_detach, other_data, by_copy_of_data, through_numpy]
)
def test_a_weight_that_was_written_into_is_measured_again(write: Callable[[nn.Parameter], None]) -> None:
    model: Any = converted()
    x = torch.randn(3, 4)
    before = model(x)
    assert KNOWN in vars(model[0].nap_norm)
    write(model[0].weight)
    torch.testing.assert_close(model(x), by_definition(model, x))
    torch.testing.assert_close(model(x), before)  # and so the scale of the weight does not count


def test_training_uses_the_size_of_the_moment() -> None:
    model: Any = converted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(5):
        x = torch.randn(3, 4)
        torch.testing.assert_close(model(x), by_definition(model, x))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    model.load_state_dict(converted(seed=1).state_dict())
    torch.testing.assert_close(model(x), by_definition(model, x))


def test_copies_and_files_know_nothing_of_the_original() -> None:
    model: Any = converted()
    x = torch.randn(3, 4)
    model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert KNOWN not in vars(other[0].nap_norm)
        other[0].weight.data.mul_(1e-3)
        torch.testing.assert_close(other(x), by_definition(other, x))


def test_what_is_set_on_the_norm_counts_at_once() -> None:
    model: Any = converted()
    x = torch.randn(3, 4)
    model(x)
    model[0].nap_norm.eps = 0.5
    torch.testing.assert_close(model(x), by_definition(model, x))
    with torch.no_grad():
        model[0].nap_norm.bias.add_(1.0)
    torch.testing.assert_close(model(x), by_definition(model, x))


def test_other_weights_in_the_place_of_the_parameter_are_not_kept() -> None:
    model: Any = converted()
    x = torch.randn(3, 4)
    model(x)
    other = 1e-3 * model[0].weight.detach()
    swapped = torch.func.functional_call(model, {"0.weight": other}, (x,))
    torch.testing.assert_close(swapped, model(x))
    assert vars(model[0].nap_norm)[KNOWN].weight is model[0].weight


def test_parameters_made_in_inference_mode_work() -> None:
    with torch.inference_mode():
        model: Any = converted()
        x = torch.randn(3, 4)
        torch.testing.assert_close(model(x), by_definition(model, x))
        model[0].weight.mul_(1e-3)
        torch.testing.assert_close(model(x), by_definition(model, x))


def test_a_default_device_changes_no_bit() -> None:
    def trained() -> Tensor:
        model, x = converted(), torch.linspace(-1, 1, 16).sin().view(4, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        nap.Projector(model).attach(optimizer)
        for _ in range(10):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        assert KNOWN in vars(model[0].nap_norm)
        return model(x)

    plain = trained()
    with torch.device("cpu"):
        assert torch.equal(trained(), plain)
