"""What only a GPU can show of the lab: graphs and kernels compute what the plain step computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu import needs_gpu
from nap.lab.datasets.images import load
from nap.lab.loops.population.continual_run import METHODS, ArmRun, ContinualWork
from nap.lab.loops.population.settings import FRESH, LAYER_NORM, NAP, NO_NORM, RESCALED, Arm, Continual
from nap.lab.loops.population.trainer import member_norms
from nap.lab.runner.work import NotFinite
from nap.projection.sphere import norms_of, project_tensors_

pytestmark = needs_gpu

TINY = Continual(
    data="digits", images=96, width=24, depth=2, channels=(4, 6), tasks=2, epochs=3, batch_size=16, probe=32,
    learning_rate=1e-2, seeds=3, redo_every=5, redo_tau=0.3,
)  # fmt: skip
ARMS = [NO_NORM, LAYER_NORM, RESCALED, NAP, FRESH, replace(NAP, name="joint", affine="joint")]
METHOD_ARMS = [replace(NAP, name=method, method=method) for method in METHODS]
IS_RANDOM = ("shrink and perturb", "ReDo", "Langevin")


def run(arm: Arm, device: str, settings: Continual = TINY, **options: Any) -> ContinualWork:
    return ContinualWork(
        ArmRun(arm, settings), load("digits", count=settings.images), torch.device(device), **options
    )


def trained(arm: Arm, device: str, settings: Continual = TINY, **options: Any) -> dict[str, Tensor]:
    work = run(arm, device, settings, **options)
    for _ in range(work.total):
        work.step()
    return {name: p.detach().cpu() for name, p in work.trainer.parameters.items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    for name, value in one.items():
        assert (value - other[name]).norm() <= tolerance * value.norm(), name


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("arm", [*ARMS, *METHOD_ARMS], ids=lambda arm: arm.name)
def test_a_graph_computes_what_the_eager_step_computes(arm: Arm, network: Any) -> None:
    settings = replace(TINY, network=network)
    graph = trained(arm, "cuda", settings, dtype=torch.float64, graph=True)
    eager = trained(arm, "cuda", settings, dtype=torch.float64, graph=False)
    assert_same(graph, eager, 1e-12)
    if arm.method not in IS_RANDOM:  # each kind of device draws its own numbers
        assert_same(graph, trained(arm, "cpu", settings, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("arm", [NO_NORM, NAP, replace(NAP, name="noise", method="Langevin")])
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_a_population_is_its_members(arm: Arm, network: Any) -> None:
    settings = replace(TINY, network=network)
    together = trained(arm, "cuda", settings, dtype=torch.float64)
    for k in range(3):
        alone = trained(arm, "cuda", settings, dtype=torch.float64, seeds=[k])
        assert_same({name: p[0] for name, p in alone.items()}, {n: p[k] for n, p in together.items()}, 1e-12)


def stacks(members: int) -> list[Tensor]:
    """Weights of some shapes and orders in memory."""
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(members, 70, 129), (members, 5), (members, 8, 3, 3, 3)]
    plain = [torch.randn(shape, device="cuda", generator=generator) for shape in shapes]
    turned = torch.randn(members, 300, 20, device="cuda", generator=generator).transpose(1, 2)
    return [*plain, turned]


@pytest.mark.parametrize("members", [1, 3])
def test_kernel_norms(members: int) -> None:
    from nap.lab.loops.population import fused_adam

    torch.testing.assert_close(fused_adam.member_norms(stacks(members)), member_norms(stacks(members)))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("members", [1, 3])
def test_kernels_step_and_project_as_torch_does(members: int, skip: bool) -> None:
    from nap.lab.loops.population import fused_adam

    ours, theirs = ([w.requires_grad_() for w in stacks(members)] for _ in range(2))
    optimizers = [torch.optim.Adam(w, lr=1e-2, fused=True, capturable=True) for w in (ours, theirs)]
    radii = {str(k): norms_of(w, stacked=1) for k, w in enumerate(ours) if k != 1}
    broken = torch.tensor(0.0, device="cuda")
    fused = None
    for step in range(6):
        gradients = [torch.randn(w.shape, device="cuda", generator=_seeded(step)) for w in ours]
        for weights in (ours, theirs):
            for w, g in zip(weights, gradients, strict=True):
                w.grad = torch.empty_like(w).copy_(g)
        if skip and step == 4:
            broken.fill_(1)
        if fused is None:
            optimizers[0].step()
            project_tensors_([ours[int(k)].detach() for k in radii], list(radii.values()))
            named = {str(k): w for k, w in enumerate(ours)}
            fused = fused_adam.FusedAdam(optimizers[0], named, radii, broken)
        else:
            fused()
        if not (skip and step >= 4):
            optimizers[1].step()
            project_tensors_([theirs[int(k)].detach() for k in radii], list(radii.values()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        one, other = optimizers[0].state[a], optimizers[1].state[b]
        for key in one:
            torch.testing.assert_close(one[key], other[key], rtol=1e-5, atol=1e-6)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


@pytest.mark.parametrize("arm", [NAP, LAYER_NORM, replace(NAP, name="noise", method="Langevin")])
def test_float32_weights_stay_on_their_spheres(arm: Arm) -> None:
    work = run(arm, "cuda")
    before = {name: p.clone() for name, p in work.trainer.parameters.items()}
    for _ in range(work.total):
        work.step()
    grown = {n: (p.norm() / before[n].norm()).item() for n, p in work.trainer.parameters.items()}
    if arm.project == "step":
        assert work.projector is not None
        assert all(abs(grown[name] - 1) < 1e-5 for name in work.projector.radii)
    else:
        assert max(grown.values()) > 1.1


def test_compiled_losses_train_alike() -> None:
    plain, compiled = (run(NAP, "cuda", dtype=torch.float64, compile_=c) for c in (False, True))
    for work in (plain, compiled):
        for _ in range(3):
            work.step()
    one, other = (w.trainer.parameters for w in (plain, compiled))
    assert_same({n: p.detach() for n, p in one.items()}, {n: p.detach() for n, p in other.items()}, 1e-9)


def test_networks_of_other_shapes_compile_in_the_same_process() -> None:
    for channels, width in ((4, 6), 24), ((6, 8), 32), ((6, 8), 16):
        settings = replace(TINY, network="cnn", channels=channels, width=width)
        work = run(NAP, "cuda", settings, dtype=torch.float64, strategy="batched", compile_=True)
        work.step()
        assert work.trainer.recipe.compile_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stops_before_an_update_that_is_not_finite(dtype: torch.dtype) -> None:
    work = run(replace(NAP, affine="free"), "cuda", dtype=dtype)
    work.step()
    trainer = work.trainer
    before = {name: p.clone() for name, p in trainer.parameters.items()}
    trainer.images[:] = float("nan")
    with pytest.raises(NotFinite, match="step 7"):
        work.step()
    for name, value in before.items():
        torch.testing.assert_close(trainer.parameters[name], value, rtol=1e-6, atol=1e-7)
