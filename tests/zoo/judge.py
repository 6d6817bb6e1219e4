"""The verdict on one conversion: what `nap.normalize_` did to an entry, judged by the oracle."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import nap
from nap.norms.norm import Norm

from .checks import after_conversion, invariance_errors
from .entry import Entry
from .oracle import Labels, label

EXACT = 1e-9  # relative change of the output that still counts as none, in float64


@dataclass
class Row:
    """One line of docs/zoo.md."""

    name: str
    family: str
    verdict: str = "perfect"  # or "incomplete", "refused", "error"
    needed: int = 0  # weights that need a norm
    healed: int = 0  # of these, the ones whose scale reaches no hidden nonlinearity any more
    norms: int = 0  # inserted
    wrong_norms: list[str] = field(default_factory=list)
    invariant: int = 0  # weights reported scale-invariant
    invariance_error: float = 0.0
    plan_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
    expected: bool = True  # perfect, or refused where and how the entry says


def judge(entry: Entry, device: str = "cpu") -> Row:
    """Converts a fresh model of `entry` and says what came of it."""
    row = Row(entry.name, entry.family)
    if (fault := _own_fault(entry, device)) is not None:
        row.verdict, row.problems, row.expected = "error", [f"the entry itself does not run: {fault}"], False
        return row
    model, args, kwargs = entry.build(device)
    keys = set(model.state_dict())
    try:
        start = time.perf_counter()
        nap.normalize_(model, args, kwargs, **entry.options)
        row.plan_seconds = time.perf_counter() - start
        _measure_(row, entry, model, device)
    except ValueError as refusal:
        row.verdict, row.problems = "refused", [str(refusal)]
        if set(model.state_dict()) != keys:
            row.verdict, row.problems = "error", [f"the model was changed, and then: {refusal}"]
        row.needed = _needed(entry, device)
    except Exception as fault:
        # Any other exception is a fault of the library (or of this zoo): it belongs in the table, too.
        row.verdict, row.problems = "error", [f"{type(fault).__name__}: {fault}"]
    row.expected = row.verdict == "perfect"
    if entry.refusal is not None:
        row.expected = row.verdict == "refused" and bool(re.search(entry.refusal, row.problems[0]))
    return row


def _own_fault(entry: Entry, device: str) -> str | None:
    """What the untouched model raises, if anything: it must not read as a refusal by the library."""
    try:
        model, args, kwargs = entry.build(device)
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
    return None


def _needed(entry: Entry, device: str) -> int:
    """How many weights of a refused model need a norm; it counts in the table as not normalised."""
    model, args, kwargs = entry.build(device)
    return 0 if isinstance(model, torch.jit.ScriptModule) else len(label(model, args, kwargs).needs)


def _measure_(row: Row, entry: Entry, model: nn.Module, device: str) -> None:
    original, args, kwargs = entry.build(device)
    excluded = _excluded(original, entry.options)
    keep = entry.options.get("batch_norm") == "keep"
    before = label(original, args, kwargs, skip=excluded, batch_statistics=keep)
    norms = {name: module for name, module in model.named_modules() if isinstance(module, Norm)}
    affine = {f"{name}.{leaf}" for name, module in norms.items() for leaf, _ in module.named_parameters()}
    after = label(model, args, kwargs, skip=excluded | affine, batch_statistics=keep)
    row.needed = len(before.needs)
    row.healed = len(before.needs.keys() - after.needs.keys())
    row.norms = len(norms)
    row.left_alone = dict(after.left_alone)
    squares = re.compile(entry.squared or r"(?!)")
    row.wrong_norms = [n for n in norms if not (squares.search(n) or _asked_for(original, before, n))]
    invariant = [w.name for w in nap.weight_groups(model).values() if w.role == "scale-invariant"]
    errors = invariance_errors(model, args, kwargs, invariant)
    row.invariant, row.invariance_error = len(invariant), max(errors.values(), default=0.0)
    row.problems = (
        [f"{weight} still reaches {sorted(where)}" for weight, where in after.needs.items()]
        + [f"{name} was not asked for" for name in row.wrong_norms]
        + [f"{name} is no invariance: {error:.1e}" for name, error in errors.items() if error > EXACT]
        + after_conversion(entry, original, model, args, kwargs)
    )
    row.verdict = "incomplete" if row.problems else "perfect"


def _excluded(model: nn.Module, options: Any) -> frozenset[str]:
    prefixes = tuple(f"{name}." for name in options.get("exclude", ()) if isinstance(name, str))
    return frozenset(n for n, _ in model.named_parameters() if prefixes and n.startswith(prefixes))


def _asked_for(original: nn.Module, before: Labels, norm: str) -> bool:
    """Whether the module with this norm has a weight in need of one, or is a nonlinearity that is fed one."""
    host = norm.rpartition(".")[0]
    while host and not _has(original, host):
        host = host.rpartition(".")[0]
    weights = {
        f"{host}.{leaf}".lstrip(".")
        for leaf, p in original.get_submodule(host).named_parameters()
        if p.ndim >= 2
    }
    judged = weights & (before.needs.keys() | before.fine | before.left_alone.keys())
    if judged:
        return any(weight in before.needs for weight in judged)
    reached = {path for keys in before.needs.values() for path, _ in keys}
    return bool(weights) or host in reached or not _calls_in(before, host)


def _has(model: nn.Module, path: str) -> bool:
    return any(name == path for name, _ in model.named_modules())


def _calls_in(labels: Labels, path: str) -> bool:
    return any(where == path or where.startswith(f"{path}.") for where, _ in labels.calls)
