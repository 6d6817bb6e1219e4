"""What only a GPU can show of norms fused to ReLUs: compiled, in bfloat16, they compute what they did."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from gpu import needs_gpu
from nap.lab.models.transformer import Block

pytestmark = [
    *needs_gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32"),  # torch advises it; float32 is what is compared here
]
WIDTH = 96


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def tokens(batch: int = 8) -> Tensor:
    return torch.randn(batch, 17, WIDTH, device="cuda")


def blocks(**options: Any) -> tuple[nn.Module, nn.Module]:
    """Two blocks of a transformer, converted; and the same, fused."""
    plain = nn.Sequential(*(Block(WIDTH, 4, "layer") for _ in range(2))).cuda()
    nap.normalize_(plain, tokens(), **options)
    for name, parameter in plain.named_parameters():
        if "nap_norm" in name:
            nn.init.normal_(parameter, 1.0, 0.3)
    fused = copy.deepcopy(plain)
    assert nap.fuse_relus_(fused, tokens()) == {f"{i}.up": f"{i}.activation" for i in range(2)}
    return plain, fused


def learnt(model: Any, x: Tensor, half: bool) -> dict[str, Tensor]:
    """The output and all gradients."""
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        out = model(x)
    out.float().square().mean().backward()
    grads = {
        n.removeprefix("_orig_mod."): p.grad.clone()
        for n, p in model.named_parameters()
        if p.grad is not None
    }
    return {"": out.detach().float().clone(), **grads}


def apart(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """How far each tensor is off, as a share of its norm."""
    assert found.keys() == exact.keys()
    return {name: ((found[name] - exact[name]).norm() / exact[name].norm()).item() for name in exact}


def closest(compiled: Any, plain: nn.Module, batch: int = 8) -> float:
    """How far outputs and gradients in float32 are apart, at the best of a few draws.

    Rounding may put a unit that is almost 0 on the other side of its ReLU: that is 10⁻³ of a gradient.
    """
    draws = [tokens(batch) for _ in range(3)]
    return min(max(apart(learnt(compiled, x, False), learnt(plain, x, False)).values()) for x in draws)


@pytest.mark.parametrize("options", [{}, {"affine": "none"}, {"eps": 1e-5}], ids=str)
def test_compiled_it_is_the_same_function_with_the_same_gradients(options: Any) -> None:
    plain, fused = blocks(**options)
    x, compiled = tokens(), torch.compile(fused, fullgraph=True)
    assert closest(compiled, plain) < 1e-4
    exact = learnt(plain, x, half=False)
    ours, theirs = (apart(learnt(model, x, half=True), exact) for model in (compiled, plain))
    for name, share in ours.items():  # in bfloat16 as far from the truth as the plain model, not further
        assert share < 1.5 * theirs[name] + 2e-3, name


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch makes one to begin with
def test_any_number_of_rows_and_a_cuda_graph() -> None:
    plain, fused = blocks()
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        compiled = torch.compile(fused, fullgraph=True, mode=mode)
        for batch in (8, 8, 3, 5, 1):
            assert closest(compiled, plain, batch) < 1e-4


def test_our_kernels_are_what_runs_and_nothing_is_copied_for_them() -> None:
    from torch._inductor.utils import run_fw_bw_and_get_code

    layers = [nn.Linear(64, 3 * 512, bias=False), nn.ReLU(), nn.Linear(3 * 512, 8, bias=False)]
    model = nn.Sequential(*layers).cuda()
    x = torch.randn(64, 64, device="cuda")
    nap.normalize_(model, x)
    assert nap.fuse_relus_(model, x) == {"0": "1"}
    compiled: Any = torch.compile(model, fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16):
        _, codes = run_fw_bw_and_get_code(lambda: compiled(x))
    forward, backward = codes
    assert "_norm_relu_forward" in forward
    assert "_norm_relu_backward" in backward
    for code in codes:
        assert "native_layer_norm" not in code
        assert "clone" not in code  # of what our kernels write into, or were thought to
        assert "threshold_backward" not in code


def test_more_numbers_than_fit_into_32_bits() -> None:
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB")
    rows = pytest.importorskip("nap.kernels.norm_relu_triton", exc_type=ImportError)
    width, count = rows.WIDEST, 2**31 // rows.WIDEST + 5
    y = torch.randn(count, width, device="cuda", dtype=torch.bfloat16)
    scale, offset = (torch.randn(width, device="cuda") for _ in range(2))
    h, stats = rows.norm_relu(y, None, scale, offset, 1e-5, True)
    last = y[-3:].float().requires_grad_()
    expected = F.layer_norm(last, (width,), scale, offset, 1e-5).relu()
    torch.testing.assert_close(h[-3:].float(), expected, rtol=1e-2, atol=1e-2)
    dy, _ = rows.norm_relu_backward(h, y, None, scale, offset, stats, True)
    (found,) = torch.autograd.grad(expected, last, h[-3:].float())
    torch.testing.assert_close(dy[-3:].float(), found, rtol=2e-2, atol=2e-2)
