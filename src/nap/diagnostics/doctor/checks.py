"""The checks: each reads a case and yields findings; `CHECKS` lists them with what they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from nap.diagnostics.doctor.case import Case, Live
from nap.diagnostics.doctor.findings import ORDER, Diagnosis, Finding, Severity
from nap.diagnostics.doctor.growth import grown_weights, rates_fell
from nap.diagnostics.doctor.thresholds import limit
from nap.projection.names import shortened


@dataclass(frozen=True)
class Check:
    """A check for one kind of reason; it needs at least one of its measures."""

    name: str
    needs: tuple[str, ...]  # prefixes of measures, one of which must be there; none: always
    find: Callable[[Case], Iterator[Finding]]
    way: str  # how to make it possible


def run_checks(case: Case) -> Diagnosis:
    """Run all checks: findings, the worst first, and the checks that were not possible."""
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    for check in CHECKS:
        if check.needs and not any(map(case.has, check.needs)):
            skipped[check.name] = next((case.missing[n] for n in check.needs if n in case.missing), check.way)
        else:
            findings += check.find(case)
    findings.sort(key=lambda finding: ORDER.index(finding.severity))
    return Diagnosis(tuple(findings), skipped, {key: points[-1][1] for key, points in case.series.items()})


def listed(names: Iterable[str]) -> str:
    """The names as text, shortened to a few."""
    return ", ".join(shortened(list(names)))


def _not_finite(case: Case) -> Iterator[Finding]:
    counted = {name: n for name, n in case.now("nonfinite/").items() if n}
    measures = [
        key
        for key, points in case.series.items()
        if not math.isfinite(points[-1][1]) and not key.startswith(("rate/", "step/"))  # of zeros: infinite
    ]
    if counted or measures:
        shown = [f"{int(n)} entries of {name}" for name, n in counted.items()] + [f"{m} is" for m in measures]
        key = measures[0] if measures else ""
        began = "" if not key else _began(case, key)
        yield Finding(
            "NaN or infinity",
            "critical",
            listed(counted or measures),
            f"not finite: {listed(shown)}{began}",
            "go back to the last checkpoint; torch.autograd.set_detect_anomaly(True) finds the operation. "
            "Usual causes: a rate that is too high (halve it), float16 without GradScaler, log or √ of 0",
        )


def _began(case: Case, key: str) -> str:
    last = next((s for s, v in reversed(case.series[key]) if math.isfinite(v)), None)
    return "" if last is None else f", finite until {case.unit} {last:,.0f}"


def _no_gradient(case: Case) -> Iterator[Finding]:
    sizes, total = case.now("gradient/"), case.value("norm/gradients")
    none = [name for name, size in sizes.items() if size <= limit("no gradient")]
    every = bool(sizes) and len(none) == len(sizes)
    if total == 0 and not sizes:
        none, every = ["all parameters"], True
    live = case.live
    if none and not every and live and live.zeros:
        return  # behind a layer that starts at zero gradients are zero until its first update
    if none:
        yield Finding(
            "gradients are zero",
            "critical",
            listed(none),
            f"gradient of {limit('no gradient'):.0e} or less" + (" everywhere" if every else ""),
            "look for .detach(), torch.no_grad or an argmax on the way to the loss, for dead units behind it "
            "and for a loss that is clipped or constant; step 1 (nap.normalize_) lets gradients through dead "
            "units",
        )


def _unreached(case: Case) -> Iterator[Finding]:
    live = case.live
    if live and live.unreached:
        yield Finding(
            "layers are not reached",
            "warning",
            listed(live.unreached),
            f"{len(live.unreached)} trainable weights have no path to the loss on this batch",
            "is the layer called in forward? If only some inputs use it, give a batch that does; "
            "nap.plan(model, batch, strict=True) refuses what no example reaches",
        )
    if live and live.untrained:
        yield Finding(
            "weights are not in the optimizer",
            "critical",
            listed(live.untrained),
            f"{len(live.untrained)} trainable weights are held by none of its groups",
            "make the optimizer from model.parameters(), after nap.normalize_ and after the last change of "
            "the model",
        )


def _unused_units(case: Case) -> Iterator[Finding]:
    samples = case.value("samples")
    if samples is not None and samples < limit("samples"):
        return
    dead = _layers(case, "dead/", limit("dead units"))
    if dead:
        worst = max(dead, key=lambda name: dead[name])
        yield Finding(
            "units are dead",
            "warning",
            listed(dead),
            f"{dead[worst]:.0%} of the units of {worst} are 0 on every input (limit "
            f"{limit('dead units'):.0%}){case.since(f'dead/{worst}', low=limit('dead units'))}",
            "nap.normalize_(model, batch) puts a norm in front of the nonlinearity, behind which dead units "
            "come back; if norms are there, a lower rate. nap.methods.ReDo resets such units now",
        )
    linear = _layers(case, "linearized/", limit("linearized units"))
    linear = {name: share for name, share in linear.items() if name not in dead}
    if linear:
        worst = max(linear, key=lambda name: linear[name])
        first = case.first(f"linearized/{worst}")
        from_start = first is not None and linear[worst] < first + 0.2
        yield Finding(
            "units are linearized",
            "note" if from_start else "warning",  # skewed inputs do it, too, and no training then
            listed(linear),
            f"{linear[worst]:.0%} of the units of {worst} are 0 on every input or on none (limit "
            f"{limit('linearized units'):.0%})"
            f"{case.since(f'linearized/{worst}', low=limit('linearized units'))}",
            "these layers compute little that is nonlinear: nap.normalize_(model, batch), and a lower rate "
            "or a schedule (nap.schedules) if norms are there; inputs that are not centred do this, too",
        )


def _layers(case: Case, prefix: str, least: float) -> dict[str, float]:
    """The layers beyond a limit; what the last layer reads is often an activation that is listed already."""
    beyond = {name: value for name, value in case.now(prefix).items() if value >= least}
    ends = {name for name in beyond if name.endswith("penultimate")}
    inner = {value for name, value in beyond.items() if name not in ends}
    return {name: value for name, value in beyond.items() if name not in ends or value not in inner}


def _rank(case: Case) -> Iterator[Finding]:
    ranks = case.now("rank/")
    last = {name: rank for name, rank in ranks.items() if name.endswith("penultimate")}
    for name, rank in (last or ranks).items():  # the last layer's features are what answers are made of
        key, possible = f"rank/{name}", case.value(f"possible/{name}")
        first = case.first(key)
        few = possible is not None and possible >= 16 and rank <= limit("rank")
        fell = first is not None and rank > 0 and first / rank >= limit("rank fell")
        if not (few or fell or (rank == 0)):
            continue
        of = "" if possible is None else f" of {possible:g} possible"
        was = "" if first is None else f", at first {first:g}"
        yield Finding(
            "features collapsed",
            "warning",
            name,
            f"feature rank {rank:g}{of}{was}{case.since(key, high=rank)}",
            "inputs that features do not tell apart get the same answer: nap.normalize_(model, batch), then "
            "nap.Projector(model).attach(optimizer); compare with a fresh network on the same batch",
        )


def _too_high(case: Case) -> Iterator[Finding]:
    live = case.live
    steps = case.now("step/")
    high = {
        name: step
        for name, step in steps.items()
        if live and name.partition("[")[0] in live.projected and limit("relative step") < step < math.inf
    }
    if high:
        worst = max(high, key=lambda name: high[name])
        factor = high[worst] / limit("relative step")
        yield Finding(
            "learning rate too high on the sphere",
            "warning",
            listed(high),
            f"an update moves {worst} by {high[worst]:.2g} of its norm (limit {limit('relative step'):g})",
            f"divide the rate by {max(2, math.ceil(factor))} or more: the norm cannot grow to slow it down. "
            "Where layers differ, nap.rates.relative.equal_step_groups(model, lr, plan=projector.plan)",
        )
    finite = [step for step in steps.values() if math.isfinite(step)]
    moving = live is None or bool(live.updates)
    if finite and moving and max(finite) < limit("no step"):
        yield _no_rate(f"the largest relative step of any weight is {max(finite):.1g}")
    rates = case.now("rate/")
    if not steps and rates and max(rates.values()) == 0:
        yield _no_rate("all effective rates are 0")


def _no_rate(measure: str) -> Finding:
    return Finding(
        "learning rate is about zero",
        "critical",
        "",
        f"{measure} (limit {limit('no step'):.0e})",
        "look at optimizer.param_groups: has a schedule ended, or not begun? A new one: nap.schedules.linear "
        "or nap.schedules.warmup_cosine, whose restart() begins it again",
    )


def _projection(case: Case) -> Iterator[Finding]:
    off = {n: r for n, r in case.now("kept/").items() if abs(r - 1) > limit("projection")}
    if off:
        worst = max(off, key=lambda name: abs(off[name] - 1))
        yield Finding(
            "projection does not act",
            "critical",
            listed(off),
            f"‖W‖ of {worst} is {off[worst]:.4g} times its radius (limit ± {limit('projection'):g})",
            "the hook is on another optimizer, or something moves weights beside it: look at "
            "projector.attached, attach(optimizer) anew after copying or loading, or call "
            "projector.project_() after each update",
        )
    yield from _idle(case.live, off) if case.live else ()
    for text in case.live.misuse if case.live else ():
        names, _, rest = text.partition(": ")
        decay = "weight decay" in text
        title = (
            "weight decay on projected weights" if decay else "training that is not what NaP is meant to be"
        )
        yield Finding(title, "warning", names if rest else "", (rest or text).split(";")[0], text)


def _idle(live: Live, off: Collection[str]) -> Iterator[Finding]:
    """A projector that does nothing, and a weight decay that does nothing."""
    if live.unattached:
        yield Finding(
            "the projector is not attached",
            "warning",
            "",
            "a Projector was made for this model, and none was attached to an optimizer or called",
            "nap.Projector(model).attach(optimizer); or projector.project_() after each update",
        )
    if live.unseen and not off:
        yield Finding(
            "the projector has seen no update",
            "warning",
            "",
            f"the optimizer counts {live.unseen:,} updates, the projector 0",
            "it was attached after training began, so its radii are those of trained weights: load the state "
            "of the run (nap.load, or projector.load_state_dict). Or other methods than optimizer.step move "
            "the weights: call projector.project_() after each update",
        )
    if live.decayed:
        yield Finding(
            "weight decay does nothing to projected weights",
            "note",
            listed(live.decayed),
            "the optimizer's own default decays them, and projection puts back what it takes",
            "projector.param_groups(weight_decay=...) keeps it to the other parameters; if a recipe uses it "
            "for its effect on rates, write a schedule instead (nap.schedules.weight_decay_rates)",
        )


def _moments(case: Case) -> Iterator[Finding]:
    ratios = case.now("stale/")
    small = {name: r for name, r in ratios.items() if r < limit("moments too small")}
    if small:
        worst = min(small, key=lambda name: small[name])
        yield _stale(
            "are far smaller than gradients now",
            small,
            f"√v̂ of {worst} is {small[worst]:.2g} of its gradient (limit {limit('moments too small'):g}), so "
            f"the next updates are some {1 / small[worst]:.0f} times what they should be",
        )
    first, loss = case.first("loss"), case.value("loss")
    if first is None or loss is None or not loss >= limit("loss not low") * first:
        return
    large = {name: r for name, r in ratios.items() if math.inf > r > limit("moments too large")}
    if large:
        worst = max(large, key=lambda name: large[name])
        yield _stale(
            "are far larger than gradients now",
            large,
            f"√v̂ of {worst} is {large[worst]:.0f} times its gradient (limit {limit('moments too large'):g}), "
            f"though the loss is {loss:.3g} (first {first:.3g}): updates are that much too small",
        )


def _stale(how: str, ratios: dict[str, float], measure: str) -> Finding:
    return Finding(
        f"Adam's second moments {how}",
        "warning",
        listed(ratios),
        measure,
        "they are of other data or another task: optimizer.state.clear() when the task changes "
        "(nap.rates.change.ChangeDetector notices it), or a smaller β₂, such as betas=(0.9, 0.95)",
    )


def _saturated(case: Case) -> Iterator[Finding]:
    full = {name: s for name, s in case.now("saturated/").items() if s >= limit("saturated")}
    if full:
        worst = max(full, key=lambda name: full[name])
        yield Finding(
            "outputs are saturated",
            "warning",
            listed(full),
            f"{full[worst]:.0%} of the outputs of {worst} are at their bounds (limit "
            f"{limit('saturated'):.0%})",
            "hardly any gradient passes: nap.normalize_(model, batch) puts a norm in front of it; of an "
            "output, a smaller last layer, or a penalty on what enters it",
        )


def _affine(case: Case) -> Iterator[Finding]:
    far: dict[str, float] = {}
    for name, drift in case.now("affine/").items():
        first = case.first(f"affine/{name}")
        if drift > limit("scales and offsets") and (first is None or drift > 2 * first):
            far[name] = drift
    if far:
        worst = max(far, key=lambda name: far[name])
        since = case.since(f"affine/{worst}", low=limit("scales and offsets"))
        yield Finding(
            "scales and offsets have grown",
            "warning",
            listed(far),
            f"those of {worst} are {far[worst]:.2g} from (1, 0), root mean square (limit "
            f"{limit('scales and offsets'):g}){since}",
            'nap.Projector(model, affine="joint") keeps them where ReLU-like units follow, '
            'affine="decay" pulls them back elsewhere; or a lower rate for them',
        )


def _schedule(case: Case) -> Iterator[Finding]:
    for name, rate in case.now("lr/").items():
        points = case.series[f"lr/{name}"]
        seen, peak = max(value for _, value in points), case.value(f"peak/{name}") or 0.0
        largest = max(seen, peak)
        if largest <= 0 or rate > limit("schedule") * largest or (case.live and not case.live.updates):
            continue
        floor = limit("schedule") * largest
        lasting = case.has_lasted(f"lr/{name}", floor) or (case.live is not None and seen > rate)
        severity: Severity = "warning" if lasting else "note"  # at the end of training that is as planned
        doubt = "" if seen > rate else "; or a warm-up has just begun"
        yield Finding(
            "the schedule has ended",
            severity,
            name if name != "all" else "",
            f"the learning rate is {rate:.2g}, {rate / largest:.1g} of the schedule's {largest:.2g} (limit "
            f"{limit('schedule'):g}){doubt}{case.since(f'lr/{name}', high=floor)}",
            "if training goes on, or the task changes, begin again: schedule.restart() of nap.schedules, "
            "with an end value above 0",
        )
        return


_LIVE = "needs a live model: nap.diagnostics.diagnose(model, optimizer, batch)"
_LOSS = "needs gradients: diagnose(..., loss=lambda output: …), or call backward() before"
_LOGGED = "the log has no such measure; nap.integrations.monitor.Monitor writes it"

CHECKS = (
    Check("NaN and infinity", (), _not_finite, ""),
    Check("gradients, and layers that have none", ("gradient/", "norm/gradients"), _no_gradient, _LOSS),
    Check("layers that are not trained", ("size/",), _unreached, _LIVE),
    Check("dead and linearized units", ("dead/", "linearized/"), _unused_units, _LOGGED),
    Check("rank of the features", ("rank/",), _rank, _LOGGED),
    Check("growth of single weights", ("size/",), grown_weights, _LIVE),
    Check("effective rates over time", ("rate/", "norm/weights"), rates_fell, _LOGGED),
    Check("size of the steps", ("step/", "rate/"), _too_high, _LIVE),
    Check("projection and weight decay", ("size/",), _projection, _LIVE),
    Check("stale second moments", ("stale/",), _moments, _LIVE),
    Check("saturated activations", ("saturated/",), _saturated, _LIVE),
    Check("scales and offsets", ("affine/",), _affine, _LIVE),
    Check("schedule", ("lr/",), _schedule, "the log has no learning rate"),
)
