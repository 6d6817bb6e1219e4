"""Documents from text files, from Python's help, and from C4, which is streamed."""

from __future__ import annotations

import gzip
import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from nap.lab.datasets.store import DataMissing
from nap.lab.files import parse_json

C4 = "c4"  # 300 GB of web pages, which are streamed
C4_ON_THE_HUB = ("allenai/c4", "en")  # repository and configuration
PIECE = 100_000  # characters of a document of plain text
NO_TEXT = {  # suffixes of files that are not read, and what to do with them
    ".zst": "unpack it, as with zstd -d",
    ".xz": "unpack it, as with xz -d",
    ".zip": "unpack it",
    ".parquet": "write its column of texts as .jsonl",
    ".arrow": "write its column of texts as .jsonl",
    ".csv": "write its column of texts as .jsonl",
    ".npy": "write its texts as .jsonl",
}
_TITLE = re.compile(r"^ = [^=](.*[^=])? = $")  # of an article of WikiText; its sections have more signs


def documents(path: Path) -> Iterator[str]:
    """The documents of a file, depending on its suffix, to which `.gz` may be added.

    `.jsonl` or `.json`: the field "text" of each line. `.tokens`: the articles of WikiText. `.lines`: each
    line. Otherwise plain text in pieces of 100,000 characters, cut at whitespace.
    """
    if path.suffix in NO_TEXT:
        raise ValueError(
            f"{path} is no text that can be read as it is; {NO_TEXT[path.suffix]}, or name a file of plain "
            "text, .jsonl, .tokens or .lines"
        )
    try:
        yield from _by_kind(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error}); convert it first, as with iconv") from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} is no whole file of gzip ({error}); fetch it again") from error


def _by_kind(path: Path) -> Iterator[str]:
    packed = path.suffix == ".gz"
    kind = path.with_suffix("").suffix if packed else path.suffix
    with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as file:
        if kind in (".jsonl", ".json"):
            yield from (_text(line, path, number) for number, line in enumerate(file, 1) if line.strip())
        elif kind == ".tokens":
            yield from articles(file.read().split("\n"))
        elif kind == ".lines":
            yield from filter(str.strip, file.read().split("\n"))
        else:
            yield from cut_up(file.read())


def _text(line: str, path: Path, number: int) -> str:
    try:
        text = parse_json(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise ValueError(
            f'{path}, line {number}, is no JSON object with a string in its field "text"; write it so, or '
            "name a file of plain text"
        )
    return text


def articles(lines: Iterable[str]) -> Iterator[str]:
    """The articles in lines of WikiText: each begins with a title after an empty line.

    >>> list(articles([" = One = ", " one ", " = 1 = ", " ", " = = Part = = ", " ", " = Two = ", " more"]))
    [' = One = \\n one \\n = 1 = \\n \\n = = Part = = \\n ', ' = Two = \\n more']
    """
    article: list[str] = []
    for line in lines:
        titled = _TITLE.match(line) and article and not article[-1].strip()
        if titled and any(part.strip() for part in article):
            yield "\n".join(article)
            article = []
        article.append(line)
    if any(part.strip() for part in article):
        yield "\n".join(article)


def cut_up(text: str, size: int = PIECE) -> Iterator[str]:
    """A long text in pieces of about `size` characters.

    >>> list(cut_up("one two three", size=7))
    ['one', ' two', ' three']
    """
    start = 0
    while start < len(text):
        end = start + size
        if end < len(text):
            cut = max(text.rfind(space, start + 1, end) for space in " \n")
            end = cut if cut > start else end
        yield text[start:end]
        start = end


def python_topics() -> Iterator[str]:
    """The help texts of Python: half a million characters of English that are installed already."""
    topics = importlib.import_module("pydoc_data.topics").topics
    yield from (topics[name] for name in sorted(topics))


def c4_documents(split: Literal["train", "validation"]) -> Iterator[str]:
    """The pages of a split in the order of the hub; nothing is stored on disk."""
    try:
        library = importlib.import_module("datasets")
    except ImportError as error:
        raise DataMissing(
            f"{C4} is streamed with the library datasets, which is not installed: "
            "pip install 'normalize-and-project[c4]', or take c4-sample instead"
        ) from error
    count = 0
    try:
        for row in library.load_dataset(*C4_ON_THE_HUB, split=split, streaming=True):
            yield row["text"]
            count += 1
    except Exception as error:  # the library has no base class of its errors
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataMissing(
            f"{C4} broke off after {count:,} documents ({reason}): it needs the Hugging Face hub; "
            "try again where that can be reached, or take c4-sample or files of your own"
        ) from error
