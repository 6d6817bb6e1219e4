"""The examples run as scripts, each with little to do; what they print shows that they did it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def output(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_the_radii(text: str) -> bool:
    found = re.search(r"norms.*: (\S+) to (\S+)$", text, re.MULTILINE)
    return found is not None and all(abs(float(number) - 1) < 1e-5 for number in found.groups())


@pytest.mark.slow
def test_dqn_learns() -> None:
    text = output("dqn.py", "--steps", "4000")
    first, last = map(float, re.findall(r"first 10 episodes (\S+), last 10 episodes (\S+),", text)[0])
    assert last > 1.5 * first


@pytest.mark.slow
def test_ppo_learns() -> None:
    text = output("ppo.py", "--steps", "8000")
    first, last = map(float, re.findall(r"first 20 episodes (\S+), last 20 episodes (\S+),", text)[0])
    assert last > 2 * first


@pytest.mark.slow
def test_nanogpt_learns_with_nap_and_without() -> None:
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
def test_lightning_classifier_learns_both_tasks() -> None:
    text = output("lightning_classifier.py", "--epochs", "4")
    assert [float(accuracy) > 0.8 for accuracy in re.findall(r"accuracy (\S+),", text)] == [True, True]
    assert on_the_radii(text)


@pytest.mark.slow
def test_huggingface_finetune_learns_both_texts() -> None:
    text = output("huggingface_finetune.py", "--steps", "40")
    losses = [(float(a), float(b)) for a, b in re.findall(r"loss on the \w+ text (\S+) → (\S+)$", text, re.M)]
    assert len(losses) == 2
    assert all(after < 0.5 * before for before, after in losses)
    assert on_the_radii(text)


@pytest.mark.slow
def test_sb3_ppo_learns() -> None:
    text = output("sb3_ppo.py", "--steps", "3072", "--episodes", "5")
    before, after = map(float, re.findall(r"mean return (\S+) before, (\S+) after", text)[0])
    assert after > 1.5 * before
    assert on_the_radii(text)
