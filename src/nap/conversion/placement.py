"""What step 1 will do to a model, as a value: print it, test it, save it as JSON, apply it later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import nn

from nap.norms.norm import CHILD, Eps, Layout, Section
from nap.weights import WeightTable

Action = Literal["normalise output", "normalise input", "normalise attention", "normalise recurrence"]

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
    weights: tuple[str, ...] = ()  # attribute paths below the module, for the relative eps
    remove: tuple[str, ...] = ()  # biases that become None
    zero: tuple[str, ...] = ()  # biases that become zero and frozen
    subtract: str | None = None  # a bias that is cancelled where the norm covers a part
    like: str = ""  # a parameter in front of it: its dtype and device, where the module has none

    def is_applied(self, modules: Mapping[str, nn.Module]) -> bool:
        """Whether the module of this name carries its norm."""
        module = modules.get(self.module)
        inside = self.action in ("normalise attention", "normalise recurrence")
        return module is not None and (inside or CHILD in module._modules)

    @property
    def what(self) -> str:
        if self.action in ("normalise attention", "normalise recurrence"):
            return self.action
        kind = "LayerNorm" if self.centre else "RMSNorm"
        where = "its input" if self.action == "normalise input" else "its output"
        heads = {s.name: s.head for s in self.sections if s.name and s.head}
        done = [f"RMSNorm on {' and '.join(heads)}, per head of {max(heads.values())}"] if heads else []
        if part := sum(s.length for s in self.sections if s.name and not s.head) * self.periods:
            done.append(f"{kind} on {part} of its {self.width} features")
        text = "; ".join(str(d) for d in done) or f"{kind} on {where}"
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
        return [
            *(
                {"module": p.module, "role": p.role, "action": p.what, "reason": p.reason}
                for p in self.placements
            ),
            *(
                {"module": n.name, "role": "", "action": "left alone", "reason": n.reason}
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
        body = json.loads(text)
        return cls(
            tuple(_placement(p) for p in body["placements"]),
            tuple(Note(**n) for n in body["left_alone"]),
            tuple(Problem(**p) for p in body["problems"]),
            WeightTable.from_json(body["weights"]),
            Options(**{**body["options"], **{k: tuple(body["options"].get(k, ())) for k in LISTS}}),
        )


def _placement(row: dict[str, Any]) -> Placement:
    lists = {k: tuple(row[k]) for k in ("weights", "remove", "zero")}
    return Placement(**{**row, **lists, "sections": tuple(Section(**s) for s in row["sections"])})


def table(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> str:
    """Rows as aligned text."""
    wide = {c: max(len(c), *(len(row[c]) for row in rows)) for c in columns[:-1]}
    lines = [{c: c for c in columns}, *rows]
    return "\n".join(
        "  ".join([f"{row[c]:{wide[c]}}" for c in columns[:-1]] + [row[columns[-1]]]).rstrip()
        for row in lines
    )
