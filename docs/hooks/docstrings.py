"""Griffe extension: what the source says beside docstrings, and what Markdown would misread in them.

Docstrings have their `>>>` lines at the margin, where Markdown takes them for quotations: each such passage,
up to the next empty line, gets a fence around it. Fields and constants are explained in a comment at the end
of their line: it becomes their docstring. The source itself stays as it is.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

PASSAGE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
COMMENT = re.compile(r"\S  # (?!type:|noqa)(.+)$")


def fenced(text: str) -> str:
    """The text with a fence around each passage of examples."""
    return PASSAGE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)


def remark(lines: list[str]) -> str:
    """The comment at the end of a field's only line, or nothing."""
    found = COMMENT.search(lines[0]) if len(lines) == 1 else None
    return found[1] if found else ""


class Docstrings(Extension):
    """Mends the docstrings of every object that is loaded."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        if attr.docstring is None and (text := remark(attr.lines)):
            attr.docstring = Docstring(f"{text[0].upper()}{text[1:]}.", parent=attr)

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if isinstance(obj.docstring, Docstring):
            obj.docstring.value = fenced(obj.docstring.value)
