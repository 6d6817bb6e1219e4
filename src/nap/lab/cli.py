"""The command `nap`: words in, one function call, words out."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from nap.lab import aliases
from nap.lab.experiments import MODULES
from nap.lab.usage import parser

if TYPE_CHECKING:
    from nap.lab.experiments.experiment import Experiment
    from nap.lab.options import How, Request

FINE, PROBLEMS, BAD_USAGE, IN_USE, INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return answered(words, lambda: _dispatch(words))


def answered(words: Sequence[str], act: Callable[[], int]) -> int:
    """The exit code of `act`; mistakes are answered in a line, for the command that `words` begin with."""
    try:
        return act()
    except ValueError as error:
        return _say(words, error, IN_USE if type(error).__name__ == "FolderInUse" else BAD_USAGE)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "nap":
            raise  # our own mistake
        extra = "lab,sweep" if error.name in ("ray", "submitit") else "lab"
        need = f"needs {error.name}, which is not installed; pip install 'normalize-and-project[{extra}]'"
        return _say(words, need, BAD_USAGE)
    except BrokenPipeError:  # the reader has seen enough: nap list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PROBLEMS
    except OSError as error:  # a full disk, a folder that may not be written to
        return _say(words, error, PROBLEMS)
    except KeyboardInterrupt:
        return _say(words, "interrupted", INTERRUPTED)


def _dispatch(words: list[str]) -> int:
    runners = {"run": _run, "sweep": _sweep, "tune": _tune}
    if words and words[0] in runners and words[1:2] not in (["-h"], ["--help"]):
        return runners[words[0]](words[1:])
    options = parser(MODULES).parse_args(words)
    command = " ".join(filter(None, [options.command, getattr(options, "action", None)]))
    return COMMANDS[command](options)


def _say(words: Sequence[str], message: object, code: int) -> int:
    print(f"nap {words[0]}: {message}", file=sys.stderr)
    return code


def requested(words: Sequence[str], common: type[How] | None = None) -> list[tuple[Experiment, Request]]:
    """What words like `fig1 --seeds 3` ask for: experiments, each with its settings."""
    from nap.lab.experiments import experiments
    from nap.lab.options import How, parse, split_names
    from nap.lab.possible import check_environment, check_possible

    common = common or How
    names, settings = split_names(words, MODULES, command=common.command)
    known = experiments(names)
    asked = [(known[name], parse(name, known[name].scales, settings, common)) for name in names]
    for line in aliases.deprecations(note for _, request in asked for note in request.notes):
        print(f"nap {common.command}: {line}", file=sys.stderr)
    check_environment()
    for _, request in asked:
        check_possible(request.config)
    return [(_tuned(experiment, request), request) for experiment, request in asked]


def _tuned(experiment: Experiment, request: Request) -> Experiment:
    """The experiment, at the learning rates of the file that --tuned names."""
    if request.how.tuned is None:
        return experiment
    from nap.lab.experiments.tuned import read

    return read(request.how.tuned, experiment, request.how.scale).applied(experiment)


def _run(words: list[str]) -> int:
    asked = requested(words)

    from nap.lab.experiments.running import run

    return run(asked)


def _sweep(words: list[str]) -> int:
    from nap.lab.launch.how import Sweeping

    asked = requested(words, Sweeping)

    from nap.lab.launch.command import sweep

    return sweep(asked, asked[0][1].words)


def _tune(words: list[str]) -> int:
    from nap.lab.launch.tune import TuneOptions, tune

    asked = requested(words, TuneOptions)
    if len(asked) > 1:
        raise ValueError("tune one experiment at a time: each has a grid of its own")
    return tune(*asked[0], asked[0][1].words)


def _list(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from nap.lab.experiments import experiments

    table = Table("experiment", "what the paper shows with it", "scale: seeds, data")
    for experiment in experiments().values():
        scales = experiment.scales
        table.add_row(
            f"[bold]{experiment.name}[/bold]",
            f"{experiment.title}\n[dim]{experiment.shows}[/dim]",
            "\n".join(
                f"{scale}: {config.seeds}, {experiment.needs[scale] or getattr(config, 'data', 'none')}"
                for scale, config in scales.items()
            ),
            end_section=True,
        )
    Console().print(table)
    print("nap run NAME --help shows the settings of one; nap data list where data lies")
    return FINE


def _claims(options: argparse.Namespace) -> int:
    from nap.lab import claims

    return claims.command(_folder(options.folder), options.json)


def _report(options: argparse.Namespace) -> int:
    from nap.lab import report

    print(report.command(_folder(options.folder), options.out))
    return FINE


def _play(options: argparse.Namespace) -> int:
    from nap.lab.experiments.play import play

    folder = _folder(options.folder)
    for file, score in play(folder, game=options.game, steps=options.steps, seed=options.seed):
        print(f"{file}: score {score:g}")
    return FINE


def _data_list(options: argparse.Namespace) -> int:
    from nap.lab.datasets.store import describe

    print(describe())
    return FINE


def _data_show(options: argparse.Namespace) -> int:
    from nap.lab.datasets.store import card

    print("\n\n".join(card(name) for name in options.names))
    return FINE


def _data_fetch(options: argparse.Namespace) -> int:
    from nap.lab.datasets.catalog import find
    from nap.lab.datasets.fetch import fetch
    from nap.lab.progress import transfer

    for data in [find(name) for name in options.names]:  # a misspelt name stops before the first download
        with transfer() as (tell, progress):
            where = fetch(data, source_folder=options.source, progress=progress, tell=tell)
        print(where)
    return FINE


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"no folder {path}; `nap run` writes its results to results/")
    return path


def _inspect(options: argparse.Namespace) -> int:
    from nap import inspection  # imports torch: `nap --help` should not wait for that
    from nap.conversion.placement import Options

    inputs = [inspection.example_input(text, seed=seed) for seed, text in enumerate(options.input)]
    with contextlib.redirect_stdout(sys.stderr):  # what the user's file prints must not spoil --json
        returned = inspection.build(options.target)
    model, args, kwargs = inspection.model_and_inputs(returned, inputs)
    step1 = [field.name for field in fields(Options)]
    found = inspection.describe(
        model,
        args,
        kwargs,
        projector={
            "per": options.per,
            "affine": options.projector_affine,
            **{policy: getattr(options, policy) for policy in ("output", "embeddings", "branches")},
        },
        **{name: getattr(options, name) for name in step1},
    )
    print(json.dumps(found.to_json(), indent=2) if options.json else found)
    return PROBLEMS if found.problems else FINE


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "inspect": _inspect,
    "list": _list,
    "claims": _claims,
    "report": _report,
    "play": _play,
    "data list": _data_list,
    "data show": _data_show,
    "data fetch": _data_fetch,
}

if __name__ == "__main__":
    sys.exit(main())
