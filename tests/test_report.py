"""The report: figures from rows without torch, one page that needs nothing else and hides nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synthetic_rows as synthetic
from nap.lab import report
from nap.lab.report import case_study, revival, robustness, statistics, twins, walk
from nap.lab.report.curves import curve, interval
from nap.lab.report.draw import SIZES, svg
from nap.lab.report.facts import find_groups, settings
from nap.lab.report.limits import limits
from nap.lab.report.panels import Figure
from nap.lab.rows import Rows

VOID = {"meta", "link", "br", "hr", "img", "input"}
MOST_BYTES_OF_A_PANEL = 150_000


class Page(HTMLParser):
    """Every element's tag and attributes, the text, and whether each opening has its closing."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


def titles(figure: Figure) -> list[str]:
    return [panel.title for panel in figure.panels]


def labels(figure: Figure) -> list[list[str]]:
    return [[line.label for line in panel.lines] for panel in figure.panels]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every experiment, small."""
    folder = tmp_path_factory.mktemp("lab") / "results"
    sizes: dict[str, dict[str, Any]] = {
        "fig1": {"tasks": 6, "seeds": 3},
        "fig2": {"measurements": 6, "seeds": 3},
        "fig4": {"tasks": 5, "seeds": 3, "streams": ["random labels"]},
        "revival": {"tasks": 3, "looks": 4, "seeds": 3},
        "walk": {"steps": 60, "every": 10, "seeds": 3},
    }
    for name, size in sizes.items():
        synthetic.write_experiment(folder, name, **size)
    return folder


@pytest.fixture(scope="module")
def page(results: Path) -> str:
    return report.command(results).read_text("utf-8")


# The page


def test_the_page_is_well_formed_and_has_every_experiment(page: str) -> None:
    parsed = Page(page)
    assert parsed.open == []
    assert page.startswith("<!DOCTYPE html>")
    for words in ("Figure 1", "Figure 2", "Figure 4", "Statistics", "ReLU revival", "Random-walk"):
        assert words in parsed.text
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [a["href"] for tag, a in parsed.elements if tag in ("a", "use") and "href" in a]
    assert links
    assert {str(link) for link in links} <= {f"#{name}" for name in ids}
    clips = set(re.findall(r"url\(#([^)]+)\)", page))
    assert clips
    assert clips <= set(ids)


def test_the_page_loads_nothing(page: str) -> None:
    assert "://" not in page
    assert "@import" not in page
    for tag, attributes in Page(page).elements:
        assert tag not in ("script", "iframe", "object", "embed", "img")
        assert "src" not in attributes
        assert not str(attributes.get("href", "#")).startswith(("/", "http", "file"))


def test_the_page_fits_a_phone(page: str) -> None:
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert page.count("<table") == page.count('class="scroll"') >= 5
    assert not re.search(r'<svg[^>]* (width|height)="', page)


def test_verdicts_are_counted_as_nap_claims_counts_them(results: Path, page: str) -> None:
    from nap.lab import claims

    verdicts = [e.verdict for rows in claims.read(results).values() for _, e in claims.judge(rows)]
    hold = verdicts.count(claims.Verdict.HOLDS)
    assert len(verdicts) > 20
    assert f"{hold} of {len(verdicts)} claims hold" in Page(page).text


def test_settings_versions_and_commands_are_told(page: str) -> None:
    text = Page(page).text
    for words in (
        "learning_rate",
        "0.001",
        "uses_norm",
        "abc1234567",
        "2.11.0",
        "cpu (x86_64)",
        "1 min 40 s",
        "finished; checkpoint.pt was damaged",
    ):
        assert words in text
    assert "nap run fig1 --scale demo" in text
    assert "nap run walk --scale demo" in text


def test_same_rows_same_page(results: Path, tmp_path: Path) -> None:
    first, again = (report.command(results / "walk-demo", tmp_path / name / "page.html") for name in "ab")
    assert first == tmp_path / "a" / "page.html"
    assert first.read_text("utf-8") == again.read_text("utf-8")
    assert [path.name for path in first.parent.iterdir()] == ["page.html"]


# Partial, broken and hostile folders


def test_an_empty_folder_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nap run fig1"):
        report.command(tmp_path)
    with pytest.raises(ValueError, match="is no folder"):
        report.command(tmp_path / "nowhere")


def test_a_partial_folder_says_what_is_missing(tmp_path: Path) -> None:
    rows = [row for row in synthetic.fig1(tasks=4, seeds=2) if row["arm"] == "NaP"]
    synthetic.write_run(
        tmp_path / "fig1-demo" / "nap", rows, experiment="fig1", finished=None, exit="stopped by SIGTERM"
    )
    broken = synthetic.write_run(tmp_path / "fig1-demo" / "none", [], experiment="fig1")
    (broken / "manifest.json").write_text('{"versions": ', "utf-8")
    text = Page(report.command(tmp_path).read_text("utf-8")).text
    assert "2 of 2 runs are not complete" in text
    assert "nap: it did not finish (stopped by SIGTERM)" in text
    assert re.search(r"none: manifest\.json cannot be read .*; it has no rows", text)
    assert "No rows for: no norm · LayerNorm · LayerNorm, rescaled each task · fresh · fresh, no norm" in text
    assert "Not in this folder:" in text
    assert "nap run fig2" in text
    assert "0 of 14 claims hold" in text
    assert "too few for an interval" in text


def test_a_torn_last_line_and_a_lone_rows_file_are_no_obstacle(tmp_path: Path) -> None:
    home = synthetic.write_run(tmp_path / "nap", synthetic.fig1(tasks=3, seeds=1), experiment="fig1")
    with (home / "rows.jsonl").open("a") as file:
        file.write('{"experiment": "fig1", "arm": "Na')
    for name in ("config.json", "manifest.json"):
        (home / name).unlink()
    text = Page(report.command(home).read_text("utf-8")).text
    assert "Figure 1" in text
    assert "config.json is missing; manifest.json is missing" in text


def test_rows_that_contradict_each_other_are_told_and_the_rest_is_drawn(tmp_path: Path) -> None:
    twice = [*synthetic.fig1(tasks=4, seeds=1), *synthetic.fig1(tasks=4, seeds=1)]
    synthetic.write_run(tmp_path / "fig1-demo" / "nap", twice, experiment="fig1")
    synthetic.write_experiment(tmp_path, "walk", steps=20, seeds=1)
    html = report.command(tmp_path).read_text("utf-8")
    assert "Not drawn: two rows have a 'accuracy' for seed 0 and task 1" in Page(html).text
    assert "Not judged: " in Page(html).text
    assert html.count('role="img"') == 10  # of the walk


def test_a_line_that_is_no_json_is_told(tmp_path: Path) -> None:
    home = synthetic.write_run(tmp_path / "fig1-demo" / "nap", [], experiment="fig1")
    (home / "rows.jsonl").write_text("{]\n", "utf-8")
    text = Page(report.command(tmp_path).read_text("utf-8")).text
    assert "line 1 is no JSON" in text
    assert "No rows yet" in text


def test_all_text_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>&$x$'
    rows = [
        row | {"arm": evil, "stream": evil, "network": evil, "method": evil}
        for row in synthetic.fig4(tasks=4, seeds=1, methods=["none"])
    ]
    rows = rows[:8]
    assert len({(row["nap"], row["task"]) for row in rows}) == len(rows)
    about = {"experiment": "fig4", "config": {evil: evil}, "scale": evil, "exit": evil, "finished": None}
    synthetic.write_run(tmp_path / "a" / "b", rows, command=["nap", "run", evil], commit=evil, **about)  # type: ignore[arg-type]
    html = report.command(tmp_path).read_text("utf-8")
    assert "<script" not in html
    assert "alert(&quot;x&quot;)" in html
    assert Page(html).open == []
    assert Page(html).text.count(evil) >= 10


def test_an_experiment_without_a_figure_is_still_listed(tmp_path: Path) -> None:
    synthetic.write_run(tmp_path / "fig9-demo" / "a", [{"experiment": "fig9", "seed": 0}], experiment="fig9")
    text = Page(report.command(tmp_path).read_text("utf-8")).text
    assert "fig9-demo: fig9" in text
    assert "no figure for this experiment" in text


def test_scales_are_kept_apart(tmp_path: Path) -> None:
    for scale in ("demo", "small"):
        rows = synthetic.walk(steps=40, seeds=3)
        synthetic.write_run(tmp_path / f"walk-{scale}" / "walks", rows, experiment="walk", scale=scale)
    assert [(g.folder, g.scale) for g in find_groups(tmp_path)] == [
        ("walk-demo", "demo"),
        ("walk-small", "small"),
    ]
    html = report.command(tmp_path).read_text("utf-8")
    assert html.count("Dead indices, RMSProp</text>") == 2


def test_shared_and_different_settings(tmp_path: Path) -> None:
    for name, arm in (("a", "NaP"), ("b", "LayerNorm")):
        config = {"seeds": 5, "arm": arm, "widths": [8, 8]}
        synthetic.write_run(tmp_path / "x" / name, [], experiment="fig1", config=config)
    (group,) = find_groups(tmp_path)
    assert settings(group.runs) == (
        {"seeds": "5", "widths": "8, 8"},
        {"a": {"arm": "NaP"}, "b": {"arm": "LayerNorm"}},
    )


# Figures


def test_fig1_has_the_four_panels_of_the_paper() -> None:
    (figure,) = case_study.figures(Rows(synthetic.fig1(tasks=5)))
    arms = ["no norm", "LayerNorm", "LayerNorm, rescaled each task", "NaP"]
    assert titles(figure) == ["Online accuracy", "Parameter norm", "Gradient norm", "Jacobian norm"]
    assert labels(figure) == [arms] * 4
    assert figure.columns == 4
    assert [panel.log for panel in figure.panels] == [False, True, True, True]
    assert list(figure.legend) == [*arms, "fresh initialisation", "fresh initialisation, no norm"]
    level = figure.panels[0].references[0].y
    fresh = Rows(synthetic.fig1(tasks=5)).where(arm="fresh")
    assert level == pytest.approx(np.mean(fresh.values("accuracy")))


def test_fig2_has_gaps_and_the_learning_curves_of_both_twins() -> None:
    (figure,) = twins.figures(Rows(synthetic.fig2(measurements=8)))
    modes = ["exact", "per layer", "global", "none"]
    assert titles(figure) == ["Loss gap", "Accuracy gap", "Function distance", "Accuracy of both twins"]
    assert labels(figure) == [modes, modes, modes, [*modes, "free twin"]]
    gap = figure.panels[0]
    assert gap.log
    assert gap.zero is not None
    assert ">0</text>" in svg(gap, "gap", 4)  # the exact twin has no gap at all, and the axis says zero
    np.testing.assert_array_equal(gap.lines[0].curve.y, gap.zero)


def test_fig2_shows_free_twins_apart_where_they_differ() -> None:
    rows = Rows({**row, "accuracy_free": len(row["arm"]) / 10} for row in synthetic.fig2(measurements=4))
    (figure,) = twins.figures(rows)
    assert labels(figure)[3][4:] == [
        f"free twin, {mode}" for mode in ("exact", "per layer", "global", "none")
    ]


def test_fig4_is_a_grid_of_networks_without_and_with_nap_for_each_stream() -> None:
    figures = robustness.figures(Rows(synthetic.fig4(tasks=4, seeds=3)))
    assert [figure.title for figure in figures] == ["Random labels", "Permuted labels"]
    for figure in figures:
        assert titles(figure) == ["MLP without NaP", "MLP with NaP", "CNN without NaP", "CNN with NaP"]
        assert labels(figure) == [list(synthetic.METHODS)] * 4
        assert figure.columns == 2
        assert limits(figure.panels[0]) == limits(figure.panels[1])


def test_stats_has_four_statistics_without_and_with_nap() -> None:
    figures = statistics.figures(Rows(synthetic.fig4(tasks=4, seeds=3)))
    assert len(figures) == 4
    assert [figure.folded for figure in figures] == [False, True, True, True]
    words = ["Linearized units", "Feature rank", "Parameter norm", "Gradient norm"]
    assert titles(figures[0]) == [f"{w}, {nap} NaP" for nap in ("without", "with") for w in words]
    without, with_nap = figures[0].panels[2], figures[0].panels[6]
    assert without.log is with_nap.log is True
    assert limits(without) == limits(with_nap)


def test_revival_marks_the_changes_of_task() -> None:
    (figure,) = revival.figures(Rows(synthetic.revival(tasks=4, looks=5)))
    assert titles(figure) == [
        "Dead units, Adam",
        "Dead units, SGD",
        "Revived since last look, Adam",
        "Revived since last look, SGD",
    ]
    assert labels(figure) == [["no norm", "LayerNorm", "RMSNorm"]] * 4
    assert all(panel.marks == [50, 100, 150] for panel in figure.panels)


def test_walk_has_a_curve_for_each_model_and_small_multiples() -> None:
    dead, paths = walk.figures(Rows(synthetic.walk(steps=100)))
    assert titles(dead)[:2] == ["Dead indices, gradient descent", "Dead indices, RMSProp"]
    assert labels(dead) == [["no norm", "norm", "norm + centring"]] * 4
    assert titles(paths) == walk.ARMS
    assert all(len(panel.lines) == 8 for panel in paths.panels)
    assert all(panel.shade_below_zero for panel in paths.panels)


FAMILIES: dict[str, tuple[Callable[..., list[Figure]], Callable[..., object]]] = {
    "fig1": (case_study.figures, synthetic.fig1),
    "fig2": (twins.figures, synthetic.fig2),
    "fig4": (robustness.figures, synthetic.fig4),
    "stats": (statistics.figures, synthetic.fig4),
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
        for panel in figure.panels:
            assert not panel.lines
            assert re.match("No rows with “[a-z_]+” yet.", panel.note)
    name = "fig4" if family == "stats" else family
    synthetic.write_run(tmp_path / "x" / "y", [{**row} for row in bare][:3], experiment=name)
    assert Page(report.command(tmp_path).read_text("utf-8")).open == []


def test_a_metric_that_one_arm_lacks_is_noted() -> None:
    rows = Rows(
        {**row, **({"jacobian_norm": None} if row["arm"] == "NaP" else {})} for row in synthetic.fig1(tasks=4)
    )
    (figure,) = case_study.figures(rows)
    assert figure.panels[3].note == "No “jacobian_norm” for NaP."


def test_an_arm_that_the_paper_lacks_is_drawn_too() -> None:
    rows = Rows({**row, "arm": row["arm"].replace("NaP", "mine")} for row in synthetic.fig1(tasks=4))
    (figure,) = case_study.figures(rows)
    assert "mine" in labels(figure)[0]
    assert len({look.colour for look in figure.legend.values()}) >= 4


@pytest.mark.parametrize("family", ["fig1", "fig4"])
def test_panels_at_the_paper_s_scale_stay_small(family: str) -> None:
    figures, rows = FAMILIES[family]
    only = {} if family == "fig1" else {"streams": ["random labels"]}
    figure = figures(Rows(rows(tasks=500, seeds=3, **only)))[0]  # type: ignore[arg-type]
    assert all(len(line.curve.raw_x) for line in figure.panels[0].lines)  # smoothed in front of the raw line
    assert len(svg(figure.panels[0], "a", figure.columns)) < MOST_BYTES_OF_A_PANEL


@pytest.mark.parametrize("columns", SIZES)
def test_text_in_figures_is_text(columns: int) -> None:
    (figure,) = case_study.figures(Rows(synthetic.fig1(tasks=12)))
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
    np.testing.assert_allclose(interval(values), [half])
    found = curve(values, np.array([1]))
    np.testing.assert_allclose(found.high - found.y, [half])


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


def test_a_level_that_hardly_moves_looks_flat() -> None:
    rows = Rows({**row, "parameter_norm": 20 + row["task"] * 1e-6} for row in synthetic.fig1(tasks=4))
    (figure,) = case_study.figures(rows)
    low, high = limits(figure.panels[1])
    assert low < 19.2
    assert high > 20.8


def test_one_wild_band_does_not_squeeze_the_curves() -> None:
    rows = Rows(
        {**row, "parameter_norm": row["task"] + (100.0 if row["seed"] else -200.0)}
        for row in synthetic.fig1(4, 3)
    )
    (figure,) = case_study.figures(rows)
    low, high = limits(figure.panels[1])
    assert high - low < 2.5 * 3  # the means rise by three


# Without torch


def test_the_report_is_made_without_torch(results: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None  # any import of it fails\n"
        "from nap.lab.report import command\n"
        "command(*sys.argv[1:])\n"
        "assert not [name for name in sys.modules if name.startswith('torch.')]\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    paths = [str(results / "walk-demo"), str(tmp_path / "page.html")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()
