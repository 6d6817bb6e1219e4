"""Experiments are found by name: the paper's packages, installed ones, those of a script; without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nap.lab.experiments import BUILT_IN, MODULES, experiments, load, readers
from nap.lab.experiments.experiment import Experiment

SRC = Path(__file__).resolve().parents[3] / "src"
COUNTS_FILES = """
import sys
from nap.lab.cli.main import main
code = main(sys.argv[1:])
loaded = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
print("lab files:", len({file for file in loaded if "/nap/lab/" in file}), "torch:", "torch" in sys.modules)
sys.exit(code)
"""
MOST_FILES = 70  # of the lab that `nap run fig1 --report` reads
MINE = '''
"""An experiment that counts."""

from dataclasses import dataclass

from nap.lab.experiments.experiment import Experiment


@dataclass(frozen=True)
class CountingConfig:
    """Settings of counting."""

    seeds: int = 3
    """counters"""
    steps: int = 8
    """how far they count"""


EXPERIMENT = Experiment(
    name="counting",
    title="counting (of nobody's paper)",
    shows="Counters rise.",
    scales={"demo": CountingConfig()},
    package=__name__,
)
'''
MY_RUNS = '''
"""The run that counts."""

from nap.lab.experiments.experiment import Run


class Counting:
    unit = "steps"

    def __init__(self, config):
        self.config, self.total, self.done, self.steps_per_unit = config, config.steps, 0, config.seeds

    def step(self):
        self.done += 1
        common = {"experiment": "counting", "arm": "up", "task": self.done}
        return [common | {"seed": seed, "count": self.done + seed} for seed in range(self.config.seeds)]

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def runs(config):
    return [Run("up", config, lambda device: Counting(config))]
'''
MY_CLAIMS = '''
"""What counting shows."""

from nap.lab.claims.claim import Claim, Region
from nap.lab.claims.effects import decide


def rises(samples):
    series = samples.series("count", arm="up")
    return decide("last count minus first", series.last() - series.first(), Region(low=0), unit="counts")


CLAIMS = (Claim("counting.rises", "The count rises.", "nowhere", rises),)
'''
MY_FIGURE = '''
"""Counts over tasks."""

from nap.lab.report.panels import Figure, Measure, arms_of, panel
from nap.lab.report.style import GREEN, LineStyle

EXPECTED_ARMS = ("up",)
STYLES = {"up": LineStyle(GREEN)}


def figures(rows):
    counts = panel(rows, Measure("count", "My counts"), arms_of(rows, STYLES))
    return [Figure("counts", [counts], columns=2, caption="Counts.")]

'''


def nap(
    *words: str, paths: tuple[Path, ...] = (), code: str = COUNTS_FILES
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with more folders to import from."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SRC, *paths))), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, timeout=600
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder such as pip installs to, with a distribution that has an experiment."""
    package, about = tmp_path / "site" / "mine", tmp_path / "site" / "mine-1.0.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    parts = {"__init__": MINE, "runs": MY_RUNS, "claims": MY_CLAIMS, "figure": MY_FIGURE}
    for name, text in parts.items():
        (package / f"{name}.py").write_text(text.lstrip(), "utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nap.experiments]\ncounting = mine\n")
    return package.parent


def test_every_package_of_the_paper_is_found_in_the_order_of_the_paper() -> None:
    found = list(experiments(BUILT_IN))
    assert set(found) == set(BUILT_IN)
    assert found[:4] == ["fig1", "fig2", "fig3", "fig4"]
    orders = [load(name).order for name in found]
    assert orders == sorted(set(orders)), "two experiments have the same place"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_package_has_all_parts(name: str) -> None:
    experiment = load(name)
    assert (experiment.name, experiment.package) == (name, MODULES[name])
    assert {claim.experiment for claim in experiment.claims} == {name}
    assert experiment.figure is not None
    assert set(experiment.scales) == {"demo", "small", "paper"}
    for reader in readers(name)[1:]:
        assert reader.folder == name
        assert not reader.readers


def test_lists_claims_and_reports_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"experiment": "fig1", "arm": "NaP", "seed": 0, "task": 1}\n')
    folder = str(tmp_path)
    for words in (["list"], ["claims", folder], ["report", folder]):
        done = nap(*words)
        assert "torch: False" in done.stdout, done.stdout + done.stderr
    everything = "from nap.lab.experiments import experiments\n" + (
        "for each in experiments().values(): each.claims, each.figure\n"
        "import sys; print('torch:', 'torch' in sys.modules)"
    )
    assert nap(code=everything).stdout == "torch: False\n"


def test_a_run_with_its_report_reads_few_files(tmp_path: Path) -> None:
    tiny = ["--seeds", "2", "--tasks", "2", "--epochs", "1", "--images", "32", "--width", "8", "--depth", "1"]
    done = nap("run", "fig1", "--report", *tiny, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    count = int(done.stdout.rpartition("lab files: ")[2].split()[0])
    assert 40 < count <= MOST_FILES


def test_an_installed_experiment_is_listed_run_swept_and_reported(site: Path, tmp_path: Path) -> None:
    results, swept = str(tmp_path / "results"), str(tmp_path / "swept")
    listed = nap("list", paths=(site,))
    assert "counting (of nobody's paper)" in listed.stdout
    assert "torch: False" in listed.stdout
    ran = nap("run", "counting", "--out", results, "--report", paths=(site,))
    assert ran.returncode == 0, ran.stderr
    assert "The count rises." in ran.stdout
    judged = nap("claims", results, paths=(site,))
    assert "1 claim: 1 hold" in judged.stdout, judged.stdout + judged.stderr
    assert "My counts" in (tmp_path / "results" / "counting-demo" / "report.html").read_text("utf-8")
    done = nap("sweep", "counting", "--out", swept, "--workers", "1", paths=(site,))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [Path(home) / "counting-demo" / "up" / "rows.jsonl" for home in (results, swept)]
    assert rows[0].read_bytes() == rows[1].read_bytes()


def test_what_cannot_be_loaded_is_named_and_the_others_still_run(site: Path) -> None:
    (site / "mine" / "__init__.py").write_text("import nonexistent\n")
    done = nap("run", "counting", "--help", paths=(site,))
    assert done.returncode == 2
    assert "the experiment counting cannot be loaded from mine" in done.stderr
    assert "nonexistent" in done.stderr
    assert nap("run", "walk", "--help", paths=(site,)).returncode == 0


def test_another_name_in_the_module_is_refused(site: Path) -> None:
    (site / "mine-1.0.dist-info" / "entry_points.txt").write_text("[nap.experiments]\ncounts = mine\n")
    done = nap("run", "counts", paths=(site,))
    assert done.returncode == 2
    assert "EXPERIMENT in mine is not named 'counts'" in done.stderr


def test_no_installed_experiment_takes_a_name_of_the_paper_s(site: Path) -> None:
    (site / "mine-1.0.dist-info" / "entry_points.txt").write_text("[nap.experiments]\nfig1 = mine\n")
    done = nap("list", paths=(site,))
    assert "mine calls its experiment 'fig1'" in done.stderr
    assert "case study" in done.stdout


def test_an_experiment_says_where_its_runs_are() -> None:
    with pytest.raises(ValueError, match=r"mine: say where its runs are: package=__name__, or runs="):
        Experiment("mine", "", "", {})
