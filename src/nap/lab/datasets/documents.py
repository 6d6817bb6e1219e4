"""Text as documents, and documents as tokens: bytes, or the pieces that a tokenizer knows."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from nap.lab import files
from nap.lab.datasets.store import DataMissing, sha256
from nap.lab.datasets.tokens import TokenFile, TokensDamaged, TokensMissing, read, replacing, write

PIECE = 100_000  # characters of a text that marks no documents
NO_TEXT = {  # kinds of files that texts come in, and what to do with them
    ".zst": "unpack it, as with zstd -d",
    ".xz": "unpack it, as with xz -d",
    ".zip": "unpack it",
    ".parquet": "write its column of texts as .jsonl",
    ".arrow": "write its column of texts as .jsonl",
    ".csv": "write its column of texts as .jsonl",
    ".npy": "write its texts as .jsonl",
}
TELL_EVERY_SECONDS = 5.0
_TITLE = re.compile(r"^ = [^=](.*[^=])? = $")  # of an article of WikiText; its sections have more signs
_AT_ONCE = 2_000_000  # characters, about, that a coder is given together: each may take it 100 bytes


def documents(path: Path) -> Iterator[str]:
    """The documents of a file, by its kind.

    `.jsonl` or `.json`: the field "text" of each line. `.tokens`: WikiText, an article each. `.lines`: a
    line each. Else plain text, in pieces of 100,000 characters, cut at white space. Each may be packed, with
    `.gz` at the end.
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
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        text = None
    if not isinstance(text, str):
        raise ValueError(
            f'{path}, line {number}, is no JSON object with a string in its field "text"; write it so, or '
            "name a file of plain text"
        )
    return text


def articles(lines: Iterable[str]) -> Iterator[str]:
    """WikiText's lines, article by article: each has a title, after an empty line.

    >>> list(articles([" = One = ", " one ", " = 1 = ", " ", " = = Part = = ", " ", " = Two = ", " more"]))
    [' = One = \\n one \\n = 1 = \\n \\n = = Part = = \\n ', ' = Two = \\n more']
    """
    held: list[str] = []
    for line in lines:
        titled = _TITLE.match(line) and held and not held[-1].strip()
        if titled and any(part.strip() for part in held):
            yield "\n".join(held)
            held = []
        held.append(line)
    if any(part.strip() for part in held):
        yield "\n".join(held)


def cut_up(text: str, size: int = PIECE) -> Iterator[str]:
    """A long text in pieces of about `size` characters, which together are the text.

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
    """The help texts that come with Python, half a million characters of English: nothing to fetch."""
    topics = importlib.import_module("pydoc_data.topics").topics
    yield from (topics[name] for name in sorted(topics))


class Coder(Protocol):
    """What turns texts into tokens."""

    vocabulary: int
    end: int  # the token after each document

    @property
    def fingerprint(self) -> str:
        """Equal for coders that give equal tokens."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text."""


class Bytes:
    """UTF-8, byte by byte.

    >>> Bytes().encode(["é"])
    [[195, 169]]
    """

    vocabulary, end, fingerprint = 257, 256, "bytes"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]


class Pieces:
    """A tokenizer of the library `tokenizers`, from its JSON file; the end token is `end_token`."""

    def __init__(self, path: Path, end_token: str = "<|endoftext|>"):
        library = _library()
        try:
            self._tokenizer = library.Tokenizer.from_file(str(path))
        except Exception as error:  # of no narrower type
            raise ValueError(
                f"{path} is no tokenizer of the library `tokenizers` ({error}); name its JSON file"
            ) from error
        self.vocabulary = self._tokenizer.get_vocab_size()
        found = self._tokenizer.token_to_id(end_token)
        if found is None:
            raise ValueError(f"the tokenizer in {path} has no token {end_token!r} to end documents with")
        self.end = found
        self.fingerprint = f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}, {end_token}"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch(texts, add_special_tokens=False)]


def train_pieces(
    texts: Iterable[str], path: Path, *, vocabulary: int, end_token: str = "<|endoftext|>"
) -> Pieces:
    """Byte-pair pieces, learnt from these texts and kept in a file; any text can be written in them."""
    library = _library()
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[end_token],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    with replacing(path) as aside:
        tokenizer.save(str(aside))
        digest = sha256(aside)
    with replacing(_noted(path)) as aside:
        aside.write_text(f"{digest}\n", "utf-8")
    return Pieces(path, end_token)  # as it lies there: another process may have been a moment later


def trained_pieces(path: Path) -> Pieces | None:
    """The pieces that `train_pieces` left there, if they are still what it wrote; None where none are."""
    if not path.exists():
        return None
    try:
        noted = files.content(_noted(path)).decode("ascii").strip()
    except (FileNotFoundError, ValueError):  # older than the note: other pieces give other tokens' names
        noted = None
    if noted is not None and files.is_file(path) and noted != sha256(path):
        print(f"warning: {path} is not what was written: its pieces are learnt again", file=sys.stderr)
        return None
    return Pieces(path)


def _noted(path: Path) -> Path:
    """Beside pieces: their SHA-256."""
    return path.with_name(f"{path.name}.sha256")


def tokenised(
    texts: Iterable[str],
    coder: Coder,
    path: Path,
    *,
    source: str,
    limit: int | None = None,
    count: Callable[[int], None] | None = None,
) -> TokenFile:
    """The tokens of these documents, from the file where an earlier call with the same words put them.

    `count` hears every few seconds how many tokens there are.
    """
    about = {"source": source, "coder": coder.fingerprint, "limit": limit}
    try:
        found = read(path)
        if all(found.about.get(key) == value for key, value in about.items()):
            return found
    except TokensMissing:
        pass  # they are made below
    except TokensDamaged as error:
        print(f"warning: {error}: it is made again now", file=sys.stderr)
    tokens = _counted(_encoded(texts, coder), count)
    return write(path, tokens, end=coder.end, vocabulary=coder.vocabulary, about=about, limit=limit)


def _encoded(texts: Iterable[str], coder: Coder) -> Iterator[list[int]]:
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= _AT_ONCE:
            yield from coder.encode(held)
            held, size = [], 0
    yield from coder.encode(held)


def _counted(documents: Iterator[list[int]], count: Callable[[int], None] | None) -> Iterator[list[int]]:
    """The same documents; their tokens are counted aloud."""
    done, last = 0, time.monotonic()
    for document in documents:
        yield document
        done += len(document) + 1  # the end token
        if count and time.monotonic() - last >= TELL_EVERY_SECONDS:
            count(done)
            last = time.monotonic()


def _library() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        raise DataMissing(
            "the library tokenizers is not installed: pip install 'normalize-and-project[language]', "
            "or take the tokenizer bytes"
        ) from error
