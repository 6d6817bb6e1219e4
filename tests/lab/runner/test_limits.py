"""What others may do to us: clusters that do not answer, downloads without end, archives without number."""

from __future__ import annotations

import os
import signal
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from nap.lab.datasets import archives
from nap.lab.datasets.archives import SourceFailed, candidates, entries
from nap.lab.datasets.catalog import TEXT_SETS
from nap.lab.datasets.dataset import File
from nap.lab.datasets.sources import download
from nap.lab.launch import engine
from nap.lab.launch.engine import check_ray_address
from nap.lab.runner.signals import stop_requests
from small_server import serving

WANTED = [File("a.bin", 10, "")]


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """An address at which a connection is taken, and answered with these bytes or not at all."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answered() -> None:
            line, _ = server.accept()
            line.recv(100)
            if answer is not None:
                line.sendall(answer)
                line.close()
            lines.append(line)

        lines: list[socket.socket] = []
        threading.Thread(target=answered, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for line in lines:
            line.close()


def test_a_ray_cluster_that_does_not_answer_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ANSWER_SECONDS", 0.2)
    with listening(None) as address, pytest.raises(ConnectionError, match=r"nobody answered within 0\.2"):
        check_ray_address(address)
    web = b"HTTP/1.1 400 Bad Request\r\n"
    with listening(web) as address, pytest.raises(ConnectionError, match="what answers there is no Ray"):
        check_ray_address(address)
    with listening(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])) as address:
        check_ray_address(address)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        free = server.getsockname()[1]
    with pytest.raises(ConnectionError, match="refused"):
        check_ray_address(f"127.0.0.1:{free}")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free}")
    with pytest.raises(ConnectionError, match="refused"):
        check_ray_address("auto")
    assert engine.CONNECT_SECONDS + 10 < 20


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:0", "host:99999", "ray://", "a:b"])
def test_an_address_that_is_none_is_told(address: str) -> None:
    with pytest.raises(ConnectionError, match="an address is HOST:PORT"):
        check_ray_address(address)


def test_a_download_has_an_end(tmp_path: Path) -> None:
    with serving() as server:
        server.files["a.bin"] = b"x" * 3_000_000
        with pytest.raises(SourceFailed, match="has 3,000,000 bytes there, where 1,000 are more than enough"):
            download(server.address + "a.bin", tmp_path / "a.bin", lambda done, total: None, most=1000)
    assert not (tmp_path / "a.bin").exists()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.bin")
    os.mkfifo(tmp_path / "b.tar.gz")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.bin").write_bytes(b"0123456789")
    assert candidates(tmp_path, WANTED, ()) == [tmp_path / "below" / "a.bin"]


def test_archives_with_very_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for number in range(60):
            tar.addfile(tarfile.TarInfo(f"other-{number}"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        for number in range(60):
            zipped.writestr(f"other-{number}", b"")
    for name in ("a.tar.gz", "a.zip"):
        assert list(entries(tmp_path / name, WANTED)) == []
    monkeypatch.setattr(archives, "MOST_MEMBERS", 50)
    monkeypatch.setattr(archives, "MOST_LISTED", 1000)
    with pytest.raises(SourceFailed, match="has more than 50 members"):
        list(entries(tmp_path / "a.tar.gz", WANTED))
    with pytest.raises(SourceFailed, match=r"lists its members in \d,\d\d\d bytes"):
        list(entries(tmp_path / "a.zip", WANTED))


def test_https_comes_first() -> None:
    for data in TEXT_SETS:
        bases = [source.base for source in data.sources if hasattr(source, "base")]
        assert bases == sorted(bases, key=lambda base: not base.startswith("https:"))
        assert not bases or bases[0].startswith("https:")


def test_a_hang_up_asks_to_stop_unless_it_is_ignored() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with stop_requests() as stop:
        signal.raise_signal(signal.SIGHUP)
    assert stop.signal == "SIGHUP"
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with stop_requests() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert stop.signal is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
