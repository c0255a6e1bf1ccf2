# SPDX-License-Identifier: Apache-2.0
"""A server of HTTP that answers whatever bytes a test says, and lets connections stand."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable

import attrs


@attrs.frozen
class Asked:
    """A request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]


#: What is sent back, and whether the connection stands behind it; None closes it at once.
Answer = tuple[bytes, bool] | None


def answer(status: int = 200, body: bytes = b"{}", **headers: str) -> bytes:
    """Return an answer as Placement's server writes it."""
    lines = [f"HTTP/1.1 {status} Reason", "Content-Type: application/json"]
    if status != 204:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if status == 204 else body)


class RawServer:
    """Serves 127.0.0.1 until it is closed; a thread for each connection.

    :param respond: any thread
    """

    def __init__(
        self, respond: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None
    ) -> None:
        self._respond = respond
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.connections = 0
        self.asked: list[Asked] = []
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="raw-http", daemon=True).start()

    def close(self) -> None:
        """Refuse connections from now on, and end those that stand; idempotent."""
        with contextlib.suppress(OSError):
            # Closed alone, a listener that somebody accepts on goes on listening.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        """End the connections that stand."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.append(accepted)
            threading.Thread(
                target=self._serve, args=(accepted,), name="raw-http", daemon=True
            ).start()

    def _serve(self, accepted: socket.socket) -> None:
        try:
            if self._tls is not None:
                accepted = self._tls.wrap_socket(accepted, server_side=True)
                with self._lock:
                    self._open.append(accepted)
            with accepted, accepted.makefile("rb") as reader:
                while (line := reader.readline()) not in (b"", b"\r\n"):
                    headers = {}
                    while (header := reader.readline().strip()) != b"":
                        name, _, value = header.decode().partition(": ")
                        headers[name.title()] = value
                    body = reader.read(int(headers.get("Content-Length", 0)))
                    asked = Asked(line.decode().strip(), headers, body)
                    with self._lock:
                        self.asked.append(asked)
                    answered = self._respond(asked)
                    if answered is None:
                        return
                    accepted.sendall(answered[0])
                    if not answered[1]:
                        return
        except OSError:
            return
