"""The examples run as scripts, in this process and with few steps; their output shows that they learn."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Output = Callable[..., str]


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Output]:
    """Runs an example with arguments and returns its output."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run
    torch.set_num_threads(threads)


def on_the_radii(text: str) -> bool:
    found = re.search(r"norms.*: (\S+) to (\S+)$", text, re.MULTILINE)
    return found is not None and all(abs(float(number) - 1) < 1e-5 for number in found.groups())


@pytest.mark.slow
def test_dqn_learns(output: Output) -> None:
    text = output("dqn.py", "--steps", "4000")
    first, last = map(float, re.findall(r"first 10 episodes (\S+), last 10 episodes (\S+),", text)[0])
    assert last > 1.5 * first


@pytest.mark.slow
def test_ppo_learns(output: Output) -> None:
    text = output("ppo.py", "--steps", "8000")
    first, last = map(float, re.findall(r"first 20 episodes (\S+), last 20 episodes (\S+),", text)[0])
    assert last > 2 * first


@pytest.mark.slow
def test_nanogpt_learns_with_nap_and_without(output: Output) -> None:
    for switch in ([], ["--without-nap"]):
        text = output("nanogpt.py", "--updates", "40", *switch)
        before, after = map(float, re.findall(r"held-out loss (\S+) → (\S+),", text)[0])
        assert after < 0.75 * before


def test_the_lines_of_nap_are_marked() -> None:
    for name in ("ppo.py", "nanogpt.py"):
        lines = (EXAMPLES / name).read_text("utf-8").splitlines()
        calls = [line for line in lines if re.search(r"\b(nap\.[A-Zn]|projector\.)\w+\(", line)]
        assert calls
        assert all("# NaP" in line for line in calls), calls


@pytest.mark.slow
def test_lightning_classifier_learns_both_tasks(output: Output) -> None:
    text = output("lightning_classifier.py", "--epochs", "4")
    assert [float(accuracy) > 0.8 for accuracy in re.findall(r"accuracy (\S+),", text)] == [True, True]
    assert on_the_radii(text)


@pytest.mark.slow
def test_huggingface_finetune_learns_both_texts(output: Output) -> None:
    text = output("huggingface_finetune.py", "--steps", "40")
    losses = [(float(a), float(b)) for a, b in re.findall(r"loss on the \w+ text (\S+) → (\S+)$", text, re.M)]
    assert len(losses) == 2
    assert all(after < 0.5 * before for before, after in losses)
    assert on_the_radii(text)


@pytest.mark.slow
def test_sb3_ppo_learns(output: Output) -> None:
    text = output("sb3_ppo.py", "--steps", "3072", "--episodes", "5")
    before, after = map(float, re.findall(r"mean return (\S+) before, (\S+) after", text)[0])
    assert after > 1.5 * before
    assert "loaded with the same weights: True" in text
    assert on_the_radii(text)
