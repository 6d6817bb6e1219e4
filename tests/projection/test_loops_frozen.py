"""Frozen weights, weights that are thawed later, and adapters (LoRA) beside frozen ones."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import Tensor, nn
from torch.testing import assert_close

import lightning_runs as lightnings
import nap
from nap.integrations.lightning import NaPCallback
from nap.projection.project import Projector
from projection_nets import net, sgd, step, traced, worst


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.ndim > 1}


def frozen(model: Any, *names: str) -> Any:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_what_is_frozen_stays_as_it_is(before: bool) -> None:
    model = frozen(net(), "0.weight") if before else net()
    optimizer = sgd(model.parameters())  # holds them all, as many loops do
    projector = Projector(model).attach(optimizer)
    frozen(model, "0.weight")
    model.get_parameter("0.weight").data *= 1.001  # not at its radius: it must not move all the same
    start = weights(model)
    for seed in range(3):
        step(model, optimizer, seed)
    projector.project_()
    assert_close(weights(model)["0.weight"], start["0.weight"], rtol=0, atol=0)
    ratios = projector.norm_ratios()
    assert ratios.pop("0.weight") == pytest.approx(1.001)
    assert all(abs(ratio - 1) <= 1e-6 for ratio in ratios.values())
    assert projector.updates == {"0.weight": 0, "3.weight": 3, "6.weight": 3}


@pytest.mark.parametrize("added", [False, True], ids=["held from the start", "added later"])
def test_what_is_thawed_is_projected(added: bool) -> None:
    model = frozen(net(), "0.weight")
    held = [p for p in model.parameters() if p.requires_grad or not added]
    optimizer = sgd(held)
    projector = Projector(model).attach(optimizer)
    step(model, optimizer)
    model.get_parameter("0.weight").requires_grad_(True)
    if added:
        optimizer.add_param_group({"params": [model.get_parameter("0.weight")]})
    start = weights(model)
    for seed in range(3):
        step(model, optimizer, seed)
        assert worst(projector) <= 1e-6
    assert (model.get_parameter("0.weight") - start["0.weight"]).norm() > 0.01
    assert projector.updates == {"0.weight": 3, "3.weight": 4, "6.weight": 4}


def test_a_layer_that_is_added_to_a_running_optimizer_is_no_secret() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    projector = Projector(model).attach(optimizer)
    model.append(nn.Linear(5, 5))
    optimizer.add_param_group({"params": list(model[-1].parameters())})
    words = r"8\.weight \(new\), 8\.bias \(new\): parameters changed since the Projector was built"
    with pytest.raises(ValueError, match=words):
        step(model, optimizer)
    projector.detach()
    step(model, optimizer)
    again = Projector(model).attach(optimizer)
    step(model, optimizer)
    assert worst(again) <= 1e-6


def test_a_pair_of_scale_and_offset_freezes_together() -> None:
    model = traced(net())
    optimizer = sgd(model.parameters())
    Projector(model, affine="joint").attach(optimizer)
    step(model, optimizer)
    frozen(model, "1.bias")
    offset = model.get_parameter("1.bias").detach().clone()
    model.get_parameter("1.weight").data *= 1.5
    step(model, optimizer)
    assert_close(model.get_parameter("1.bias").detach(), offset, rtol=0, atol=0)
    pair = [torch.cat([model.get_parameter(f"{i}.{part}") for part in ("weight", "bias")]) for i in (1, 4)]
    assert pair[0].norm().item() > 1.4 * 8**0.5  # neither moved by the projection
    assert pair[1].norm().item() == pytest.approx(7**0.5, rel=1e-6)


def test_a_model_that_is_frozen_as_a_whole_has_no_update_to_follow() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    projector = Projector(model.requires_grad_(False))
    with pytest.raises(ValueError, match=r"all that the optimizer holds is frozen.*project_\(\) on copies"):
        projector.attach(optimizer)
    assert not optimizer._optimizer_step_post_hooks


def test_a_head_is_trained_alone_until_the_rest_is_thawed() -> None:
    model = frozen(traced(net()), "0.weight", "3.weight")
    optimizer = sgd(p for p in model.parameters() if p.requires_grad)
    projector = Projector(model, output="free").attach(optimizer)  # nothing to project yet
    step(model, optimizer)
    optimizer.add_param_group({"params": [model.get_parameter("3.weight").requires_grad_(True)]})
    step(model, optimizer)
    assert worst(projector) <= 1e-6
    assert projector.updates == {"0.weight": 0, "3.weight": 1}


def test_what_an_optimizer_moves_is_projected_though_it_is_called_frozen() -> None:
    """Optimizers go by gradients: zeros let momentum move a weight on, and a late freeze comes too late."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    projector = Projector(model).attach(optimizer)
    step(model, optimizer)
    frozen(model, "0.weight")
    start = weights(model)["0.weight"]
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        optimizer.step()
    assert (model.get_parameter("0.weight") - start).norm() > 0.01
    assert worst(projector) <= 1e-6
    assert projector.updates["0.weight"] == 4


