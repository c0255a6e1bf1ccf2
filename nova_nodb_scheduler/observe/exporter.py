# SPDX-License-Identifier: Apache-2.0
"""Serve a service's metrics over HTTP, for Prometheus to scrape.

All workers of a service on a machine have one port: one of them serves it, and
asks the others (:mod:`.worker_slots`) with each scrape. Nothing here may stop
a service: what cannot be had is logged once and tried again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import socket
import socketserver
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from wsgiref import simple_server

import attrs
import prometheus_client
from prometheus_client import core, registry

from nova_nodb_scheduler.observe import metric_labels as identity_module
from nova_nodb_scheduler.observe import worker_slots

LOG = logging.getLogger(__name__)

#: How soon another worker takes the port of one that ended.
_LOOK_SECONDS = 5.0
#: Who connects to the port may be anybody: so many are answered at a time, and who
#: says nothing for so long is left.
_MOST_CONNECTIONS = 16
_PATIENCE_SECONDS = 10.0


@attrs.frozen
class ScrapeAddress:
    """Where a service is scraped.

    :param port: 0 for any (tests)
    :param directory: of the workers that share the port; one below it is used
    """

    host: str
    port: int
    directory: pathlib.Path


class _HttpServer(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or hang up: threads and descriptors are the service's."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()


class _Ipv6HttpServer(_HttpServer):
    address_family = socket.AF_INET6


class _Quiet(simple_server.WSGIRequestHandler):
    #: Of each read and write.
    timeout = _PATIENCE_SECONDS

    def handle(self) -> None:
        # Who connects and is silent is no fault that anybody must read of.
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, *_args: object) -> None:
        """Write no line for each scrape."""


class _Everybody(registry.Collector):
    """The metrics of all workers of a machine, as one exposition."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    def collect(self) -> Iterator[core.Metric]:
        families: dict[str, core.Metric] = {}
        answers = core.GaugeMetricFamily(
            "nodb_worker_answers",
            "1 for a worker that tells its metrics, 0 for one that lives and does not",
        )
        for told in self._exporter.tell_all():
            answers.samples.append(
                core.Sample(answers.name, dict(told.labels), float(told.families is not None))
            )
            for each in told.families or ():
                known = families.setdefault(each.name, each)
                if known is not each:
                    known.samples.extend(each.samples)
        yield answers
        yield from families.values()


class Exporter:
    """One worker's share; started after the fork, and its threads with it.

    :param registry: what this worker counts
    """

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        identity: identity_module.MetricIdentity,
        place: ScrapeAddress,
    ) -> None:
        self._registry = registry
        self._identity = identity
        self._place = place
        self._slots = worker_slots.WorkerSlots(place.directory / str(place.port), identity)
        self._has_slot = self._has_duty = False
        self._labelled = identity_module.LabelledRegistry(registry, identity.labels(0))
        self._serving: worker_slots.Serving | None = None
        self._address: tuple[str, int] | None = None
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None
        self._complained = ""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, where this worker serves them; None otherwise."""
        return self._address

    @property
    def worker(self) -> int:
        """This worker's number."""
        return self._slots.worker

    def start(self) -> None:
        """Take a number, and the port if nobody has it; idempotent, never raises."""
        if self._keeper is not None:
            return
        self._stop.clear()
        try:
            self._slots.take()
            self._has_slot = True
            self._labelled = identity_module.LabelledRegistry(
                self._registry, self._identity.labels(self._slots.worker)
            )
            self._slots.answer(lambda: worker_slots.dump(self._labelled))
        except OSError as error:
            LOG.warning(
                "Metrics of this worker are served only if it has the port to itself: "
                "[nodb_scheduler] metrics_directory cannot be used: %(error)s",
                {"error": error},
            )
        _started.add(self)
        self._try_port()
        self._keeper = threading.Thread(target=self._keep, name="nodb-metrics", daemon=True)
        self._keeper.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stop serving and give the number back; idempotent."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        _started.discard(self)
        self._stop.set()
        keeper.join(timeout_seconds)
        served, self._serving, self._address = self._serving, None, None
        if served is not None:
            served.stop(timeout_seconds)
        self._slots.leave()
        self._has_slot = self._has_duty = False

    def tell_all(self) -> Iterator[worker_slots.WorkerAnswer]:
        """Return what this worker and the others of the machine count."""
        own = self._identity.labels(self._slots.worker)
        yield worker_slots.WorkerAnswer(own, list(self._labelled.collect()))
        if self._has_slot:
            yield from self._slots.others()

    def forsake(self) -> None:
        """Close what a fork copied, in the child: it is the parent's."""
        served, self._serving, self._address = self._serving, None, None
        if served is not None:
            served.forsake()
        self._slots.forsake()

    def _keep(self) -> None:
        while self._serving is None and not self._stop.wait(_LOOK_SECONDS):
            self._try_port()

    def _try_port(self) -> None:
        try:
            if self._has_slot and not self._has_duty:
                self._has_duty = self._slots.take_port()
                if not self._has_duty:
                    return
            server = self._listen()
        except OSError as error:
            if str(error) != self._complained:
                self._complained = str(error)
                LOG.error(
                    "Metrics cannot be served on %(host)s:%(port)d, which is tried again: "
                    "%(error)s",
                    {"host": self._place.host, "port": self._place.port, "error": error},
                )
            return
        self._serving = worker_slots.Serving(server, "nodb-metrics-port")
        self._address = (self._place.host, server.server_port)
        LOG.info(
            "Metrics are served on %(host)s:%(port)d",
            {"host": self._place.host, "port": server.server_port},
        )

    def _listen(self) -> simple_server.WSGIServer:
        is_ipv6 = ":" in self._place.host
        return simple_server.make_server(
            self._place.host,
            self._place.port,
            prometheus_client.make_wsgi_app(_Everybody(self)),
            _Ipv6HttpServer if is_ipv6 else _HttpServer,
            _Quiet,
        )


#: Of this process. A child that is forked would keep their locks and ports alive.
_started: weakref.WeakSet[Exporter] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_started):
        with contextlib.suppress(OSError):
            each.forsake()
    _started.clear()


os.register_at_fork(after_in_child=_after_fork)
