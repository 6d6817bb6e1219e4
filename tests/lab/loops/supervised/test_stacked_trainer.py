"""Networks of one arm that learn in one step: each must learn what it learns alone."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.testing import assert_close

from gpu import CUDA, DEVICE
from nap.lab.cli.main import main
from nap.lab.experiments.table1_cifar import DEMO
from nap.lab.experiments.table1_cifar.runs import runs
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.supervised.cifar_run import CifarWork
from nap.lab.loops.supervised.cifar_trainer import CifarTrainer
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, CifarConfig, VisionArm
from nap.lab.loops.supervised.stacked import conv
from nap.lab.loops.supervised.stacked.convert import stackable
from nap.lab.loops.supervised.stacked_trainer import StackedTrainer
from nap.lab.loops.supervised.trainer import build
from nap.lab.models.vgg import vgg
from nap.lab.runner.work import NotFinite

pytestmark = pytest.mark.cuda
TINY = CifarConfig(
    data="digits", channels=(4, 0, 8, 0), global_pool=True, hidden=(), batch_size=400, steps=5, eval_every=1,
    crop_padding=1, learning_rate=0.02,
)  # fmt: skip
SEEDS = 3


@pytest.fixture(autouse=True)
def _quick_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph that is compiled, without the minute that inductor takes."""
    whole = StackedTrainer.__init__
    monkeypatch.setattr(
        StackedTrainer, "__init__", lambda *given, **named: whole(*given, backend="aot_eager", **named)
    )


def work(arm: VisionArm, *, first: int = 0, seeds_per_run: int = SEEDS, **options: Any) -> CifarWork:
    options = {"stack": seeds_per_run > 1, "graph": False, "compile_": False} | options
    return CifarWork(NetworkRun(arm, TINY, first, {}, seeds_per_run), DEVICE, **options)


def finished(run: CifarWork) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while run.done < run.total:
        rows += run.step()
    return rows


def compare(run: CifarTrainer, alone: CifarTrainer, far: float) -> None:
    assert_close(run.model.state_dict(), alone.model.state_dict(), rtol=far, atol=far)
    for one, other in zip(run.state_dict()["momentum"], alone.state_dict()["momentum"], strict=True):
        assert_close(one, other, rtol=far, atol=10 * far)


@pytest.mark.skipif(CUDA, reason="there products are in bfloat16")
@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
def test_each_learns_what_it_learns_alone(arm: VisionArm) -> None:
    run = work(arm, first=1)
    found = finished(run)
    for k, seed in enumerate(range(1, 1 + SEEDS)):
        alone = work(arm, first=seed, seeds_per_run=1)
        rows = finished(alone)
        compare(run.trainers[k], alone.trainer, 1e-4)
        for one, other in zip([row for row in found if row["seed"] == seed], rows, strict=True):
            assert one.pop("arm") == other.pop("arm") == arm.name
            assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.skipif(CUDA, reason="there products are in bfloat16")
def test_a_stack_of_one_is_that_one() -> None:
    run, alone = work(NAP, seeds_per_run=1, stack=True), work(NAP, seeds_per_run=1)
    assert run._stack is not None
    for one, other in zip(finished(run), finished(alone), strict=True):
        arms = {one.pop("arm"), other.pop("arm")}
        assert arms == {"NaP"}
        assert one == pytest.approx(other, rel=1e-4)
    compare(run.trainer, alone.trainer, 1e-4)


@pytest.mark.skipif(CUDA, reason="there cuDNN may add up in another order each time")
def test_one_after_the_other_is_bit_by_bit_alone() -> None:
    """Where they are not stacked, as on a CPU."""
    run, alone = work(NAP, stack=False), work(NAP, first=2, seeds_per_run=1)
    assert [row for row in finished(run) if row["seed"] == 2] == finished(alone)


def test_a_run_resumes() -> None:
    whole, first, rest = work(NAP), work(NAP), work(NAP)
    rows = finished(whole)
    done = first.step()
    rest.load_state_dict(copy.deepcopy(first.state_dict()))
    for row, expected in zip(done + finished(rest), rows, strict=True):
        arms = {row.pop("arm"), expected.pop("arm")}
        assert arms == {"NaP"}
        # on a GPU the compiler picks the quickest way to sum, and may pick another one each time
        assert row == (pytest.approx(expected, rel=1e-4) if CUDA else expected)
    radii = [projector.norm_ratios() for t in rest.trainers if (projector := t.projector) is not None]
    assert len(radii) == SEEDS
    assert all(abs(ratio - 1) < 1e-5 for ratios in radii for ratio in ratios.values())


def test_a_loss_that_is_not_finite_stops_all_and_is_named() -> None:
    run = work(NORM_ONLY)
    with torch.no_grad():
        run.trainers[1].parameters[0].fill_(torch.nan)
    assert run._stack is not None
    run._stack.refresh_()
    with pytest.raises(NotFinite, match="of seed 1, the loss is not finite at update 1"):
        run.step()


