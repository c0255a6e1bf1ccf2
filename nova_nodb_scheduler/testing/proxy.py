# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy before a server, which loses, holds back and cuts what passes, on demand."""

from __future__ import annotations

import contextlib
import socket
import threading

import fixtures

CHUNK_BYTES = 65536


class Proxy(fixtures.Fixture):  # type: ignore[misc]  # untyped library
    """Listens on 127.0.0.1 and passes bytes on: ``address``, ``port``.

    While the server is not there it breaks each new connection, as it does when it refuses.

    :param port: port of the server on 127.0.0.1
    """

    def __init__(self, port: int) -> None:
        self._server_port = port

    def _setUp(self) -> None:  # noqa: N802, as fixtures names it
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._numbed: set[socket.socket] = set()
        self._renamed: tuple[bytes, bytes] | None = None
        self._loses_replies = threading.Event()
        self._loses_requests = threading.Event()
        self._refuses = threading.Event()
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.addCleanup(self.cut)
        self.addCleanup(self._stop)
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    def lose_replies(self) -> None:
        """From now on requests arrive, and their replies vanish."""
        self._loses_replies.set()

    def lose_requests(self) -> None:
        """From now on requests vanish: a connection that is open on one side only."""
        self._loses_requests.set()

    def numb(self) -> None:
        """What is open now passes nothing any more, and stays open; new connections do."""
        with self._lock:
            self._numbed |= self._sockets

    def rename_in_replies(self, former: bytes, new: bytes) -> None:
        """From now on replace bytes in replies by as many others, such as a header's name."""
        if len(former) != len(new):
            raise ValueError(f"{former!r} and {new!r} are not of one length")
        self._renamed = (former, new)

    def freeze(self) -> None:
        """Accept, and hold back every byte from now on: what a stalled server looks like."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass on what was held back, and everything after it."""
        self._flows.set()

    def refuse(self) -> None:
        """Break every connection, and from now on each new one: a server that is gone."""
        self._refuses.set()
        self.cut()

    def accept(self) -> None:
        """Let new connections live again."""
        self._refuses.clear()

    def heal(self) -> None:
        """Pass everything on again, on new connections."""
        self._renamed = None
        self._loses_replies.clear()
        self._loses_requests.clear()
        self._refuses.clear()
        self._flows.set()
        self.cut()

    def redirect(self, port: int, *, breaks: bool = True) -> None:
        """Lead to another server on 127.0.0.1, as a failover does.

        :param breaks: connections; else those that are open still lead where they did
        """
        self._server_port = port
        if breaks:
            self.cut()

    def cut(self) -> None:
        """Break every connection."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _end(each)

    def _stop(self) -> None:
        self._flows.set()
        # close() alone does not wake a thread that waits in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(5.0)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = None
            with contextlib.suppress(OSError):
                server = socket.create_connection(("127.0.0.1", self._server_port))
            with self._lock:
                # Asked under the lock: who begins to refuse then breaks this one, too.
                if server is None or self._refuses.is_set():
                    for each in (client, server):
                        if each is not None:
                            _end(each)
                    continue
                self._sockets |= {client, server}
            for source, target, lossy in (
                (client, server, self._loses_requests),
                (server, client, self._loses_replies),
            ):
                threading.Thread(
                    target=self._pass_on,
                    args=(source, target, lossy),
                    name="proxy-pump",
                    daemon=True,
                ).start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, lossy: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._flows.wait()
                if not lossy.is_set() and source not in self._numbed:
                    is_reply = lossy is self._loses_replies
                    renamed = self._renamed if is_reply else None
                    target.sendall(data.replace(*renamed) if renamed else data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
