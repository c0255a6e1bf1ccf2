# SPDX-License-Identifier: Apache-2.0
"""Adds to the mirror what this process has just written to Placement itself.

One call to Placement moves the generation of each provider it allocates on by
exactly one, however many consumers it names (tested against Placement). So a
call's new consumers are added to a provider's record together with one
generation; the next sweep proves by the generation that nobody else wrote in
between, or reads the provider again.

It is done in the background, a moment later for all calls of that moment:
publishing each by itself costs as much as deciding it did. Until then the
room stands reserved in the process itself.

A record that counts too little differs from Placement, and is compared and read. One
that counts a generation twice is ahead of Placement: the next change of anybody makes
them equal, and is taken for ours until the whole tree is read again for its age. The
naive way, to count each call whose consumers the record lacks, does that::

    record 5, Placement 5
        a call for server A                     Placement 6
        A is deleted: moves no generation       Placement 6, without A
        the tree is read: 6, without A          record 6
        the call is published: A is not there   record 7, with a ghost
        an operator sets a trait                Placement 7: "the same"

So does a server that moves away; one of several of a call that is deleted; and a
publication that was carried out and whose answer was lost, where the server is deleted
and the provider looked at before it is published again.

When a reading began and a call was sent does not tell them from a reading that was too
early for the call: a reading lasts, and members of a back end have clocks of their own.
This way: what this process's store showed before the call was sent had been read by then,
so that the call is news to it. A call is counted where the record is of that same reading
still, and lacks all its consumers (one that was published before has them, until another
reading takes them away). Of any other reading it is open whether it holds the call: then the
consumers are added, for their room is taken, no generation is, and the provider is looked at
by the keeper.
"""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement.mirror import write_hints
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module

LOG = logging.getLogger(__name__)

#: Resource class -> amount, by consumer.
Placed = Mapping[str, Mapping[str, int]]


@attrs.frozen(eq=False)
class _OwnCall:
    """A call that waits to be published.

    :param seen: records of its providers as they were known before it was sent
    """

    placed: Mapping[str, Placed]
    seen: Mapping[str, store_snapshot.StoredRecord]

    def reading(self, provider: str) -> object:
        """Return of which reading a provider's record was; None where it had none."""
        record = self.seen.get(provider)
        if record is None:
            return None
        try:
            return record.state.get("read_at")
        except errors.UndecodableRecord:
            return None


