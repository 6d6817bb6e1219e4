"""From the names of texts to tokens for training and for validation, made once and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nap.lab.data.store import data_home
from nap.lab.data.text import Bytes, Coder, Pieces, documents, python_topics, tokenised, train_pieces
from nap.lab.data.tokens import TokenFile

BUNDLED = "python"
HELD_OUT = 20  # every so-manieth document is for validation


@dataclass(frozen=True)
class Corpus:
    """Tokens to learn from, and tokens of other documents to be judged on."""

    train: TokenFile
    valid: TokenFile
    coder: Coder


def texts(names: Sequence[str]) -> Iterator[str]:
    """The documents of all these texts: "python", the help that comes with Python, or paths of files."""
    for name in names:
        yield from python_topics() if name == BUNDLED else documents(_file(name))


def load(names: Sequence[str], tokenizer: str, *, folder: Path | None = None) -> Corpus:
    """The texts in tokens: "bytes", "bpe-4096" (so many pieces, learnt from the training part), or a file.

    Tokens are kept below `folder`, by default `tokens` in the data home.
    """
    folder = folder or data_home() / "tokens"
    source = "; ".join(_identity(name) for name in names)
    coder = _coder(names, tokenizer, source, folder)
    key = _short(f"{source} in {coder.fingerprint}")

    def part(which: str) -> TokenFile:
        chosen = _of(names, which)
        return tokenised(chosen, coder, folder / f"{key}.{which}", source=f"{source}: {which}")

    return Corpus(part("train"), part("valid"), coder)


def _of(names: Sequence[str], which: str) -> Iterator[str]:
    return (
        text for number, text in enumerate(texts(names)) if (number % HELD_OUT == 0) == (which == "valid")
    )


def _coder(names: Sequence[str], tokenizer: str, source: str, folder: Path) -> Coder:
    if tokenizer == "bytes":
        return Bytes()
    kind, _, size = tokenizer.partition("-")
    if kind == "bpe" and size.isdecimal():
        path = folder / f"{_short(source)}.bpe-{size}.json"
        return (
            Pieces(path) if path.exists() else train_pieces(_of(names, "train"), path, vocabulary=int(size))
        )
    if not Path(tokenizer).is_file():
        raise ValueError(
            f"there is no tokenizer {tokenizer!r}: name a JSON file, bytes, or pieces like bpe-4096"
        )
    return Pieces(Path(tokenizer))


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no text {name!r}: name files (plain text, .jsonl, .tokens), or {BUNDLED}")
    return path


def _identity(name: str) -> str:
    """The name with what changes when the text does."""
    if name == BUNDLED:
        return f"{BUNDLED} {_short(''.join(python_topics()))}"
    found = _file(name).stat()
    return f"{Path(name).name} {found.st_size} {found.st_mtime_ns}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
