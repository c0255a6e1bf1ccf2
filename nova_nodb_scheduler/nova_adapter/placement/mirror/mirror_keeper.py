# SPDX-License-Identifier: Apache-2.0
"""Keeps the mirror of Placement, by one scheduler worker at a time for all.

A lease says who. Hinted providers are looked at first, a little after the
hint; a paced sweep over generations finds the rest. Between the steps of a
long sweep (the first is the import) the lease is renewed and hints followed.
A keeper that lost its lease writes nothing more than the step it is in, which
the records' own order survives (:mod:`.tree_publisher`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent import futures

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    feed_hints,
    hinted_reads,
    placement_reader,
    tree_publisher,
)
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_sweep as sweep_module
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import backoff, contract
from nova_nodb_scheduler.synchronizer.records import leases
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.synchronizer.replication import ingest

LOG = logging.getLogger(__name__)

LEASE = "placement-mirror"


@attrs.frozen
class KeeperOptions:
    """How the mirror is kept.

    :param sweep: how it is swept
    :param readers: requests to Placement at once
    :param turn_seconds: how often hints are looked for
    :param lease_seconds: how long a keeper that died keeps the others waiting
    :param look_limit: hinted providers looked at in one turn
    :param orphan_rows: records that a turn compares with the known servers
    """

    sweep: sweep_module.MirrorSweepOptions = attrs.field(factory=sweep_module.MirrorSweepOptions)
    readers: int = 4
    turn_seconds: float = 0.5
    lease_seconds: float = 15.0
    look_limit: int = 128
    orphan_rows: int = 1000


@attrs.define
class KeeperStatus:
    """Counts since the start, for status and metrics.

    :param keeping: whether this worker is the keeper
    :param hinted_reads: hinted providers that were read
    :param sweeps: sweeps completed
    :param failures: turns that failed, for Placement or the back end
    """

    keeping: bool = False
    hinted_reads: int = 0
    sweeps: int = 0
    hints_waiting: int = 0
    hints_forgotten: int = 0
    requests: int = 0
    failures: int = 0
    last_error: str = ""


@attrs.define(eq=False, slots=False)
class MirrorKeeper:
    """One named thread per scheduler worker; one of them all does the work.

    :param snapshot: of this worker's store
    :param epoch: of that store; None while it is not proved complete
    :param publisher: of owner ``placement``
    :param hint_publisher: of owner ``nodb``, who owns the hints
    :param holder: unique per process start
    :param unreadable: records that this worker's store cannot read now
    """

    _synchronizer: contract.Synchronizer
    _snapshot: Callable[[], snapshot_module.Snapshot]
    _epoch: Callable[[], str | None]
    _publisher: publisher_module.Publisher
    _hint_publisher: publisher_module.Publisher
    _reader: placement_reader.PlacementReader
    _holder: str
    _options: KeeperOptions
    _clock: Callable[[], float] = time.monotonic
    _unreadable: Callable[[], ingest.UnreadableRecords] = attrs.field(
        default=ingest.all_readable, kw_only=True
    )
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _asked_lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _asked: set[str] = attrs.field(init=False, factory=set)
    _renew_at: float = attrs.field(init=False, default=float("-inf"))
    _kept_epoch: str | None = attrs.field(init=False, default=None)
    _readers: futures.ThreadPoolExecutor | None = attrs.field(init=False, default=None)
    _sweep: sweep_module.MirrorSweep | None = attrs.field(init=False, default=None)
    _sweep_at: float = attrs.field(init=False, default=float("-inf"))
    status: KeeperStatus = attrs.field(init=False, factory=KeeperStatus)

    def __attrs_post_init__(self) -> None:
        self._sweep_options = self._options.sweep
        self._lease = leases.LeaseKeeper(
            self._synchronizer, LEASE, self._holder, self._options.lease_seconds
        )
        self._backoff = backoff.Backoff(0.5, 30.0, self._clock)

    # -- life -------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; once, in the worker process."""
        self._thread = threading.Thread(target=self._run, name="nodb-mirror", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """End the thread and let the lease go; idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                LOG.error("Thread nodb-mirror did not end in time.")
            self._thread = None

    def look_at(self, providers: Collection[str]) -> None:
        """Have providers looked at soon, should this worker keep the mirror; any thread."""
        with self._asked_lock:
            self._asked.update(providers)

    def _run(self) -> None:
        complaint = ""
        while not self._stop.is_set():
            more = False
            try:
                more = self.turn()
                if complaint:
                    LOG.info("The mirror of Placement is kept again.")
                complaint = ""
            except errors.NodbError as error:
                self._failed(error)
                if str(error) != complaint:
                    complaint = str(error)
                    LOG.warning(
                        "The mirror of Placement is not kept now, it is tried again: %(error)s",
                        {"error": error},
                    )
            except Exception as error:
                self._failed(error)
                LOG.exception("The keeper of Placement's mirror failed; it tries again.")
            if not more:
                self._stop.wait(self._options.turn_seconds)
        self.leave()

    def leave(self) -> None:
        """Let the lease go and end the readers; what a thread's end does."""
        self._end_keeping()
        try:
            self._lease.release()
        except errors.NodbError:
            LOG.debug("The lease of the mirror could not be released; it ends by itself.")

    def _failed(self, error: Exception) -> None:
        self._backoff.failed()
        self.status.failures += 1
        self.status.last_error = f"{type(error).__name__}: {error}"

    # -- turns ------------------------------------------------------------------

    def turn(self) -> bool:
        """Do what is due; True if more of it is waiting.

        :raises PlacementUnanswered: it is tried again, later and later
        :raises BackendUnavailable: the same
        """
        if self._backoff.remaining_seconds():
            return False
        epoch = self._epoch()
        if epoch is None or not self._held():
            self._end_keeping()
            return False
        if epoch != self._kept_epoch:
            self._begin_keeping(epoch)
        snapshot = self._snapshot()
        self._hinted_reads.follow(
            snapshot, self._sweep.will_read if self._sweep else lambda root: False
        )
        self._add_asked()
        looked = self._hinted_reads.look(snapshot, self._options.look_limit)
        self.status.hinted_reads += looked
        swept = self._sweep_on(snapshot)
        self._backoff.succeeded()
        self.status.hints_waiting = len(self._hinted_reads)
        self.status.hints_forgotten = self._hinted_reads.forgotten
        self.status.requests = self._reader.requests
        return swept or looked == self._options.look_limit

    def _held(self) -> bool:
        now = self._clock()
        if now < self._renew_at:
            # Those that wait ask no more often than the keeper renews.
            return self.status.keeping
        held = isinstance(self._lease.acquire(), leases.Lease)
        self._renew_at = now + self._options.lease_seconds / 3
        return held

    def _begin_keeping(self, epoch: str) -> None:
        self._end_keeping()
        LOG.info("This worker keeps the mirror of Placement.")
        snapshot = self._snapshot()
        self._kept_epoch = epoch
        self._orphan_allocations = feed_hints.OrphanAllocations()
        self._orphan_rows_left = len(snapshot.namespace(known_namespaces.PROVIDERS.name))
        self._sweep = None
        self._sweep_at = self._clock()
        self._readers = (
            futures.ThreadPoolExecutor(self._options.readers, thread_name_prefix="nodb-mirror-read")
            if self._options.readers > 1
            else None
        )
        self._trees = tree_publisher.TreePublisher(
            self._synchronizer, self._publisher, self._reader, self._readers
        )
        self._hinted_reads = hinted_reads.HintedReads(
            snapshot, self._trees, self._reader, self._hint_publisher, self._clock
        )
        self.status.keeping = True

    def _end_keeping(self) -> None:
        if self.status.keeping:
            LOG.info("This worker no longer keeps the mirror of Placement.")
        self.status.keeping = False
        self._kept_epoch = None
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.shutdown(wait=False, cancel_futures=True)

    # -- hints --------------------------------------------------------------------

    def _add_asked(self) -> None:
        with self._asked_lock:
            asked, self._asked = self._asked, set()
        self._hinted_reads.add(feed_hints.ProviderHint(provider) for provider in asked)

    # -- sweeps ---------------------------------------------------------------------

    def _sweep_on(self, snapshot: snapshot_module.Snapshot) -> bool:
        """Take a sweep one step on, or begin one that is due; True if it is not over."""
        if self._sweep is None:
            if self._orphan_rows_left > 0:
                self._walk_orphans(snapshot)
            if self._clock() < self._sweep_at:
                return self._orphan_rows_left > 0
            self._begin_sweep(snapshot)
        assert self._sweep is not None
        if self._sweep.left:
            again = self._sweep.step(snapshot.namespace(known_namespaces.PROVIDERS.name))
            self._hinted_reads.once(again)
        if self._sweep.left:
            return True
        done = self._sweep.finish(self._snapshot().namespace(known_namespaces.PROVIDERS.name))
        self._sweep = None
        self._hinted_reads.forget_marks(snapshot)
        self.status.sweeps += 1
        if self.status.sweeps == 1 or done["differing"] or done["gone"]:
            LOG.info(
                "Compared the mirror with Placement: %(roots)d provider trees, %(differing)d "
                "differed, %(gone)d were gone; %(requests)d requests in %(seconds).1f s.",
                done,
            )
        rows = len(snapshot.namespace(known_namespaces.PROVIDERS.name))
        self._orphan_rows_left = max(self._orphan_rows_left, rows // 10 + 1)
        return False

    def _begin_sweep(self, snapshot: snapshot_module.Snapshot) -> None:
        assert self._kept_epoch is not None
        sweep = sweep_module.MirrorSweep(
            self._synchronizer,
            self._publisher,
            self._trees,
            self._reader,
            snapshot.namespace(known_namespaces.PROVIDERS.name),
            self._kept_epoch,
            self._sweep_options,
            self._holder,
            self._clock,
            # Later than the view: one that came since is read for nothing, and one that was
            # let go since is in the next sweep's view.
            unread=self._unreadable().keys(known_namespaces.PROVIDERS.name),
        )
        began_at = self._clock()
        # One that cannot begin is due still: a worker that starts waits for it.
        fresh = sweep.begin()
        self._sweep_at = began_at + self._sweep_options.interval_seconds
        self._hinted_reads.once(fresh)
        self._sweep = sweep

    def _walk_orphans(self, snapshot: snapshot_module.Snapshot) -> None:
        now = self._synchronizer.now_seconds()
        self._hinted_reads.add(
            self._orphan_allocations.walk(snapshot, self._options.orphan_rows, now)
        )
        self._orphan_rows_left -= self._options.orphan_rows
