"""Weights that grew, and effective rates that fell: with a model at hand, and from a log alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from nap.diagnostics.doctor.case import Case
from nap.diagnostics.doctor.findings import Finding
from nap.diagnostics.doctor.thresholds import limit
from nap.projection.names import shortened

FRESH = 0.58  # of the fan-in radius: where PyTorch's own layers start


def grown_weights(case: Case) -> Iterator[Finding]:
    """Findings on weights that grew, since an earlier diagnosis or beyond a fresh layer."""
    live = case.live
    assert live is not None, "sizes are of a live model"
    grown: dict[str, float] = {}
    for name, size in case.now("size/").items():
        first = case.first(f"size/{name}")
        if math.isfinite(size) and not (first is None and name in live.tables):
            grown[name] = size / max(first or 0.0, FRESH)
    head = grown.pop(live.head, 0.0)
    if head >= limit("growth"):
        yield Finding(
            "the output layer has grown",
            "warning",
            live.head,
            f"×{head:.3g} (limit {limit('growth'):g})",
            'outputs saturate and one step changes little: nap.Projector(model, output="project") keeps its '
            "norm; or a lower rate or weight decay for it alone",
        )
    least = limit("growth under a norm") if live.has_norms and not live.projected else limit("growth")
    large = {n: g for n, g in grown.items() if g >= least and n not in live.projected}
    if large:
        worst = max(large, key=lambda name: large[name])
        followed = "a norm follows" if live.has_norms else "no norm follows"
        first = live.converted or live.has_norms
        yield Finding(
            "weights have grown, and are not projected" if live.has_norms else "weights have grown",
            "warning",
            _listed(large),
            f"‖{worst}‖ grew ×{large[worst]:.3g} (limit {least:g}; {followed}), and its effective rate fell",
            ("" if first else "nap.normalize_(model, batch), then a new optimizer, then ")
            + "nap.Projector(model).attach(optimizer), which keeps norms, and so the rates that you set",
        )


def rates_fell(case: Case) -> Iterator[Finding]:
    """Findings on effective rates that fell more than the schedule explains."""
    rates = {n: v for n, v in case.now("rate/").items() if math.isfinite(v) and v > 0}
    first = {n: f for n in rates if (f := case.first(f"rate/{n}")) is not None and math.isfinite(f) and f > 0}
    if not first:
        yield from _norms_grew(case)
        return
    usual = median(first.values())  # what started small, as policy heads do, may grow into line
    falls = {name: first[name] / rates[name] for name in first}
    scheduled = _scheduled(case, falls)
    fell = {
        name: fall
        for name, fall in falls.items()
        if fall / scheduled >= limit("growth") and rates[name] * scheduled < usual / 2
    }
    live = case.live
    if fell and live is None:  # a live model has sizes, which say more
        worst = max(fell, key=lambda name: fell[name])
        beside = f" (×{scheduled:.3g} of it by the schedule)" if scheduled > 1.5 else ""
        since = case.since(f"rate/{worst}", high=first[worst] / scheduled / limit("growth"))
        yield Finding(
            "effective rate fell",
            "warning",
            _listed(fell),
            f"that of {worst} fell ×{fell[worst]:.3g}{beside} (limit {limit('growth'):g}){since}",
            "the weight has grown, so the same step turns it less: nap.Projector(model).attach(optimizer) "
            "keeps its norm; without norms in front of the nonlinearities nap.normalize_ first",
        )
    if live is None and not case.has("lr/") and scheduled >= 1 / limit("schedule"):
        low = {name: first[name] * limit("schedule") for name in first}
        lasting = all(case.has_lasted(f"rate/{name}", low[name]) for name in low)
        yield Finding(
            "the schedule has ended",
            "warning" if lasting else "note",  # at the end of training that is as planned
            "",
            f"all effective rates fell ×{scheduled:.3g} or more, and norms did not grow (limit "
            f"×{1 / limit('schedule'):g})",
            "if training goes on, or the task changes, begin again: schedule.restart() of nap.schedules",
        )


def _scheduled(case: Case, falls: dict[str, float]) -> float:
    """The factor by which the schedule lowered the rates: as logged, else the smallest fall."""
    logged = [(points[0][1], points[-1][1]) for key, points in case.series.items() if key.startswith("lr/")]
    if logged:
        return min(max(1.0, before / now) if now > 0 else 1.0 for before, now in logged)
    norm, before = case.value("norm/parameters"), case.first("norm/parameters")
    grew = norm is not None and before and norm / before >= 2
    return 1.0 if grew else max(1.0, min(falls.values()))


def _norms_grew(case: Case) -> Iterator[Finding]:
    """A finding from the norm of all weights, for a log without rates by layer."""
    norm, first = case.value("norm/weights"), case.first("norm/weights")
    if norm is not None and first and norm / first >= limit("growth"):
        yield Finding(
            "weights have grown",
            "warning",
            "",
            f"the norm of all weights grew ×{norm / first:.3g} (limit {limit('growth'):g})",
            "nap.normalize_(model, batch), then nap.Projector(model).attach(optimizer)",
        )


def _listed(names: dict[str, float]) -> str:
    return ", ".join(shortened(list(names)))
