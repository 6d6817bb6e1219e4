"""Texts by name: from the catalogue, or streamed; the tokens are made once, up to a limit."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nap.lab.datasets import corpus, tokens
from nap.lab.datasets.catalog import DATA_SETS
from nap.lab.datasets.corpus import load
from nap.lab.datasets.dataset import TextSet
from nap.lab.datasets.store import DataMissing
from nap.lab.datasets.tokenizer import train_bpe
from small_data import as_file, write

PAGES = "".join(f"page {number} of forty.\n" for number in range(40)).encode()


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def text_set(name: str, file: str, content: bytes, role: Any = "text") -> TextSet:
    return TextSet(
        name=name, about="a test", licence="none", cite="nobody", role=role, texts=(as_file(file, content),)
    )


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch, data_home: Path) -> Path:
    """A text of the catalogue that has been fetched; the path of its file."""
    monkeypatch.setitem(DATA_SETS, "pages", text_set("pages", "pages.lines", PAGES))
    return write(data_home / "pages", {"pages.lines": PAGES}) / "pages.lines"


def in_words(tokens: Any) -> list[str]:
    """The documents, of tokens that are bytes."""
    pieces: list[list[int]] = [[]]
    for token in tokens:
        if token == 256:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [bytes(piece).decode() for piece in pieces if piece]


# ---- the catalogue ------------------------------------------------------------------------------------


def test_a_text_of_the_catalogue_is_read_document_by_document(pages: Path) -> None:
    found = load(["pages"], "bytes")
    assert in_words(found.valid.tokens) == ["page 0 of forty.", "page 20 of forty."]
    assert len(in_words(found.train.tokens)) == 38
    both = load(["pages", "python"], "bytes")
    assert both.train.count > found.train.count + 400_000


def flip_(path: Path) -> bytes:
    """One bit of a file; what it held before."""
    held = path.read_bytes()
    path.write_bytes(held[:40] + bytes([held[40] ^ 1]) + held[41:])
    return held


def test_tokens_with_a_flipped_bit_are_made_again(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = load(["pages"], "bytes")
    before = flip_(found.train.path)
    again = load(["pages"], "bytes")
    assert again.train.path.read_bytes() == before
    said = capsys.readouterr().err
    assert said.startswith(f"warning: {found.train.path} is not what was written, its SHA-256 differs")
    assert said.count("\n") == 1


def test_pieces_with_a_flipped_bit_are_learnt_again(
    pages: Path, data_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    found = load(["pages"], "bpe-300")
    (path,) = (data_home / "tokens").glob("*.bpe-300.json")
    before = flip_(path)
    again = load(["pages"], "bpe-300")
    assert path.read_bytes() == before
    assert again.tokenizer.fingerprint == found.tokenizer.fingerprint
    assert f"warning: {path} has changed" in capsys.readouterr().err


def test_a_text_that_is_not_there_or_damaged_says_how_to_get_it(pages: Path) -> None:
    pages.write_bytes(PAGES.upper())
    with pytest.raises(DataMissing, match=r"pages\.lines is damaged; run: nap data fetch pages"):
        load(["pages"], "bytes")
    pages.unlink()
    with pytest.raises(DataMissing, match=r"pages\.lines is missing; run: nap data fetch pages"):
        load(["pages"], "bytes")


def test_what_a_text_is_known_by_is_its_content(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(["pages"], "bytes")
    made = first.train.path.stat().st_mtime_ns
    os.utime(pages, (1, 1))
    assert load(["pages"], "bytes").train == first.train
    assert first.train.path.stat().st_mtime_ns == made
    other = PAGES.replace(b"forty", b"FORTY")
    monkeypatch.setitem(DATA_SETS, "pages", text_set("pages", "pages.lines", other))
    pages.write_bytes(other)
    assert in_words(load(["pages"], "bytes").valid.tokens)[0] == "page 0 of FORTY."


def test_a_set_without_text_is_refused_by_what_it_holds() -> None:
    with pytest.raises(ValueError, match=r"piqa holds 1,838 questions, and no text: name files .* text8"):
        load(["piqa"], "bytes")
    with pytest.raises(ValueError, match=r"mnist holds 60,000 train.*and no text"):
        load(["mnist"], "bytes")


def test_a_tokenizer_of_the_catalogue(
    pages: Path, data_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_bpe([PAGES.decode()], tmp_path / "x.json", vocab_size=280)
    content = (tmp_path / "x.json").read_bytes()
    monkeypatch.setitem(DATA_SETS, "my-pieces", text_set("my-pieces", "my.json", content, "tokenizer"))
    with pytest.raises(DataMissing, match=r"my\.json is missing; run: nap data fetch my-pieces"):
        load(["pages"], "my-pieces")
    write(data_home / "my-pieces", {"my.json": content})
    named, by_path = load(["pages"], "my-pieces"), load(["pages"], str(tmp_path / "x.json"))
    assert named.tokenizer.vocab_size == 280
    assert named.train == by_path.train
    with pytest.raises(ValueError, match=r"no tokenizer 'pages': name a JSON file, .*my-pieces, bytes"):
        load(["pages"], "pages")


def test_a_limit_is_of_the_training_part(pages: Path) -> None:
    whole, some = load(["pages"], "bytes"), load(["pages"], "bytes", limit=50)
    assert some.train.tokens.tolist() == whole.train.tokens.tolist()[:50]
    assert some.valid == whole.valid
    assert load(["pages"], "bytes").train == whole.train, "one does not push out the other"
    with pytest.raises(ValueError, match="the limit is 0 tokens"):
        load(["pages"], "bytes", limit=0)


def test_long_work_is_told(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    load(["pages"], "bytes", tell=told.append)
    assert told == []
    monkeypatch.setattr(tokens, "TELL_EVERY_SECONDS", 0.0)
    load(["pages"], "bpe-300", tell=told.append)
    assert told[0] == "learning 300 pieces from pages"
    assert told[1].startswith("tokenising pages (train): ")
    assert told[-1].startswith("tokenising pages (valid): ")


# ---- C4, streamed -------------------------------------------------------------------------------------


class Hub:
    """Stands in for the library `datasets`: endless documents, with a fault if one is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fault: tuple[int, BaseException] | None = None

    def load_dataset(
        self, name: str, config: str, *, split: str, streaming: bool
    ) -> Iterator[dict[str, str]]:
        assert (name, config, streaming) == ("allenai/c4", "en", True)
        self.asked.append(split)
        return self._rows(split)

    def _rows(self, split: str) -> Iterator[dict[str, str]]:
        number = 0
        while True:
            if self.fault and number == self.fault[0]:
                raise self.fault[1]
            yield {"text": f"{split} {number}", "url": "http://x"}
            number += 1


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    one = Hub()
    monkeypatch.setitem(sys.modules, "datasets", one)
    monkeypatch.setattr(corpus, "STREAMED_VALID_TOKENS", 30)
    monkeypatch.setattr(tokens, "_AT_ONCE", 40)
    return one


