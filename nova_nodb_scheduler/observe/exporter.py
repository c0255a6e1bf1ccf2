# SPDX-License-Identifier: Apache-2.0
"""Serve a process's metrics over HTTP, for Prometheus to scrape."""

from __future__ import annotations

import errno
import logging
import threading
from wsgiref import simple_server

import prometheus_client

LOG = logging.getLogger(__name__)


class Exporter:
    """An HTTP server in a daemon thread; started after the fork.

    Workers of one service share an address: each takes the first free port
    of a range, and says which.

    :param port: the first port; 0 for any
    :param ports: how many ports are tried
    """

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        host: str,
        port: int,
        ports: int = 1,
    ) -> None:
        self._registry = registry
        self._host = host
        self._candidates = range(port, port + max(1, ports)) if port else range(1)
        self._serving: tuple[simple_server.WSGIServer, threading.Thread] | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that are served; None while stopped."""
        return None if self._serving is None else (self._host, self._serving[0].server_port)

    def start(self) -> None:
        """Listen; idempotent.

        :raises OSError: no port of the range is free, or the host is not ours
        """
        if self._serving is not None:
            return
        self._serving = self._listen()
        LOG.info(
            "Metrics are served on %(host)s:%(port)d",
            {"host": self._host, "port": self._serving[0].server_port},
        )

    def _listen(self) -> tuple[simple_server.WSGIServer, threading.Thread]:
        for port in self._candidates:
            try:
                return prometheus_client.start_http_server(port, self._host, self._registry)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or port == self._candidates[-1]:
                    raise
        raise AssertionError("the range of ports is never empty")

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stop listening; idempotent."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        server, thread = serving
        server.shutdown()
        server.server_close()
        thread.join(timeout_seconds)
