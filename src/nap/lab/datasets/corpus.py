"""From the names of texts to tokens for training and for validation, made once and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nap.lab.datasets import c4
from nap.lab.datasets.catalog import DATA_SETS, of_role
from nap.lab.datasets.fetch import to_stderr
from nap.lab.datasets.store import data_home, paths, sha256
from nap.lab.datasets.documents import (
    Bytes,
    Coder,
    Pieces,
    documents,
    python_topics,
    tokenised,
    train_pieces,
    trained_pieces,
)
from nap.lab.datasets.tokens import TokenFile
from nap.lab.files import expanded

BUNDLED = "python"
HELD_OUT = 20  # every so-manieth document is for validation
STREAMED_VALID_TOKENS = 1_000_000  # taken of C4's own validation split
LEARNT_FROM_DOCUMENTS = 100_000  # at most, for pieces
LEAST_PIECES, MOST_PIECES = 257, 10_000_000  # each byte is one, and the end of a document

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Corpus:
    """Tokens to learn from, and tokens of other documents to be judged on."""

    train: TokenFile
    valid: TokenFile
    coder: Coder


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
    """The texts in tokens: of "bytes", "bpe-4096" (so many pieces, learnt from the training part), a
    tokenizer of the catalogue, or a tokenizer's file.

    The training part ends after `limit` tokens. "c4" is streamed, needs a limit, stands alone, and is
    judged on its own validation split. Tokens are kept below `folder`, by default `tokens` in the data
    home; until they are there, `tell` hears every few seconds how many there are.
    """
    _check(names, limit)
    folder = folder or data_home() / "tokens"
    source = "; ".join(identity_of_text(name) for name in names)
    coder = _coder(names, tokenizer, source, folder, tell)
    key = _short(f"{source} in {coder.fingerprint}")

    def part(which: str, limit: int | None) -> TokenFile:
        path = folder / (f"{key}.{which}" if limit is None else f"{key}.{limit}.{which}")
        return tokenised(
            _of(names, which),
            coder,
            path,
            source=f"{source}: {which}",
            limit=limit,
            count=lambda done: tell(f"tokenising {', '.join(names)} ({which}): {done:,} tokens"),
        )

    return Corpus(
        part("train", limit), part("valid", STREAMED_VALID_TOKENS if c4.NAME in names else None), coder
    )


def _check(names: Sequence[str], limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"the limit is {limit} tokens, but there must be one at least")
    if c4.NAME in names and limit is None:
        raise ValueError("c4 is too large to take all of it: say how many tokens to train on (--tokens)")
    if c4.NAME in names and len(names) > 1:
        raise ValueError(f"c4 is streamed and stands alone: it is not to be mixed as in {', '.join(names)}")


def _of(names: Sequence[str], which: str) -> Iterator[str]:
    if c4.NAME in names:
        return c4.documents("validation" if which == "valid" else "train")
    return (
        text for number, text in enumerate(texts(names)) if (number % HELD_OUT == 0) == (which == "valid")
    )


def _coder(names: Sequence[str], tokenizer: str, source: str, folder: Path, tell: Tell) -> Coder:
    if tokenizer == "bytes":
        return Bytes()
    if tokenizer in of_role("tokenizer"):
        return Pieces(paths(tokenizer)[0])
    kind, _, size = tokenizer.partition("-")
    if kind == "bpe" and size.isdecimal():
        path = folder / f"{_short(source)}.bpe-{size}.json"
        if (there := trained_pieces(path)) is not None:
            return there
        tell(f"learning {int(size):,} pieces from {', '.join(names)}")
        shown = islice(_of(names, "train"), LEARNT_FROM_DOCUMENTS)
        return train_pieces(shown, path, vocabulary=int(size))
    check_tokenizer(tokenizer)
    return Pieces(Path(tokenizer))


def check_tokenizer(tokenizer: str) -> None:
    """Refuse a tokenizer that there is not, or pieces of a number that cannot be."""
    kind, _, size = tokenizer.partition("-")
    if kind == "bpe" and size.isdecimal():
        if not LEAST_PIECES <= int(size) <= MOST_PIECES:
            raise ValueError(f"the tokenizer {tokenizer}: from {LEAST_PIECES} to {MOST_PIECES:,} pieces")
    elif tokenizer != "bytes" and tokenizer not in of_role("tokenizer") and not Path(tokenizer).is_file():
        known = ", ".join(of_role("tokenizer"))
        raise ValueError(
            f"there is no tokenizer {tokenizer!r}: name a JSON file, {known}, bytes, or pieces like bpe-4096"
        )


def check_text(name: str) -> None:
    """Refuse a text that there is not; whether one of the catalogue was fetched is another question."""
    if name not in (BUNDLED, c4.NAME, *of_role("text")):
        _file(name)


def among(documents: Iterable[str], names: Sequence[str]) -> set[str]:
    """Of these documents, as `in_words` has them, those that stand so in one of the texts.

    What is streamed is not looked through.
    """
    looked_through = [name for name in names if name != c4.NAME]
    return set(map(in_words, documents)).intersection(map(in_words, texts(looked_through)))


def in_words(document: str) -> str:
    """The document but for its white space: lines are broken anew by whoever passes a text on.

    >>> in_words("one\\n two ")
    'one two'
    """
    return " ".join(document.split())


def _file(name: str) -> Path:
    path = expanded(name)
    if not path.is_file():
        other = DATA_SETS.get(name)
        found = f"{name} holds {other.holds()}, and no text" if other else f"there is no text {name!r}"
        known = ", ".join((BUNDLED, c4.NAME, *of_role("text")))
        raise ValueError(
            f"{found}: name files (plain text, .jsonl, .tokens, .lines, .gz of these), or {known}"
        )
    return path


def identity_of_text(name: str) -> str:
    """The name with what changes when the text does."""
    if name == BUNDLED:
        return f"{BUNDLED} {_short(''.join(python_topics()))}"
    if name == c4.NAME:
        return f"{c4.REPOSITORY} {c4.CONFIGURATION}"
    if name in of_role("text"):
        return f"{name} {' '.join(file.sha256 for file in DATA_SETS[name].files)}"
    return f"{Path(name).name} {sha256(_file(name))}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
