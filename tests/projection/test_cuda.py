"""What only a GPU can show. CI has none: run `pytest -m cuda` on a machine with CUDA."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nap
from gpu import needs_gpu
from projection_nets import worst

pytestmark = needs_gpu


class Attention(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)), (6, 16)),
    "convolution": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 8)),
        ),
        (6, 3, 8, 8),
    ),
    "attention": (
        lambda: nn.Sequential(nn.Linear(16, 32), Attention(), nn.GELU(), nn.Linear(32, 8)),
        (6, 5, 16),
    ),
}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    build, shape = NETS[request.param]
    torch.manual_seed(0)
    return build(), torch.randn(shape)


def test_plans_on_the_gpu_as_on_the_cpu(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    assert nap.plan(copy.deepcopy(model).cuda(), x.cuda()) == nap.plan(model, x)


def test_converted_model_computes_the_same_on_both(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net[0].double(), net[1].double()
    nap.normalize_(model, x)
    there = copy.deepcopy(model).cuda()(x.cuda()).cpu()
    torch.testing.assert_close(there, model(x), rtol=1e-9, atol=1e-9)
    assert nap.verify(copy.deepcopy(model).cuda(), x.cuda()).worst_change < 1e-9


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_in_one_graph(net: tuple[nn.Module, Tensor], dtype: torch.dtype) -> None:
    model, x = net[0].cuda(), net[1].cuda()
    nap.normalize_(model, x)
    compiled = torch.compile(model, fullgraph=True)
    with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
        loose = 3e-2 if dtype is torch.bfloat16 else 1e-3
        torch.testing.assert_close(compiled(x).float(), model(x).float(), rtol=loose, atol=loose)
        compiled(x).float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_whole_step_with_projection_is_one_cuda_graph(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net[0].cuda(), net[1].cuda()
    nap.normalize_(model, x)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
    projector = nap.Projector(model).attach(optimizer)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (model(x) - 1).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    before = {name: p.clone() for name, p in model.named_parameters()}
    for _ in range(20):
        graph.replay()
    assert any(not torch.equal(before[name], p) for name, p in model.named_parameters())
    assert all(abs(ratio - 1) < 1e-6 for ratio in projector.norm_ratios().values())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_step_never_waits_for_the_device(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net[0].cuda(), net[1].cuda()
    nap.normalize_(model, x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    nap.Projector(model, affine="decay").attach(optimizer)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_half_precision_scaler_skips_are_no_updates() -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
    x = torch.randn(4, 16, device="cuda")
    nap.normalize_(model, x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    projector = nap.Projector(model).attach(optimizer)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)  # overflows at first
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    real = {int(state["step"]) for state in optimizer.state.values()}
    assert set(projector.updates.values()) == real
    assert max(real) < 20


@pytest.mark.parametrize("options", [{"update": "relative"}, {"brake": 0.5}], ids=["relative", "brake"])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_limited_updates_are_those_of_the_cpu_without_waiting(options: dict[str, Any]) -> None:
    x, ends = torch.randn(6, 16, generator=torch.Generator().manual_seed(0)), []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
        nap.normalize_(model, x)
        model, x = model.to(device), x.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        projector = nap.Projector(model, output="project", **options).attach(optimizer)
        torch.cuda.set_sync_debug_mode("error" if device == "cuda" else "default")
        try:
            for _ in range(5):
                optimizer.zero_grad()
                (model(x) - 1).square().mean().backward()
                optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        ends.append([parameter.detach().cpu() for parameter in model.parameters()])
        assert "brake" in options or worst(projector) <= 1e-6
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"update": "relative"}, {"brake": 0.5}], ids=["relative", "brake"])
def test_limited_updates_are_captured_in_a_graph(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).cuda(), torch.randn(6, 16).cuda()
    nap.normalize_(model, x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.02).cuda(), capturable=True)
    nap.Projector(model, output="project", **options).attach(optimizer)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        (model(x) - 1).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    twin, twins = copy.deepcopy((model, optimizer.state_dict()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    eager = torch.optim.AdamW(twin.parameters(), lr=torch.tensor(0.02).cuda(), capturable=True)
    projector = nap.Projector(twin, output="project", **options).attach(eager)
    eager.load_state_dict(twins)
    (twin(x) - 1).square().mean().backward()
    eager.step()
    assert "brake" in options or worst(projector) <= 1e-6
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=1e-4, atol=1e-5)
