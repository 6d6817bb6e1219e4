"""Some hundred command lines that make no sense: each is run_command in words, and none leaves a folder."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType

import pytest

from nap.lab.cli.limits import MAX_SIZES, MAY_BE_INFINITE, check_settings
from nap.lab.cli.main import BAD_USAGE, OK, PROBLEMS, main
from nap.lab.experiments import MODULES, experiments, running
from nap.lab.launch import command
from nap.lab.options import RunOptions

HUGE = str(10**30)
NUMBERS = ("x", "", "nan", "1.5e400")
SETTINGS = [  # of experiments
    *(f"tiny --seeds {value}" for value in ("-1", "0", "1.5", HUGE, "x", "nan", "1e3", "100000")),
    *(f"tiny --steps {value}" for value in ("0", "-5", HUGE, "10001")),
    *(f"tiny --rate {value}" for value in ("nan", "inf", "-inf", "2", "x")),
    *(f"tiny --mode {value}" for value in ("nonsense", "", "Calmer")),
    *(f"tiny --hidden-layers {value}" for value in ("x", "1.5")),
    *(f"walk --width {value}" for value in (HUGE, "1", "100000")),
    *(f"fig1 --data {value}" for value in ("nonsense", "", "/", "text8", "../digits", "\u2603")),
    "fig1 --seeds 10001",
    "fig1 --first-seed 10000000",
    f"fig1 --images {HUGE}",
    "fig1 --channels 70000 8",
    *(f"table1-language --text {value}" for value in ("nonsense", "", "/", "~nobody-here/x")),
    *(f"table1-language --tokenizer {value}" for value in ("nonsense", "/", "bpe-1", "bpe-99999999999")),
    *(f"table1-language --exams {value}" for value in ("nonsense", "=", "a=", "a=nowhere", "c4")),
    f"table1-language --text {'x' * 300}",
    f"table1-language --eval-sets {'x' * 300}",
    "table1-language --weight-decay inf",
    "fig2 --channels -1",
    "fig2 --channels",
    "fig3 --v-max 1e300",
    "fig3 --tuned-on x",
    "fig4 --l2 1e300",
    "fig5-sequential --games",
    "minatar-sequential --games",
    "fig3 --games nonsense",
    "fig3 --v-max inf",
    "strings --forms nonsense",
    "strings --forms 0x0+0",
    "induction --forms -1x5+5",
    "",
    "nonsense",
    "tiny nonsense",
    "tiny --nonsense 3",
    "tiny --seeds",
    "tiny --seeds 1 2",
    "tiny stray --seeds 1",
    "--seeds 3",
    "tiny ---",
    "tiny --",
    "tiny -x",
]
HOW = [
    *(f"--scale {value}" for value in ("nonsense", "")),
    *(f"--device {value}" for value in ("gpu", "", "cuda")),
    *(f"--threads {value}" for value in ("-1", "x", "1.5", HUGE)),
    *(
        f"--shard {value}"
        for value in ("0/1", "2/1", "1/0", "x", "", "1", "-1/2", "3/3", "1/2/3", f"1/{HUGE}")
    ),
    *(f"--out {value}" for value in ("a-file", "a-file/below", "/proc/nowhere", "/dev/null/x", "x" * 300)),
    *(f"--tuned {value}" for value in ("nowhere", "a-file", "a-folder", "", "odd.json", "deep.json")),
    *(f"--time-limit {value}" for value in ("0", "-1", "nan", "inf", "x")),
    "--report 7",
    "--force 7",
    "--tensorboard perhaps",
    "--parallel nonsense",
]
SWEEP = [
    *(f"--workers {value}" for value in ("-1", "x", HUGE)),
    *(f"--per-gpu {value}" for value in ("0", "-1", "x", "2", HUGE)),
    *(f"--gpus {value}" for value in ("0", "-1", "x", HUGE)),
    *(f"--retries {value}" for value in ("-1", "x", HUGE)),
    *(f"--engine {value}" for value in ("nonsense", "")),
    *(f"--engine ray --address {value}" for value in ("nonsense", "127.0.0.1:1", ":", "ray://")),
    *(f"--engine slurm --slurm {value}" for value in ("nonsense", "=", "a=", "cluster=nonsense")),
    "--parallel fsdp",
]
TUNED = {
    "none.json": {},
    "nan.json": {"nan": [0.5]},
    "minus.json": {"-0.1": [0.5]},
    "word.json": {"0.1": ["high"]},
    "broke.json": {"0.1": [None]},
    "empty.json": {"0.1": []},
}
TUNE = [
    *(f"--tuning-seeds {value}" for value in ("0", "-1", "x", HUGE)),
    *(f"--rates {value}" for value in ("1", "1 1", "-1 1", "nan 1", "inf 1", "0 1", "x")),
    *(f"--extend {value}" for value in ("-1", "x", HUGE)),
    *("--learning-rate 1", "--seeds 3", "--first-seed 0", "--tuned x", "--shard 1/2"),
]
RUNS = [
    *(f"run {words}" for words in SETTINGS),
    *(f"run tiny {words}" for words in HOW),
    *(f"run fig1 --tuned {name}" for name in TUNED),
    *(f"sweep tiny {words}" for words in SWEEP),
    *(f"sweep tiny {words}" for words in ("--threads -1", "--out a-file", "--shard 9/3", "--scale x")),
    *(f"tune fig1 {words}" for words in TUNE),
    *("tune", "tune walk", "tune fig1 walk", "tune nonsense", "sweep", "sweep nonsense", "sweep --dry-run"),
]
OTHERS = [
    "",
    "nonsense",
    "--nonsense",
    *(
        f"{name} {folder}"
        for name in ("claims", "report")
        for folder in ("nowhere", "a-file", "a-pipe", "a-folder", "/dev/null", "a b", "--json", "x" * 300)
    ),
    *(
        f"{name} {kind}"
        for name in ("claims", "report")
        for kind in ("rows-folder", "rows-pipe", "rows-empty", "rows-nulls", "rows-deep", "manifest-alone")
    ),
    "report good --out /proc/x/report.html",
    "report good --out",
    "claims good --nonsense",
    "list nonsense",
    *(f"data {words}" for words in ("", "nonsense", "show", "show nonsense", "fetch", "fetch nonsense")),
    *(f"data fetch mnist --from {where}" for where in ("nowhere", "a-pipe", "~nobody-here/x")),
    *(
        f"inspect {target} --input 2x3"
        for target in (
            "",
            "nowhere.py:f",
            "net.py",
            "net.py:",
            ":f",
            "net.py:nothing",
            "a-folder:f",
            "a-file:f",
        )
    ),
    *(
        f"inspect net.py:{factory} --input 2x3"
        for factory in (
            "number",
            "raises",
            "exits",
            "deep",
            "needs",
            "value",
            "returns_dict",
            "model",
            "four",
        )
    ),
    *(
        f"inspect net.py:net --input {size}"
        for size in (
            "",
            "x",
            "0x3",
            "-1x3",
            "2x3:nonsense",
            "2x4",
            HUGE,
            "99999999x99999999",
            "2.5x3",
            "9x" * 70,
        )
    ),
    "inspect net.py:net",
    "inspect net.py:pair --input 2x3",
    *(f"inspect net.py:net --input 2x3 --eps {eps}" for eps in ("x", "nan", "-1", "2", "inf")),
    *(
        f"inspect net.py:net --input 2x3 --{key} nonsense"
        for key in ("norm", "affine", "per", "output", "rnn")
    ),
    "inspect net.py:net --input 2x3 --exclude nonsense",
    "inspect net.py:net --input 2x3 --allow nonsense",
]
REPORTED = ("report rows-", "report manifest-")  # they have runs, whose damage is on the page
NET = """
from torch import nn
import sys
def net(): return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
def number(): return 7
def raises(): raise KeyError("a\\nb")
def exits(): sys.exit(3)
def deep(): return deep()
def needs(what): return net()
def returns_dict(): return {"model": net()}
def four(): return net(), (), {}, 4
def pair():
    import torch
    return net(), (torch.randn(2, 3),)
