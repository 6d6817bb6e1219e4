"""Figures as HTML with inline SVG: text stays text, no external resources, few bytes."""

from __future__ import annotations

import io
import math
import re
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from nap.lab.report import style
from nap.lab.report.markup import Html, element
from nap.lab.report.panels import Figure, Panel, limits
from nap.lab.report.style import LineStyle

# Panels side by side → width, height and font size in pixels: the font is 11 to 13 pixels on a desktop, where
# a panel is 290 to 420 wide, and on a phone, where it is 360.
SIZES = {2: (400, 250, 12.0), 3: (370, 235, 11.5), 4: (300, 225, 11.5)}
TINY = 0.005  # largest value below which plain decimals are too long for the axis
ZERO_GAP = 0.08  # of a log axis, free of labels above zero
LEFT, RIGHT, TOP, BOTTOM = 48.0, 10.0, 26.0, 38.0


def svg(panel: Panel, name: str, columns: int) -> str:
    """An <svg> element; `name` makes its ids unique on the page."""
    width, height, size = SIZES[columns]
    with matplotlib.rc_context({**style.RC, "font.size": size, "svg.hashsalt": name}):
        canvas = Canvas(figsize=(width / 72, height / 72))
        FigureCanvasSVG(canvas)
        left = LEFT + (size * 1.4 if panel.y_label else 0)
        box = (
            left / width,
            BOTTOM / height,
            (width - left - RIGHT) / width,
            (height - TOP - BOTTOM) / height,
        )
        axes = canvas.add_axes(box)
        _fill(axes, panel, size)
        out = io.StringIO()
        canvas.savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    lines = ", ".join(line.label for line in panel.lines)
    return _inline(out.getvalue(), name, f"{panel.title} over {panel.x_label}: {lines}")


def _fill(axes: Axes, panel: Panel, size: float) -> None:
    low, high = limits(panel)
    if panel.log:
        axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_title(panel.title, loc="left", fontsize=size + 0.5, fontweight="bold", pad=9)
    axes.set_xlabel(panel.x_label, labelpad=3)
    if panel.y_label:
        axes.set_ylabel(panel.y_label, labelpad=4)
    axes.grid(True, axis="y")
    axes.set_axisbelow(True)
    if panel.shade_below_zero:
        axes.axhspan(low, 0, color="#f1f3f4", zorder=0, linewidth=0)
    for mark in panel.marks:
        axes.axvline(mark, color="#bdc1c6", linewidth=0.8, dashes=(2, 2), zorder=1)
    for level in panel.references:
        axes.axhline(level.y, zorder=2.5, **_stroke(level.style))
    shade = 0.15 if len(panel.lines) <= 4 else 0.06  # many bands overlap
    for line in panel.lines:
        curve = line.curve
        if len(curve.raw_x):
            axes.plot(curve.raw_x, curve.raw_y, color=line.style.colour, linewidth=0.6, alpha=0.35, zorder=2)
        if not np.isnan(curve.low).all():
            axes.fill_between(
                curve.x, curve.low, curve.high, color=line.style.colour, alpha=shade, linewidth=0
            )
        alone: dict[str, Any] = {"marker": "o", "markersize": 4} if len(curve.x) == 1 else {}
        axes.plot(curve.x, curve.y, zorder=3, **_stroke(line.style), **alone)
    _ticks(axes, panel, low, high)


