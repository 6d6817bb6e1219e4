"""Griffe extension that prepares docstrings for Markdown.

- Each `>>>` example, up to the next empty line, is put into a code fence: Markdown would read it as a quote.
- A comment at the end of the line of a field or constant becomes its docstring.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

PASSAGE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
COMMENT = re.compile(r"\S  # (?!type:|noqa)(.+)$")


def fenced(text: str) -> str:
    """The text with each example in a code fence."""
    return PASSAGE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


def remark(lines: list[str]) -> str:
    """The comment at the end of a one-line field; empty without one."""
    comment = COMMENT.search(lines[0]) if len(lines) == 1 else None
    return comment[1] if comment else ""


class Docstrings(Extension):
    """Adds and rewrites docstrings as objects are loaded."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        if attr.docstring is None and (text := remark(attr.lines)):
            attr.docstring = Docstring(f"{text[0].upper()}{text[1:]}.", parent=attr)

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if isinstance(obj.docstring, Docstring):
            obj.docstring.value = fenced(obj.docstring.value)
