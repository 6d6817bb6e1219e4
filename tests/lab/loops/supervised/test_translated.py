"""The arm that is NaP at the rates that weight decay makes of the schedule: in both image tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evidence_rows import rows_of
from nap.lab.experiments import load
from nap.lab.experiments.table1_cifar import PAPER
from nap.lab.experiments.table1_cifar.figure import table
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.supervised.cifar_run import CifarWork
from nap.lab.loops.supervised.imagenet_run import ImageNetWork
from nap.lab.loops.supervised.settings import NAP, TRANSLATED, CifarConfig, ImageNetConfig
from nap.lab.rows import Rows
from nap.schedules import weight_decay_rates
from small_images import write_folders

Work = type[CifarWork] | type[ImageNetWork]


def own_and_translated(kind: Work, config: CifarConfig | ImageNetConfig) -> list[list[dict[str, Any]]]:
    """Rows of NaP, and of NaP at translated rates."""
    found = []
    for arm in (NAP, TRANSLATED):
        run, rows = kind(NetworkRun(arm, config, 0, {}), torch.device("cpu")), []
        while run.done < run.total:
            rows += run.step()
        found.append(rows)
    return found


def check(kind: Work, config: CifarConfig | ImageNetConfig, planned: Sequence[float]) -> None:
    """It differs from NaP, by the rates alone."""
    own, translated = own_and_translated(kind, config)
    check_rates(own, translated, config, planned)
    assert own[-1]["loss"] != translated[-1]["loss"]


def check_rates(
    own: list[dict[str, Any]],
    translated: list[dict[str, Any]],
    config: CifarConfig | ImageNetConfig,
    planned: Sequence[float],
) -> None:
    """Weights that a norm follows, and they alone, get the rates that decay leaves."""
    rates = weight_decay_rates(planned, config.weight_decay, momentum=config.momentum)
    assert rates[-1] > 1.3 * planned[-1]
    for one, other in zip(own, translated, strict=True):
        step = one["step"] - 1
        assert other["learning_rate"] == one["learning_rate"] == planned[step]
        assert other["effective_rate"] / one["effective_rate"] == pytest.approx(rates[step] / planned[step])


def test_of_images_in_memory() -> None:
    config = CifarConfig(
        data="digits", channels=(4, 0, 8, 0), hidden=(16,), batch_size=400, steps=8, eval_every=1,
        crop_padding=1, flip=False, weight_decay=20.0, momentum=0.5,
    )  # fmt: skip
    check(CifarWork, config, [config.rate(step) for step in range(8)])


def test_of_images_in_files(tmp_path: Path) -> None:
    config = ImageNetConfig(
        images=str(write_folders(tmp_path)), blocks=(1, 1), width=4, small_stem=True, image_size=8, resize=10,
        min_crop_area=0.5, batch_size=8, epochs=4, eval_every=2, warmup_epochs=0.5, weight_decay=2.0,
    )  # fmt: skip
    a_pass = 3  # of 30 images
    check(ImageNetWork, config, [config.rate(step, a_pass) for step in range(4 * a_pass)])


@pytest.mark.parametrize("table", ["", "-four"])
def test_at_paper_scale_on_a_gpu(table: str) -> None:
    archive, config = f"table1-cifar{table}-paper", PAPER
    own, translated = (rows_of(archive, f"{arm}-seeds-0-2") for arm in ("nap", "nap-translated"))
    check_rates(own, translated, config, [config.rate(step) for step in range(config.steps)])


@pytest.mark.parametrize("name", ["table1-cifar", "table1-imagenet"])
def test_it_is_trained_if_asked_for(name: str) -> None:
    experiment = load(name)
    config = replace(experiment.scales["demo"], seeds=1)
    assert [run.config.arm.name for run in experiment.runs(config)] == ["baseline", "norm only", "NaP"]
    asked = experiment.runs(replace(config, arms=("NaP translated",)))
    assert [run.config.arm for run in asked] == [TRANSLATED]


def test_it_stands_in_the_table_without_a_number_of_the_paper_s() -> None:
    rows = [{"arm": arm, "data": "x", "step": 5, "test_accuracy": 0.9} for arm in ("NaP translated", "NaP")]
    cells = re.findall(r"<t[dh] [^>]*>([^<]*)", str(table(Rows(rows))))
    assert cells[3:] == ["NaP", "90.00", "94.64 (0.12)", "NaP translated", "90.00", "–"]
