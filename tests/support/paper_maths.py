"""Norms, gradients and comparisons of the paper's mathematics, which its tests share."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

scales = st.floats(1e-3, 1e3)
quick = settings(deadline=None, max_examples=25)


def in_float64() -> Iterator[None]:
    """One test in float64 from a fixed seed; each file makes an autouse fixture of it."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def rms(h: Tensor) -> Tensor:
    """f_RMS of §3.1: h/‖h‖."""
    return h / h.norm(dim=-1, keepdim=True)


def layer_norm(h: Tensor) -> Tensor:
    return F.layer_norm(h, h.shape[-1:], eps=0.0)


def batch_norm(h: Tensor) -> Tensor:
    return (h - h.mean(0)) / h.std(0, correction=0)


def grad(f, theta: Tensor) -> Tensor:
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(f(theta), theta)[0]


def scale_invariant(theta: Tensor) -> Tensor:
    """A loss of a 5×7 weight that a LayerNorm and a ReLU follow."""
    x = torch.linspace(-1, 1, 21).reshape(3, 7).sin()
    target = torch.linspace(0, 1, 15).reshape(3, 5)
    return (layer_norm(x @ theta.reshape(5, 7).T).relu() - target).square().sum()


def identity(x: Tensor) -> Tensor:
    return x
