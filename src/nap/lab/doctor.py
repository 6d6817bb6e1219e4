"""`nap doctor`: diagnoses the model of a factory, a log, or folders of runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nap.diagnostics.doctor import Diagnosis, Finding, diagnose, diagnose_log
from nap.inspection import build
from nap.lab import logs

Diagnoses = Mapping[str, Diagnosis]  # by arm or log; "" if there is only one


def diagnose_target(target: str) -> Diagnoses:
    """The diagnoses of FILE.py:FACTORY, of a log file, or of a folder with logs or runs."""
    file, colon, name = target.rpartition(":")
    if colon and file.endswith(".py") and name:
        return {"": _of_factory(build(target), target)}
    path = Path(target)
    if not path.exists():
        raise ValueError(f"there is no {target}; give a log, a folder of runs, or FILE.py:FACTORY")
    grouped: dict[str, list[Diagnosis]] = {}
    for (label, _), rows in logs.read(path).items():
        grouped.setdefault(label, []).append(diagnose_log(rows))
    return {label: _over_seeds(of_seeds) for label, of_seeds in grouped.items()}


def _of_factory(returned: Any, target: str) -> Diagnosis:
    parts = returned if isinstance(returned, tuple) else (returned,)
    fits = 3 <= len(parts) <= 4 and isinstance(parts[0], nn.Module) and (len(parts) < 4 or callable(parts[3]))
    if not fits:
        shown = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(
            f"{target} returned ({shown}); return (model, optimizer, batch), or (model, optimizer, batch, "
            "loss), where loss takes what the model returns"
        )
    model, optimizer, batch, *rest = parts
    args, kwargs = ((), batch) if isinstance(batch, Mapping) else (batch, None)
    if not isinstance(batch, (Tensor, tuple, list, Mapping)):
        raise ValueError(
            f"the batch of {target} is a {type(batch).__name__}; give a tensor, a tuple or a dict"
        )
    try:
        return diagnose(model, optimizer, args, kwargs, loss=rest[0] if rest else None)
    except ValueError:
        raise
    except Exception as error:  # of the user's model or loss
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the model or the loss of {target} fails on its batch ({type(error).__name__}: {reason}); "
            "return a batch that the model takes, and a loss that takes its output"
        ) from error


def _over_seeds(diagnoses: list[Diagnosis]) -> Diagnosis:
    """One diagnosis for the seeds of an arm: each finding once, and in how many of them it is."""
    first: dict[str, Finding] = {}
    counts: dict[str, int] = {}
    for diagnosis in diagnoses:
        for finding in diagnosis.findings:
            first.setdefault(finding.name, finding)
            counts[finding.name] = counts.get(finding.name, 0) + 1
    if len(diagnoses) == 1:
        return diagnoses[0]
    findings = tuple(
        replace(one, measure=f"{one.measure}; so in {counts[name]} of {len(diagnoses)} seeds")
        for name, one in first.items()
    )
    return Diagnosis(findings, diagnoses[0].not_looked_at, diagnoses[0].numbers)


def show(diagnoses: Diagnoses, *, as_json: bool) -> None:
    """Print diagnoses: a table in a terminal, text elsewhere, or JSON."""
    if as_json:
        bodies = {label: one.to_json() for label, one in diagnoses.items()}
        print(json.dumps(bodies[""] if set(bodies) == {""} else bodies, indent=2))
        return
    for label, diagnosis in diagnoses.items():
        if label:
            print(f"== {label}")
        if sys.stdout.isatty() and diagnosis.findings:
            _table(diagnosis)
        else:
            print(replace(diagnosis, not_looked_at={}))
        print()
    skipped = {check: why for one in diagnoses.values() for check, why in one.not_looked_at.items()}
    if skipped:
        print(Diagnosis((), skipped).skipped())


def _table(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"critical": "red", "warning": "yellow", "note": "blue"}
    table = Table("", "likely reason", "measured", "what to try", show_lines=True)
    for finding in diagnosis.findings:
        where = f"\n[dim]{escape(finding.where)}[/dim]" if finding.where else ""
        table.add_row(
            f"[{colours[finding.severity]}]{finding.severity}[/]",
            f"[bold]{escape(finding.name)}[/bold]{where}",
            escape(finding.measure),
            escape(finding.advice),
        )
    Console().print(table)
