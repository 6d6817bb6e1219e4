"""The report's figures: the panels and arms of the paper's, and curves that say what the rows say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import synthetic_rows as synthetic
from nap.lab import report
from nap.lab.experiments.fig1 import figure as fig1
from nap.lab.experiments.fig2 import figure as fig2
from nap.lab.experiments.fig4 import figure as fig4
from nap.lab.experiments.revival import figure as revival
from nap.lab.experiments.stats import figure as stats
from nap.lab.experiments.walk import figure as walk
from nap.lab.report.curves import curve, interval
from nap.lab.report.draw import SIZES, svg
from nap.lab.report.panels import Figure, limits
from nap.lab.rows import Rows

MOST_BYTES_OF_A_PANEL = 150_000


def titles(figure: Figure) -> list[str]:
    return [panel.title for panel in figure.panels]


def labels(figure: Figure) -> list[list[str]]:
    return [[line.label for line in panel.lines] for panel in figure.panels]


def test_fig1_has_the_four_panels_of_the_paper() -> None:
    (figure,) = fig1.figures(Rows(synthetic.fig1(tasks=5)))
    arms = ["no norm", "LayerNorm", "LayerNorm, rescaled each task", "NaP"]
    assert titles(figure) == ["Online accuracy", "Parameter norm", "Gradient norm", "Jacobian norm"]
    assert labels(figure) == [arms] * 4
    assert figure.columns == 4
    assert [panel.log for panel in figure.panels] == [False, True, True, True]
    assert list(figure.legend) == [*arms, "fresh initialisation", "fresh initialisation, no norm"]
    level = figure.panels[0].references[0].y
    fresh = Rows(synthetic.fig1(tasks=5)).where(arm="fresh")
    assert level == pytest.approx(np.mean(fresh.values("accuracy")))


def test_fig2_has_the_paper_s_panels_from_layerwise_to_all_curves_and_the_gaps_below() -> None:
    figure, gaps = fig2.figures(Rows(synthetic.fig2(measurements=8)))
    modes = ["exact", "per layer", "global", "not rescaled"]
    assert titles(figure)[0] == "Loss, rates rescaled per layer"  # "leftmost", says the caption in the paper
    assert labels(figure) == [*(["free twin", mode] for mode in modes[1:]), ["free twin", *modes]]
    assert len({limits(panel) for panel in figure.panels[:3]}) == 1
    assert labels(gaps) == [modes, modes, modes, ["free twin"]]
    loss, accuracy, _, _ = gaps.panels
    np.testing.assert_array_equal(loss.lines[0].curve.y, loss.zero)
    assert ">0</text>" in svg(loss, "gap", 4)  # the exact twin has no gap at all, and the axis says zero
    assert accuracy.lines[3].curve.y.max() > 1  # in points


def test_fig4_is_a_grid_of_networks_without_and_with_nap_for_each_stream() -> None:
    figures = fig4.figures(Rows(synthetic.fig4(tasks=4, seeds=3)))
    assert [figure.title for figure in figures] == ["Random labels", "Permuted labels"]
    for figure in figures:
        assert titles(figure) == ["MLP without NaP", "MLP with NaP", "CNN without NaP", "CNN with NaP"]
        assert labels(figure) == [["no other method", *synthetic.METHODS[1:]]] * 4
        assert figure.columns == 2
        assert limits(figure.panels[0]) == limits(figure.panels[1])


def test_stats_has_four_statistics_without_and_with_nap() -> None:
    figures = stats.figures(Rows(synthetic.fig4(tasks=4, seeds=3)))
    assert len(figures) == 4
    assert [figure.folded for figure in figures] == [False, True, True, True]
    words = ["Linearized units", "Feature rank", "Parameter norm", "Gradient norm"]
    assert titles(figures[0]) == [f"{w} {nap} NaP" for w in words for nap in ("without", "with")]
    without, with_nap = figures[0].panels[4:6]
    assert without.log is with_nap.log is True
    assert limits(without) == limits(with_nap)


def test_gradients_that_are_all_zero_without_nap_are_drawn_at_zero() -> None:
    rows = [row | ({} if row["nap"] else {"gradient_norm": 0.0}) for row in synthetic.fig4(4, 3)]
    dead, alive = stats.figures(Rows(rows))[0].panels[6:8]
    spread = [row | {"gradient_norm": row["gradient_norm"] * 100 ** row["task"]} for row in rows]
    on_log = stats.figures(Rows(spread))[0].panels[6]
    assert [panel.log for panel in (dead, alive, on_log)] == [False, False, True]
    assert dead.lines[0].curve.y.max() == 0.0
    np.testing.assert_allclose(on_log.lines[0].curve.y, on_log.zero)


def test_fig4_names_what_is_missing_at_the_level_where_it_is() -> None:
    rows = Rows(synthetic.fig4(tasks=1, seeds=1, streams=["random labels"]))
    left_out = {("L2", True), ("ReDo", True), ("ReDo", False)}
    some = Rows(row for row in rows.where(network="mlp") if (row["method"], row["nap"]) not in left_out)
    assert fig4.missing(some) == [
        "permuted labels",
        "CNN on random labels",
        "MLP on random labels: L2 with NaP",
        "MLP on random labels: ReDo",
    ]
    assert fig4.missing(Rows(synthetic.fig4(tasks=1, seeds=1))) == []


def test_revival_marks_the_changes_of_task_and_counts_revivals_by_task() -> None:
    (figure,) = revival.figures(Rows(synthetic.revival(tasks=4, looks=5)))
    words = "Dead units alive at the next measurement"
    assert titles(figure) == ["Dead units, Adam", "Dead units, SGD", f"{words}, Adam", f"{words}, SGD"]
    assert labels(figure) == [["no norm", "LayerNorm", "RMSNorm"]] * 4
    assert [list(panel.marks) for panel in figure.panels] == [[50, 100, 150]] * 2 + [[], []]
    assert list(figure.panels[2].lines[0].curve.x) == [1, 2, 3, 4]


def test_revival_by_task_is_weighted_by_dead_units() -> None:
    measured = [(1, 0.5, 0.0), (1, 0.1, 0.8), (1, 0.1, 0.0), (2, 0.0, 1.0)]
    rows = [
        {"norm": "none", "optimizer": "Adam", "seed": 0, "step": step, "task": task}
        | {"dead_units": dead, "revived": revived}
        for step, (task, dead, revived) in enumerate(measured)
    ]
    by_task = revival.revival_by_task(Rows(reversed(rows)))  # whatever the order of the lines
    assert by_task.values("task") == [1, 2]
    np.testing.assert_allclose(by_task.values("revived"), [0.4 / 0.6, 1.0])


def test_walk_has_a_curve_for_each_model_and_small_multiples() -> None:
    dead, paths = walk.figures(Rows(synthetic.walk(steps=100)))
    assert titles(dead)[:2] == ["Dead indices, gradient descent", "Dead indices, RMSProp"]
    assert labels(dead) == [["no norm", "norm", "norm + centring"]] * 4
    assert titles(paths) == list(walk.EXPECTED_ARMS)
    assert all(len(panel.lines) == 8 for panel in paths.panels)
    assert all(panel.shade_below_zero for panel in paths.panels)


FAMILIES: dict[str, tuple[Callable[..., list[Figure]], Callable[..., object]]] = {
    "fig1": (fig1.figures, synthetic.fig1),
    "fig2": (fig2.figures, synthetic.fig2),
    "fig4": (fig4.figures, synthetic.fig4),
    "stats": (stats.figures, synthetic.fig4),
    "revival": (revival.figures, synthetic.revival),
    "walk": (walk.figures, synthetic.walk),
}
KEYS = (
    "experiment",
    "arm",
    "seed",
    "task",
    "step",
    "network",
    "stream",
    "method",
    "nap",
    "norm",
    "optimizer",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_metrics_are_named_in_the_panel_and_do_not_crash(family: str, tmp_path: Path) -> None:
    figures, rows = FAMILIES[family]
    bare = Rows({key: row[key] for key in KEYS if key in row} for row in rows(seeds=1))  # type: ignore[attr-defined]
    for figure in figures(bare):
        assert figure.panels
        for panel in figure.panels:
            assert not panel.lines
            assert re.match("No rows with seed, “(task|step)” and “[a-z_]+” yet.", panel.note)
    name = "fig4" if family == "stats" else family
    synthetic.write_run(tmp_path / "x" / "y", [{**row} for row in bare][:3], experiment=name)
    assert 'class="panel empty"' in report.command(tmp_path).read_text("utf-8")


def test_a_metric_that_one_arm_lacks_is_noted() -> None:
    rows = Rows(
        {**row, **({"jacobian_norm": None} if row["arm"] == "NaP" else {})} for row in synthetic.fig1(tasks=4)
    )
    (figure,) = fig1.figures(rows)
    assert figure.panels[3].note == "Not measured for NaP."


def test_an_arm_that_the_paper_lacks_is_drawn_too() -> None:
    rows = Rows({**row, "arm": row["arm"].replace("NaP", "mine")} for row in synthetic.fig1(tasks=4))
    (figure,) = fig1.figures(rows)
    assert "mine" in labels(figure)[0]
    assert len({style.colour for style in figure.legend.values()}) >= 4


@pytest.mark.parametrize("family", ["fig1", "fig4"])
def test_panels_at_the_paper_s_scale_stay_small(family: str) -> None:
    figures, rows = FAMILIES[family]
    only = {} if family == "fig1" else {"streams": ["random labels"]}
    figure = figures(Rows(rows(tasks=500, seeds=3, **only)))[0]  # type: ignore[arg-type]
    assert all(len(line.curve.raw_x) for line in figure.panels[0].lines)  # smoothed in front of the raw line
    assert len(svg(figure.panels[0], "a", figure.columns)) < MOST_BYTES_OF_A_PANEL


@pytest.mark.parametrize("columns", SIZES)
def test_text_in_figures_is_text(columns: int) -> None:
    (figure,) = fig1.figures(Rows(synthetic.fig1(tasks=12)))
    drawn = svg(figure.panels[0], "a", columns)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert "Online accuracy" in texts
    assert "task" in texts
    assert "80%" in texts
    assert "font-family" not in drawn  # the page's own


# Curves


def test_the_band_is_student_s_interval() -> None:
    values = np.random.default_rng(0).normal(size=(5, 1))
    half = 2.776 * values.std(ddof=1) / np.sqrt(5)  # t of four degrees of freedom
    np.testing.assert_allclose(interval(values), [half], rtol=1e-3)
    found = curve(values, np.array([1]))
    np.testing.assert_allclose(found.high - found.y, [half], rtol=1e-3)


def test_a_seed_that_stops_early_does_not_break_the_curve() -> None:
    values = np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan], [2.0, 4.0, np.nan]])
    found = curve(values, np.array([1, 2, 3]))
    np.testing.assert_allclose(found.y, [2.0, 3.0])
    assert found.seeds == 3
    assert np.isnan(found.low[1])  # two seeds are too few for an interval


def test_smoothing_keeps_the_level_and_the_raw_mean() -> None:
    values = 5 + np.random.default_rng(0).normal(size=(4, 500))
    found = curve(values, np.arange(500))
    assert len(found.x) <= 120
    assert found.y.mean() == pytest.approx(values.mean(), abs=0.02)
    assert found.y.std() < found.raw_y.std()
    steps = curve(values[:, :100], np.arange(100), smooth=False)
    np.testing.assert_allclose(steps.y, values[:, :100].mean(0))


def test_log_curves_average_logarithms() -> None:
    found = curve(np.array([[1.0], [10.0], [100.0]]), np.array([1]), log=True)
    np.testing.assert_allclose(found.y, [10.0])
    np.testing.assert_allclose(found.high * found.low, [100.0])


def test_a_seed_at_zero_leaves_a_log_curve_without_an_interval_there() -> None:
    found = curve(np.array([[1.0, 0.0], [2.0, 8.0], [4.0, 8.0]]), np.array([1, 2]), log=True, zero=0.125)
    np.testing.assert_allclose(found.y, [2.0, 2.0])
    assert np.isnan(found.high).tolist() == [False, True]


def test_what_is_never_negative_gets_no_negative_axis() -> None:
    rows = Rows({**row, "accuracy": 0.004 * (row["seed"] == 0)} for row in synthetic.fig1(tasks=4, seeds=3))
    panel = fig1.figures(rows)[0].panels[0]
    assert panel.lines[0].curve.low.min() == 0.0
    low, high = limits(panel)
    assert -0.005 < low < 0 < 0.03 < high


def test_a_level_that_hardly_moves_looks_flat() -> None:
    rows = Rows({**row, "parameter_norm": 20 + row["task"] * 1e-6} for row in synthetic.fig1(tasks=4))
    (figure,) = fig1.figures(rows)
    low, high = limits(figure.panels[1])
    assert low < 19.2
    assert high > 20.8


def test_one_wild_band_does_not_squeeze_the_curves() -> None:
    rows = Rows(
        {**row, "parameter_norm": row["task"] + (100.0 if row["seed"] else -200.0)}
        for row in synthetic.fig1(4, 3)
    )
    (figure,) = fig1.figures(rows)
    low, high = limits(figure.panels[1])
    assert high - low < 2.5 * 3  # the means rise by three
