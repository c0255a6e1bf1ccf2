# SPDX-License-Identifier: Apache-2.0
"""Sees what this process writes to Placement, and tells the mirror's keeper of it.

All of Nova's writes go through four methods of ``SchedulerReportClient``, in
every supported release; they are wrapped, as the objects are. After Nova's call,
whatever became of it, the providers and consumers it named are told to one
observer, which must neither block nor raise. Before it, the observer may say what it
knows then. What Nova gets is its own.

Nova's threads only add names to a bounded set; one thread, started with the first
name in the process that has it, publishes them as records of namespace
``provider_hints``. What is lost (the set was full, the process died, the back end
was down) is found by the sweep.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
from nova.scheduler.client import report

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module

LOG = logging.getLogger(__name__)

_WRITES = ("put", "post", "delete")


@attrs.frozen
class ObservedWrite:
    """A call of this process that changed something in Placement, or may have.

    :param placed: resources by provider and consumer, where the call is known
        to have given new consumers exactly these and done nothing else
    :param providers: providers that it touched otherwise
    :param consumers: consumers whose former providers it does not name
    :param before: what was known before it was sent; None where nobody said
    """

    placed: Mapping[str, Mapping[str, Mapping[str, int]]] = attrs.field(factory=dict)
    providers: frozenset[str] = frozenset()
    consumers: frozenset[str] = frozenset()
    before: store_snapshot.Snapshot | None = attrs.field(default=None, eq=False, repr=False)


Observer = Callable[[ObservedWrite], None]
#: Asked before a write is sent what is known; must neither block nor raise.
Before = Callable[[], store_snapshot.Snapshot | None]


def nothing_known() -> None:
    """Say nothing of what is known before a write."""


_observer: Observer | None = None
_before: Before = nothing_known


def install(observer: Observer | None, before: Before = nothing_known) -> None:
    """Tell an observer of the writes of this process; None: nobody.

    Idempotent. Tests that replace the client's methods call it afterwards.

    :param before: see :attr:`ObservedWrite.before`
    """
    global _observer, _before
    _observer, _before = observer, before
    if observer is None:
        return
    for name in _WRITES:
        method = getattr(report.SchedulerReportClient, name)
        if not hasattr(method, "_nodb"):
            setattr(report.SchedulerReportClient, name, _observed(name, method))


def uninstall(observer: Observer) -> None:
    """Stop telling an observer; no-op if it was replaced by another."""
    global _observer, _before
    if _observer == observer:
        _observer, _before = None, nothing_known


def _observed(name: str, method: Any) -> Any:
    @functools.wraps(method)
    def observed(self: Any, url: str, *args: Any, **kwargs: Any) -> Any:
        body = kwargs.get("data", args[0] if args and name != "delete" else None)
        return observe(url, body, lambda: method(self, url, *args, **kwargs))

    observed._nodb = True  # type: ignore[attr-defined]
    return observed


def observe(url: str, body: Any, call: Callable[[], Any]) -> Any:
    """Make a call that writes to Placement, and tell the observer of it; return its answer.

    For calls beside the client's methods, which do so themselves.
    """
    before = _known_before() if _observer is not None else None
    succeeded = False
    try:
        response = call()
        succeeded = response.status_code < 300
        refused = not succeeded and response.status_code < 500
    except BaseException:
        refused = False
        raise
    finally:
        if _observer is not None and not refused:
            _tell(url, body, before, succeeded=succeeded)
    return response


def _known_before() -> store_snapshot.Snapshot | None:
    try:
        return _before()
    except Exception:
        # Nothing known is what any write may be told with. Nova's call must not fail for it.
        LOG.exception("Could not note what is known before a write to Placement.")
        return None


def _tell(url: str, body: Any, before: store_snapshot.Snapshot | None, *, succeeded: bool) -> None:
    try:
        write = read_observed(url, body, succeeded=succeeded)
        if write is not None and _observer is not None:
            _observer(attrs.evolve(write, before=before))
    except Exception:
        # The sweep finds what was not told. Nova's call must not fail for it.
        LOG.exception("Could not tell of a write to Placement.")


def read_observed(url: str, body: Any, *, succeeded: bool) -> ObservedWrite | None:
    """Return what a call touched; None if nothing that is mirrored.

    :param succeeded: False where it may, or may not, have been carried out
    """
    parts = url.partition("?")[0].strip("/").split("/")
    if parts[0] == "resource_providers":
        named = parts[1] if len(parts) > 1 else (body or {}).get("uuid")
        return ObservedWrite(providers=frozenset({named} if named else ()))
    if parts[0] == "reshaper":
        touched = _consumers(body["allocations"], succeeded=False)
        return ObservedWrite(
            providers=touched.providers | frozenset(body["inventories"]),
            consumers=touched.consumers,
        )
    if parts[0] != "allocations":
        return None
    if len(parts) == 1:
        return _consumers(body, succeeded=succeeded)
    if not body:
        return ObservedWrite(consumers=frozenset({parts[1]}))
    return _consumers({parts[1]: body}, succeeded=succeeded)


def _consumers(body: Mapping[str, Any], *, succeeded: bool) -> ObservedWrite:
    by_provider: dict[str, dict[str, Mapping[str, int]]] = {}
    former: set[str] = set()
    for consumer, wanted in body.items():
        if wanted.get("consumer_generation") is not None or not wanted["allocations"]:
            former.add(consumer)
        for provider, part in wanted["allocations"].items():
            by_provider.setdefault(provider, {})[consumer] = part["resources"]
    if succeeded and not former:
        return ObservedWrite(placed=by_provider)
    return ObservedWrite(providers=frozenset(by_provider), consumers=frozenset(former))


@attrs.frozen
class HintOptions:
    """Bounds of the names and times of their publication.

    :param limit: names that are kept; further ones are dropped and counted
    :param flush_interval_seconds: how long names are gathered
    :param exit_flush_seconds: how long a process that ends waits for them
    """

    limit: int = 10_000
    flush_interval_seconds: float = 0.05
    exit_flush_seconds: float = 5.0


@attrs.define(eq=False, slots=False)
class HintWriter:
    """Publishes hints at providers that this process changed; any thread may give them.

    :param synchronizer: of this object alone; opened by its thread
    :param publisher: of owner ``nodb``, over that synchronizer
    :param by: who gives the hints, for operators
    """

    _synchronizer: contract.Synchronizer
    _publisher: publisher_module.Publisher
    _by: str
    _options: HintOptions = attrs.field(factory=HintOptions)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _wake: threading.Event = attrs.field(init=False, factory=threading.Event)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    #: name -> whether it is a consumer's
    _names: dict[str, bool] = attrs.field(init=False, factory=dict)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _pid: int | None = attrs.field(init=False, default=None)
    #: Hints published, and those dropped for want of room.
    published: int = attrs.field(init=False, default=0)
    dropped: int = attrs.field(init=False, default=0)

    def observe(self, write: ObservedWrite) -> None:
        """Hint at all that a write touched; never blocks, never raises."""
        self.hint({*write.placed, *write.providers}, write.consumers)

    def hint(self, providers: Collection[str], consumers: Collection[str] = ()) -> None:
        """Have providers, and whatever consumers stand on, read again; never blocks."""
        with self._lock:
            for names, is_consumer in ((providers, False), (consumers, True)):
                for name in names:
                    if name not in self._names and len(self._names) >= self._options.limit:
                        self.dropped += 1
                    else:
                        self._names[name] = is_consumer
        self._wake.set()
        self._ensure_started()

    def stop(self) -> None:
        """Publish what waits, within the bound, and end; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        self._stop.set()
        self._wake.set()
        thread.join(self._options.exit_flush_seconds)
        self._pid = None

    def _ensure_started(self) -> None:
        """Start the thread if this process has none: a WSGI server forks after loading us."""
        if self._pid == os.getpid():
            return
        with self._lock:
            if self._pid == os.getpid():
                return
            self._stop = threading.Event()
            thread = threading.Thread(target=self._run, name="nodb-provider-hints", daemon=True)
            thread.start()
            self._thread, self._pid = thread, os.getpid()
            atexit.register(self.stop)

    def _run(self) -> None:
        pause = self._options.flush_interval_seconds
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(self._options.flush_interval_seconds)
            try:
                self.flush()
                pause = self._options.flush_interval_seconds
            except errors.NodbError as error:
                LOG.debug("Hints wait for the back end: %(error)s", {"error": error})
                pause = min(2 * pause + 0.05, 2.0)
                self._stop.wait(pause)
            except Exception:
                LOG.exception("Hints could not be published; they are tried again.")
                self._stop.wait(2.0)
        self._leave()

    def _leave(self) -> None:
        try:
            self.flush()
        except errors.NodbError as error:
            LOG.info("The next sweep finds what this process changed: %(error)s", {"error": error})
        self._synchronizer.close()

    def flush(self) -> None:
        """Publish the hints that wait.

        :raises BackendUnavailable: they wait on
        """
        with self._lock:
            names = dict(self._names)
            if not names:
                self._wake.clear()
                return
        self._synchronizer.open()
        marked_at = self._synchronizer.now_seconds()
        self._publisher.publish(
            {
                records.RecordKey(known_namespaces.PROVIDER_HINTS.name, name): _marked(
                    is_consumer, marked_at, self._by
                )
                for name, is_consumer in names.items()
            }
        )
        self.published += len(names)
        with self._lock:
            for name in names:
                # Given again meanwhile, it was in the set already: a hint too
                # early is followed by a second look.
                del self._names[name]
            if not self._names:
                self._wake.clear()


def _marked(is_consumer: bool, marked_at: float, by: str) -> publisher_module.Compute:
    return lambda current: {"consumer": is_consumer, "marked_at": marked_at, "by": by}
