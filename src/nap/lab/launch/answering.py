"""Whether anybody answers at the address of a Ray cluster: Ray itself asks for two minutes, then ends us."""

from __future__ import annotations

import os
import socket

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # HTTP/2, which gRPC speaks
_SETTINGS = 4  # kind of the frame that a server answers with


def check_answers(address: str) -> None:
    """Raise ConnectionError, with the reason, where nobody speaks gRPC at HOST:PORT or ray://HOST:PORT.

    "auto" is looked up in RAY_ADDRESS; where that is not set, Ray knows by itself.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", "local") or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise ConnectionError("an address is HOST:PORT, as 10.0.0.1:6379, or auto, or local")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as line:
            line.settimeout(ANSWER_SECONDS)
            line.sendall(_HELLO)
            answer = line.recv(9)
    except TimeoutError as error:
        raise ConnectionError(f"nobody answered within {ANSWER_SECONDS:g} seconds") from error
    except OSError as error:
        raise ConnectionError(error.strerror or str(error)) from error
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise ConnectionError("what answers there is no Ray cluster")
