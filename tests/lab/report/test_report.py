"""The report: figures from rows without torch, one page that needs nothing else and hides nothing."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import synthetic_rows as synthetic
from nap.lab import report
from nap.lab.experiments import load
from nap.lab.report.facts import find_groups, settings

VOID = {"meta", "link", "br", "hr", "img", "input"}


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
    for name in ("fig1", "fig2", "fig4", "stats", "revival", "walk"):
        assert load(name).title[1:] in parsed.text
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

    verdicts = [e.verdict for rows in claims.read(results).values() for _, e in claims.evaluate(rows)]
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
    first = report.command(results / "walk-demo", tmp_path / "a" / "page.html")
    again = report.command(results / "walk-demo", tmp_path / "a")  # a folder: a page of the usual name
    assert first == tmp_path / "a" / "page.html"
    assert first.read_text("utf-8") == again.read_text("utf-8")
    assert sorted(path.name for path in first.parent.iterdir()) == ["page.html", "report.html"]


def test_a_full_disk_leaves_the_old_page_and_no_part_of_a_new_one(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.html"
    target.write_text("old", "utf-8")

    def full(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text.encode(encoding)[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        report.command(results / "walk-demo", target)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert target.read_text("utf-8") == "old"


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
    assert re.search(r"none: manifest\.json is damaged .*; it has no rows", text)
    assert (
        "No rows for: “no norm” · “LayerNorm” · “LayerNorm, rescaled each task” · “fresh” · “fresh, no norm”"
        in text
    )
    assert "Not in this folder:" in text
    assert "nap run fig2" in text
    assert "0 of 15 claims hold" in text
    assert "too few for an interval" in text


def test_folders_with_spaces_one_seed_and_runs_at_work(tmp_path: Path) -> None:
    home = tmp_path / "my results" / "a b"
    synthetic.write_experiment(home, "fig4", tasks=2, seeds=1, streams=["random labels"])
    synthetic.write_experiment(home, "revival", tasks=2, seeds=1)
    half = [row for row in synthetic.walk(steps=60, seeds=1) if row["step"] <= 30]
    synthetic.write_run(home / "walk-demo" / "walks", half, experiment="walk", finished=None, exit=None)
    path = report.command(home)
    assert path == home / "report.html"
    text = Page(path.read_text("utf-8")).text
    assert "Lines: 1 seed, too few for an interval." in text
    assert "walks: it did not finish (still at work, or killed)" in text
    assert "No rows for: “permuted labels”" in text
    assert "From walk-demo · scale demo · 1 seed · run again: nap run walk --scale demo" in text


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
    assert "No verdicts: " in Page(html).text
    assert html.count('role="img"') == 10  # of the walk


def test_numbers_that_are_none_leave_gaps(tmp_path: Path) -> None:
    bad = (math.nan, None, math.inf, None, -math.inf)
    for name, rows in synthetic.EXPERIMENTS.items():
        spoilt = [
            {k: bad[i % 5] if isinstance(value, float) and i % 3 == 0 else value for k, value in row.items()}
            for i, row in enumerate(rows(seeds=3))  # type: ignore[operator]
        ]
        synthetic.write_run(tmp_path / name / "a", spoilt, experiment=name)
    html = report.command(tmp_path).read_text("utf-8")
    assert html.count('role="img"') >= 50
    assert "Not drawn" not in html
    assert not re.search(r' d="[^"]*(nan|inf)', html)


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