value, model = 7, net()
"""


class Begun(BaseException):
    """A line was not refused: it would have begun to work."""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def begun(*_: object, **__: object) -> None:
        raise Begun

    def too_long(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it waits for ever")

    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "run_all", begun)
    monkeypatch.setattr(command, "drive", begun)
    Path("a-file").write_text("mine")
    Path("a-folder").mkdir()
    os.mkfifo("a-pipe")
    Path("net.py").write_text(NET)
    Path("odd.json").write_text('{"results": {"a": {"x": 1}}, "experiment": [], "scale": 3, "seeds": 1}')
    Path("deep.json").write_text("[" * 100_000)
    tuned = {"experiment": "fig1", "scale": "demo", "seeds": [100], "configs": {"nap": {}}}
    for name, results in TUNED.items():
        Path(name).write_text(json.dumps(tuned | {"results": {"nap": results}}))
    for name, held in {
        "rows-empty": b"",
        "rows-nulls": bytes(99) + b"\n",
        "rows-deep": b"[" * 99_999 + b"\n",
    }.items():
        Path(name, "run").mkdir(parents=True)
        Path(name, "run", "rows.jsonl").write_bytes(held)
    Path("rows-folder/run/rows.jsonl").mkdir(parents=True)
    Path("rows-pipe/run").mkdir(parents=True)
    os.mkfifo("rows-pipe/run/rows.jsonl")
    Path("manifest-alone/run").mkdir(parents=True)
    Path("manifest-alone/run/manifest.json").write_text("{}")
    Path("good/run").mkdir(parents=True)
    row = {"experiment": "walk", "arm": "GD", "seed": 0, "step": 0, "dead": 0.5}
    Path("good/run/rows.jsonl").write_text(json.dumps(row) + "\n")
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def said(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and what was printed of a command line; argparse ends it with SystemExit."""
    try:
        code = main(line.split(" "))
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def everything() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}


