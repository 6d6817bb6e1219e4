"""A figure as HTML: title, legend, panels that flow to fewer columns on narrow screens, caption."""

from __future__ import annotations

import numpy as np

from nap.lab.report.draw import svg
from nap.lab.report.markup import Html, element
from nap.lab.report.panels import Figure, Panel
from nap.lab.report.style import Look


def figure_html(figure: Figure) -> Html:
    """The <figure>, or a <details> with it where it is folded."""
    panels = [_panel_html(one, f"{figure.name}-{i}", figure.columns) for i, one in enumerate(figure.panels)]
    body = element(
        "figure",
        element("h3", figure.title) if figure.title and not figure.folded else None,
        None if figure.plain else _legend_html(figure.legend),
        element("div", *panels, class_=f"panels of-{figure.columns}"),
        element("figcaption", f"{figure.caption} {_band_words(figure)}".strip()),
        id=figure.name,
    )
    return element("details", element("summary", figure.title), body) if figure.folded else body


def _panel_html(panel: Panel, name: str, columns: int) -> Html:
    if not panel.lines:
        return element("div", element("b", panel.title), element("p", panel.note), class_="panel empty")
    note = element("p", panel.note, class_="note") if panel.note else None
    return element("div", Html(svg(panel, name, columns)), note, class_="panel")


def _legend_html(legend: dict[str, Look]) -> Html:
    return element(
        "ul", *(element("li", _swatch(look), label) for label, look in legend.items()), class_="legend"
    )


def _swatch(look: Look) -> Html:
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    return Html(
        f'<svg class="swatch" viewBox="0 0 26 8" aria-hidden="true"><line x1="1" x2="25" y1="4" y2="4" '
        f'stroke="{look.colour}" stroke-width="{look.width + 0.4:.1f}"{dash}/></svg>'
    )


def _band_words(figure: Figure) -> str:
    """What lines and shades are, for the caption."""
    if figure.plain or not figure.seeds:
        return ""
    few, many = figure.seeds[0], figure.seeds[-1]
    seeds = f"{few} seed{'s' * (few > 1)}" if few == many else f"{few} to {many} seeds"
    drawn = [one for one in figure.panels if one.lines]
    curves = [line.curve for one in drawn for line in one.lines]
    words = [f"Lines: {'mean over ' * (many > 1)}{seeds}"]
    words += [" (geometric on log axes)"] if many > 1 and any(one.log for one in drawn) else []
    banded = any(not np.isnan(of.low).all() for of in curves)
    words += ["; shaded: its 95 % interval" if banded else ", too few for an interval"]
    words += ["; thin: before smoothing"] if any(len(of.raw_x) for of in curves) else []
    words += ["; 0 on a log axis: exactly zero"] if any(one.zero for one in drawn) else []
    return "".join(words) + "."
