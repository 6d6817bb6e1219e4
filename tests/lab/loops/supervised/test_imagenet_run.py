"""Image classifiers that learn from files: updates by hand, kills and resumes, several processes."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from nap.lab import rows as row_files
from nap.lab.cli.main import main
from nap.lab.datasets.image_files import BrokenImage
from nap.lab.experiments.table1_imagenet import EXPERIMENT, PAPER
from nap.lab.loops.common import work as common_work
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.supervised import imagenet_run, trainer
from nap.lab.loops.supervised.imagenet_run import ImageNetWork, normalised
from nap.lab.loops.supervised.loading import workers_for
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, ImageNetConfig, VisionArm
from nap.lab.loops.supervised.trainer import resnet_factory
from nap.lab.models.vgg import vgg
from nap.lab.runner import distributed
from nap.lab.runner.distributed import ProcessGroup
from nap.lab.runner.work import NotFinite
from recordings import run_and_put_back
from small_images import write_folders, write_shards
from two_processes import CPU, both

Row = dict[str, Any]
TINY = ImageNetConfig(
    blocks=(1, 1), width=4, small_stem=True, image_size=8, resize=10, min_crop_area=0.5, batch_size=8,
    epochs=4, eval_every=2, warmup_epochs=0.5, seeds=1,
)  # fmt: skip
A_PASS = 3  # of 30 images in batches of 8


def without_batch_norm(config: ImageNetConfig, classes: int) -> Callable[[], nn.Module]:
    """Builds a network whose numbers do not depend on how a batch is shared."""
    return lambda: vgg(
        (3, config.image_size, config.image_size), classes, channels=(4, 0, 8, 0), hidden=(16,)
    )


@pytest.fixture
def images(tmp_path: Path) -> str:
    return str(write_folders(tmp_path / "images"))


def work(config: ImageNetConfig, arm: VisionArm = NAP, **options: Any) -> ImageNetWork:
    return ImageNetWork(NetworkRun(arm, config, 0, {"experiment": "x"}), CPU, **options)


def finished(run: ImageNetWork) -> list[Row]:
    rows: list[Row] = []
    while run.done < run.total:
        rows += run.step()
    return rows


@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
def test_a_run_has_its_rows_and_learns(images: str, arm: VisionArm) -> None:
    rows = finished(work(replace(TINY, images=images, epochs=16), arm))
    assert [row["step"] for row in rows] == [6 * k for k in range(1, 9)]
    assert rows[-1]["test_accuracy"] > 0.8
    assert rows[0]["learning_rate"] == pytest.approx(ImageNetConfig.rate(replace(TINY, epochs=16), 5, A_PASS))
    assert rows[0]["data"] == "images (3 classes, 30 + 12 images)"
    needed = {"arm", "seed", "experiment", "loss", "gradient_norm", "accuracy", "test_loss", "parameter_norm"}
    assert needed <= rows[0].keys()
    assert ("effective_rate" in rows[0]) == arm.norm
    assert 0.5 < rows[-1]["accuracy"] <= 1


@pytest.mark.parametrize("decay_scales", [False, True], ids=["matrices", "all"])
def test_an_update_is_what_one_does_by_hand(images: str, decay_scales: bool) -> None:
    """PyTorch's plain SGD on the batches of the files, and a projection after each step."""
    import nap

    config = replace(TINY, images=images, epochs=1, eval_every=1, warmup_epochs=0.0, weight_decay=0.5)
    run = work(replace(config, decay_scales=decay_scales))
    model = copy.deepcopy(run.trainer.model).train()
    projector = nap.Projector(model)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.5},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.5 * decay_scales},
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True)
    for step in range(A_PASS):
        batch = run.batches.train[step]
        assert not isinstance(batch, str)
        pixels, labels = batch
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 + np.cos(np.pi * step / A_PASS))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(normalised(pixels)), labels, label_smoothing=0.1).backward()
        optimizer.step()
        projector.project_()
    run.step()
    for (name, expected), found in zip(
        model.state_dict().items(), run.trainer.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_a_row_is_about_the_updates_since_the_last_one(images: str) -> None:
    config = replace(TINY, images=images, epochs=5)
    each, rows = finished(work(replace(config, eval_every=1))), finished(work(config))
    assert [row["epoch"] for row in rows] == [2, 4, 5]
    for name in ("accuracy", "loss"):
        one, two, three, four, five = (row[name] for row in each)
        means = [(one + two) / 2, (three + four) / 2, five]
        assert [row[name] for row in rows] == pytest.approx(means, rel=1e-5), name
    assert rows[-1]["learning_rate"] > 0
    assert rows[-1]["effective_rate"] > 0


def test_a_run_goes_on_in_the_middle_of_an_epoch_and_reads_only_what_is_left(
    images: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, images=images)
    monkeypatch.setattr(common_work, "CHUNK", 2)
    whole = finished(work(config))
    for stop in (1, 2, 3, 4, 5):  # after updates 2 to 10 of 12; an epoch has three, and rows come at 6 and 12
        first, rest = work(config), work(config)
        rows = [row for _ in range(stop) for row in first.step()]
        rest.load_state_dict(copy.deepcopy(first.state_dict()))
        learnt, evaluated = rest.batches.train.images, rest.batches.eval.images
        counted = [mock.Mock(wraps=pictures.encoded) for pictures in (learnt, evaluated)]
        for pictures, count in zip((learnt, evaluated), counted, strict=True):
            monkeypatch.setattr(pictures, "encoded", count)
        assert rows + finished(rest) == whole
        assert [count.call_count for count in counted] == [8 * (12 - first.done), 12 * (2 - len(rows))]


def test_to_record_an_update_leaves_no_trace(images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "capture", run_and_put_back)
    config = replace(TINY, images=images)
    plain, graph = work(config), work(config, graph=True)
    for _ in range(2):
        state = copy.deepcopy(plain.state_dict())
        assert finished(graph) == finished(plain)
        for one, other in zip(graph.trainer.parameters, plain.trainer.parameters, strict=True):
            assert torch.equal(one, other)
        for run in (plain, graph):  # and once more, with what was there before
            run.load_state_dict(copy.deepcopy(state))


def test_a_state_may_be_loaded_into_a_run_that_is_under_way(images: str) -> None:
    config = replace(TINY, images=images)
    whole, run = finished(work(config)), work(config)
    begun = copy.deepcopy(run.state_dict())
    run.step()
    run.load_state_dict(begun)
    assert finished(run) == whole


@pytest.mark.slow
def test_the_workers_of_a_run_are_there_from_its_first_update_to_its_last_row(images: str) -> None:
    config = replace(TINY, images=images, eval_every=1)
    alone, rows, workers = finished(work(config)), [], []
    run = work(config, workers=2)
    while run.done < run.total:
        rows += run.step()
        workers.append({process.pid for process in multiprocessing.active_children()})
    assert rows == alone
    assert len(workers) == 4
    assert len(workers[0]) == 2
    assert workers == [workers[0]] * 3 + [set()]


@pytest.mark.parametrize("gone", ["train/cat/000.JPEG", "val/cat/100.JPEG"])
def test_a_run_does_not_go_on_with_other_images(images: str, gone: str) -> None:
    config = replace(TINY, images=images)
    state = work(config).state_dict()
    (Path(images) / gone).unlink()
    with pytest.raises(ValueError, match="not those that this run began with: files were added"):
        work(config).load_state_dict(state)


def test_a_run_reads_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "home"))
    write_shards(tmp_path / "hub")
    rows = finished(work(replace(TINY, images=str(tmp_path / "hub"), batch_size=4, epochs=10)))
    assert rows[-1]["data"] == "hub (3 classes, 12 + 4 images)"
    assert rows[-1]["loss"] < rows[0]["loss"]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_broken_image_ends_the_run_and_says_which(images: str, workers: int) -> None:
    path = Path(images) / "train" / "owl" / "003.PNG"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BrokenImage) as caught:
        finished(work(replace(TINY, images=images), workers=workers))
    assert str(caught.value).startswith(f"{path} cannot be read as an image")
    assert "Traceback" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*became zero, infinite or NaN")  # the test makes it so
