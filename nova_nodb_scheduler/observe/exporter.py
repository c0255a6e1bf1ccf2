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
    of a range, and says which. An address that cannot be had (a host's address
    that is not up yet, ports that others hold) is tried again until it can: no
    scheduler stands still because nobody could watch it.

    :param port: the first port; 0 for any
    :param ports: how many ports are tried
    :param again_seconds: how long after a failure all are tried again
    """

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        host: str,
        port: int,
        ports: int = 1,
        again_seconds: float = 30.0,
    ) -> None:
        self._registry = registry
        self._host = host
        self._candidates = range(port, min(port + max(1, ports), 65536)) if port else range(1)
        self._serving: tuple[simple_server.WSGIServer, threading.Thread] | None = None
        self._again_seconds = again_seconds
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._trying: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that are served; None while stopped, or not to be had."""
        serving = self._serving
        return None if serving is None else (self._host, serving[0].server_port)

    def start(self) -> None:
        """Listen, now or as soon as it can be; idempotent, and never raises for the address."""
        if self._serving is not None or self._trying is not None:
            return
        self._stopped.clear()
        error = self._try()
        if error is None:
            return
        LOG.error(
            "Metrics cannot be served on %(host)s, ports %(first)d to %(last)d: %(error)s. "
            "It is tried again every %(seconds)d s; correct [nodb_scheduler] metrics_host and "
            "metrics_port if this stays.",
            {
                "host": self._host,
                "first": self._candidates[0],
                "last": self._candidates[-1],
                "error": error,
                "seconds": self._again_seconds,
            },
        )
        self._trying = threading.Thread(
            target=self._try_again, name="nodb-metrics-address", daemon=True
        )
        self._trying.start()

    def _try_again(self) -> None:
        while not self._stopped.wait(self._again_seconds):
            if self._try() is None:
                return

    def _try(self) -> OSError | None:
        """Listen; return why not."""
        try:
            serving = self._listen()
        except OSError as error:
            return error
        with self._lock:
            if self._stopped.is_set():
                _end(serving, 5.0)
                return None
            self._serving = serving
        LOG.info(
            "Metrics are served on %(host)s:%(port)d",
            {"host": self._host, "port": serving[0].server_port},
        )
        return None

    def _listen(self) -> tuple[simple_server.WSGIServer, threading.Thread]:
        for port in self._candidates:
            try:
                return prometheus_client.start_http_server(port, self._host, self._registry)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or port == self._candidates[-1]:
                    raise
        raise AssertionError("the range of ports is never empty")

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stop listening, or trying to; idempotent."""
        with self._lock:
            self._stopped.set()
            serving, self._serving = self._serving, None
        trying, self._trying = self._trying, None
        if trying is not None:
            trying.join(timeout_seconds)
        if serving is not None:
            _end(serving, timeout_seconds)


def _end(
    serving: tuple[simple_server.WSGIServer, threading.Thread], timeout_seconds: float
) -> None:
    server, thread = serving
    server.shutdown()
    server.server_close()
    thread.join(timeout_seconds)
