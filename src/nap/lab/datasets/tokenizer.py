"""Tokenizers: UTF-8 bytes, a JSON file of the library `tokenizers`, or byte pairs trained on a text."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from nap.lab import files
from nap.lab.datasets.atomic import atomic_file
from nap.lab.datasets.store import DataMissing, sha256


class Tokenizer(Protocol):
    """Converts texts to tokens."""

    vocab_size: int
    end: int  # the token after each document

    @property
    def fingerprint(self) -> str:
        """Equal for equal tokenizers."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text."""


class ByteTokenizer:
    """UTF-8 bytes as tokens.

    >>> ByteTokenizer().encode(["é"])
    [[195, 169]]
    """

    vocab_size, end, fingerprint = 257, 256, "bytes"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]


class FileTokenizer:
    """A tokenizer of the library `tokenizers`, from its JSON file; the end token is `end_token`."""

    def __init__(self, path: Path, end_token: str = "<|endoftext|>"):
        library = _tokenizers()
        try:
            self._tokenizer = library.Tokenizer.from_file(str(path))
        except Exception as error:  # of no narrower type
            raise ValueError(
                f"{path} is no tokenizer of the library `tokenizers` ({error}); name its JSON file"
            ) from error
        self.vocab_size = self._tokenizer.get_vocab_size()
        end = self._tokenizer.token_to_id(end_token)
        if end is None:
            raise ValueError(f"the tokenizer in {path} has no token {end_token!r} to end documents with")
        self.end = end
        self.fingerprint = f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}, {end_token}"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]


def train_bpe(
    texts: Iterable[str], path: Path, *, vocab_size: int, end_token: str = "<|endoftext|>"
) -> FileTokenizer:
    """Train byte-pair encoding on these texts and save it; it can encode any text."""
    library = _tokenizers()
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[end_token],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    with atomic_file(path) as aside:
        tokenizer.save(str(aside))
        digest = sha256(aside)
    with atomic_file(_checksum(path)) as aside:
        aside.write_text(f"{digest}\n", "utf-8")
    return FileTokenizer(path, end_token)  # from the file, which another process may have replaced


def load_bpe(path: Path) -> FileTokenizer | None:
    """The tokenizer that `train_bpe` saved; None if there is none, or if the file was changed."""
    if not path.exists():
        return None
    try:
        digest = files.content(_checksum(path)).decode("ascii").strip()
    except (FileNotFoundError, ValueError):  # an older version saved none
        digest = None
    if digest is not None and files.is_file(path) and digest != sha256(path):
        print(f"warning: {path} has changed since it was saved: it is trained again", file=sys.stderr)
        return None
    return FileTokenizer(path)


def _checksum(path: Path) -> Path:
    """The file with the SHA-256 of a trained tokenizer."""
    return path.with_name(f"{path.name}.sha256")


def _tokenizers() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        raise DataMissing(
            "the library tokenizers is not installed: pip install 'normalize-and-project[language]', "
            "or take the tokenizer bytes"
        ) from error
