# SPDX-License-Identifier: Apache-2.0
"""Peers that are not there, or say nothing, on 127.0.0.1."""

from __future__ import annotations

import contextlib
import socket
import threading

import fixtures

from nova_nodb_scheduler.testing import server_processes


def closed_port() -> int:
    """Return a port nobody listens on: a connection is refused at once."""
    return server_processes.free_port()


class SilentPeer(fixtures.Fixture):  # type: ignore[misc]  # untyped library
    """Takes connections, and never says a word: ``port``."""

    def _setUp(self) -> None:
        self._held: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._socket.getsockname()[1]
        thread = threading.Thread(target=self._accept, name="silent-peer", daemon=True)
        thread.start()
        self.addCleanup(thread.join, 5.0)
        self.addCleanup(self._close)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._held.append(self._socket.accept()[0])

    def _close(self) -> None:
        # Closing alone would leave the thread in accept().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for each in self._held:
            each.close()


class BlackHole(fixtures.Fixture):  # type: ignore[misc]  # untyped library
    """Has its queue of connections full, so that the kernel drops what comes: ``port``."""

    def _setUp(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.addCleanup(self._socket.close)
        self.port = self._socket.getsockname()[1]
        for _ in range(4):
            waiting = socket.socket()
            self.addCleanup(waiting.close)
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", self.port))
