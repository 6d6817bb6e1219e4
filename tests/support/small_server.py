"""A web server on this machine that can break off, forget ranges, and tell what it was asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Server:
    """What it serves, where it breaks off, and what it was asked for: (path, Range header)."""

    files: dict[str, bytes] = field(default_factory=dict)
    break_off_after: int | None = None
    knows_ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


@contextmanager
def serving() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            span = self.headers.get("Range")
            state.asked.append((self.path[1:], span))
            content = state.files.get(self.path[1:])
            if content is None:
                self.send_error(404)
                return
            first = int(span.removeprefix("bytes=")[:-1]) if span and state.knows_ranges else 0
            if first >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            self.wfile.write(content[first : state.break_off_after])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        state.address = f"http://127.0.0.1:{http.server_port}/"
        yield state
        http.shutdown()
        thread.join()


def refused_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/"
