"""HTML elements that escape all text not made here, and the page's style sheet."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: object) -> Html:
    """An element with children; plain strings are escaped, None is left out.

    Attributes: a trailing underscore avoids Python's keywords, inner ones become hyphens.

    >>> element("p", "a < b", element("b", "!"), class_="x", data_run='"')
    '<p class="x" data-run="&quot;">a &lt; b<b>!</b></p>'
    """
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{named}>{join(*children)}</{name}>")


def join(*children: str | None, between: str = "") -> Html:
    """Children one after the other, plain strings escaped.

    >>> join("<", Html("<br>"), None)
    '&lt;<br>'
    """
    parts = [child if isinstance(child, Html) else escape(child) for child in children if child is not None]
    return Html(between.join(parts))


def table(head: list[str], body: list[list[str]], *, label: str, class_: str) -> Html:
    """A table in a box that scrolls if it is too wide; the first cell of a line is its header."""
    heads = element("thead", element("tr", *(element("th", text, scope="col") for text in head)))
    lines = [
        element(
            "tr",
            element("th", first, scope="row"),
            *(element("td", text, data_head=of) for text, of in zip(rest, head[1:], strict=True)),
        )
        for first, *rest in body
    ]
    inner = element("table", heads, element("tbody", *lines), class_=class_)
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)


def pairs(of: Mapping[str, str]) -> Html:
    """A definition list, in as many columns as there is room for.

    >>> pairs({"lr": "0.1"})
    '<dl><div><dt>lr</dt><dd>0.1</dd></div></dl>'
    """
    return element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in of.items()))


CSS = """
:root { color-scheme: light; --ink: #202124; --quiet: #5f6368; --line: #dfe3e8;
  --holds: #00664b; --fails: #a83a00; --open: #5f6368; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 1420px; padding: 2.2rem 1.5rem 4rem; background: #fff; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .4rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
h4 { font-size: .9rem; margin: 1rem 0 .4rem; }
p { margin: 0 0 .8rem; max-width: 72ch; }
a { color: #0b5cad; }
code { font: .86rem ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); font-size: .88rem; }
.lead { color: var(--quiet); }
.headline { margin: 1.4rem 0; max-width: 44rem; }
.headline .count { font-size: 1.25rem; margin: 0 0 .4rem; }
.headline .count strong { font-size: 2.1rem; letter-spacing: -.02em; }
.bar { display: flex; gap: 2px; height: 10px; border-radius: 5px; overflow: hidden; margin-bottom: .4rem; }
.bar .part { flex-basis: 0; }
.bar .holds { background: #009e73; } .bar .fails { background: #d55e00; }
.bar .open { background: #c4c9cf; }
section { border-top: 1px solid var(--line); padding-top: 1.8rem; margin-top: 2.4rem; }
figure { margin: 1.2rem 0 1.6rem; }
figcaption { color: var(--quiet); font-size: .88rem; margin-top: .5rem; max-width: 95ch; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1.2rem; padding: 0; margin: 0 0 .7rem;
  font-size: .88rem; }
.legend li { display: flex; align-items: center; gap: .45rem; }
.swatch { width: 26px; height: 8px; flex: none; }
.panels { display: grid; gap: 1rem 1.2rem; grid-template-columns: repeat(4, minmax(0, 1fr)); }
.panels.of-3 { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.panels.of-2 { grid-template-columns: repeat(2, minmax(0, 1fr)); max-width: 880px; }
.panel svg { display: block; width: 100%; height: auto; }
.panel svg * { stroke-linejoin: round; }
.panel .note { font-size: .78rem; color: var(--quiet); margin: .1rem 0 0; }
.panel.empty { border: 1px dashed var(--line); border-radius: 6px; padding: .8rem 1rem; min-height: 7rem;
  font-size: .85rem; color: var(--quiet); }
.films { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; }
.films figure { margin: 0; max-width: 12rem; }
.films img { display: block; image-rendering: pixelated; border: 1px solid var(--line); }
.scroll { overflow-x: auto; margin: .4rem 0 1rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .4rem 1rem .4rem 0;
  border-bottom: 1px solid var(--line); }
thead th { color: var(--quiet); font-weight: 600; font-size: .8rem; white-space: nowrap; }
tbody th { font-weight: 500; white-space: nowrap; }
dl { columns: 15rem; column-gap: 2.2rem; margin: .2rem 0 .8rem; font-size: .88rem; }
dl div { display: flex; justify-content: space-between; gap: 1rem; padding: .2rem 0; break-inside: avoid;
  border-bottom: 1px solid var(--line); }
dt { color: var(--quiet); } dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
table.wide td { white-space: nowrap; }
table.claims { width: 100%; min-width: 60rem; table-layout: fixed; }
table.claims th:nth-child(1) { width: 6.5rem; } table.claims th:nth-child(3) { width: 11.5rem; }
table.claims th:nth-child(4) { width: 9.5rem; } table.claims th:nth-child(5) { width: 7.5rem; }
table.claims th:nth-child(6) { width: 3.5rem; }
table.claims td[data-head="Claim"] span { display: block; }
table.claims .top td { border-bottom: 0; border-top: 1px solid var(--line); padding-bottom: .1rem; }
table.claims .below td { border-bottom-style: dotted; padding-top: .25rem; padding-bottom: .25rem; }
table.claims .below td[data-head="Claim"] { padding-left: 1.1rem; }
.statement { font-size: .95rem; }
.reason { color: var(--open); font-size: .85rem; font-style: italic; }
.badge { display: inline-block; padding: .1rem .5rem; border-radius: 4px; font-size: .8rem; font-weight: 600;
  white-space: nowrap; }
.badge.holds { color: var(--holds); background: #e2f5ee; }
.badge.fails { color: var(--fails); background: #fdebe0; }
.badge.plain { color: var(--ink); padding-left: 0; }
.badge.open { color: var(--open); background: #eef0f2; }
.problem { border-left: 4px solid #d55e00; background: #fff6f0; padding: .5rem .9rem; font-size: .92rem;
  margin: 0 0 1rem; max-width: 80ch; overflow-wrap: anywhere; }
.missing { border-left: 4px solid var(--line); padding: .1rem .9rem; font-size: .88rem; color: var(--quiet);
  max-width: 80ch; }
.problem ul { margin: .2rem 0 0; padding-left: 1.1rem; }
details { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .9rem; margin: .5rem 0; }
summary { cursor: pointer; font-weight: 600; font-size: .92rem; }
details[open] summary { margin-bottom: .6rem; }
footer { margin-top: 3rem; color: var(--quiet); font-size: .88rem; border-top: 1px solid var(--line);
  padding-top: 1rem; }
@media (max-width: 1180px) { .panels { grid-template-columns: repeat(2, minmax(0, 1fr)); max-width: 880px; } }
@media (max-width: 1120px) { .panels.of-3 { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
@media (max-width: 1000px) {
  table.claims, table.claims tbody, table.claims tr, table.claims td { display: block; width: auto; }
  table.claims { min-width: 0; }
  table.claims thead { display: none; }
  table.claims tr { border-bottom: 1px solid var(--line); padding: .8rem 0; }
  table.claims tr.top { border: 0; padding-bottom: .2rem; }
  table.claims tr.below { padding: .5rem 0 .5rem .9rem; border-left: 3px solid var(--line);
    border-bottom-style: dotted; }
  table.claims td, table.claims .top td { border: 0; padding: .12rem 0; }
  table.claims .below td[data-head="Claim"] { padding: .12rem 0; }
  table.claims td[data-head="Claim"] { padding: .3rem 0; }
  table.claims td[data-head]:not([data-head="Claim"]) { display: inline-block; margin-right: 1rem; }
  table.claims td.nothing { display: none !important; }
  table.claims td[data-head]:not([data-head="Claim"])::before { content: attr(data-head) " ";
    color: var(--quiet); } }
@media (max-width: 900px) {
  table.overview, table.overview tbody, table.overview tr, table.overview th { display: block; }
  table.overview thead { display: none; }
  table.overview tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  table.overview tbody th { white-space: normal; border: 0; padding: 0; }
  table.overview td { display: inline-block; border: 0; padding: 0 .8rem 0 0; }
  table.overview td::before { content: attr(data-head) " "; color: var(--quiet); } }
@media (max-width: 720px) {
  body { padding: 1.3rem 1rem 3rem; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; }
  .panels, .panels.of-2, .panels.of-3 { grid-template-columns: minmax(0, 1fr); max-width: 26rem; }
  details { padding: .5rem .7rem; }
  .legend { position: sticky; top: 0; z-index: 1; background: #fff; padding: .4rem 0; } }
@media print { body { max-width: none; padding: 0; } section { break-inside: avoid-page; } }
"""
