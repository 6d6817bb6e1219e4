"""Every experiment from its settings to verdicts and figures, at a size that takes seconds."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nap.lab import aliases
from nap.lab import rows as row_files
from nap.lab.claims import evaluate
from nap.lab.cli.options import parse
from nap.lab.datasets.catalog import find_images
from nap.lab.experiments import experiments, fig4, readers, stats
from nap.lab.experiments import fig1 as fig1_config
from nap.lab.experiments import fig2 as fig2_config
from nap.lab.experiments import fig4 as fig4_config
from nap.lab.experiments import revival as revival_config
from nap.lab.experiments.fig4 import layer_norm_with
from nap.lab.experiments.revival.runs import RevivalRun
from nap.lab.loops.population.continual_run import ArmRun, network_factory
from nap.lab.loops.population.settings import Arm, Continual
from nap.lab.loops.population.trainer import Trainer
from nap.lab.models.nets import cnn, mlp
from nap.lab.report.page import missing_arms
from nap.lab.rows import Rows
from tiny_runs import CPU, assert_same_parameters, finished, module_of, on_disk_and_back

FEW: dict[str, Any] = {"data": "digits", "images": 10, "batch_size": 10, "seeds": 3, "probe": 10}
TASKS: dict[str, Any] = {**FEW, "tasks": 4, "epochs": 6, "depth": 2, "learning_rate": 1e-2}
CONFIGS: dict[str, Any] = {  # of the experiments that have runs of their own; stats reads those of fig4
    "fig1": replace(fig1_config.PAPER, network="mlp", width=32, **TASKS),
    "fig2": replace(fig2_config.DEMO, width=16, epochs=4, **FEW),
    "fig4": replace(fig4_config.PAPER, narrow=16, channels=(4,), redo_every=3, **TASKS | {"epochs": 3}),
    "revival": replace(revival_config.DEMO, width=16, **TASKS | {"learning_rate": 0.03}),
}
ALL = experiments(["fig1", "fig2", "fig4", "stats", "revival"])
SCALES = [(name, scale) for name, experiment in ALL.items() for scale in experiment.scales]


@pytest.mark.parametrize("name", CONFIGS)
def test_an_experiment_decides_every_claim_and_fills_every_panel(name: str) -> None:
    rows = rows_of(name)
    assert rows.unique("experiment") == [name]
    assert rows.unique("seed") == [0, 1, 2]
    assert all(value is not None for row in rows for value in row.values())
    assert_every_claim_is_decided(name, rows)
    assert_every_panel_is_full(name, rows)


def rows_of(name: str) -> Rows:
    """All rows of an experiment, as they come back from a file."""
    found = []
    for run in ALL[name].runs(CONFIGS[name]):
        found += [{"run": run.name} | row for row in finished(run.start(CPU))]
    return Rows(json.loads(row_files.line(row)) for row in found)


def assert_every_claim_is_decided(name: str, rows: Rows) -> None:
    """None lacks rows, columns or tasks; what the numbers say is another matter at this size."""
    results = evaluate(rows)
    assert {claim.id for claim, _ in results} == {claim.id for each in readers(name) for claim in each.claims}
    for claim, evidence in results:
        assert evidence.effect is not None, f"{claim.id} ({evidence.subject}): {evidence.reason}"
        assert evidence.seeds == 3
        assert all(part.effect is not None for part in evidence.cases.values())


def assert_every_panel_is_full(name: str, rows: Rows) -> None:
    for experiment in readers(name):
        assert experiment.figure is not None
        assert missing_arms(experiment.figure, rows) == []
        for panel in (panel for figure in experiment.figure.figures(rows) for panel in figure.panels):
            assert panel.lines, f"{experiment.name}, {panel.title}: no line"
            assert not panel.note, f"{experiment.name}, {panel.title}: {panel.note}"


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_scale_can_be_built(name: str, scale: str) -> None:
    experiment = ALL[name]
    config = experiment.scales[scale]
    data = find_images(config.data)
    assert experiment.datasets[scale] == config.data
    assert config.seeds >= 3  # fewer decide no claim
    assert config.batch_size <= (config.images or data.splits["train"].images) <= data.splits["train"].images
    runs = experiment.runs(config)
    names = [run.name for run in runs]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
    for run in runs:
        json.dumps(dataclasses.asdict(run.config))  # what its folder keeps
        if isinstance(run.config, ArmRun):
            assert_network_fits(run.config.settings, data.shape, data.classes)


def assert_network_fits(settings: Continual, shape: tuple[int, int, int], classes: int) -> None:
    with torch.device("meta"):
        network = network_factory(settings, shape, classes)()
        assert network(torch.empty(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (fig4_config.PAPER, 64),
        (replace(fig4_config.PAPER, streams=("random labels",)), 32),
        (replace(fig4_config.PAPER, networks=("cnn",), streams=("permuted pixels",), methods=("ReDo",)), 3),
        (replace(fig4_config.PAPER, optimizer_state=("reset", "keep"), layer_norm=()), 112),
    ],
)
def test_fig4_crosses_networks_streams_methods_and_nap(config: fig4_config.Fig4Config, count: int) -> None:
    found = fig4.EXPERIMENT.runs(config)
    assert len({run.name for run in found}) == len(found) == count
    keys = ("network", "stream", "method", "nap", "optimizer_state")
    crossed = {tuple(run.config.tags[key] for key in keys) for run in found}
    assert len(crossed) == count
    for run in found:
        arm, tags, settings = run.config.arm, run.config.tags, run.config.settings
        alone = tags["method"].startswith("LayerNorm")
        assert (settings.network, settings.stream, settings.optimizer_state) == (
            tags["network"],
            tags["stream"],
            tags["optimizer_state"],
        )
        assert tags["method"] == (layer_norm_with(arm.method) if alone else arm.method)
        norm = "layer" if tags["nap"] or alone else "none"
        assert (arm.norm, arm.project) == (norm, "step" if tags["nap"] else "never")
        assert settings.width == {"mlp": 512, "cnn": 256}[settings.network]


def test_the_old_name_of_l2_init_still_works() -> None:
    words = ["--methods", "none", "regenerative", "--regenerative", "0.01"]
    config = parse("fig4", ALL["fig4"].scales, words).config
    assert (config.methods, config.l2_init) == (("none", "L2 Init"), 0.01)
    today = [run for run in ALL["fig4"].runs(config) if run.config.arm.method == "L2 Init"]
    assert [aliases.run_names(run.name)[-1] for run in today] == [
        f"mlp-random-labels-{arm}-reset" for arm in ("regenerative", "nap-regenerative")
    ]
    for run in today:
        new = json.loads(json.dumps(dataclasses.asdict(run.config)))
        old = json.loads(
            json.dumps(new).replace("l2_init", "regenerative").replace("L2 Init", "regenerative")
        )
        assert "regenerative" in json.dumps(old)
        assert aliases.config(old, new, "fig4") == new
        assert aliases.row({"experiment": "fig4", **old["tags"]}) == {"experiment": "fig4", **new["tags"]}


def test_stats_shares_the_runs_of_fig4() -> None:
    config = fig4_config.DEMO
    ours, theirs = ([(run.name, run.config) for run in of.EXPERIMENT.runs(config)] for of in (stats, fig4))
    assert ours == theirs
    assert (stats.EXPERIMENT.folder, stats.EXPERIMENT.scales) == ("fig4", fig4.EXPERIMENT.scales)


def test_revival_gives_sgd_its_own_rate() -> None:
    config = replace(revival_config.DEMO, learning_rate=1e-3, sgd_learning_rate=0.25)
    rates = {
        (run.config.tags["norm"], run.config.arm.optimizer): run.config.settings.learning_rate
        for run in ALL["revival"].runs(config)
    }
    norms = ("none", "LayerNorm", "RMSNorm")
    assert rates == {(norm, "Adam"): 1e-3 for norm in norms} | {(norm, "SGD"): 0.25 for norm in norms}


def dead_in_modules(trainer: Trainer, images: Tensor) -> Tensor:
    """Which units of all ReLUs stay at zero, (K, units), seen by hooks on ordinary modules."""
    return torch.stack([dead_in_module(module_of(trainer, k), images) for k in range(trainer.members)])


def dead_in_module(model: nn.Module, images: Tensor) -> Tensor:
    seen: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(images)
    return torch.cat([output.movedim(1, 0).flatten(1).amax(1) == 0 for output in seen])


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("norm", ["none", "LayerNorm"])
def test_revival_counts_units_that_die_and_come_back(norm: str, network: Any) -> None:
    config = replace(
        CONFIGS["revival"], network=network, channels=(4, 4), tasks=2, learning_rate=0.1, epochs=4
    )
    [run] = [
        run for run in ALL["revival"].runs(config) if run.config.tags["norm"] == norm and "adam" in run.name
    ]
    work: Any = run.start(CPU)
    before, revivals, deaths = None, 0.0, 0.0
    for unit in range(work.total):
        rows = work.step()
        now = dead_in_modules(work.trainer, work.trainer.images[: config.probe])
        before = now if before is None else before
        for k, row in enumerate(rows):
            back, lost = before[k] & ~now[k], now[k] & ~before[k]
            assert (row["seed"], row["task"], row["step"]) == (k, 1 + unit // 4, unit + 1)
            assert row["step_in_task"] == 1 + unit % 4
            assert row["dead_units"] == pytest.approx(now[k].double().mean().item())
            assert row["died"] == pytest.approx(lost.double().mean().item())
            assert row["revived"] == pytest.approx(back.sum().item() / max(1, before[k].sum().item()))
            revivals, deaths = revivals + row["revived"], deaths + row["died"]
        before = now
    assert deaths > 0
    assert revivals > 0 or norm == "none"


def test_a_revival_run_resumes_after_any_epoch_bit_for_bit() -> None:
    run = ALL["revival"].runs(replace(CONFIGS["revival"], tasks=2, epochs=2))[1]
    unbroken: Any = run.start(CPU)
    expected = finished(unbroken)
    work, rows = run.start(CPU), []
    while work.done < work.total:
        rows += work.step()
        state = on_disk_and_back(work.state_dict())
        work = run.start(CPU)
        work.load_state_dict(state)
    assert rows == expected
    assert isinstance(work, RevivalRun)
    assert_same_parameters(work.trainer.parameters, unbroken.trainer.parameters, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": 0}, r"tasks=0.*at least 1"),
        ({"learning_rate": float("nan")}, r"learning_rate=nan.*between"),
        ({"shrink": 1.5}, r"shrink=1\.5.*between 0 and 1"),
        ({"redo_every": 0}, r"redo_every=0.*at least 1"),
        ({"images": 100, "batch_size": 128}, r"batch_size is 128, more than the 100 images"),
        ({"channels": ()}, r"channels is \(\): name at least one"),
    ],
)
def test_settings_out_of_range_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(fig4_config.DEMO, **change)


def test_arms_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no method 'Redo'; there are"):
        Arm("typo", method="Redo")
    with pytest.raises(ValueError, match="bare: projecting weights that no norm follows"):
        Arm("bare", project="step")


@pytest.mark.parametrize("pool_every", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 14)])
def test_networks_take_images_of_any_shape(shape: tuple[int, int, int], pool_every: int) -> None:
    x = torch.zeros(2, *shape)
    assert mlp(shape, 10, width=6, depth=3)(x).shape == (2, 10)
    assert cnn(shape, 10, channels=(2, 3, 4), hidden=6, pool_every=pool_every)(x).shape == (2, 10)


def test_images_that_pooling_would_use_up_are_refused() -> None:
    with pytest.raises(ValueError, match="8×8 pixels are too small for 4 poolings"):
        cnn((1, 8, 8), 10, channels=(2,) * 4, pool_every=1)


ONE_NETWORK_A_RUN = ("strings", "induction", "table1-language", "table1-cifar", "table1-imagenet", "fig3")


@pytest.mark.parametrize("name", ONE_NETWORK_A_RUN)
def test_seeds_can_be_added_where_each_is_a_run(name: str) -> None:
    """What was run of fewer seeds is taken up, not refused: its folder asks for the same settings."""
    experiment = experiments([name])[name]
    few, more = (
        {run.name: run.config for run in experiment.runs(replace(experiment.scales["demo"], seeds=seeds))}
        for seeds in (1, 2)
    )
    assert len(few) < len(more)
    assert few == {run: more[run] for run in few}
