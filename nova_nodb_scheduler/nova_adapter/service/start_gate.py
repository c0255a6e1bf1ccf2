# SPDX-License-Identifier: Apache-2.0
"""The gate that a scheduler worker's requests wait behind until what decides them is proved.

A worker that took requests at once would send the queue that gathered while it
was away through Nova's own path in one storm, where Placement itself
over-commits. So its states, its mirror of Placement and its claims are proved
first, or a bound passes. Only the start waits: what is lost later is the affair
of each request.

oslo.messaging acknowledges a request before it is dispatched, so one that was
held back in the process would be lost with it. Therefore consumption itself is
put off: a request stays in the queue, for another scheduler to take.
"""

from __future__ import annotations

import enum
import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import nova.rpc

LOG = logging.getLogger(__name__)

#: How often the judgement is made anew.
_LOOK_SECONDS = 0.1
#: How often a wait that lasts is logged.
_TELL_SECONDS = 10.0


@attrs.frozen
class StartProgress:
    """How far the start of a scheduler worker is.

    :param ratio: 0 to 1; roughly right, for people
    :param missing: what is not proved, and why; empty where all is
    """

    ratio: float
    missing: tuple[str, ...]

    @property
    def proved(self) -> bool:
        return not self.missing

    @property
    def percent(self) -> int:
        """Return whole per cent; 100 only where all is proved."""
        return 100 if self.proved else min(99, int(100 * self.ratio))

    def __str__(self) -> str:
        return f"starting, {self.percent}%"


class GateOutcome(enum.Enum):
    """Why a worker's gate no longer holds requests back."""

    PROVED = "proved"
    #: The bound passed; Nova's own path serves what is not proved.
    UNPROVED = "unproved"
    #: The service ends; requests are for others.
    STOPPED = "stopped"


@attrs.define(eq=False, slots=False)
class RequestGate:
    """Holds a worker's requests back until all is proved, or a bound has passed.

    One thread waits; any thread asks.

    :param judge: see :meth:`.worker_status.StartProof.judge`
    :param bound_seconds: counted from :meth:`begin`; 0 opens at once
    :param clock: monotonic seconds
    """

    _judge: Callable[[], StartProgress]
    _bound_seconds: float
    _clock: Callable[[], float] = time.monotonic
    _waiting: bool = attrs.field(init=False, default=False)
    _progress: StartProgress = attrs.field(
        init=False, default=StartProgress(0.0, ("host states and claims: starting",))
    )

    def __attrs_post_init__(self) -> None:
        self._began_at = self._clock()

    def begin(self) -> None:
        """Count the bound from now: the worker begins to prepare."""
        self._began_at = self._clock()

    @property
    def progress(self) -> StartProgress | None:
        """How far it was a moment ago; None while nobody waits. No I/O."""
        return self._progress if self._waiting else None

    def wait(self, stopped: threading.Event) -> GateOutcome:
        """Block until requests may be taken, or the service ends."""
        self._waiting = True
        try:
            return self._wait(stopped)
        finally:
            self._waiting = False

    def _wait(self, stopped: threading.Event) -> GateOutcome:
        told_at: float | None = None
        while not stopped.is_set():
            self._progress = progress = self._look()
            waited_seconds = self._clock() - self._began_at
            if progress.proved:
                LOG.info(
                    "States, mirror and claims are proved after %(seconds).1f s: this worker "
                    "takes requests.",
                    {"seconds": waited_seconds},
                )
                return GateOutcome.PROVED
            if waited_seconds >= self._bound_seconds:
                self._tell_of_bound(progress, waited_seconds)
                return GateOutcome.UNPROVED
            if told_at is None or self._clock() - told_at >= _TELL_SECONDS:
                told_at = self._clock()
                LOG.info(
                    "Starting, %(percent)d%%: no request is taken before these are proved, for "
                    "at most %(left).0f s more: %(missing)s.",
                    {
                        "percent": progress.percent,
                        "left": self._bound_seconds - waited_seconds,
                        "missing": "; ".join(progress.missing),
                    },
                )
            stopped.wait(_LOOK_SECONDS)
        return GateOutcome.STOPPED

    def _tell_of_bound(self, progress: StartProgress, waited_seconds: float) -> None:
        # With a bound of 0 an operator chose this; it is no news.
        LOG.log(
            logging.ERROR if self._bound_seconds else logging.INFO,
            "This worker takes requests after %(seconds).1f s although not all is proved; what "
            "is not goes Nova's own path: %(missing)s.",
            {"seconds": waited_seconds, "missing": "; ".join(progress.missing)},
        )

    def _look(self) -> StartProgress:
        try:
            return self._judge()
        except Exception:
            # The bound passes, and Nova's own path is taken.
            if self._progress.missing != _FAULT.missing:
                LOG.exception("Whether this worker may take requests cannot be judged.")
            return _FAULT


_FAULT = StartProgress(0.0, ("fault of the plugin: see the traceback in this log",))


#: Drivers whose listener declares its queues when it is made, and takes nothing from them
#: before it is started.
_DECLARE_FIRST = ("RabbitDriver", "FakeDriver")
_AGAIN_SECONDS = 1.0