def test_c4_is_streamed_once_up_to_the_limit(hub: Hub) -> None:
    found = load(["c4"], "bytes", limit=100)
    assert (found.train.count, found.valid.count) == (100, 30)
    assert in_words(found.train.tokens)[:2] == ["train 0", "train 1"]
    assert in_words(found.valid.tokens)[:2] == ["validation 0", "validation 1"]
    assert hub.asked == ["train", "validation"]
    again = load(["c4"], "bytes", limit=100)
    assert (again.train, again.valid) == (found.train, found.valid)
    assert hub.asked == ["train", "validation"], "tokens that are there need no network"
    assert load(["c4"], "bytes", limit=200).train.tokens.tolist()[:100] == found.train.tokens.tolist()
    assert hub.asked == ["train", "validation", "train"]


def test_pieces_are_learnt_from_the_beginning_of_c4(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "BPE_DOCUMENTS", 50)
    found = load(["c4"], "bpe-300", limit=40, tell=lambda _: None)
    assert len(found.tokenizer.encode(["train"])[0]) == 1
    assert found.train.count == 40


def interrupted() -> tuple[int, BaseException]:
    return 5, KeyboardInterrupt()


def cut_off() -> tuple[int, BaseException]:
    return 5, ConnectionError("the line is dead\nand more that nobody wants to read")


