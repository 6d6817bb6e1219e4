"""What step 1 will do to a model, as a value: print it, test it, save it as JSON, apply it later."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from torch import nn

from nap.conversion.typed import made
from nap.norms.gain import GAIN
from nap.norms.norm import CHILD, Eps, Layout, Section
from nap.norms.products import key_of, product_norms, products_run
from nap.weights import Weight, WeightTable

Action = Literal[
    "normalise output",
    "normalise input",
    "normalise product",
    "normalise attention",
    "normalise recurrence",
    "scale input",
]

LISTS = ("exclude", "allow", "activations", "linear")  # options that are lists of names


@dataclass(frozen=True)
class Options:
    """The choices of step 1; `nap.plan` documents them."""

    norm: Literal["layer", "rms"] = "layer"
    affine: Literal["scale_offset", "scale", "none"] = "scale_offset"
    batch_norm: Literal["precede", "keep"] = "precede"
    residual: Literal["branch", "sum"] = "branch"
    over: Literal["sample", "position"] = "sample"
    qk_norm: bool = True
    rnn: Literal["error", "layernorm"] = "error"
    eps: Eps = "relative"
    exclude: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    gains: Literal["none", "small"] | tuple[str, ...] = "none"
    activations: tuple[str, ...] = ()
    linear: tuple[str, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        choices = {
            "norm": ("layer", "rms"),
            "affine": ("scale_offset", "scale", "none"),
            "batch_norm": ("precede", "keep"),
            "residual": ("branch", "sum"),
            "over": ("sample", "position"),
            "rnn": ("error", "layernorm"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not a choice; use one of {', '.join(allowed)}"
                )
        for name in ("qk_norm", "strict"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} is not a choice; use one of True, False")
        if self.eps != "relative" and not (isinstance(self.eps, (int, float)) and 0 <= self.eps < 1):
            raise ValueError(f"eps={self.eps!r} must be 'relative' or a number in [0, 1)")
        if isinstance(self.gains, str) and self.gains not in ("none", "small"):
            raise ValueError(
                f"gains={self.gains!r} is not a choice; use none, small or a list of module names"
            )
        for name in LISTS:
            if isinstance(getattr(self, name), str):
                raise ValueError(
                    f"{name} takes a list of names, not one string: {name}=[{getattr(self, name)!r}]"
                )


@dataclass(frozen=True)
class Placement:
    """One norm, and where it goes."""

    module: str
    action: Action
    role: str  # what the module is, e.g. "Linear"
    reason: str
    width: int = 0  # output features of the module
    layout: Layout = "features"
    spatial: int = 0
    periods: int = 1
    sections: tuple[Section, ...] = ()  # empty: the whole output
    centre: bool = True
    scale: bool = True
    offset: bool = True
    eps: Eps = "relative"
    gain: float = 1.0
    members: tuple[int, ...] = ()  # of a stack of layers, which have a scale and an offset each
    member_axes: tuple[int, ...] = ()  # where they are listed in what is normalised, counted from its end
    before_batch_norm: bool = False  # which undoes any scale and offset: they are left out
    weights: tuple[str, ...] = ()  # attribute paths below the module, for the relative eps
    remove: tuple[str, ...] = ()  # biases that become None
    zero: tuple[str, ...] = ()  # biases that become zero and frozen
    subtract: str | None = None  # a bias that is cancelled where the norm covers a part
    part: tuple[int, ...] = ()  # of the one weight of a product: where it begins, its sizes and strides
    like: str = ""  # a parameter in front of it: its dtype and device, where the module has none
    radius: float = 0.0  # of a gain: the fan-in radius, at which a weight of zeros gets a direction

    def __post_init__(self) -> None:
        weights = [p for p in self.remove if p in self.weights or p.rpartition(".")[2] == "weight"]
        if weights:
            raise ValueError(f"{self.module}: {weights[0]!r} is a weight, and only biases are removed")
        if self.eps != "relative" and not 0 <= self.eps < 1:
            raise ValueError(f"{self.module}: eps={self.eps!r} must be 'relative' or a number in [0, 1)")
        least = 0.0 if self.action == "scale input" else math.ulp(0.0)  # a weight of zeros has a gain of zero
        fits = least <= self.gain < math.inf
        if not (fits and self.periods >= 1 and self.width >= 0 and self.spatial >= 0):
            raise ValueError(
                f"{self.module}: width={self.width}, spatial={self.spatial}, periods={self.periods} and "
                f"gain={self.gain} are no sizes of a norm"
            )

    def is_applied(self, modules: Mapping[str, nn.Module]) -> bool:
        """Whether the module of this name carries its norm."""
        module = modules.get(self.module)
        inside = self.action in ("normalise attention", "normalise recurrence")
        if module is not None and self.action == "normalise product":
            return self.key in product_norms(module) and products_run(module)
        return module is not None and (inside or self.child in module._modules)

    @property
    def key(self) -> str:
        """The name of a norm on a product."""
        return key_of(self.weights, self.part)

    @property
    def child(self) -> str:
        """The name under which it hangs on its module."""
        return GAIN if self.action == "scale input" else CHILD

    @property
    def what(self) -> str:
        if self.action in ("normalise attention", "normalise recurrence"):
            return self.action
        if self.action == "scale input":
            return f"gain of {self.gain:g}, and its weight at full norm"
        kind = "LayerNorm" if self.centre else "RMSNorm"
        where = "its input" if self.action == "normalise input" else "its output"
        weights = " and ".join(self.weights) + (f" from {self.part[0]}" if self.part else "")
        product = f"the product of {weights}" if self.action == "normalise product" else ""
        heads = {s.name: s.head for s in self.sections if s.name and s.head}
        done = [f"RMSNorm on {' and '.join(heads)}, per head of {max(heads.values())}"] if heads else []
        if part := sum(s.length for s in self.sections if s.name and not s.head) * self.periods:
            done.append(f"{kind} on {part} of its {self.width} features")
        text = "; ".join(str(d) for d in done) or f"{kind} on {product or where}"
        text += f" in {product}" if done and product else ""
        text += f", for each of {math.prod(self.members)} members" if self.members else ""
        if self.subtract:
            return f"{text}, bias cancelled there"
        return f"{text}, bias removed" if self.remove or self.zero else text


@dataclass(frozen=True)
class Problem:
    """Something that step 1 cannot do, or must not do unasked."""

    name: str  # what to pass to `allow`
    reason: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}. {self.way_out}"


@dataclass(frozen=True)
class Note:
    """Something that was seen and left as it is."""

    name: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What `nap.normalize_` does. `rows` and `str()` are for reading, JSON for keeping."""

    placements: tuple[Placement, ...] = ()
    left_alone: tuple[Note, ...] = ()
    problems: tuple[Problem, ...] = ()
    weights: WeightTable = field(default_factory=lambda: WeightTable({}))
    options: Options = field(default_factory=Options)

    @property
    def rows(self) -> list[dict[str, str]]:
        """Module, role, action and reason of everything that was decided."""
        placed = {p.module for p in self.placements}
        return [
            *(
                {"module": p.module, "role": p.role, "action": p.what, "reason": p.reason}
                for p in self.placements
            ),
            *(
                {
                    "module": n.name,
                    "role": "",
                    "action": "noted" if n.name in placed else "left alone",
                    "reason": n.reason,
                }
                for n in self.left_alone
            ),
            *({"module": p.name, "role": "", "action": "PROBLEM", "reason": p.reason} for p in self.problems),
        ]

    def __str__(self) -> str:
        if not self.rows:
            return "nothing to normalise: every nonlinearity already has a norm in front of it"
        return table(self.rows, ("module", "role", "action", "reason"))

    def to_json(self) -> str:
        """The whole plan as text; `Plan.from_json` brings it back."""
        body = {
            key: [asdict(x) for x in getattr(self, key)] for key in ("placements", "left_alone", "problems")
        }
        return json.dumps(
            {**body, "weights": self.weights.to_json(), "options": asdict(self.options)}, indent=1
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a text that `to_json` gave; one that was damaged or made up is refused."""
        try:
            body = json.loads(text)
            body["weights"] = {"rows": body["weights"]}
            read = made(_Saved, body, "plan")
            weights = {row.name: row for row in read.weights.rows}
            return cls(read.placements, read.left_alone, read.problems, WeightTable(weights), read.options)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"this text is no plan that nap saved ({reason}); make a new one with nap.plan(model, args)"
            ) from error


@dataclass(frozen=True)
class _Rows:
    rows: tuple[Weight, ...]


@dataclass(frozen=True)
class _Saved:
    """A plan as its text has it."""

    placements: tuple[Placement, ...]
    left_alone: tuple[Note, ...]
    problems: tuple[Problem, ...]
    weights: _Rows
    options: Options


def table(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> str:
    """Rows as aligned text."""
    wide = {c: max(len(c), *(len(row[c]) for row in rows)) for c in columns[:-1]}
    lines = [{c: c for c in columns}, *rows]
    return "\n".join(
        "  ".join([f"{row[c]:{wide[c]}}" for c in columns[:-1]] + [row[columns[-1]]]).rstrip()
        for row in lines
    )
