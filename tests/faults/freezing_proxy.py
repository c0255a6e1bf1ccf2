# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy on loopback that can stop passing bytes on, and go on later with nothing lost.

It can refuse connections, too.
"""

import contextlib
import socket
import threading
import types

_CHUNK_BYTES = 65536


class FreezingProxy:
    """Listens on ``port`` of 127.0.0.1 while its with block runs.

    Frozen, it accepts connections and holds all bytes back: what a stalled server looks like.
    Refusing, it breaks every connection, the new ones at once: what a server that is gone looks
    like. So it does while the server itself is not there.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = threading.Event()
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
        self._break_all()

    def freeze(self) -> None:
        """Hold back every byte from now on, in both directions."""
        self._flows.clear()

    def thaw(self) -> None:
        """Pass on what was held back, and everything after it."""
        self._flows.set()

    def refuse(self) -> None:
        """Break every connection, and from now on each new one."""
        self._refuses.set()
        self._break_all()

    def accept(self) -> None:
        """Let new connections live again."""
        self._refuses.clear()

    def _break_all(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listener.accept()
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
                            each.close()
                    continue
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
