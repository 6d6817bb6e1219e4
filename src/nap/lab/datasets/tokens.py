"""Tokenized text on disk, read through a memory map in packed windows of equal length.

Documents are concatenated with an end token after each, without padding. The windows of a batch are a
function of seed and step, so a resumed run needs nothing but its step.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nap.lab import files
from nap.lab.datasets.atomic import atomic_file
from nap.lab.datasets.store import sha256
from nap.lab.datasets.streams import Purpose, generator
from nap.lab.datasets.tokenizer import Tokenizer

ABOUT = ".json"  # suffix of the description beside a file of tokens
TELL_EVERY_SECONDS = 5.0
_TOKENS_AT_ONCE = 1 << 20  # written together
_AT_ONCE = 2_000_000  # characters encoded together; each may take 100 bytes of memory


class TokensDamaged(ValueError):
    """A file of tokens differs from its description."""


class TokensMissing(TokensDamaged):
    """There is no file of tokens."""


@dataclass(frozen=True)
class TokenFile:
    """Tokens below `vocabulary` in a file; `about` is their description."""

    path: Path
    count: int
    vocabulary: int
    about: Mapping[str, Any]

    @property
    def tokens(self) -> NDArray[np.unsignedinteger[Any]]:
        """All tokens as a read-only memory map."""
        return np.memmap(self.path, _dtype(self.vocabulary), "r", shape=(self.count,))

    def windows(self, length: int) -> Windows:
        """Windows with `length` predictions each."""
        return Windows(self.tokens, length)


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of length + 1 tokens, each beginning with the last token of the one before.

    Every token but the first is predicted once per epoch; a last window that is not full is left out.

    >>> [piece.tolist() for piece in Windows(np.arange(8), length=3)[[0, 1]]]
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """

    tokens: NDArray[Any]
    length: int

    def __post_init__(self) -> None:
        if len(self) < 1:
            raise ValueError(f"{len(self.tokens):,} tokens do not fill one window of {self.length} + 1")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """The windows with these indices, int64 (B, length + 1)."""
        starts = np.asarray(index, np.int64)[:, None] * self.length
        return torch.from_numpy(self.tokens[starts + np.arange(self.length + 1)].astype(np.int64))

    def batch(self, seed: int, step: int, size: int) -> Tensor:
        """The batch of a step, from 0; each epoch has its own order."""
        if size > len(self):
            raise ValueError(f"a batch of {size} windows, but there are {len(self)}; lower --batch-size")
        epoch, place = divmod(step, len(self) // size)
        return self[_order(seed, epoch, len(self))[place * size : (place + 1) * size]]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return generator(seed, Purpose.BATCHES, 1, epoch).permutation(count)


def write(
    path: Path,
    documents: Iterable[Sequence[int]],
    *,
    end: int,
    vocabulary: int,
    about: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> TokenFile:
    """Write the tokens of all documents, or the first `limit` of them, to a file, atomically."""
    if not 0 <= end < vocabulary:
        raise ValueError(f"the end token is {end}, but there are {vocabulary} tokens, from 0")
    kind, count, buffer = _dtype(vocabulary), 0, []
    digest = hashlib.sha256()
    with atomic_file(path) as aside, aside.open("wb") as file:

        def put(tokens: Sequence[int]) -> int:
            numbers = np.asarray(tokens, np.int64)
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= vocabulary):
                raise ValueError(f"token {numbers.max()} does not fit a vocabulary of {vocabulary}")
            stored = numbers.astype(kind).tobytes()
            digest.update(stored)
            file.write(stored)
            return len(numbers)

        for document in documents:
            buffer += [*document, end]
            if limit is not None and count + len(buffer) >= limit:
                buffer = buffer[: limit - count]
                break
            if len(buffer) >= _TOKENS_AT_ONCE:
                count, buffer = count + put(buffer), []
        count += put(buffer)
        if not count:
            raise ValueError(
                f"there are no documents to write to {path}; a text of one document alone has none to learn "
                "from, since the first is held out"
            )
    described = {"count": count, "vocabulary": vocabulary, "end": end, **(about or {})}
    _describe(path, {**described, "sha256": digest.hexdigest()})
    return read(path)


def _describe(path: Path, about: Mapping[str, Any]) -> None:
    with atomic_file(_description(path)) as aside:
        aside.write_text(json.dumps(about, indent=1), "utf-8")


def read(path: Path) -> TokenFile:
    """The tokens in a file of `write`, after comparing its SHA-256.

    An older file without a SHA-256 in its description gets one.
    """
    try:
        about = files.parse_json(files.content(_description(path)))
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise TokensMissing(f"{path} and its description are not there; make them again") from error
    except (OSError, ValueError) as error:
        raise TokensDamaged(f"{path} and its description cannot be read: {error}; make them again") from error
    if not (isinstance(about, dict) and _is_count(about.get("count")) and _is_count(about.get("vocabulary"))):
        raise TokensDamaged(f"{_description(path)} does not say how many tokens there are; make it again")
    expected = about["count"] * _dtype(about["vocabulary"]).itemsize
    if size != expected or not files.is_file(path):
        raise TokensDamaged(f"{path} has {size:,} bytes and should have {expected:,}; make it again")
    expected_digest, digest = about.pop("sha256", None), sha256(path)
    if expected_digest not in (None, digest):
        raise TokensDamaged(f"{path} is not what was written, its SHA-256 differs; make it again")
    if expected_digest is None:
        with suppress(OSError):  # a folder that may only be read
            _describe(path, {**about, "sha256": digest})
    return TokenFile(path, about["count"], about["vocabulary"], about)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**62


def _description(path: Path) -> Path:
    return path.with_name(path.name + ABOUT)


def _dtype(vocabulary: int) -> np.dtype[Any]:
    return np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")


def tokenize(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    path: Path,
    *,
    source: str,
    limit: int | None = None,
    count: Callable[[int], None] | None = None,
) -> TokenFile:
    """Tokenize documents into the file `path`, unless an earlier call with the same source did.

    `count` is called every few seconds with the number of tokens so far.
    """
    about = {"source": source, "coder": tokenizer.fingerprint, "limit": limit}
    try:
        stored = read(path)
        if all(stored.about.get(key) == value for key, value in about.items()):
            return stored
    except TokensMissing:
        pass  # they are made below
    except TokensDamaged as error:
        print(f"warning: {error}: it is made again now", file=sys.stderr)
    tokens = _counted(_encoded(texts, tokenizer), count)
    return write(path, tokens, end=tokenizer.end, vocabulary=tokenizer.vocab_size, about=about, limit=limit)


def _encoded(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    buffer: list[str] = []
    size = 0
    for text in texts:
        buffer.append(text)
        size += len(text)
        if size >= _AT_ONCE:
            yield from tokenizer.encode(buffer)
            buffer, size = [], 0
    yield from tokenizer.encode(buffer)


def _counted(documents: Iterator[list[int]], count: Callable[[int], None] | None) -> Iterator[list[int]]:
    """The documents, with calls of `count`."""
    done, last = 0, time.monotonic()
    for document in documents:
        yield document
        done += len(document) + 1  # the end token
        if count and time.monotonic() - last >= TELL_EVERY_SECONDS:
            count(done)
            last = time.monotonic()
