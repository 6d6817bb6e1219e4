"""The command `nap`: words in, one function call, words out."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from importlib import metadata

FINE, PROBLEMS, BAD_USAGE = 0, 1, 2

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


def parser() -> argparse.ArgumentParser:
    """The parser of `nap` and its subcommands."""
    top = argparse.ArgumentParser(
        prog="nap",
        description="Normalize-and-Project: networks that keep learning.",
        epilog="example: nap inspect models.py:make_model --input 2x3x32x32",
    )
    top.add_argument("--version", action="version", version=f"nap {_version()}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    inspect = commands.add_parser(
        "inspect",
        help="what normalize_ and Projector would do to your model, before they do it",
        description="Plan both steps of NaP on a copy of your model, and print what they would do.",
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
    step1.add_argument("--no-qk-norm", dest="qk_norm", action="store_false", help="leave attention alone")
    step1.add_argument("--rnn", choices=["error", "layernorm"], default="error")
    step1.add_argument("--eps", type=_eps, default="relative", help="'relative' (the default) or a number")
    step1.add_argument("--exclude", action="append", default=[], metavar="MODULE", help="repeatable")
    step1.add_argument("--allow", action="append", default=[], metavar="PROBLEM", help="repeatable")
    step2 = inspect.add_argument_group("step 2: as in nap.Projector")
    step2.add_argument("--per", choices=["tensor", "row"], default="tensor")
    step2.add_argument("--output", choices=["project", "free"], default="project")
    step2.add_argument(
        "--projector-affine",
        choices=["free", "joint", "decay"],
        default="free",
        help="what Projector(affine=...) does with scale and offset of norms",
    )
    inspect.add_argument("--json", action="store_true", help="print JSON instead of tables")
    inspect.set_defaults(run=_inspect)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except ValueError as error:
        print(f"nap {options.command}: {error}", file=sys.stderr)
        return BAD_USAGE
    return code


def _inspect(options: argparse.Namespace) -> int:
    from nap import inspection  # imports torch: `nap --help` should not wait for that

    inputs = [inspection.example_input(text, seed=seed) for seed, text in enumerate(options.input)]
    with contextlib.redirect_stdout(sys.stderr):  # what the user's file prints must not spoil --json
        returned = inspection.build(options.target)
    model, args, kwargs = inspection.model_and_inputs(returned, inputs)
    step1 = ("norm", "affine", "batch_norm", "qk_norm", "rnn", "eps", "exclude", "allow")
    found = inspection.describe(
        model,
        args,
        kwargs,
        projector={"per": options.per, "output": options.output, "affine": options.projector_affine},
        **{name: getattr(options, name) for name in step1},
    )
    print(json.dumps(found.to_json(), indent=2) if options.json else found)
    return PROBLEMS if found.problems else FINE


def _eps(text: str) -> str | float:
    try:
        return text if text == "relative" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 'relative' nor a number such as 1e-5"
        ) from None


def _version() -> str:
    try:
        return metadata.version("normalize-and-project")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
