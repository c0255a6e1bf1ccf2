# SPDX-License-Identifier: Apache-2.0
"""Serve connections in a thread, whether it is a thread or a green one.

``serve_forever`` of the standard library waits in a poll that it looked up
when it was imported. In a service that eventlet patches later, that poll stops
all of the process: sockets know of the patch at each call, so this waits in
``accept``.
"""

from __future__ import annotations

import socketserver
import threading

#: How late a stop is noticed.
_WAIT_SECONDS = 0.25


class Serving:
    """A server that listens, and its thread.

    :param server: bound and listening; closed by :meth:`stop`
    """

    def __init__(self, server: socketserver.TCPServer, name: str) -> None:
        self.server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stop listening; idempotent."""
        self._stop.set()
        self._thread.join(timeout_seconds)
        self.server.server_close()

    def forsake(self) -> None:
        """Close the socket in a child that a fork copied it to, where no thread runs."""
        self.server.socket.close()

    def _serve(self) -> None:
        self.server.socket.settimeout(_WAIT_SECONDS)
        while not self._stop.is_set():
            try:
                # Both as the standard library's own loop does it.
                request, address = self.server.get_request()
            except OSError:
                # Nobody came, or who came has left; of a closed socket, too.
                self._stop.wait(0.001)
                continue
            try:
                self.server.process_request(request, address)
            except Exception:  # noqa: BLE001 - told by handle_error, as there
                self.server.handle_error(request, address)
                self.server.shutdown_request(request)
