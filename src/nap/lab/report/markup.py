"""HTML that cannot forget to escape: text is escaped unless it was made here."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: str | None, **attributes: object) -> Html:
    """An element with children; plain strings among them are escaped, None is left out.

    Attributes: a trailing underscore avoids Python's own words, inner ones become hyphens.

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
    """A table in a box that scrolls by itself where it is too wide; the first cell of a line is its head."""
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
    """Names with their values, in as many columns as there is room for.

    >>> pairs({"lr": "0.1"})
    '<dl><div><dt>lr</dt><dd>0.1</dd></div></dl>'
    """
    return element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in of.items()))
