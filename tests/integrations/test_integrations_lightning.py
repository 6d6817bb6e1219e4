"""`nap.integrations.lightning` in real runs of Lightning's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.testing import assert_close

import nap
from lightning_runs import BATCHES, Classifier, OtherName, data, features, trainer
from nap.integrations.lightning import MonitorCallback, NaPCallback
from projection_nets import worst

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
]


class PerPart(Classifier):
    """Two optimizers, stepped by hand, the second half as often."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = super().training_step(batch, index)
        first, second = self.optimizers()  # type: ignore[attr-defined]
        self.manual_backward(loss)
        first.step()
        if index % 2:
            second.step()
        first.zero_grad()
        second.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        last = list(self.net[4].parameters())
        rest = [p for p in self.parameters() if all(p is not q for q in last)]
        return torch.optim.SGD(rest, lr=0.5), torch.optim.SGD(last, lr=0.5)


class Watch(lightning.Callback):
    """Whether each batch ended on the radii."""

    def __init__(self, callback: NaPCallback):
        self.callback, self.held = callback, list[bool]()

    def on_train_batch_end(self, *_: Any) -> None:
        assert self.callback.projector is not None
        self.held.append(worst(self.callback.projector) < 1e-6)


def radii(callback: NaPCallback) -> dict[str, Tensor]:
    return callback.state_dict()["radii"]


@pytest.mark.parametrize(("package", "kind"), [(lightning, Classifier), (pytorch_lightning, OtherName)])
def test_both_steps_in_one_line(package: Any, kind: Any, tmp_path: Path) -> None:
    model, callback = kind(), NaPCallback()
    start = {name: p.norm().item() for name, p in model.named_parameters()}
    watch = Watch(callback)
    trainer(tmp_path, callback, watch, package=package).fit(model, data())
    assert watch.held == [True] * BATCHES
    assert model.get_parameter("net.2.weight").norm().item() == pytest.approx(start["net.2.weight"], rel=1e-6)
    assert nap.verify(model, torch.randn(4, 5)).scale_invariant == 2
    assert callback.projector is not None
    assert set(callback.projector.updates.values()) == {BATCHES}
    assert callback.projector.attached == ()  # it lets go at the end


def test_accumulated_batches_are_one_update(tmp_path: Path) -> None:
    callback = NaPCallback(every=2)
    watch = Watch(callback)
    trainer(tmp_path, callback, watch, accumulate_grad_batches=2, max_epochs=2).fit(Classifier(), data())
    assert callback.projector is not None
    assert set(callback.projector.updates.values()) == {BATCHES}
    assert watch.held[1::2] == [False, True] * 3  # updates end the batches 2, 4, 6, ...


@pytest.mark.filterwarnings("ignore:.*bfloat16")  # 16-bit weights are advised against
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16-mixed", 1e-6), ("bf16-true", 4e-3)])
def test_sixteen_bits(precision: Any, tolerance: float, tmp_path: Path) -> None:
    callback = NaPCallback()
    trainer(tmp_path, callback, precision=precision, max_epochs=2).fit(Classifier(), data())
    assert callback.projector is not None
    assert worst(callback.projector) < tolerance


def test_steps_that_a_scaler_skips_are_no_updates(tmp_path: Path) -> None:
    class Overflows(Classifier):
        def on_after_backward(self) -> None:
            if self.trainer.fit_loop.batch_idx in (1, 4):
                self.net[0].weight.grad.fill_(torch.inf)  # type: ignore[union-attr, operator]

    callback, scaler = NaPCallback(), torch.amp.GradScaler("cpu", init_scale=8.0)
    precision = MixedPrecision("16-mixed", device="cpu", scaler=scaler)
    trainer(tmp_path, callback, plugins=[precision]).fit(Overflows(), data())
    assert callback.projector is not None
    assert set(callback.projector.updates.values()) == {BATCHES - 2}
    assert worst(callback.projector) < 1e-6


