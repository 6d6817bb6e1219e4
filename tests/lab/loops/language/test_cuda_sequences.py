"""What only a GPU can show of transformers: bfloat16 and compiled, they learn as in float32 on the CPU."""

from __future__ import annotations

import pytest
import torch

from gpu import needs_gpu
from nap.lab.loops.language.settings import BASELINE, NAP, NORM_ONLY, MemorizationConfig, TransformerArm
from nap.lab.loops.language.string_run import random_strings
from nap.lab.loops.language.trainer import Trainer, build, transformer_factory

pytestmark = [
    *needs_gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32"),  # torch advises it; float32 is what is compared here
]
CONFIG = MemorizationConfig(blocks=2, heads=2, width=64, vocabulary=32, strings=16, length=33, batch_size=16)
STRINGS = random_strings(0, 1, count=16, length=33, vocabulary=32)


def trainer(arm: TransformerArm, device: str, *, half: bool = False, compile_: bool = False) -> Trainer:
    torch.manual_seed(0)
    model, projector = build(arm, transformer_factory(CONFIG, 32, 32), STRINGS[:2, :-1])
    return Trainer(
        model.to(device),
        projector,
        learning_rate=1e-3,
        spans={"accuracy": slice(None)},
        clip=1.0,
        half=half,
        compile_=compile_,
    )


def losses(one: Trainer, device: str, updates: int = 20) -> list[float]:
    found = []
    for _ in range(updates):
        one.update(STRINGS.to(device))
        found.append(one.read()["loss"])
    return found


@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
@pytest.mark.parametrize("compile_", [False, True], ids=["eager", "compiled"])
def test_losses_are_those_of_the_cpu(arm: TransformerArm, compile_: bool) -> None:
    expected = losses(trainer(arm, "cpu"), "cpu")
    assert losses(trainer(arm, "cuda", compile_=compile_), "cuda") == pytest.approx(expected, rel=2e-3)
    half = losses(trainer(arm, "cuda", half=True, compile_=compile_), "cuda")
    assert half == pytest.approx(expected, rel=3e-2)
    assert half[-1] < half[0]


def test_projected_weights_keep_their_norms_in_bfloat16() -> None:
    one = trainer(NAP, "cuda", half=True)
    before = {n: p.detach().norm().item() for n, p in one.model.named_parameters() if p.ndim == 2}
    losses(one, "cuda")
    after = {n: p.detach().norm().item() for n, p in one.model.named_parameters() if p.ndim == 2}
    assert after == pytest.approx(before, rel=1e-5)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_an_update_never_waits_for_the_device() -> None:
    one = trainer(NAP, "cuda", half=True)
    strings = STRINGS.to("cuda")
    losses(one, "cuda", 3)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            one.update(strings)
    finally:
        torch.cuda.set_sync_debug_mode("default")
