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
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module

LOG = logging.getLogger(__name__)

#: Resource class -> amount, by consumer.
Placed = Mapping[str, Mapping[str, int]]


@attrs.define(eq=False, slots=False)
class OwnWrites:
    """Adds this process's writes to the mirror: a bounded queue, and a thread that publishes.

    :param publisher: of owner ``placement``
    :param hint: has providers read again, and those of consumers; must not block
    :param limit: calls that wait; the providers of those beyond it are hinted at
    :param batch: calls published together
    :param gather_seconds: how long calls are gathered before they are published;
        other schedulers may try a host meanwhile that Placement then refuses
    """

    _synchronizer: contract.Synchronizer
    _publisher: publisher_module.Publisher
    _hint: Callable[..., None]
    _limit: int = attrs.field(default=10_000, kw_only=True)
    _batch: int = attrs.field(default=200, kw_only=True)
    _gather_seconds: float = attrs.field(default=0.25, kw_only=True)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _wake: threading.Event = attrs.field(init=False, factory=threading.Event)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _calls: collections.deque[Mapping[str, Placed]] = attrs.field(
        init=False, factory=collections.deque
    )
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    #: Records published with an own write, and hints given instead.
    published: int = attrs.field(init=False, default=0)
    hinted: int = attrs.field(init=False, default=0)

    def observe(self, write: write_hints.ObservedWrite) -> None:
        """Add a write of this process for new servers to the mirror; hint at all others.

        Any thread; never blocks.
        """
        if write.placed:
            self.wrote(write.placed)
        if write.providers or write.consumers:
            self._hint(write.providers, write.consumers)

    def wrote(self, placed: Mapping[str, Placed]) -> None:
        """Note one successful call to Placement that allocated for new consumers.

        Any thread; never blocks, never raises.

        :param placed: all that the call allocated, by provider and consumer
        """
        with self._lock:
            full = len(self._calls) >= self._limit
            if not full:
                self._calls.append(placed)
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

        :raises BackendUnavailable: what was not published waits on
        """
        while True:
            with self._lock:
                calls = [self._calls[n] for n in range(min(self._batch, len(self._calls)))]
            if not calls:
                return
            self._publish(calls)
            with self._lock:
                for _ in calls:
                    self._calls.popleft()

    def _publish(self, calls: Sequence[Mapping[str, Placed]]) -> None:
        by_provider: dict[str, list[Placed]] = {}
        for call in calls:
            for provider, placed in call.items():
                by_provider.setdefault(provider, []).append(placed)
        now = self._synchronizer.now_seconds()
        unsure: set[str] = set()
        report = self._publisher.publish(
            {
                records.RecordKey(known_namespaces.PROVIDERS.name, provider): _added(
                    provider, placed, now, unsure
                )
                for provider, placed in by_provider.items()
            }
        )
        self.published += report.published
        unsure |= {key.key for key in (*report.failed, *report.rejected)}
        if unsure:
            self.hinted += len(unsure)
            self._hint(unsure)


def _added(
    provider: str, calls: Sequence[Placed], now: float, unsure: set[str]
) -> publisher_module.Compute:
    def compute(current: publisher_module.State | None) -> publisher_module.Computed:
        unsure.discard(provider)
        if current is None or "broken" in current:
            # A child, or a tree that is not mirrored (yet).
            unsure.add(provider)
            return publisher_module.UNCHANGED
        allocations = dict(current["allocations"])
        generation = current["generation"]
        for placed in calls:
            known = [consumer for consumer in placed if consumer in allocations]
            if len(known) == len(placed):
                # Read from Placement meanwhile; its generation counts the call.
                continue
            if known:
                unsure.add(provider)
            allocations |= {consumer: dict(amounts) for consumer, amounts in placed.items()}
            generation += 1
        if generation == current["generation"]:
            return publisher_module.UNCHANGED
        return {
            **current,
            "allocations": {consumer: allocations[consumer] for consumer in sorted(allocations)},
            "generation": generation,
            "written_at": now,
        }

    return compute