@pytest.mark.parametrize("fault", [interrupted, cut_off])
def test_what_is_interrupted_begins_anew(
    fault: Callable[[], tuple[int, BaseException]], hub: Hub, data_home: Path
) -> None:
    hub.fault = fault()
    with pytest.raises((KeyboardInterrupt, DataMissing)):
        load(["c4"], "bytes", limit=100)
    assert [path for path in data_home.rglob("*") if path.is_file()] == []
    hub.fault = None
    assert load(["c4"], "bytes", limit=100).train.count == 100


@pytest.mark.parametrize("when", [0, 5])
def test_a_hub_that_cannot_be_reached_is_one_sentence(when: int, hub: Hub) -> None:
    hub.fault = (when, OSError("Couldn't reach the hub\nmore"))
    with pytest.raises(DataMissing) as caught:
        load(["c4"], "bytes", limit=100)
    message = str(caught.value)
    assert message.startswith(f"c4 broke off after {when} documents (Couldn't reach the hub): ")
    assert "\n" not in message
    assert "c4-sample" in message


def test_c4_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataMissing, match=r"pip install 'normalize-and-project\[c4\]'"):
        load(["c4"], "bytes", limit=100)


def test_c4_needs_a_limit_and_no_company(hub: Hub) -> None:
    with pytest.raises(ValueError, match="say how many tokens to train on"):
        load(["c4"], "bytes")
    with pytest.raises(ValueError, match="not to be mixed as in c4, python"):
        load(["c4", "python"], "bytes", limit=100)
    assert hub.asked == []


# ---- caches that users have -----------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "name"), [(None, "8d94a92ad34f0053"), (5, "8d94a92ad34f0053.5")])
def test_tokens_of_earlier_versions_are_found(
    tmp_path: Path, data_home: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, name: str
) -> None:
    """Names and descriptions of cached tokens stay as they were when version 0.1 wrote them."""
    text = tmp_path / "pages.lines"
    text.write_text("one page\nanother page\n", "utf-8")
    source = "pages.lines d320c8a9f7287480c77ea51163bacca2f9d57a0864c05e34ba23c569e04b5f34"
    parts = {f"{name}.train": b"another page", "8d94a92ad34f0053.valid": b"one page"}
    for file, document in parts.items():
        tokens_then = [*document, 256][: limit if "train" in file else None]
        stored = b"".join(token.to_bytes(2, "little") for token in tokens_then)
        part, at_most = file.rpartition(".")[2], limit if "train" in file else None
        write(data_home / "tokens", {file: stored})
        about = {"count": len(tokens_then), "vocabulary": 257, "end": 256, "coder": "bytes", "limit": at_most}
        about |= {"source": f"{source}: {part}", "sha256": hashlib.sha256(stored).hexdigest()}
        write(data_home / "tokens", {f"{file}.json": json.dumps(about).encode()})
    monkeypatch.setattr(tokens, "write", lambda *_, **__: pytest.fail("tokenized again"))
    found = load([str(text)], "bytes", limit=limit)
    assert found.train.tokens.tolist() == [*b"another page", 256][:limit]


def test_byte_pairs_of_earlier_versions_are_found(tmp_path: Path, data_home: Path) -> None:
    pytest.importorskip("tokenizers")
    text = tmp_path / "pages.lines"
    text.write_text("one page\nanother page\n", "utf-8")
    load([str(text)], "bpe-300")
    assert (data_home / "tokens" / "70dc2c6178e297a4.bpe-300.json").exists()
    assert (data_home / "tokens" / "70dc2c6178e297a4.bpe-300.json.sha256").exists()
