"""What NaP would do to a model, before it does it: the library part of `nap inspect`.

`build` and `example_input` turn words into a model and its inputs; `describe` plans both steps
of NaP on a copy and says what it found.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nap.conversion.normalize import normalize_, plan
from nap.conversion.placement import Plan
from nap.conversion.trial import detached_copy
from nap.projection.names import shortened
from nap.projection.plan import ProjectionPlan
from nap.projection.project import Projector
from nap.weights import Role

VAR_POSITIONAL, VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
} | {"bool": torch.bool, "uint8": torch.uint8}


MOST_ENTRIES, MOST_AXES = 1_000_000_000, 64  # of an example input: 4 GB in float32


def build(target: str) -> Any:
    """What the factory `FILE.py:FACTORY` returns; until then, files beside FILE.py can be imported."""
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise ValueError(f"{target!r} names no factory; write FILE.py:FACTORY, such as models.py:make_model")
    directory = str(Path(file).resolve().parent)
    sys.path.insert(0, directory)
    try:
        factory = imported(target)
        try:
            return factory()
        except (Exception, SystemExit) as error:
            raise ValueError(f"the factory {name} of {file} raised {_said(error)}") from error
    finally:
        sys.path.remove(directory)


def imported(target: str, *, takes: Sequence[str] = ()) -> Callable[..., Any]:
    """The function that `FILE.py:FUNCTION` names; `takes` are the arguments that it will be called with."""
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise ValueError(f"{target!r} names no function; write FILE.py:FUNCTION, such as train.py:train")
    path = Path(file)
    if not path.is_file():
        near = get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
        raise ValueError(f"there is no file {file}{_did_you_mean(near)}")
    return _function(_run_file(path), name, file, takes)


def _run_file(path: Path) -> ModuleType:
    name = f"_inspected_{path.stem}"  # a name of its own: the file may be called random.py
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file; its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses inside the file look themselves up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} fails when it is imported: {_said(error)}") from error
    return module


def _function(module: ModuleType, name: str, file: str, takes: Sequence[str]) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if isinstance(found, nn.Module):
        does = f"takes {', '.join(takes)}" if takes else "returns it"
        raise ValueError(f"{name} of {file} is a model, not a factory; write a function that {does}")
    if not callable(found):
        there = {key: value for key, value in vars(module).items() if callable(value) and key[0] != "_"}
        what = "no function" if found is None else "a value, not a function, called"
        near = get_close_matches(name, there, n=1)
        own = [key for key, value in there.items() if getattr(value, "__module__", "") == module.__name__]
        hint = _did_you_mean(near) if near or not own else f"; it has {', '.join(own)}"
        raise ValueError(f"{file} has {what} {name}{hint}")
    parameters = inspect.signature(found).parameters.values()
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (VAR_POSITIONAL, VAR_KEYWORD)
    ]
    if takes and (len(needed) > len(takes) or not parameters):
        raise ValueError(
            f"{name} of {file} takes {', '.join(needed) or 'nothing'}; it is called with one argument, the "
            f"{takes[0]}: def {name}({takes[0]}): ..."
        )
    if needed and not takes:
        raise ValueError(
            f"the factory {name} of {file} needs {', '.join(needed)}; "
            "name a function without arguments that calls it"
        )
    return found


def example_input(text: str, *, seed: int = 0) -> Tensor:
    """The tensor that `2x3x32x32` or `2x16:int64` describes.

    Floats are standard normal; integers are 0 or 1, so that every look-up table has those rows.

    >>> example_input("2x3").shape, example_input("4x16:int64").dtype
    (torch.Size([2, 3]), torch.int64)
    """
    sizes, _, suffix = text.partition(":")
    if not all(size.isdecimal() and len(size) < 20 and int(size) > 0 for size in sizes.split("x")):
        raise ValueError(
            f"{_shortened(text)} is no input; write sizes joined by x, such as 2x3x32x32 or 2x16:int64"
        )
    name = suffix or "float32"
    if name not in DTYPES:
        raise ValueError(f"{text!r} asks for the unknown dtype {name!r}; known are {', '.join(DTYPES)}")
    shape, dtype = [int(size) for size in sizes.split("x")], DTYPES[name]
    if len(shape) > MOST_AXES or math.prod(shape) > MOST_ENTRIES:
        raise ValueError(
            f"{_shortened(text)} is too large for an example: at most {MOST_ENTRIES:,} entries and "
            f"{MOST_AXES} axes; two samples are enough"
        )
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(2, shape, generator=generator).to(dtype)


def model_and_inputs(
    returned: Any, inputs: Sequence[Tensor] = ()
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Model, args and kwargs of what a factory returned: model, (model, args) or (model, args, kwargs)."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise ValueError(
            f"the factory returned {_kind(returned)}; return model, (model, args) or (model, args, kwargs)"
        )
    model, args, kwargs = parts[0], parts[1] if len(parts) > 1 else (), parts[2] if len(parts) > 2 else {}
    if isinstance(args, Tensor):
        args = (args,)
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise ValueError(
            f"the factory returned args as {_kind(args)} and kwargs as {_kind(kwargs)}; "
            "args is a tuple of example inputs (a lone tensor is fine), kwargs a dict"
        )
    if inputs and len(parts) > 1:
        raise ValueError("the factory returns its own inputs; leave out either those or --input")
    if not inputs and len(parts) == 1:
        raise ValueError("no example input: add --input 2x3x32x32, or return (model, args) from the factory")
    return model, tuple(inputs) or tuple(args), dict(kwargs)


@dataclass(frozen=True)
class Inspection:
    """What steps 1 and 2 would do, and what stands in their way; `print` it to read it."""

    plan: Plan
    projection: ProjectionPlan | None  # for the converted copy; None where there is a problem
    problems: tuple[str, ...]

    @property
    def advice(self) -> tuple[str, ...]:
        """Which settings to start with, and what projection costs where weights start small."""
        if self.projection is None:
            return ()
        return (*self.projection.advice, *settings_for(self.plan, self.projection))

    def __str__(self) -> str:
        state = "as it is" if self.plan.problems else "after step 1"
        parts = ["Step 1: normalise", str(self.plan), ""]
        parts += [f"Parameters of the model {state}", str(self.plan.weights), ""]
        if self.projection is not None:
            parts += ["Step 2: project", str(replace(self.projection, advice=())), ""]  # it is below
        many = len(self.problems)
        verdict = f"{many} problem{'s' if many != 1 else ''} found:" if many else "No problems found."
        lines = [*parts, verdict, *(f"  - {problem}" for problem in self.problems)]
        if self.advice:
            lines += ["", "Advice", *(f"  - {line}" for line in self.advice)]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        projection = None if self.projection is None else self.projection.to_json()
        return {
            "plan": json.loads(self.plan.to_json()),
            "projection": projection,
            "problems": list(self.problems),
            "advice": list(self.advice),
        }


_OUTPUT = {
    "project": "projected, which pins the scale of the output: in continual learning that helps; where "
    "targets have a scale to find (values, regression), write Projector(model, output='free')",
    "grow": "may grow up to its fan-in radius, for it starts small; with output='free' it may grow on",
    "free": "left free, so that logits may grow; for tasks that change, try output='project'",
}


def settings_for(plan: Plan, projection: ProjectionPlan) -> tuple[str, ...]:
    """Advice on the output layer, scales and offsets, what to leave out, weight decay and the rate."""
    rows = {row.name: row for row in projection.rows}
    said = []
    for action, meaning in _OUTPUT.items():
        names = [name for name, row in rows.items() if row.role is Role.OUTPUT and row.action == action]
        if names:
            said.append(f"output: {', '.join(shortened(names))} {meaning}")
    affine = plan.weights.of(Role.AFFINE)
    if affine and all(row.homogeneous for row in affine):
        said.append(
            "affine: for long training on changing tasks, Projector(model, affine='joint') keeps scales and "
            "offsets in place too, and is exact here; for one task leave them free"
        )
    elif affine:
        said.append(
            "affine: leave scales and offsets free; affine='joint' is not exact here, for some feed what is "
            "no ReLU, and is refused"
        )
    unused = [n for n, row in rows.items() if row.role is Role.UNUSED and row.action == "project"]
    if unused:
        said.append(
            f"exclude: {', '.join(shortened(unused))}: not used on this example, so nothing is known of it; "
            "give an example that uses it, or leave it out with Projector(model, exclude=[...])"
        )
    said.append(
        "weight decay: none on projected weights, whose norms it cannot lower; "
        "torch.optim.AdamW(projector.param_groups(weight_decay=...)) keeps it to the others"
    )
    said.append(
        "learning rate: start at the best rate of the same network with norms alone, and try a factor of two "
        "to both sides (nap compare does); nothing lowers it any more but the schedule that you write down"
    )
    return tuple(said)


def describe(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    projector: Mapping[str, Any] | None = None,
    **options: Any,
) -> Inspection:
    """What `normalize_(model, args, **options)` and `Projector(model, **projector)` would do to `model`.

    The model itself is not touched: step 1 runs on a copy, and step 2 reads its radii there.

    >>> found = describe(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 4))
    >>> found.projection.names("project"), found.problems
    (['0.weight', '2.weight'], ())
    """
    _check_runs(model, args, kwargs or {})
    found = plan(model, args, kwargs, **options)
    problems = tuple(str(problem) for problem in found.problems)
    projection = None
    if not problems:
        converted = copy.deepcopy(model)
        normalize_(converted, found)
        try:
            projection = Projector(converted, **(projector or {})).plan
        except ValueError as error:
            problems = (f"step 2: {error}",)
    return Inspection(found, projection, problems)


def _check_runs(model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Tell a model that fails by itself from one that conversion cannot handle."""
    twin = detached_copy(model)
    try:
        with torch.no_grad():
            twin(*(args if isinstance(args, tuple) else (args,)), **kwargs)
    except Exception as error:
        raise ValueError(f"the model does not run on the example input: {_said(error)}") from error


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _did_you_mean(near: Sequence[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(_kind(part) for part in value) + ")"
    return type(value).__name__
