# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy on loopback that can stop passing bytes on, and go on later with nothing lost."""

import contextlib
import socket
import threading
import types

_CHUNK_BYTES = 65536


class FreezingProxy:
    """Listens on ``port`` of 127.0.0.1 while its with block runs.

    Frozen, it accepts connections and holds all bytes back: what a stalled server looks like.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> "FreezingProxy":
        threading.Thread(target=self._accept, name="freezing-proxy", daemon=True).start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: types.TracebackType | None,
    ) -> None:
        self._flows.set()
        with contextlib.suppress(OSError):
            # close() alone does not wake a thread that waits in accept().
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def freeze(self) -> None:
        """Hold back every byte from now on, in both directions."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass on what was held back, and everything after it."""
        self._flows.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                return
            with self._lock:
                self._sockets |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(
                    target=self._pump, args=(source, target), name="freezing-pump", daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._flows.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
