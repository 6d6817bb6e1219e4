"""Settings, versions, problems and the way to run again, as HTML."""

from __future__ import annotations

from nap.lab.report.facts import Group, manifest_facts, settings
from nap.lab.report.markup import Html, element, join, table
from nap.lab.report.style import duration


def problems_html(group: Group) -> Html | None:
    """Each run that did not finish or cannot be read, by name, with the reason."""
    bad = [
        element("li", element("b", run.name), f": {'; '.join(run.problems)}")
        for run in group.runs
        if run.problems
    ]
    if not bad:
        return None
    head = f"{len(bad)} of {len(group.runs)} runs {'is' if len(bad) == 1 else 'are'} not complete:"
    return element("div", head, element("ul", *bad), class_="problem")


def missing_html(names: list[str]) -> Html | None:
    """What the paper's figure has and these rows have not."""
    if not names:
        return None
    shown = " · ".join(names[:12]) + (f" · and {len(names) - 12} more" if len(names) > 12 else "")
    return element("p", element("b", "No rows for: "), shown, class_="problem")


def run_again(group: Group) -> list[str]:
    """The commands that made the runs as far as the manifests have them, else the one for their scale."""
    noted = [run.manifest.get("command") for run in group.runs]
    commands = list(dict.fromkeys(" ".join(c) if isinstance(c, list) else str(c) for c in noted if c))
    scale = f" --scale {group.scale}" if group.scale else ""
    return commands or [f"nap run {group.experiment}{scale}"]


def facts_html(group: Group) -> Html:
    """Three boxes to open: how to run it again, settings, versions and machines."""
    shared, by_run = settings(group.runs)
    return join(
        element(
            "details",
            element("summary", "Run it again"),
            element("pre", element("code", "\n".join(run_again(group)))),
            element(
                "p",
                "It continues where it stopped, and does nothing where all is done. Settings that differ "
                "from the scale's defaults go on the same line; those used here are listed below.",
                class_="quiet",
            ),
        ),
        element(
            "details",
            element("summary", "Settings"),
            element("h4", "Shared by all runs") if by_run else None,
            table(
                [], [[key, value] for key, value in shared.items()], label="shared settings", class_="facts"
            )
            if shared
            else element("p", "No config.json could be read.", class_="quiet"),
            element("h4", "Different from run to run") if by_run else None,
            _by_run(by_run) if by_run else None,
        ),
        element("details", element("summary", "Versions, machine and time"), _machine(group)),
    )


def _by_run(by_run: dict[str, dict[str, str]]) -> Html:
    keys = list(next(iter(by_run.values())))
    body = [[name, *values.values()] for name, values in by_run.items()]
    return table(["run", *keys], body, label="settings by run", class_="wide")


def _machine(group: Group) -> Html:
    known = manifest_facts(group.runs)
    body = [[key.replace("_", " "), value] for key, value in known.items()]
    runs = [
        [
            run.name,
            "; ".join([*(run.problems or ("finished",)), *run.notes]),
            duration(run.seconds) if run.seconds else "–",
            str(len(run.sittings) or "–"),
            f"{len(run.rows):,}",
        ]
        for run in group.runs
    ]
    return join(
        table([], body, label="versions and machine", class_="facts") if body else None,
        table(["run", "state", "work", "sittings", "rows"], runs, label="runs", class_="wide"),
    )
