"""What a reader sees of running work: rates, lines in a log, bars in a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from nap.lab.progress import Bars, Lines, Speed, describe, display
from tiny_experiment import TinyConfig, TinyWork


def work(done: int = 0) -> TinyWork:
    made = TinyWork(TinyConfig(steps=1000, seeds=8), "first")
    made.done = done
    return made


def test_progress_in_words() -> None:
    assert describe(work(412), 50.0) == "412/1,000 steps  400 model-steps/s  0:12 left"
    assert describe(work(), 0.0) == "0/1,000 steps"


def test_the_pace_is_that_of_the_last_half_minute_of_this_sitting() -> None:
    now = [0.0]
    pace = Speed(done=500, clock=lambda: now[0])
    for second in range(1, 201):  # ten a second at first, then one
        now[0] = float(second)
        rate = pace.measure(500 + min(second, 100) * 10 + max(0, second - 100))
    assert rate == pytest.approx(1.0)


def test_lines_come_every_ten_seconds() -> None:
    now, out = [0.0], StringIO()
    lines = Lines(Console(file=out, width=40), runs=2, clock=lambda: now[0])
    lines.begin("first")
    lines.tick(work())
    for second in range(1, 26):
        now[0] = float(second)
        lines.tick(work(second * 10))
    assert out.getvalue().splitlines() == [
        "first (1 of 2)  100/1,000 steps  80 model-steps/s  1:30 left",
        "first (1 of 2)  200/1,000 steps  80 model-steps/s  1:20 left",
    ]


def test_bars_in_a_terminal() -> None:
    out = StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    with display("tiny", 2, console) as show:
        assert isinstance(show, Bars)
        watch(show)
    assert "preparing" in out.getvalue()
    assert "1,000/1,000 steps" in out.getvalue()
    assert "1/2 runs" in out.getvalue()
    assert "a note" in out.getvalue()


def watch(show: Bars) -> None:
    show.begin("first")
    show._rich.refresh()  # else they are drawn ten times a second, or later on a busy machine
    show.tick(work(1000))
    show._rich.refresh()
    show.say("a note")
    show.end()
    show._rich.refresh()