class GatedServer:
    """Nova's RPC server of a worker, behind a gate.

    ``start``, ``stop`` and ``wait`` as ``oslo_messaging.MessageHandlingServer``
    has them; everything else is the real server's.

    The queues exist from ``start`` on, as with the real server: a broker drops
    what is sent to a queue that nobody has declared, and refuses a cast to a
    fanout exchange that is gone, which fails the caller.

    :param make: makes the real server, not started
    :param on_stop: called as soon as no more requests are taken
    """

    def __init__(
        self,
        make: Callable[[], Any],
        gate: RequestGate,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make
        self._gate = gate
        self._on_stop = on_stop
        self._server = make()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._listener: Any = None
        self._failed = False
        self._takes = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def start(self, override_pool_size: int | None = None) -> None:
        """Declare the queues, and take requests as soon as the gate opens; once.

        :raises TransportDriverError: the queues cannot be declared
        """
        if self._thread is not None:
            return
        transport = self._server.transport
        if type(transport._driver).__name__ in _DECLARE_FIRST:
            self._listener = self._server._create_listener()
            self._server._create_listener = lambda: self._listener
        self._thread = threading.Thread(
            target=self._run, args=(override_pool_size,), name="nodb-intake", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests; what was taken is still answered."""
        self._stopped.set()
        self._on_stop()
        with self._lock:
            takes, listener = self._takes, self._listener
            self._listener = None
        if takes:
            self._server.stop()
            _give_back(self._server)
        elif listener is not None:
            listener.cleanup()

    def wait(self) -> None:
        """Return when all requests that were taken are answered; after ``stop``."""
        if self._thread is not None:
            self._thread.join()
        if self._takes:
            self._server.wait()

    def drain(self, timeout_seconds: float) -> bool:
        """Wait as ``wait`` does, but not for ever; at once where it was not stopped.

        :returns: False if requests are still under way
        """
        if not self._stopped.is_set():
            return True
        waiting = threading.Thread(target=self.wait, name="nodb-drain", daemon=True)
        waiting.start()
        waiting.join(timeout_seconds)
        return not waiting.is_alive()

    def _run(self, override_pool_size: int | None) -> None:
        if self._gate.wait(self._stopped) is GateOutcome.STOPPED:
            return
        while not self._stopped.is_set():
            with self._lock:
                if self._stopped.is_set():
                    return
                if self._begin(override_pool_size):
                    return
            self._stopped.wait(_AGAIN_SECONDS)

    def _begin(self, override_pool_size: int | None) -> bool:
        try:
            if self._failed:
                # A server starts once.
                self._server = self._make()
            self._server.start(override_pool_size=override_pool_size)
        except Exception:
            # Nova's service has started long since: there is nobody to tell but the log.
            LOG.exception(
                "This worker cannot take requests; it tries again in %(seconds)g s.",
                {"seconds": _AGAIN_SECONDS},
            )
            self._failed = True
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.cleanup()
            return False
        self._takes = True
        return True


def _give_back(server: Any) -> None:
    """Have the broker take back what it sends to a server that was stopped.

    oslo.messaging ends its thread and leaves its consumers: until the last
    request is answered the broker goes on to send, and what it sent is
    acknowledged while the connection is closed, and lost.
    """
    connection = getattr(getattr(server.listener, "_poll_style_listener", None), "conn", None)
    try:
        # The thread that read from this connection has ended.
        consumers = dict(getattr(connection, "_consumers", {}))
        for consumer in consumers:
            consumer.callback = _requeue
        for consumer, tag in consumers.items():
            consumer.cancel(tag)
    except Exception:
        # Whatever kombu raises. A connection that broke has had all taken back.
        LOG.warning("Consumers could not be cancelled.", exc_info=True)


def _requeue(message: Any) -> None:
    message.requeue()


class RequestIntake:
    """What a manager shows so that its service gets a gated server; one per start of a worker."""

    def __init__(self, gate: RequestGate, on_stop: Callable[[], None] = lambda: None) -> None:
        self.gate = gate
        self._on_stop = on_stop
        self._server: GatedServer | None = None

    def behind_gate(self, make: Callable[[], Any]) -> GatedServer:
        """Return a server over the one that ``make`` makes."""
        self._server = GatedServer(make, self.gate, self._on_stop)
        return self._server

    def drain(self, timeout_seconds: float) -> bool:
        """See :meth:`GatedServer.drain`; at once where there is no server."""
        return self._server is None or self._server.drain(timeout_seconds)


def install() -> None:
    """Have Nova's services get a gated server for an endpoint with an intake; idempotent.

    An endpoint says so by its attribute ``nodb_intake``; every other server is
    Nova's own.
    """
    own = nova.rpc.get_server
    if hasattr(own, "_nodb"):
        return

    @functools.wraps(own)
    def get_server(target: Any, endpoints: Any, serializer: Any = None) -> Any:
        make = functools.partial(own, target, endpoints, serializer)
        for endpoint in endpoints:
            # Nova 34 wraps endpoints, and the wrapper has their attributes.
            intake = getattr(endpoint, "nodb_intake", None)
            if isinstance(intake, RequestIntake):
                return intake.behind_gate(make)
        return make()

    get_server._nodb = True  # type: ignore[attr-defined]
    nova.rpc.get_server = get_server