@pytest.mark.parametrize("line", RUNS, ids=lambda line: line[:60])
def test_nothing_begins(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything()
    code, text = said(line, capsys)
    assert code == BAD_USAGE
    assert text.strip()
    assert "Traceback" not in text
    assert everything() == before


@pytest.mark.parametrize("line", OTHERS, ids=lambda line: line[:60])
def test_no_other_command_ends_in_a_traceback(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything()
    code, text = said(line, capsys)
    assert code in (PROBLEMS, BAD_USAGE) or (code == OK and line.startswith(REPORTED))
    assert text.strip()
    assert "Traceback" not in text
    assert everything() - {path for path in everything() if path.endswith("report.html")} == before


VARIABLES = {
    "NAP_WORKERS": ("x", "-1", "1.5", "99999"),
    "NAP_SIDE_BY_SIDE": ("x", "0"),
    "LOCAL_WORLD_SIZE": ("x",),
    "NAP_DATA": ("a-file", "~nobody-here/x"),
    "TORCHELASTIC_RUN_ID": ("here",),
}


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, of in VARIABLES.items() for word in of])
def test_variables_that_make_no_sense_are_told(
    name: str, word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, word)
    before = everything()
    code, text = said("run tiny", capsys)
    assert code == BAD_USAGE
    assert f"environment variable {name}" in text
    assert everything() == before


def test_what_is_right_begins() -> None:
    with pytest.raises(Begun):
        main(["run", "tiny", "--seeds", "2"])


ODD_NUMBERS = {int: (-(10**6), 10**30), float: (math.nan, -math.inf, 1e300, -1e300)}


@pytest.mark.parametrize("name", experiments())
def test_no_setting_takes_a_number_out_of_its_range(name: str) -> None:
    config = experiments([name])[name].scales["demo"]
    for field in fields(config):
        value = getattr(config, field.name)
        listed = isinstance(value, tuple)
        for odd in ODD_NUMBERS.get(type(value[0] if listed and value else value), ()):
            if field.name in MAY_BE_INFINITE and odd > 0:
                continue
            with pytest.raises(ValueError, match=r".") as refused:
                check_settings(replace(config, **{field.name: (odd,) if listed else odd}))
            assert refused.type is ValueError


def test_every_scale_of_every_experiment_is_possible() -> None:
    for experiment in experiments().values():
        for config in experiment.scales.values():
            check_settings(config)
    assert not {name for name in MAX_SIZES if name in RunOptions.__dataclass_fields__}
