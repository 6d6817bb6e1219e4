"""The options of `nap run`: two stages, typed, each mistake answered in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nap.lab.cli.options import parse, split_names
from nap.lab.options import Request, RunOptions
from tiny_experiment import EXPERIMENT, TinyConfig

KNOWN = ["fig1", "fig2", "walk"]


def parsed(*words: str) -> Request:
    return parse("tiny", EXPERIMENT.scales, words)


def test_nothing_said_means_the_demo_s_defaults() -> None:
    assert parsed() == Request("tiny", RunOptions(), TinyConfig())


def test_the_scale_is_read_first_then_everything_else_over_it() -> None:
    given = parsed("--steps", "5", "--scale", "paper", "--rate=1e-3", "--out", "elsewhere", "--report")
    assert given.config == TinyConfig(seeds=9, steps=5, rate=1e-3)
    assert given.options == RunOptions(scale="paper", out=Path("elsewhere"), report=True)


def test_types_are_those_of_the_config() -> None:
    config = parsed("--hidden-layers", "4", "5", "6", "--mode", "wild", "--seeds", "2").config
    assert config == TinyConfig(hidden_layers=(4, 5, 6), mode="wild", seeds=2)
    assert parsed("--hidden_layers", "4").config.hidden_layers == (4,)  # underscores are fine, too


def test_what_comes_back_is_the_config_s_own_type() -> None:
    assert type(parsed("--steps", "3").config) is TinyConfig


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stpes", "3"], r"tiny has no setting --stpes 3; it has .*--seeds, .*Did you mean --steps\?"),
        (["--step=3"], r"no setting --step 3; .*Did you mean --steps\?"),
        (["--reprot"], r"no setting --reprot; .*Did you mean --report\?"),
        (["-s", "3"], r"no setting -s 3; it has --scale"),
        (["--steps", "abc"], r"^--steps abc: expected a whole number$"),
        (["--steps", "2.5"], r"^--steps 2.5: expected a whole number$"),
        (["--steps"], r"^--steps: expected a whole number, got nothing$"),
        (["--steps", "3", "4"], r"^--steps 3 4: expected a whole number$"),
        (["--rate", "fast"], r"^--rate fast: expected a number$"),
        (["--seeds", "2", "--mode", "mad"], r"^--mode mad: expected one of calm, wild, "),
        (["--hidden-layers", "3", "x"], r"^--hidden-layers 3 x: expected whole numbers$"),
        (["--report", "yes"], r"^--report yes: expected no value; write --key for yes"),
        (["--no-steps"], r"^--no-steps: expected a whole number"),
        (["--device", "gpu"], r"^--device gpu: expected one of auto, cpu, cuda$"),
        (["--scale", "smal"], r"^--scale smal: expected one of demo, small, paper. Did you mean small\?"),
        (["--scale"], r"^--scale: expected one of demo, small, paper$"),
        (["--steps", "-5"], r"steps=-5.*between 1 and 10000"),
        (["--rate", "nan"], r"rate=nan.*between 0 and 1"),
        (["--seeds", "0"], r"seeds=0.*at least 1"),
    ],
)
def test_mistakes_name_the_key_the_value_and_what_is_expected(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parsed(*words)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # tyro's own words, which fill a screen, are not shown


def test_help_has_every_setting_with_the_scale_s_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parsed("--scale", "paper", "--help")
    assert exit_.value.code == 0
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Steps of each run. (default: 9)" in printed
    assert "--hidden-layers" in printed
    assert "--device {auto,cpu,cuda}" in printed
    assert "nap run tiny --scale small --device cuda" in printed


def test_names_come_first() -> None:
    assert split_names(["fig1", "walk", "fig1", "--out", "fig2"], KNOWN) == (
        ["fig1", "walk"],
        ["--out", "fig2"],
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fgi1"], r"no experiment 'fgi1'; there are fig1, fig2, walk. Did you mean fig1\?"),
        (["fig1", "zzz"], r"no experiment 'zzz'; there are fig1, fig2, walk$"),
        ([], "name an experiment first: nap run fig1"),
        (["--scale", "demo", "fig1"], "name an experiment first"),
    ],
)
def test_names_that_are_not_there(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_names(words, KNOWN)
