"""Line styles, the same for an arm in every figure, and numbers for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Okabe and Ito's palette, which colour-blind readers can tell apart, less its yellow: too pale on white.
BLACK, ORANGE, SKY, GREEN = "#333333", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILION, PURPLE, GREY = "#0072b2", "#d55e00", "#cc79a7", "#8a8a8a"
PALE = "#c9cdd2"  # for wide lines below others
SPARE = (PURPLE, ORANGE, SKY, BLUE, VERMILION, GREEN, BLACK, GREY)

TICK_DIGITS = 4  # ticks come in steps of 1, 2, 2.5 and 5: three digits would turn 1.025 into 1.02
SOLID, DASHED, DOTTED, DASH_DOT = "", "5 2.5", "1.2 2.4", "6 2 1.2 2"  # as in SVG's stroke-dasharray

RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in the name of a stream is a dollar sign
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # wider than what browsers put in its place: nothing gets clipped
    "axes.edgecolor": "#9aa0a6",
    "axes.linewidth": 0.8,
    "axes.labelcolor": "#3c4043",
    "axes.titlecolor": "#202124",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": "#9aa0a6",
    "ytick.color": "#9aa0a6",
    "xtick.labelcolor": "#3c4043",
    "ytick.labelcolor": "#3c4043",
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "grid.color": "#e8eaed",
    "grid.linewidth": 0.8,
    "path.simplify": True,
    "path.simplify_threshold": 0.25,
}


@dataclass(frozen=True)
class LineStyle:
    """Colour, dashes and width of a line, the same in the figure and in its legend."""

    colour: str
    dash: str = SOLID
    width: float = 1.7


# what most experiments compare, in the same colours everywhere
BASELINE, NORM, NAP = LineStyle(VERMILION), LineStyle(BLUE), LineStyle(GREEN, width=2.2)


def styles_for(known: Mapping[str, LineStyle], present: Iterable[str]) -> dict[str, LineStyle]:
    """A style for each name that is present: the known ones in their order, then others in spare colours.

    >>> list(styles_for({"NaP": LineStyle(GREEN), "none": LineStyle(BLACK)}, ["mine", "NaP"]))
    ['NaP', 'mine']
    """
    names = list(dict.fromkeys(present))
    styles = {name: style for name, style in known.items() if name in names}
    used = {style.colour for style in styles.values()}
    spare = [colour for colour in SPARE if colour not in used] or list(SPARE)
    for count, name in enumerate(name for name in names if name not in known):
        styles[name] = LineStyle(spare[count % len(spare)], DASHED)
    return styles


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: few digits, no exponent where it is easy to do without.

    >>> [number(v) for v in (0.98765, 12345.6, 0.0000021, -3, 0, None, 1e9)]
    ['0.988', '12,300', '2.1×10⁻⁶', '−3', '0', '–', '1×10⁹']
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    if not -4 <= exponent <= 6:
        mantissa = f"{rounded / 10.0**exponent:.{digits - 1}f}".rstrip("0").rstrip(".")
        return f"{mantissa}×{power_of_ten(exponent)}".replace("-", "−")
    text = f"{rounded:,.{max(0, digits - 1 - exponent)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def mean_and_std(values: np.ndarray) -> str:
    """The mean with two decimals, and the standard deviation in brackets where there is one.

    >>> mean_and_std(np.array([1.0, 2.0])), mean_and_std(np.array([1.0])), mean_and_std(np.array([]))
    ('1.50 (0.71)', '1.00', '–')
    """
    if not len(values):
        return "–"
    return f"{values.mean():.2f}" + (f" ({values.std(ddof=1):.2f})" if len(values) > 1 else "")


def percent(value: float) -> str:
    """A fraction in per cent.

    >>> percent(0.125), percent(0.9725), percent(1)
    ('12.5%', '97.25%', '100%')
    """
    return f"{number(100 * value, TICK_DIGITS)}%"


def power_of_ten(exponent: int) -> str:
    """10 to a power, with the exponent as raised digits.

    >>> power_of_ten(-12)
    '10⁻¹²'
    """
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def count(value: float) -> str:
    """A number on an axis, short.

    >>> count(1.025), count(20_000), count(1_500_000)
    ('1.025', '20k', '1.5M')
    """
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{number(value / unit, TICK_DIGITS)}{name}"
    return number(value, TICK_DIGITS)


def duration(seconds: float) -> str:
    """A length of time in the two units that matter.

    >>> duration(8.24), duration(95), duration(7300)
    ('8.2 s', '1 min 35 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{number(seconds, 2)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"
