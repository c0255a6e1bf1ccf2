# SPDX-License-Identifier: Apache-2.0
"""Tells the mirror's keeper, through the synchronizer, what this process changed in Placement.

Nova's threads only add names to a bounded set; one thread, started with the
first name in the process that has it, publishes them as records of namespace
``provider_hints``. What is lost (the set was full, the process died, the back
end was down) is found by the sweep.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Collection

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement import observed_writes
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer import publisher as publisher_module

LOG = logging.getLogger(__name__)


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


class HintWriter:
    """Publishes hints; any thread may give them.

    :param synchronizer: of this object alone; opened by its thread
    :param publisher: of owner ``nodb``, over that synchronizer
    :param by: who gives the hints, for operators
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        publisher: publisher_module.Publisher,
        by: str,
        options: HintOptions | None = None,
    ) -> None:
        self._synchronizer = synchronizer
        self._publisher = publisher
        self._by = by
        self._options = options or HintOptions()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        #: name -> whether it is a consumer's
        self._names: dict[str, bool] = {}
        self._thread: threading.Thread | None = None
        self._pid: int | None = None
        #: Hints published, and those dropped for want of room.
        self.published = 0
        self.dropped = 0

    def observe(self, write: observed_writes.Write) -> None:
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
                records.RecordKey(namespaces.PROVIDER_HINTS.name, name): _marked(
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
