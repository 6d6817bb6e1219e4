"""Image classifiers: crops against a slow reference, a pass against a loop by hand, kills and resumes."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import nap
from nap.lab.cli.main import main
from nap.lab.datasets.catalog import IMAGE_SETS
from nap.lab.datasets.images import load, split
from nap.lab.datasets.streams import batches
from nap.lab.experiments.table1_cifar import DEMO
from nap.lab.experiments.table1_cifar.runs import runs
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.supervised import cifar_trainer, trainer
from nap.lab.loops.supervised.cifar_run import CifarWork
from nap.lab.loops.supervised.random_crop import PaddedImages, PaddingMode, pad
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, TRANSLATED, CifarConfig, VisionArm
from nap.lab.loops.supervised.trainer import vgg_factory
from nap.lab.models.vgg import vgg
from nap.lab.runner import checkpoint
from nap.lab.runner.work import NotFinite
from nap.norms.norm import Norm
from recordings import run_and_put_back

CPU = torch.device("cpu")
TINY = CifarConfig(
    data="digits",
    channels=(4, 0, 8, 0),
    hidden=(16,),
    batch_size=400,
    steps=8,
    eval_every=2,
    crop_padding=1,
    flip=False,
)  # 1,438 images: three updates a pass


def work(arm: VisionArm = NAP, config: CifarConfig = TINY, *, seed: int = 0, **options: Any) -> CifarWork:
    return CifarWork(NetworkRun(arm, config, seed, {"experiment": "x"}), CPU, **options)


def finished(run: CifarWork) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while run.done < run.total:
        rows += run.step()
    return rows


@settings(deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.booleans(), st.integers(0, 2))
def test_a_crop_is_what_one_cuts_out_by_hand(top: int, left: int, mirrored: bool, number: int) -> None:
    pixels = torch.arange(3 * 2 * 5 * 6, dtype=torch.uint8).view(3, 2, 5, 6)
    mean, std = torch.tensor([3.0, 70.0]), torch.tensor([2.0, 5.0])
    crops = PaddedImages.of(pixels, mean, std, padding=2)
    places = (torch.tensor([number]), torch.tensor([top]), torch.tensor([left]), torch.tensor([mirrored]))
    found = crops.random_crop(places[0], torch.stack(places[1:]))[0]
    for y in range(5):
        for x in range(6):
            row, column = y + top - 2, (5 - x if mirrored else x) + left - 2
            inside = 0 <= row < 5 and 0 <= column < 6
            value = pixels[number, :, row, column].float() if inside else torch.zeros(2)
            torch.testing.assert_close(found[:, y, x], (value - mean) / std)


def test_crops_use_every_place_and_plain_ones_the_middle() -> None:
    pixels = torch.randint(256, (1, 1, 4, 4), dtype=torch.uint8)
    crops = PaddedImages.of(pixels, torch.zeros(1), torch.ones(1), padding=2)
    places = crops.sample((2000,), torch.Generator().manual_seed(0))
    many = crops.random_crop(torch.zeros(2000, dtype=torch.int64), places)
    assert len({tuple(crop.flatten().tolist()) for crop in many}) == 5 * 5 * 2
    torch.testing.assert_close(crops.center_crop(torch.tensor([0]))[0], pixels[0].float())
    assert many.is_contiguous(memory_format=torch.channels_last)


@given(st.integers(0, 3), st.sampled_from(["zeros", "mean", "reflect"]))
def test_an_edge_is_what_numpy_makes_of_it(edge: int, edges: Any) -> None:
    pixels = torch.randint(256, (3, 2, 5, 4), dtype=torch.uint8)
    mean = torch.tensor([3.4, 70.6])
    found = pad(pixels, edge, edges, mean)
    around = [(0, 0), (0, 0), (edge, edge), (edge, edge)]
    for channel, level in enumerate((3, 71)):
        hows: dict[str, dict[str, Any]] = {
            "zeros": {"mode": "constant"},
            "mean": {"mode": "constant", "constant_values": level},
            "reflect": {"mode": "reflect"},
        }
        by_hand = np.pad(pixels.numpy(), around, **hows[edges])[:, channel]
        assert np.array_equal(found[:, channel].numpy(), by_hand)


def test_the_edges_that_are_asked_for_are_cropped_into() -> None:
    padded = [
        work(BASELINE, replace(TINY, crop_padding=2, padding_mode=edges)).trainer.images.padded
        for edges in get_args(PaddingMode)
    ]
    for one, other in combinations(padded, 2):
        assert torch.equal(one[:, 2:-2, 2:-2], other[:, 2:-2, 2:-2])
        assert not torch.equal(one, other)
    with pytest.raises(
        ValueError,
        match="8×8 pixels cannot be padded by 8 with their reflection; lower --crop-padding",
    ):
        work(BASELINE, replace(TINY, crop_padding=8, padding_mode="reflect"))


@pytest.mark.parametrize(("over", "layout"), [("sample", "sample"), ("position", "channels")])
def test_norms_take_together_what_the_settings_say(over: Any, layout: str) -> None:
    model = work(NAP, replace(TINY, norm_axes=over)).trainer.model
    norms = [m for m in model.modules() if isinstance(m, Norm) and m.spatial]
    assert {norm.layout for norm in norms} == {layout}
    assert len(norms) == 2


@pytest.mark.parametrize("decay_scales", [False, True], ids=["matrices", "all"])
@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP, TRANSLATED], ids=lambda arm: arm.name)
def test_a_run_is_what_one_does_by_hand(arm: VisionArm, decay_scales: bool) -> None:
    """PyTorch's plain SGD with Nesterov's momentum, and a projection after each step."""
    # so large that one sees what they act on
    config = replace(TINY, weight_decay=0.5, decay_scales=decay_scales, label_smoothing=0.1)
    run = work(arm, config, seed=1)
    model = copy.deepcopy(run.trainer.model)
    projector = nap.Projector(model) if arm.project else None
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.get_submodule("body").parameters() if p.ndim > 1], "weight_decay": 0.5},
        {"params": [model.get_parameter("head.weight")], "weight_decay": 0.5},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.5 * decay_scales},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.025, momentum=0.9, nesterov=True)
    planned = [0.025] * 4 + [0.0025] * 2 + [0.00025] * 2
    of_body = nap.schedules.weight_decay_rates(planned, 0.5, momentum=0.9) if arm.translated else planned
    rates, right = zip(of_body, planned, planned, strict=True), []
    for a_pass, steps in enumerate((3, 3, 2)):
        order = batches(1, 1, a_pass, count=1438, batch_size=400)[:steps]
        generator = torch.Generator().manual_seed((1 << 20) + a_pass)
        places = run.trainer.images.sample(order.shape, generator)
        for step, index in enumerate(order):
            for group, rate in zip(optimizer.param_groups, next(rates), strict=True):
                group["lr"] = rate
            labels = run.trainer.labels[index]
            logits = model(run.trainer.images.random_crop(index, places[:, step]))
            optimizer.zero_grad()
            F.cross_entropy(logits, labels, label_smoothing=0.1).backward()
            optimizer.step()
            right.append(int((logits.argmax(1) == labels).sum()))
            if projector is not None:
                projector.project_()
    rows = finished(run)
    for (name, expected), found in zip(
        model.state_dict().items(), run.trainer.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)
    accuracies = [sum(right[:6]) / 2400, sum(right[6:]) / 800]
    assert [row["accuracy"] for row in rows] == pytest.approx(accuracies)


def test_each_pass_of_each_seed_has_its_own_order_and_places() -> None:
    found = []
    for run in (work(seed=0), work(seed=1), work(seed=2)):
        for _ in range(2):
            run.step()
            found.append(run.trainer.batches.clone())
    for one, other in combinations(found, 2):
        assert not torch.equal(one[:, 0], other[:, 0]), "the order"
        assert not torch.equal(one[:, 2:], other[:, 2:]), "the places"


def test_a_network_is_judged_on_plain_images_without_smoothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar_trainer, "EVAL_BATCH", 150)  # of 359
    run = work(config=replace(TINY, label_smoothing=0.3))
    row = finished(run)[-1]
    train, test = split("digits")
    mean, std = (numbers.view(-1, 1, 1).float() for numbers in train.statistics())
    with torch.no_grad():
        logits = run.trainer.model.eval()((test.pixels - mean) / std)
    assert row["test_loss"] == pytest.approx(F.cross_entropy(logits, test.labels).item(), rel=1e-5)
    assert row["test_accuracy"] == pytest.approx((logits.argmax(1) == test.labels).sum().item() / 359)


@pytest.mark.parametrize("config", [TINY, replace(TINY, dropout=0.5)], ids=["plain", "dropout"])
@pytest.mark.parametrize("arm", [BASELINE, NAP, TRANSLATED], ids=lambda arm: arm.name)
def test_a_run_goes_on_after_any_pass_as_if_nothing_had_happened(
    arm: VisionArm, config: CifarConfig, tmp_path: Path
) -> None:
    whole = finished(work(arm, config))
    for stop in (1, 2):
        first, rest = work(arm, config), work(arm, config)
        rows = [row for _ in range(stop) for row in first.step()]
        checkpoint.save(tmp_path / "checkpoint.pt", first.state_dict())
        rest.load_state_dict(checkpoint.load(tmp_path / "checkpoint.pt"))
        assert rows + finished(rest) == whole


def test_what_is_left_out_is_a_function_of_the_seed_alone() -> None:
    config = replace(TINY, dropout=0.5)
    state = torch.get_rng_state()
    first = finished(work(config=config))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    assert finished(work(config=config)) == first != finished(work())


def test_convolutions_start_as_large_as_asked_and_nap_keeps_them_so() -> None:
    small, usual = (work(config=replace(TINY, init_std_scale=size)) for size in (0.5, 1.0))
    for run in (small, usual):
        finished(run)
    small_norms, norms = (
        {name: p.norm().item() for name, p in run.trainer.model.named_parameters() if p.ndim > 1}
        for run in (small, usual)
    )
    shares = {name: small_norms[name] / norms[name] for name in norms}
    expected = {"body.0.weight": 0.5, "body.4.weight": 0.5, "body.9.weight": 1.0, "head.weight": 1.0}
    assert shares == pytest.approx(expected, rel=1e-5)
    even = work(config=replace(TINY, weight_norm=3.0))
    finished(even)
    weights = {name: p.norm().item() for name, p in even.trainer.model.named_parameters() if p.ndim > 1}
    assert weights == pytest.approx(norms | {"body.0.weight": 3.0, "body.4.weight": 3.0}, rel=1e-5)


def test_weights_of_one_norm_are_for_nap_alone() -> None:
    whats = [run.config for run in runs(replace(DEMO, weight_norm=3.0, seeds=1))]
    found = {what.arm.name: what.settings.weight_norm for what in whats}
    assert found == {"baseline": 0, "norm only": 0, "NaP": 3}


def test_to_record_an_update_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "capture", run_and_put_back)
    config = replace(TINY, batch_size=300)  # four updates a pass; the recording makes three
    plain, graph = work(config=config), work(config=config, graph=True)
    state = copy.deepcopy(plain.state_dict())
    rows = finished(plain)
    assert finished(graph) == rows
    graph.load_state_dict(state)
    assert finished(graph) == rows


def test_an_update_is_recorded_anew_when_a_state_brings_other_radii(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Mock(side_effect=run_and_put_back)
    monkeypatch.setattr(trainer, "capture", recording)
    run = work(graph=True)
    for times in (1, 2):
        run.step()
        run.step()
        assert recording.call_count == times
        run.load_state_dict(copy.deepcopy(run.state_dict()))


def test_the_state_of_another_network_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"of another network: one of the two has no body\.0\.nap_norm\.bias"
    ):
        work().load_state_dict(work(config=replace(TINY, batch_norm=False)).state_dict())


def test_rows_come_every_so_many_passes_and_at_the_end() -> None:
    run = work()
    rows = finished(run)
    assert [row["step"] for row in rows] == [6, 8]
    assert run.total == 3
    assert rows[-1]["learning_rate"] == pytest.approx(0.025 / 100)
    needed = {"arm", "seed", "experiment", "loss", "accuracy", "test_accuracy", "test_loss", "parameter_norm"}
    assert needed <= rows[0].keys()
    assert rows[0]["effective_rate"] > 0
    assert "effective_rate" in finished(work(NORM_ONLY))[0]


def test_training_is_judged_on_other_images() -> None:
    train, test = split("digits")
    assert len(train) + len(test) == len(load("digits"))
    assert torch.equal(torch.cat([train.pixels, test.pixels]), load("digits").pixels)


def test_settings_can_be_chosen_without_the_images_for_tests() -> None:
    train, _ = split("digits")
    rest, kept = split("digits", held_out=38)
    assert torch.equal(torch.cat([rest.pixels, kept.pixels]), train.pixels)
    run = work(config=replace(TINY, held_out=38))
    assert torch.equal(run._test_labels, kept.labels)
    assert len(run.trainer.labels) == len(rest) == 1400
    rows = finished(runs(replace(DEMO, held_out=38, steps=1))[0].start(CPU))  # type: ignore[arg-type]
    assert rows[0]["data"] == "digits (judged on 38 training images held out)"  # which no claim takes
    with pytest.raises(ValueError, match="of the 1438 images of digits are held out"):
        work(config=replace(TINY, held_out=1438))


@pytest.mark.parametrize("hidden", [(), (16,)])
def test_the_last_map_can_be_averaged(hidden: tuple[int, ...]) -> None:
    config = replace(TINY, channels=(4, 0, 8), hidden=hidden, global_pool=True)
    body, image = vgg_factory(config, (1, 8, 8), 10)().get_submodule("body"), torch.randn(2, 1, 8, 8)
    assert isinstance(body, torch.nn.Sequential)
    at = [type(module) for module in body].index(torch.nn.Flatten)
    maps = body[: at - 1](image)
    assert maps.shape == (2, 8, 4, 4)
    torch.testing.assert_close(body[: at + 1](image), maps.mean((2, 3)))
    assert finished(work(config=config))[-1]["step"] == TINY.steps


def test_it_learns_and_projected_weights_keep_their_norms() -> None:
    config = replace(TINY, batch_size=32, steps=132, decays=())
    run = work(NAP, config)
    before = {n: p.detach().norm().item() for n, p in run.trainer.model.named_parameters() if p.ndim >= 2}
    rows = finished(run)
    assert rows[-1]["test_accuracy"] > 0.7
    for name, parameter in run.trainer.model.named_parameters():
        if parameter.ndim >= 2:
            assert parameter.detach().norm().item() == pytest.approx(before[name], rel=1e-5), name


@pytest.mark.filterwarnings("ignore:.*became zero, infinite or NaN")  # the test makes it so
def test_an_update_that_is_not_finite_is_not_made_and_ends_its_pass() -> None:
    run = work(config=replace(TINY, eval_every=3))
    with torch.no_grad():
        run.trainer.model.get_parameter("head.weight")[0, 0] = torch.nan
    before = [p.detach().clone() for p in run.trainer.parameters]
    with pytest.raises(NotFinite, match="the loss is not finite at update 1"):
        run.step()
    for found, expected in zip(run.trainer.parameters, before, strict=True):
        torch.testing.assert_close(found.detach(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": 1.0}, "dropout must be between 0 and 0.99"),
        ({"dropout": 0.5, "hidden": ()}, "no hidden layer; leave --dropout out"),
        ({"init_std_scale": 0.0}, "init_std_scale must be"),
        ({"weight_norm": 0.01}, "weight_norm is 0.01; write a norm between 1 and 1000, or 0"),
        ({"held_out": -1}, "held_out must be"),
        ({"decays": (0.7, 0.5)}, "rising shares"),
        ({"decays": (0.5, 1.5)}, "rising shares"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"momentum": 1.0}, "momentum must be between 0 and 0.999"),
        ({"label_smoothing": 1.0}, "label_smoothing must be between 0 and 0.999"),
        ({"channels": (4, -4)}, r"channels are \(4, -4\); name those of each convolution"),
        ({"channels": (0, 0)}, r"channels are \(0, 0\); name those of each convolution"),
        ({"channels": ()}, r"channels are \(\); name those of each convolution"),
        ({"hidden": (16, 0)}, r"hidden is \(16, 0\); name the units of each layer"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)
    with pytest.raises(ValueError, match="too small for 4 poolings; write fewer zeros in --channels"):
        vgg((1, 8, 8), 10, channels=(4, 0, 4, 0, 4, 0, 4, 0))
    with pytest.raises(ValueError, match="has 1438 images"):
        work(config=replace(TINY, batch_size=1500))


def test_other_images_are_refused_before_a_run_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "table1-cifar", "--data", "nosuch", "--out", str(tmp_path)]) == 2
    names = ", ".join(get_args(get_type_hints(CifarConfig)["data"]))
    assert f"--data nosuch: expected one of {names}" in capsys.readouterr().err
    assert set(names.split(", ")) == {images.name for images in IMAGE_SETS}