@attrs.define(eq=False, slots=False)
class OwnWrites:
    """Adds this process's writes to the mirror: a bounded queue, and a thread that publishes.

    :param publisher: of owner ``placement``
    :param snapshot: of this process's store
    :param hint: has providers read again, and those of consumers; must not block
    :param limit: calls that wait; the providers of those beyond it are hinted at
    :param batch: calls published together
    :param gather_seconds: how long calls are gathered before they are published;
        other schedulers may try a host meanwhile that Placement then refuses
    """

    _synchronizer: contract.Synchronizer
    _publisher: publisher_module.Publisher
    _snapshot: Callable[[], store_snapshot.Snapshot]
    _hint: Callable[..., None]
    _limit: int = attrs.field(default=10_000, kw_only=True)
    _batch: int = attrs.field(default=200, kw_only=True)
    _gather_seconds: float = attrs.field(default=0.25, kw_only=True)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    #: Of who publishes: what the first one took, a second one would take off the queue again.
    _turn: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _wake: threading.Event = attrs.field(init=False, factory=threading.Event)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _calls: collections.deque[_OwnCall] = attrs.field(init=False, factory=collections.deque)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    #: Records published with an own write, and hints given instead.
    published: int = attrs.field(init=False, default=0)
    hinted: int = attrs.field(init=False, default=0)

    def before(self) -> store_snapshot.Snapshot:
        """Return what is known as a call is about to be sent. Any thread; no I/O."""
        return self._snapshot()

    def observe(self, write: write_hints.ObservedWrite) -> None:
        """Add a write of this process for new servers to the mirror; hint at all others.

        Any thread; never blocks.
        """
        if write.placed:
            self.wrote(write.placed, write.before)
        if write.providers or write.consumers:
            self._hint(write.providers, write.consumers)

    def wrote(
        self, placed: Mapping[str, Placed], before: store_snapshot.Snapshot | None = None
    ) -> None:
        """Note one successful call to Placement that allocated for new consumers.

        Any thread; never blocks, never raises.

        :param placed: all that the call allocated, by provider and consumer
        :param before: of :meth:`before`, taken before the call was sent; None: nothing
            is known of it, and its generation is not counted
        """
        # Not the snapshot: of those that wait for a back end each would keep another store.
        seen: dict[str, store_snapshot.StoredRecord] = {}
        if before is not None:
            view = before.namespace(known_namespaces.PROVIDERS.name)
            seen = {name: found for name in placed if (found := view.get(name)) is not None}
        with self._lock:
            full = len(self._calls) >= self._limit
            if not full:
                self._calls.append(_OwnCall(placed, seen))
        if full:
            self.hinted += len(placed)
            self._hint(list(placed))
        self._wake.set()

    def __len__(self) -> int:
        return len(self._calls)

    def start(self) -> None:
        """Start the thread; once, in the worker process."""
        self._thread = threading.Thread(target=self._run, name="nodb-own-writes", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Publish what waits, if the back end answers, and end the thread; idempotent."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            self._thread = None

    def _run(self) -> None:
        complaint = ""
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(self._gather_seconds)
            self._wake.clear()
            try:
                self.flush()
                complaint = ""
            except errors.NodbError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    LOG.warning(
                        "Own allocations wait to be added to the mirror: %(error)s",
                        {"error": error},
                    )
                self._stop.wait(1.0)
                self._wake.set()
            except Exception:
                LOG.exception("Own allocations could not be added to the mirror.")
        try:
            self.flush()
        except errors.NodbError as error:
            LOG.info("The next sweep finds this worker's last writes: %(error)s", {"error": error})

    def flush(self) -> None:
        """Publish all calls that wait; two requests to the back end for each batch.

        Any thread, one after the other.

        :raises BackendUnavailable: what was not published waits on
        """
        with self._turn:
            while True:
                with self._lock:
                    calls = [self._calls[n] for n in range(min(self._batch, len(self._calls)))]
                if not calls:
                    return
                self._publish(calls)
                with self._lock:
                    for _ in calls:
                        self._calls.popleft()

    def _publish(self, calls: Sequence[_OwnCall]) -> None:
        by_provider: dict[str, list[_OwnCall]] = {}
        for call in calls:
            for provider in call.placed:
                by_provider.setdefault(provider, []).append(call)
        now = self._synchronizer.now_seconds()
        unsure: set[str] = set()
        report = self._publisher.publish(
            {
                records.RecordKey(known_namespaces.PROVIDERS.name, provider): _added(
                    provider, its_calls, now, unsure
                )
                for provider, its_calls in by_provider.items()
            }
        )
        self.published += report.published
        unsure |= {key.key for key in (*report.failed, *report.rejected)}
        if unsure:
            self.hinted += len(unsure)
            self._hint(unsure)


def _added(
    provider: str, calls: Sequence[_OwnCall], now: float, unsure: set[str]
) -> publisher_module.Compute:
    # Another round finds another record; what was seen before the calls stays.
    added = [(call.placed[provider], call.reading(provider)) for call in calls]

    def compute(current: publisher_module.State | None) -> publisher_module.Computed:
        unsure.discard(provider)
        if current is None or "broken" in current:
            # A child, or a tree that is not mirrored (yet).
            unsure.add(provider)
            return publisher_module.UNCHANGED
        allocations = dict(current["allocations"])
        generation = current["generation"]
        for placed, reading in added:
            missing = {
                consumer: dict(amounts)
                for consumer, amounts in placed.items()
                if consumer not in allocations
            }
            if not missing:
                # Read from Placement meanwhile, or published before.
                continue
            is_news = reading is not None and reading == current.get("read_at")
            if is_news and len(missing) == len(placed):
                generation += 1
            else:
                unsure.add(provider)
            allocations |= missing
        if allocations == current["allocations"]:
            return publisher_module.UNCHANGED
        return {
            **current,
            "allocations": {consumer: allocations[consumer] for consumer in sorted(allocations)},
            "generation": generation,
            "written_at": now,
        }

    return compute