def test_a_group_that_takes_the_place_of_another_is_followed() -> None:
    model = net()
    first, second = model.get_parameter("0.weight"), model.get_parameter("3.weight")
    rest = [p for p in model.parameters() if p is not first and p is not second]
    frozen(model, "3.weight")
    optimizer = sgd([{"params": rest}, {"params": [first]}])
    projector = Projector(model).attach(optimizer)
    optimizer.param_groups.pop()
    optimizer.add_param_group({"params": [second.requires_grad_(True)]})
    step(model, optimizer)
    assert projector.updates == {"0.weight": 0, "3.weight": 1, "6.weight": 1}
    assert worst(projector) <= 1e-6


class Grown(lightnings.Classifier):
    """What Lightning's own callback for fine-tuning thaws is its `backbone`."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = self.net[:2], self.net[2:]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.5)


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:The number of training batches")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:The provided params to be frozen")
def test_fine_tuning_in_lightning_thaws_a_backbone(tmp_path: Any) -> None:
    model, callback = Grown(), NaPCallback()
    nap.normalize_(model, torch.zeros(2, 5))
    start = weights(model)
    thaw = BackboneFinetuning(unfreeze_backbone_at_epoch=1, verbose=False)
    trainer: lightning.Trainer = lightnings.trainer(tmp_path, callback, thaw, max_epochs=3)
    trainer.fit(model, lightnings.data())
    projector = callback.projector
    assert projector is not None
    assert worst(projector) <= 1e-6
    assert (model.get_parameter("net.0.weight") - start["net.0.weight"]).norm() > 0.01
    batches = lightnings.BATCHES
    assert projector.updates == {
        "net.0.weight": 2 * batches,
        "net.2.weight": 3 * batches,
        "net.4.weight": 3 * batches,
    }


# --- adapters


class LoRA(nn.Module):
    """W x + B A x, with W frozen and B at zero."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def test_adapters_written_by_hand() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(LoRA(6, 16), nn.ReLU(), LoRA(16, 16), nn.ReLU(), nn.Linear(16, 5))
    nap.normalize_(model, torch.randn(4, 6))
    assert [hasattr(layer, "nap_norm") for layer in model] == [True, False, True, False, False]  # on the sums
    assert Projector(model).plan.names("grow") == ["0.up.weight", "2.up.weight"]  # up to their fan-in radius
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    projector = Projector(model, exclude=["0.up", "2.up"]).attach(optimizer)
    start = weights(model)
    for seed in range(5):
        step(model, optimizer, seed)
        assert worst(projector) <= 1e-6
    end = weights(model)
    for i in (0, 2):
        assert_close(end[f"{i}.base.weight"], start[f"{i}.base.weight"], rtol=0, atol=0)
        assert not torch.equal(end[f"{i}.down.weight"], start[f"{i}.down.weight"])
        assert end[f"{i}.up.weight"].norm() > 0
    assert set(projector.updates) == set(start) - {"0.up.weight", "2.up.weight"}


@pytest.mark.filterwarnings("default")  # what peft warns of is its own
def test_adapters_of_peft() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0", "2"]))
    nap.normalize_(model, torch.randn(4, 6))  # after get_peft_model: one norm on the sum
    left_out = [p for name, p in model.named_parameters() if "lora_B" in name]
    optimizer = sgd([p for p in model.parameters() if p.requires_grad])
    projector = Projector(model, exclude=left_out).attach(optimizer)
    start, x = weights(model), torch.randn(9, 6)
    for seed in range(5):
        step(model, optimizer, seed)
        assert worst(projector) <= 1e-6
    moved = {name for name, weight in weights(model).items() if not torch.equal(weight, start[name])}
    assert moved == {name for name in start if "lora_" in name}
    assert set(projector.plan.names("project")) > {n for n in start if "lora_A" in n}
    before = model(x)
    model.merge_adapter()  # into the layers, which keep their norms; merge_and_unload drops them
    assert_close(model(x), before)
