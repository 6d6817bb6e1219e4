"""The commands of `nap`: each parses its arguments, calls one function and prints the result."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nap.lab import aliases
from nap.lab.cli.parser import parser
from nap.lab.experiments import MODULES, UNLISTED

if TYPE_CHECKING:
    from nap.lab.experiments.experiment import Experiment
    from nap.lab.options import Request, RunOptions

OK, PROBLEMS, BAD_USAGE, IN_USE, INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command(words, lambda: _dispatch(words))


def run_command(words: Sequence[str], act: Callable[[], int]) -> int:
    """The exit code of `act`; errors of the user or the system are printed in a line without traceback."""
    try:
        return act()
    except ValueError as error:
        return _print_error(words, error, IN_USE if type(error).__name__ == "FolderInUse" else BAD_USAGE)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "nap":
            raise  # our own mistake
        extra = "lab,sweep" if error.name in ("ray", "submitit") else "lab"
        need = f"needs {error.name}, which is not installed; pip install 'normalize-and-project[{extra}]'"
        return _print_error(words, need, BAD_USAGE)
    except BrokenPipeError:  # as in nap list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PROBLEMS
    except OSError as error:  # a full disk, a folder that may not be written to
        if error.errno == errno.ENAMETOOLONG:
            name = f"{str(error.filename)[:60]}…"
            return _print_error(words, f"{name} is too long for the name of a file; shorten it", BAD_USAGE)
        return _print_error(words, error, PROBLEMS)
    except KeyboardInterrupt:
        return _print_error(words, "interrupted", INTERRUPTED)


def _dispatch(words: list[str]) -> int:
    runners = {"run": _run, "sweep": _sweep, "tune": _tune}
    if words and words[0] in runners and words[1:2] not in (["-h"], ["--help"]):
        return runners[words[0]](words[1:])
    args = parser(MODULES).parse_args(words)
    command = " ".join(filter(None, [args.command, getattr(args, "action", None)]))
    return COMMANDS[command](args)


def _print_error(words: Sequence[str], message: object, code: int) -> int:
    print(f"nap {words[0]}: {message}", file=sys.stderr)
    return code


def parse_requests(
    words: Sequence[str], run_options: type[RunOptions] | None = None
) -> list[tuple[Experiment, Request]]:
    """Parse words like `fig1 --seeds 3` to experiments with their settings."""
    from nap.lab.cli.limits import check_environment, check_settings
    from nap.lab.cli.options import parse, split_names
    from nap.lab.experiments import experiments
    from nap.lab.options import RunOptions

    run_options = run_options or RunOptions
    known_names = [*MODULES, *(name for name in UNLISTED if name in words[:1])]
    names, settings = split_names(words, known_names, command=run_options.command)
    known = experiments(names)
    requests = [(known[name], parse(name, known[name].scales, settings, run_options)) for name in names]
    for line in aliases.deprecations(note for _, request in requests for note in request.notes):
        print(f"nap {run_options.command}: {line}", file=sys.stderr)
    check_environment()
    for _, request in requests:
        check_settings(request.config)
    return [(_tuned(experiment, request), request) for experiment, request in requests]


def _tuned(experiment: Experiment, request: Request) -> Experiment:
    """The experiment with the learning rates in the file of --tuned."""
    if request.options.tuned is None:
        return experiment
    from nap.lab.experiments.tuned import read

    return read(request.options.tuned, experiment, request.options.scale).applied(experiment)


def _run(words: list[str]) -> int:
    requests = parse_requests(words)

    from nap.lab.experiments.running import run

    return run(requests)


def _sweep(words: list[str]) -> int:
    from nap.lab.launch.options import SweepOptions

    requests = parse_requests(words, SweepOptions)

    from nap.lab.launch.command import sweep

    return sweep(requests, requests[0][1].words)


def _tune(words: list[str]) -> int:
    from nap.lab.launch.options import TuneOptions
    from nap.lab.launch.tune import tune

    requests = parse_requests(words, TuneOptions)
    if len(requests) > 1:
        raise ValueError("tune one experiment at a time: each has its own grid of learning rates")
    return tune(*requests[0], requests[0][1].words)


def _list(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from nap.lab.experiments import experiments

    table = Table("experiment", "what it shows in the paper", "scale: seeds, data")
    for experiment in experiments().values():
        scales = experiment.scales
        table.add_row(
            f"[bold]{experiment.name}[/bold]",
            f"{experiment.title}\n[dim]{experiment.shows}[/dim]",
            "\n".join(
                f"{scale}: {each.seeds}, {experiment.datasets.get(scale) or getattr(each, 'data', 'none')}"
                for scale, each in scales.items()
            ),
            end_section=True,
        )
    Console().print(table)
    print("nap run NAME --help: settings of an experiment; nap data list: data sets and where they are")
    return OK


def _claims(args: argparse.Namespace) -> int:
    from nap.lab import claims

    return claims.command(_folder(args.folder), args.json)


def _report(args: argparse.Namespace) -> int:
    from nap.lab import report

    print(report.command(_folder(args.folder), args.out))
    return OK


def _play(args: argparse.Namespace) -> int:
    from nap.lab.experiments.play import play

    folder = _folder(args.folder)
    for file, score in play(folder, game=args.game, steps=args.steps, seed=args.seed):
        print(f"{file}: score {score:g}")
    return OK


def _data_list(args: argparse.Namespace) -> int:
    from nap.lab.datasets.store import describe

    print(describe())
    return OK


def _data_show(args: argparse.Namespace) -> int:
    from nap.lab.datasets.store import card

    print("\n\n".join(card(name) for name in args.names))
    return OK


def _data_fetch(args: argparse.Namespace) -> int:
    from nap.lab.datasets.catalog import find
    from nap.lab.datasets.fetch import fetch
    from nap.lab.progress import transfer

    for data in [find(name) for name in args.names]:  # a misspelt name stops before the first download
        with transfer() as (tell, progress):
            where = fetch(data, source_folder=args.source, progress=progress, tell=tell)
        print(where)
    return OK


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"no folder {path}; `nap run` writes its results to results/")
    return path


def _inspect(args: argparse.Namespace) -> int:
    from nap import inspection  # imports torch: `nap --help` should not wait for that
    from nap.conversion.placement import Options

    examples = [inspection.example_input(text, seed=seed) for seed, text in enumerate(args.input)]
    with contextlib.redirect_stdout(sys.stderr):  # prints of the user's file must not spoil --json
        returned = inspection.build(args.target)
    model, inputs, kwargs = inspection.model_and_inputs(returned, examples)
    step1 = [field.name for field in fields(Options)]
    inspected = inspection.describe(
        model,
        inputs,
        kwargs,
        projector={
            "per": args.per,
            "affine": args.projector_affine,
            **{policy: getattr(args, policy) for policy in ("output", "embeddings", "branches")},
        },
        **{name: getattr(args, name) for name in step1},
    )
    print(json.dumps(inspected.to_json(), indent=2) if args.json else inspected)
    return PROBLEMS if inspected.problems else OK


def _doctor(args: argparse.Namespace) -> int:
    from nap.lab import doctor  # imports torch

    with contextlib.redirect_stdout(sys.stderr):  # prints of the user's file must not spoil --json
        diagnoses = doctor.diagnose_target(args.target)
    doctor.show(diagnoses, as_json=args.json)
    return OK if all(one.healthy for one in diagnoses.values()) else PROBLEMS


def _compare(args: argparse.Namespace) -> int:
    from nap.lab.compare import compare

    settings: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in vars(args).items()}
    del settings["command"]
    return compare(settings.pop("target"), **settings).code


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "inspect": _inspect,
    "doctor": _doctor,
    "list": _list,
    "compare": _compare,
    "claims": _claims,
    "report": _report,
    "play": _play,
    "data list": _data_list,
    "data show": _data_show,
    "data fetch": _data_fetch,
}
