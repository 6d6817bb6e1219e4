"""MkDocs hook: a link to what lies outside of docs/ leads to a page that shows it; `>>>` is a session.

PAPER.md, CONTRIBUTING.md and CHANGELOG.md are pages of the site; a source file gets a page when another page
links to it. So one link works in the repository and on the site. Python sessions get a CSS class, so that the
copy button leaves out prompts and outputs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ROOT_PAGES = {"PAPER.md": "paper.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# code first, so that nothing inside of it is taken for a link
LINK = re.compile(r"```.*?^```|`[^`\n]*`|(?P<open>\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)]*)?\)", re.S | re.M)
SHORT_CODE = re.compile(r"<code>(?=[^<\n]{1,28}</code>)")
SESSION = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)
SHOWN = {".py": "python"}

_origin: dict[str, Path] = {}  # page of the site that was made here → the file that it shows


def site_page(file: Path) -> str | None:
    """Where a file of the repository is on the site; None for what the site has no page for."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    name = file.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    return f"source/{name}.md" if file.suffix in SHOWN and file.is_file() else None


def rewritten(text: str, here: Path, page: str) -> str:
    """`text` of the file `here`, with links that fit its place `page` on the site."""

    def link(match: re.Match[str]) -> str:
        if not match["open"]:
            return match[0]
        target = (here.parent / match["path"]).resolve()
        if not target.is_relative_to(ROOT) or (found := site_page(target)) is None:
            return match[0]
        return f"]({os.path.relpath(found, Path(page).parent)}{match['anchor'] or ''})"

    return LINK.sub(link, text)


def linked_sources(text: str, here: Path) -> set[Path]:
    """The source files that a page links to."""
    targets = ((here.parent / match["path"]).resolve() for match in LINK.finditer(text) if match["open"])
    return {target for target in targets if target.suffix in SHOWN and target.is_file()}


def on_files(files: Any, config: Any) -> Any:
    texts = {
        DOCS / file.src_uri: (DOCS / file.src_uri).read_text("utf-8") for file in files.documentation_pages()
    }
    texts |= {ROOT / name: (ROOT / name).read_text("utf-8") for name in ROOT_PAGES}
    for name, page in ROOT_PAGES.items():
        _add(files, config, page, ROOT / name, texts[ROOT / name])
    for source in sorted({source for here, text in texts.items() for source in linked_sources(text, here)}):
        shown_at = site_page(source)
        assert shown_at is not None
        name, language = source.relative_to(ROOT).as_posix(), SHOWN[source.suffix]
        code = f"````{language}\n{source.read_text('utf-8')}````\n"
        _add(files, config, shown_at, source, f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{code}")
    return files


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Short code stays on one line: browsers break `--option` after its hyphens."""
    return SHORT_CODE.sub(r'<code class="short">', html)


def _add(files: Any, config: Any, page: str, origin: Path, content: str) -> None:
    _origin[page] = origin
    files.append(File.generated(config, page, content=content))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    return SESSION.sub("```pycon\n", rewritten(markdown, _origin.get(uri, DOCS / uri), uri))
