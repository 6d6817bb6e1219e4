"""Tokenized training and validation texts, by name; the tokens are cached on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nap.lab.datasets.catalog import DATA_SETS, of_role
from nap.lab.datasets.documents import C4, C4_ON_THE_HUB, c4_documents, documents, python_topics
from nap.lab.datasets.fetch import to_stderr
from nap.lab.datasets.store import data_home, paths, sha256
from nap.lab.datasets.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer, load_bpe, train_bpe
from nap.lab.datasets.tokens import TokenFile, tokenize
from nap.lab.files import expanded

BUNDLED = "python"
VALID_EVERY = 20  # each 20th document is for validation
STREAMED_VALID_TOKENS = 1_000_000  # taken of C4's own validation split
BPE_DOCUMENTS = 100_000  # at most, to train byte-pair encoding on
MIN_PIECES, MAX_PIECES = 257, 10_000_000  # 256 bytes and the end of a document

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Corpus:
    """Training tokens, and validation tokens of other documents."""

    train: TokenFile
    valid: TokenFile
    tokenizer: Tokenizer


def texts(names: Sequence[str]) -> Iterator[str]:
    """The documents of all these texts.

    A name is "python", the help that comes with Python; a text of the catalogue, which must have been
    fetched; or the path of a file (`./text8` for a file that is named as a text of the catalogue).
    """
    for name in names:
        if name == BUNDLED:
            yield from python_topics()
        else:
            for path in paths(name) if name in of_role("text") else [_file(name)]:
                yield from documents(path)


def load(
    names: Sequence[str],
    tokenizer: str,
    *,
    limit: int | None = None,
    folder: Path | None = None,
    tell: Tell = to_stderr,
) -> Corpus:
    """The tokens of these texts, as training and validation parts.

    Args:
        tokenizer: "bytes", "bpe-4096" (a vocabulary of this size, trained on the training part), a
            tokenizer of the catalogue, or a tokenizer's file.
        limit: of training tokens; needed for "c4", which is streamed and cannot be mixed with other texts.
        folder: of the cache; by default `tokens` in the data home.
        tell: called with messages while tokens are made.
    """
    _check(names, limit)
    folder = folder or data_home() / "tokens"
    source = "; ".join(text_fingerprint(name) for name in names)
    encoder = _tokenizer(names, tokenizer, source, folder, tell)
    key = _short(f"{source} in {encoder.fingerprint}")

    def part(which: str, limit: int | None) -> TokenFile:
        path = folder / (f"{key}.{which}" if limit is None else f"{key}.{limit}.{which}")
        return tokenize(
            _documents(names, which),
            encoder,
            path,
            source=f"{source}: {which}",
            limit=limit,
            count=lambda done: tell(f"tokenising {', '.join(names)} ({which}): {done:,} tokens"),
        )

    return Corpus(
        part("train", limit), part("valid", STREAMED_VALID_TOKENS if C4 in names else None), encoder
    )


def _check(names: Sequence[str], limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"the limit is {limit} tokens, but there must be one at least")
    if C4 in names and limit is None:
        raise ValueError("c4 is too large to take all of it: say how many tokens to train on (--tokens)")
    if C4 in names and len(names) > 1:
        raise ValueError(f"c4 is streamed and stands alone: it is not to be mixed as in {', '.join(names)}")


def _documents(names: Sequence[str], which: str) -> Iterator[str]:
    if C4 in names:
        return c4_documents("validation" if which == "valid" else "train")
    return (
        text for number, text in enumerate(texts(names)) if (number % VALID_EVERY == 0) == (which == "valid")
    )


def _tokenizer(names: Sequence[str], tokenizer: str, source: str, folder: Path, tell: Tell) -> Tokenizer:
    if tokenizer == "bytes":
        return ByteTokenizer()
    if tokenizer in of_role("tokenizer"):
        return FileTokenizer(paths(tokenizer)[0])
    kind, _, size = tokenizer.partition("-")
    if kind == "bpe" and size.isdecimal():
        path = folder / f"{_short(source)}.bpe-{size}.json"
        if (trained := load_bpe(path)) is not None:
            return trained
        tell(f"learning {int(size):,} pieces from {', '.join(names)}")
        sample = islice(_documents(names, "train"), BPE_DOCUMENTS)
        return train_bpe(sample, path, vocab_size=int(size))
    check_tokenizer(tokenizer)
    return FileTokenizer(Path(tokenizer))


def check_tokenizer(tokenizer: str) -> None:
    """Refuse an unknown tokenizer or an impossible vocabulary size."""
    kind, _, size = tokenizer.partition("-")
    if kind == "bpe" and size.isdecimal():
        if not MIN_PIECES <= int(size) <= MAX_PIECES:
            raise ValueError(f"the tokenizer {tokenizer}: from {MIN_PIECES} to {MAX_PIECES:,} pieces")
    elif tokenizer != "bytes" and tokenizer not in of_role("tokenizer") and not Path(tokenizer).is_file():
        known = ", ".join(of_role("tokenizer"))
        raise ValueError(
            f"there is no tokenizer {tokenizer!r}: name a JSON file, {known}, bytes, or pieces like bpe-4096"
        )


def check_text(name: str) -> None:
    """Refuse an unknown text; one of the catalogue need not be fetched yet."""
    if name not in (BUNDLED, C4, *of_role("text")):
        _file(name)


def duplicates(documents: Iterable[str], names: Sequence[str]) -> set[str]:
    """The documents that occur in one of the texts, with normalised whitespace. C4 is not searched."""
    on_disk = [name for name in names if name != C4]
    return set(map(normalise_whitespace, documents)).intersection(map(normalise_whitespace, texts(on_disk)))


def normalise_whitespace(document: str) -> str:
    """The document with single spaces, since copies often differ in their line breaks.

    >>> normalise_whitespace("one\\n two ")
    'one two'
    """
    return " ".join(document.split())


def _file(name: str) -> Path:
    path = expanded(name)
    if not path.is_file():
        other = DATA_SETS.get(name)
        reason = f"{name} holds {other.holds()}, and no text" if other else f"there is no text {name!r}"
        known = ", ".join((BUNDLED, C4, *of_role("text")))
        raise ValueError(
            f"{reason}: name files (plain text, .jsonl, .tokens, .lines, .gz of these), or {known}"
        )
    return path


def text_fingerprint(name: str) -> str:
    """The name and a checksum of the text."""
    if name == BUNDLED:
        return f"{BUNDLED} {_short(''.join(python_topics()))}"
    if name == C4:
        return " ".join(C4_ON_THE_HUB)
    if name in of_role("text"):
        return f"{name} {' '.join(file.sha256 for file in DATA_SETS[name].files)}"
    return f"{Path(name).name} {sha256(_file(name))}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
