"""HTML that cannot forget to escape: text is escaped unless it was made here."""

from __future__ import annotations

from html import escape
from itertools import zip_longest


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


def table(head: list[str], body: list[list[str]], *, label: str, class_: str = "") -> Html:
    """A table in a box that scrolls by itself where it is too wide; the first cell of a line is its head.

    >>> print(table([], [["lr", "0.1"]], label="settings")[69:])
    <table><tbody><tr><th scope="row">lr</th><td>0.1</td></tr></tbody></table></div>
    """
    heads = element("thead", element("tr", *(element("th", text, scope="col") for text in head)))
    lines = [
        element(
            "tr",
            element("th", first, scope="row"),
            *(element("td", text, data_head=of) for text, of in zip_longest(rest, head[1:])),
        )
        for first, *rest in body
    ]
    inner = element("table", heads if head else None, element("tbody", *lines), class_=class_ or None)
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=label)