def test_several_optimizers_stepped_by_hand(tmp_path: Path) -> None:
    callback = NaPCallback()
    trainer(tmp_path, callback).fit(PerPart(), data())
    assert callback.projector is not None
    expected = {"net.0.weight": BATCHES, "net.2.weight": BATCHES, "net.4.weight": BATCHES // 2}
    assert callback.projector.updates == expected
    assert worst(callback.projector) < 1e-6


def test_a_module_converted_by_its_user_is_left_as_it_is(tmp_path: Path) -> None:
    model = Classifier(example=False)
    nap.normalize_(model.net, torch.zeros(2, 5), norm="rms")
    names = [name for name, _ in model.named_parameters()]
    callback = NaPCallback(output="free")
    trainer(tmp_path, callback).fit(model, data())
    assert [name for name, _ in model.named_parameters()] == names
    assert list(radii(callback)) == ["net.0.weight", "net.2.weight"]


def test_options_of_both_steps_and_step_2_alone(tmp_path: Path) -> None:
    model = Classifier()
    trainer(tmp_path, NaPCallback(normalize={"norm": "rms", "affine": "none"})).fit(model, data())
    assert not any("nap_norm" in name for name, _ in model.named_parameters())
    assert nap.verify(model, torch.randn(4, 5)).scale_invariant == 2
    model, callback = Classifier(example=False), NaPCallback(normalize=False)
    trainer(tmp_path, callback).fit(model, data())
    assert len(radii(callback)) == 3
    assert not hasattr(model.net[0], "nap_norm")
    with pytest.raises(TypeError, match="unexpected keyword argument 'evry'"):
        NaPCallback(evry=3)


# --- checkpoints


def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    whole, unbroken = NaPCallback(every=4), Classifier()
    trainer(tmp_path, whole, max_epochs=3).fit(unbroken, data())

    first = trainer(tmp_path, NaPCallback(every=4), max_epochs=1)
    first.fit(Classifier(), data())  # six updates: it stops off the radius
    first.save_checkpoint(tmp_path / "first.ckpt")

    model, callback = Classifier(), NaPCallback(every=4)
    for parameter in model.parameters():
        parameter.data *= 3  # the radii must not come from here
    trainer(tmp_path, callback, max_epochs=3).fit(model, data(), ckpt_path=tmp_path / "first.ckpt")
    assert_close(radii(callback), radii(whole), rtol=0, atol=0)
    assert_close(model.state_dict(), unbroken.state_dict(), rtol=0, atol=0)
    assert callback.state_dict()["updates"] == whole.state_dict()["updates"]


def test_a_second_fit_goes_on_with_the_first_radii(tmp_path: Path) -> None:
    model, callback = Classifier(), NaPCallback(every=4)
    trainer(tmp_path, callback).fit(model, data())
    before = radii(callback)
    trainer(tmp_path, callback).fit(model, data())
    assert_close(radii(callback), before, rtol=0, atol=0)
    assert set(callback.state_dict()["updates"].values()) == {2 * BATCHES}
    trainer(tmp_path, callback).fit(Classifier(width=20), data())  # another model has radii of its own
    assert radii(callback)["net.0.weight"] != before["net.0.weight"]


def test_a_test_run_loads_a_checkpoint_with_norms(tmp_path: Path) -> None:
    class Tested(Classifier):
        def test_step(self, batch: Any, index: int) -> None:
            self.outputs = self(batch[0])

    first, model = trainer(tmp_path, NaPCallback()), Tested()
    first.fit(model, data())
    first.save_checkpoint(tmp_path / "first.ckpt")
    again = Tested()
    trainer(tmp_path, NaPCallback()).test(again, data(), ckpt_path=tmp_path / "first.ckpt", verbose=False)
    assert_close(again(torch.ones(2, 5)), model(torch.ones(2, 5)))


class ByItself(Classifier):
    """Converted in its own __init__."""

    def __init__(self) -> None:
        super().__init__(example=False)
        nap.normalize_(self.net, torch.zeros(2, 5))


class Later(Classifier):
    """Built and converted in configure_model."""

    def __init__(self) -> None:
        lightning.LightningModule.__init__(self)

    def configure_model(self) -> None:
        self.net = features(16)
        nap.normalize_(self.net, torch.zeros(2, 5))


@pytest.mark.parametrize(("kind", "options"), [(ByItself, {}), (Later, {"normalize": False})])
def test_modules_that_convert_themselves_resume_safely(kind: Any, options: Any, tmp_path: Path) -> None:
    path, callback = tmp_path / "first.ckpt", NaPCallback(**options)
    first, model = trainer(tmp_path, callback), kind()
    first.fit(model, data())
    first.save_checkpoint(path)
    if kind is ByItself:
        assert_close(kind.load_from_checkpoint(path).state_dict(), model.state_dict(), rtol=0, atol=0)
    again = NaPCallback(**options)
    trainer(tmp_path, again, max_epochs=2).fit(kind(), data(), ckpt_path=path, weights_only=True)
    assert_close(radii(again), radii(callback), rtol=0, atol=0)
    assert set(again.state_dict()["updates"].values()) == {2 * BATCHES}


@pytest.mark.parametrize(
    ("saved_with", "resumed_with", "words"),
    [
        ([], [NaPCallback()], "the checkpoint has no radii"),
        ([NaPCallback()], [NaPCallback(every=3)], r"settings\.every: 1 in the state, 3 here"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    saved_with: Any, resumed_with: Any, words: str, tmp_path: Path
) -> None:
    def converted() -> Classifier:
        model = Classifier()
        nap.normalize_(model, torch.zeros(2, 5))
        return model

    first = trainer(tmp_path, *saved_with)
    first.fit(converted(), data())
    first.save_checkpoint(tmp_path / "first.ckpt")
    with pytest.raises(ValueError, match=words):
        trainer(tmp_path, *resumed_with, max_epochs=2).fit(
            converted(), data(), ckpt_path=tmp_path / "first.ckpt"
        )


def test_radii_of_another_model_are_refused(tmp_path: Path) -> None:
    first = NaPCallback()
    trainer(tmp_path, first).fit(Classifier(), data())
    callback = NaPCallback()
    callback.load_state_dict(first.state_dict())
    with pytest.raises(
        ValueError, match=r"another Projector:\n  shapes\.net\.0\.weight: \[16, 5\] in the state"
    ):
        trainer(tmp_path, callback).fit(Classifier(width=20), data())


# --- refusals


class Pair(Classifier):
    """Half of it is not used by `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Linear(5, 5)


class Foreign(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(features(16).parameters())


class Attached(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        nap.Projector(self).attach(optimizer)
        return optimizer


class Early(Classifier):
    """Its optimizer is made before the norms."""

    def __init__(self) -> None:
        super().__init__()
        self.made = super().configure_optimizers()

    def configure_optimizers(self) -> Any:
        return self.made


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Classifier(example=False), r"Classifier has no example_input_array.*normalize=False"),
        (Pair, r"critic\.weight: not used when Pair is called"),
        (Foreign, "this Adam holds no parameter of the plan; build it from this very model"),
        (Attached, "this Adam has a Projector already"),
        (Early, r"Adam: built before nap\.normalize_"),
    ],
)
def test_what_would_not_do_is_refused(model: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        trainer(tmp_path, NaPCallback()).fit(model(), data())


# --- monitor


def test_the_monitor_logs_rates_norms_and_diagnostics(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    class Look(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            seen.update(trainer.callback_metrics)

    logger, model = CSVLogger(tmp_path, flush_logs_every_n_steps=1), Classifier()
    monitor = MonitorCallback(torch.randn(32, 5), every=3)
    trainer(tmp_path, NaPCallback(), monitor, Look(), logger=logger).fit(model, data())
    assert {name.split("/")[1] for name in seen} == {"dead", "linearized", "dormant", "rank", "norm", "rate"}
    rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    table = [dict(zip(rows[0].split(","), row.split(","), strict=True)) for row in rows[1:]]
    assert [row["step"] for row in table] == ["0", "2", "5"]  # Lightning numbers steps from zero
    rates = [float(row["nap/rate/net.0.weight"]) for row in table]
    assert rates == pytest.approx([rates[0]] * 3, rel=1e-6)  # NaP holds it
    assert table[0].get("nap/norm/gradients", "") == ""
    assert float(table[1]["nap/norm/gradients"]) > 0


def test_the_monitor_takes_several_optimizers_and_refuses_what_has_no_rate(tmp_path: Path) -> None:
    class WithoutRate(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.net.parameters())

    logger = CSVLogger(tmp_path)
    monitor = MonitorCallback(torch.randn(32, 5), every=2)
    trainer(tmp_path, NaPCallback(), monitor, logger=logger).fit(PerPart(), data())
    header = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {f"nap/rate/net.{i}.weight" for i in (0, 2, 4)} <= set(header)
    with pytest.raises(ValueError, match="LBFGS has no effective learning rate"):
        trainer(tmp_path, monitor).fit(WithoutRate(), data())
    with pytest.raises(ValueError, match="every is 0; it counts updates"):
        trainer(tmp_path, MonitorCallback(torch.randn(32, 5), every=0)).fit(Classifier(), data())