def _ticks(axes: Axes, panel: Panel, low: float, high: float) -> None:
    xs = [x for line in panel.lines for x in line.curve.x]
    first, last = min(xs), max(xs)
    if panel.x_log:
        axes.set_xscale("log")
        axes.set_xlim(first / 1.25, last * 1.25)  # room for the last label
        rates = sorted(set(xs))
        axes.xaxis.set_major_locator(FixedLocator(rates[:: 1 + len(rates) // 7]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: log_label(value)))
    else:
        edge = 0.02 * (last - first) or 0.5
        axes.set_xlim(first - edge, last + edge)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=(1, 2, 5, 10)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.count(value)))
    if panel.log:
        zero = panel.zero
        ticks = [value for value in log_ticks(low, high) if value > zero * (high / low) ** ZERO_GAP]
        axes.yaxis.set_major_locator(FixedLocator([zero, *ticks] if zero else ticks))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: "0" if value == zero else log_label(value))
        )
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10)))
        tiny = max(abs(low), abs(high)) < TINY
        text = style.percent if panel.fraction else tiny_label if tiny else style.count
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def log_ticks(low: float, high: float) -> list[float]:
    """At most six round values between two positive ones: powers of ten, with 2 and 5 where there is room.

    >>> log_ticks(0.5, 700), log_ticks(3, 30), log_ticks(1e-8, 1)
    ([1.0, 10.0, 100.0], [5.0, 10.0, 20.0], [1e-08, 1e-06, 0.0001, 0.01, 1.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1,)):
        for stride in range(1, 20) if factors == (1,) else (1,):
            values = [f * 10.0**e for e in range(first, last + 1) if e % stride == 0 for f in factors]
            inside = [value for value in values if low * 0.999 <= value <= high * 1.001]
            if len(inside) <= 6 and (len(inside) >= 2 or factors == (1,)):
                return inside
    return [low, high]


def log_label(value: float) -> str:
    """A tick on a log axis: plain from 0.01 to 10,000, else a power of ten.

    >>> log_label(0.01), log_label(5000.0), log_label(1e-6), log_label(1.6e-3)
    ('0.01', '5k', '10⁻⁶', '1.6×10⁻³')
    """
    if 0.0099 < value < 10001:
        return style.count(value)
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10.0**exponent:.2g}"
    return style.power_of_ten(exponent) if factor == "1" else f"{factor}×{style.power_of_ten(exponent)}"


def tiny_label(value: float) -> str:
    """A tick on a linear axis of small numbers.

    >>> tiny_label(0.00075), tiny_label(0.0), tiny_label(0.001)
    ('7.5e−4', '0', '1e−3')
    """
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    return f"{value / 10.0**exponent:.3g}e{exponent}".replace("-", "−")


def _stroke(line: LineStyle) -> dict[str, Any]:
    dash = tuple(float(part) / line.width for part in line.dash.split())
    return {
        "color": line.colour,
        "linewidth": line.width,
        "linestyle": (0, dash) if dash else "solid",
    }


def _inline(text: str, name: str, description: str) -> str:
    """Matplotlib's document as an element: unique ids, fonts and size left to the page, two decimals."""
    text = text[text.index("<svg") :]
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None, "matplotlib's SVG has a view box"
    text = re.sub(r"<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"<[^>]*>", lambda tag: _slim(tag[0], name), text)
    opening = f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(description)}">'
    return re.sub(r"\n\s*", "\n", re.sub(r"^<svg[^>]*>", lambda _: opening, text)).strip()


def _slim(tag: str, name: str) -> str:
    tag = re.sub(r'<g id="[^"]*"', "<g", tag)
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = tag.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    tag = re.sub(r"font: ([0-9.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?| transform=\"rotate\(-?0 [^\"]*", "", tag)
    tag = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"\s*([A-Za-z])\s*", r"\1", path[0]), tag)
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag)


def figure_html(figure: Figure) -> Html:
    """The <figure>, or a <details> with it where it is folded."""
    panels = [_panel_html(one, f"{figure.name}-{i}", figure.columns) for i, one in enumerate(figure.panels)]
    body = element(
        "figure",
        element("h3", figure.title) if figure.title and not figure.folded else None,
        None if figure.plain else _legend_html(figure.legend),
        element("div", *panels, class_=f"panels of-{figure.columns}"),
        element("figcaption", f"{figure.caption} {_line_caption(figure)}".strip()),
        id=figure.name,
    )
    return element("details", element("summary", figure.title), body) if figure.folded else body


def _panel_html(panel: Panel, name: str, columns: int) -> Html:
    if not panel.lines:
        return element("div", element("b", panel.title), element("p", panel.note), class_="panel empty")
    note = element("p", panel.note, class_="note") if panel.note else None
    return element("div", Html(svg(panel, name, columns)), note, class_="panel")


def _legend_html(legend: dict[str, LineStyle]) -> Html:
    return element(
        "ul", *(element("li", _swatch(line), label) for label, line in legend.items()), class_="legend"
    )


def _swatch(line: LineStyle) -> Html:
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    return Html(
        f'<svg class="swatch" viewBox="0 0 26 8" aria-hidden="true"><line x1="1" x2="25" y1="4" y2="4" '
        f'stroke="{line.colour}" stroke-width="{line.width + 0.4:.1f}"{dash}/></svg>'
    )


def _line_caption(figure: Figure) -> str:
    """The end of the caption: what lines and bands are."""
    if figure.plain or not figure.seeds:
        return ""
    few, many = figure.seeds[0], figure.seeds[-1]
    seeds = f"{few} seed{'s' * (few > 1)}" if few == many else f"{few} to {many} seeds"
    drawn = [panel for panel in figure.panels if panel.lines]
    curves = [line.curve for panel in drawn for line in panel.lines]
    words = [f"Lines: {'mean over ' * (many > 1)}{seeds}"]
    words += [" (geometric on log axes)"] if many > 1 and any(panel.log for panel in drawn) else []
    banded = any(not np.isnan(curve.low).all() for curve in curves)
    words += ["; shaded: its 95 % interval" if banded else ", too few for an interval"]
    words += ["; thin: before smoothing"] if any(len(curve.raw_x) for curve in curves) else []
    words += ["; 0 on a log axis: exactly zero"] if any(panel.zero for panel in drawn) else []
    return "".join(words) + "."
