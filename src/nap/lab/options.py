"""The options of `nap run` that all experiments share, and a parsed request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

MAX_THREADS = 4096
EXAMPLES = """\
examples:
  nap run {name}                                  on this computer, in a minute or two
  nap run {name} --scale small --device cuda      with enough seeds for confidence intervals
  nap run {name} --seeds 3 --out elsewhere        run the same command again to resume
  nap run {name} --tensorboard --report           log for TensorBoard and write the HTML report
  nap run {name} --shard 1/2 & nap run {name} --shard 2/2    in two processes at the same time
  nap run {name} --help                           all settings with their defaults
  nap run {name} --scale paper --help             those of another scale"""


@dataclass(frozen=True)
class RunOptions:
    """Options that every experiment has. They change where and how it runs, never its results."""

    command = "run"
    examples = EXAMPLES

    scale: Literal["demo", "small", "paper"] = "demo"
    """Preset of settings: demo takes a minute or two on a laptop, small minutes on a GPU, paper is the
    paper's own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on; auto is CUDA if there is one."""
    threads: int = 0
    """CPU threads; 0 is one thread at demo scale or on a GPU, else PyTorch's default."""
    shard: str = "1/1"
    """Run only this share of the runs: 2/4 is the second of four. For several processes or machines."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How the processes of torchrun share one network: each has a copy (ddp) or a shard (fsdp)."""
    out: Path = Path("results")
    """Folder for the results; each run gets its own folder in it."""
    tuned: Path | None = None
    """File of learning rates for each arm, written by nap tune; results go to a folder ending in -tuned."""
    report: bool = False
    """Write the HTML report at the end, as nap report does."""
    tensorboard: bool = False
    """Also log every metric for TensorBoard, in each run's folder."""
    time_limit: float | None = None
    """Seconds after which runs save and stop, as by SIGTERM; the same command resumes them."""
    force: bool = False
    """Start over: discard what is in the runs' folders."""

    def check(self) -> None:
        """Raise ValueError for a number out of range; in __post_init__ tyro would wrap the message."""
        if self.time_limit is not None and not 0 < self.time_limit < math.inf:
            raise ValueError(f"--time-limit {self.time_limit:g}: it must be a number of seconds above 0")


@dataclass(frozen=True)
class Request:
    """One experiment on the command line of `nap run`, `nap sweep` or `nap tune`."""

    name: str
    options: RunOptions
    config: Any
    words: Sequence[str] = field(default=(), compare=False)  # of the command line, under current names
    notes: Sequence[str] = field(default=(), compare=False)  # on old names among them


def grouped(words: Sequence[str]) -> Iterator[list[str]]:
    """Each option of a command line with its values.

    >>> list(grouped(["--seeds=3", "--hidden_layers", "64", "64"]))
    [['--seeds', '3'], ['--hidden-layers', '64', '64']]
    """
    group: list[str] = []
    for word in words:
        if word.startswith("--") or not group:
            if group:
                yield group
            key, equals, value = word.partition("=")
            group = [key.replace("_", "-"), *([value] if equals else [])]
        else:
            group.append(word)
    if group:
        yield group


def without_no(key: str) -> str:
    """The option of a switch: --report for --no-report."""
    return key.replace("--no-", "--", 1)