@pytest.mark.skipif(not find_spec("triton"), reason="needs Triton")
@pytest.mark.parametrize("arm", [BASELINE, NAP], ids=lambda arm: arm.name)
def test_in_bfloat16_with_quick_updates(arm: VisionArm) -> None:
    def trainers(quick: bool) -> list[CifarTrainer]:
        plain = [work(arm, first=seed, seeds_per_run=1).trainer for seed in range(SEEDS)]
        return [
            CifarTrainer(t.model, t.projector, t.images, t.labels, TINY, half=True, graph=False, fused=quick)
            for t in plain
        ]

    orders = [
        torch.randperm(1400, generator=torch.Generator().manual_seed(k))[:1200].view(3, 400)
        for k in range(SEEDS)
    ]
    orders = [order.to(DEVICE) for order in orders]
    one, others = StackedTrainer(trainers(False), graph=False), trainers(True)
    before = [p.detach().clone() for p in others[0].parameters]
    one.train_epoch(orders, range(SEEDS), lambda step: (0.02, 0.01), 0)
    for k, alone in enumerate(others):
        alone.train_epoch(orders[k], k, lambda step: (0.02, 0.01), 0)
        for p, q in zip(one.trainers[k].parameters, alone.parameters, strict=True):
            assert_close(p, q, rtol=0.02, atol=0.02)
    moved = [(p - q).norm() for p, q in zip(one.trainers[0].parameters, before, strict=True)]
    assert min(moved) > 0
    for k, half in enumerate(one._leaves):
        if half.dtype == torch.bfloat16:
            assert_close(half.float(), one._weights[k], rtol=2**-7, atol=0)


@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY], ids=lambda arm: arm.name)
def test_gradients_in_bfloat16_are_as_near_to_the_true_ones_as_pytorch_s(arm: VisionArm) -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(32, 3, 16, 16, device=DEVICE), torch.arange(32, device=DEVICE) % 10
    images = images.bfloat16().float()
    model, _ = build(
        arm,
        lambda: vgg((3, 16, 16), 10, channels=(64, 64, 0, 128), global_pool=True, hidden=(), batch_norm=True),
        images[:2].cpu(),
    )
    model = model.to(DEVICE).to(memory_format=torch.channels_last).train()
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.ndim > 1):
            weight.copy_(weight.bfloat16())
    names, exact, skeleton = dict(model.named_parameters()), copy.deepcopy(model).double(), stackable(model)

    def gradient(net: Callable[[Tensor], Tensor], leaves: Iterable[Tensor], seen: Tensor) -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=seen.dtype == torch.float32):
            logits = net(seen)
        loss = F.cross_entropy(logits.to(seen.dtype), labels)
        return torch.cat([g.double().flatten() for g in torch.autograd.grad(loss, list(leaves))])

    halves = {name: p.detach().bfloat16() if p.ndim > 1 else p.detach() for name, p in names.items()}
    halves = {name: half.requires_grad_() for name, half in halves.items()}
    ours = partial(functional_call, skeleton, halves | dict(skeleton.named_buffers()))
    gradient(ours, halves.values(), images)  # where kernels are checked: the next is by them
    true = gradient(exact, exact.parameters(), images.double())
    theirs = (gradient(model, names.values(), images) - true).norm()
    assert 0.001 * true.norm() < theirs < 0.1 * true.norm()
    assert (gradient(ours, halves.values(), images) - true).norm() < 1.2 * theirs


def test_in_bfloat16_without_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no quick updates, products are in bfloat16 all the same."""
    kinds: set[torch.dtype] = set()
    plain = conv.checked

    def checked(name: str, *ways: Any) -> Any:
        kinds.update(tensor.dtype for tensor in ways[-1])
        return plain(name, *ways)

    monkeypatch.setattr(conv, "checked", checked)
    t = work(BASELINE, seeds_per_run=1).trainer
    settings = replace(TINY, momentum=0.0)
    own = CifarTrainer(t.model, None, t.images, t.labels, settings, half=True, graph=False)
    one = StackedTrainer([own], graph=False)
    one.train_epoch([torch.arange(800, device=DEVICE).view(2, 400)], [0], lambda step: (0.02, 0.01), 0)
    assert kinds == {torch.bfloat16}


def test_seeds_are_shared_among_runs() -> None:
    names = [run.name for run in runs(replace(DEMO, seeds=5, seeds_per_run=2, arms=("NaP",)))]
    assert names == ["nap-seeds-0-1", "nap-seeds-2-3", "nap-seed-4"]
    assert [run.name for run in runs(replace(DEMO, seeds=2, arms=("NaP",)))] == ["nap-seed-0", "nap-seed-1"]


def test_a_seed_is_in_one_folder_alone(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "table1-cifar",
        "--arms",
        "NaP",
        "--steps",
        "1",
        "--batch-size",
        "400",
        "--channels",
        "4",
        "0",
        "8",
        "0",
    ]

    def run(*more: str, command: str = "run") -> int:
        return main([command, *words, *more, "--out", str(tmp_path)])

    assert run("--seeds", "3", "--seeds-per-run", "2") == 0
    assert run("--seeds", "2", "--seeds-per-run", "2") == 0  # as they are
    for more in (["--seeds", "4", "--seeds-per-run", "2"], ["--seeds", "1"]):
        for command in ("run", "sweep"):
            assert run(*more, command=command) == 2
            assert re.search(r"seed [02] is in \S+nap-seeds?-[02]\S* already", capsys.readouterr().err)


def test_the_command_trains_seeds_in_one_run(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = "run table1-cifar --seeds 2 --seeds-per-run 2 --arms NaP --steps 4 --batch-size 400 "
    words += "--channels 4 0 8 0"
    assert main([*words.split(), "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1 run of 2 seeds" in out
    (rows,) = tmp_path.rglob("rows.jsonl")
    assert rows.parent.name == "nap-seeds-0-1"
    assert {line.split('"seed":')[1].split(",")[0].strip() for line in rows.read_text().splitlines()} == {
        "0",
        "1",
    }
    assert main([*words.split(), "--dropout", "0.1", "--hidden", "8", "--out", str(tmp_path)]) == 2
    assert "leave --dropout or --seeds-per-run out" in capsys.readouterr().err