def test_an_update_that_is_not_finite_is_not_made(images: str) -> None:
    run = work(replace(TINY, images=images))
    with torch.no_grad():
        run.trainer.model.get_parameter("head.weight")[0, 0] = torch.nan
    with pytest.raises(NotFinite, match="the loss is not finite at update 1"):
        run.step()
    assert all(p.isfinite().all() or p.ndim == 2 for p in run.trainer.parameters)


def test_settings_and_data_that_do_not_fit_are_refused(images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for change, message in (
        ({"blocks": ()}, "blocks is"),
        ({"resize": 4}, "resize"),
        ({"warmup_epochs": 99.0}, "warmup_epochs"),
        ({"min_crop_area": 0.0}, "min_crop_area"),
        ({"momentum": 1.0}, "momentum"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"data": "digits", "images": "x"}, "add --data imagenet, or leave --images out"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(TINY, **change)
    with pytest.raises(ValueError, match=r"batch_size is 31, but images .* has 30 images"):
        work(replace(TINY, images=images, batch_size=31))
    monkeypatch.setenv("NAP_WORKERS", "many")
    with pytest.raises(ValueError, match="NAP_WORKERS=many"):
        workers_for(CPU)
    monkeypatch.setattr(distributed, "_group", ProcessGroup(distributed.Rank(0, 2), parallel="fsdp"))
    with pytest.raises(ValueError, match=r"has a replica of this network \(ddp\).*choose ddp"):
        work(replace(TINY, images=images))
    monkeypatch.setattr(distributed, "_group", ProcessGroup(distributed.Rank(0, 2)))
    with pytest.raises(ValueError, match="a graph is for a single process, here are 2"):
        work(replace(TINY, images=images), graph=True)
    monkeypatch.setattr(distributed, "_group", ProcessGroup(distributed.Rank(0, 3)))
    with pytest.raises(ValueError, match="batch_size is 8, which 3 processes cannot share"):
        work(replace(TINY, images=images))


def test_the_papers_settings_ask_for_the_papers_network() -> None:
    assert [run.name for run in EXPERIMENT.runs(PAPER)][::3] == [
        "baseline-seed-0",
        "norm-only-seed-0",
        "nap-seed-0",
    ]
    with torch.device("meta"):
        network = resnet_factory(PAPER, 1000)()
        assert network(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    a_pass = 1_281_167 // 256
    rates = [PAPER.rate(step, a_pass) for step in range(90 * a_pass)]
    assert rates[:: 5 * a_pass][:2] == pytest.approx([0.1 / (5 * a_pass), 0.1])
    assert rates[5 * a_pass - 1] == max(rates) == 0.1
    assert rates.count(0.1) == 1
    assert 0 < rates[-1] < 1e-11, "the last update is one, too"


def test_the_command_runs_it_and_says_where_images_should_be(
    images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    words = ["run", "table1-imagenet", "--data=imagenet", "--epochs=1", "--batch-size=8", "--seeds=1"]
    assert main(words) == 2
    assert f"there are no images in {tmp_path / 'home' / 'imagenet'}" in capsys.readouterr().err
    assert main([*words, "--images", images, "--out", "there"]) == 0
    rows = row_files.read("there")
    assert {row["arm"] for row in rows} == {"baseline", "norm only", "NaP"}


# several processes


def assert_alike(found: list[Row], expected: list[Row]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        numbers = {key: value for key, value in other.items() if not isinstance(value, str)}
        assert {key: one[key] for key in numbers} == pytest.approx(numbers, rel=1e-4, abs=1e-9)


def learn(config: ImageNetConfig, make: Any = resnet_factory) -> Row:
    run = work_on(config, make)
    rows = run.step()
    state = copy.deepcopy(run.state_dict())
    rows += finished(run)
    return {"rows": rows, "state": state, "buffers": [b.clone() for b in run.trainer.model.buffers()]}


def work_on(config: ImageNetConfig, make: Any) -> ImageNetWork:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imagenet_run, "resnet_factory", make)
        return work(config)


def everything(group: ProcessGroup, config: ImageNetConfig, state: Row) -> Row:
    common_work.CHUNK = 4
    rest = work_on(config, without_batch_norm)
    rest.load_state_dict(state)
    return {"plain": learn(config, without_batch_norm), "rest": finished(rest), "normed": learn(config)}


@pytest.mark.slow
def test_two_processes_compute_what_one_does(
    images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for BatchNorm, whose statistics are those of each process's share."""
    monkeypatch.setattr(common_work, "CHUNK", 4)
    config = replace(TINY, images=images)
    alone = learn(config, without_batch_norm)
    both_of = both(everything, tmp_path / "processes", config, alone["state"])
    for found in both_of:
        assert_alike(found["plain"]["rows"], alone["rows"])
        assert_alike(found["rest"], alone["rows"])
    one, other = both_of
    assert one["normed"]["rows"] == other["normed"]["rows"]
    for a, b in zip(one["normed"]["buffers"], other["normed"]["buffers"], strict=True):
        assert torch.equal(a, b), "both are evaluated with the statistics of the first"
    back = work_on(config, without_batch_norm)
    back.load_state_dict(one["plain"]["state"])
    assert_alike(finished(back), alone["rows"])
