# SPDX-License-Identifier: Apache-2.0
"""Prove that the feed lives: write a record and expect it back.

A feed that is dead and a feed of an idle cloud look the same: nothing comes.
(etcd's watchers fall silent after a compaction, a poll of a stale replica
answers for ever.) So each replicator now and then compares-and-sets a record
of its own, which is the scheduler's heartbeat for others too, and measures how long
it takes until its own feed brings it. What it proves is a moment: everything
accepted *before the canary was sent* has been applied.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

#: A lost compare-and-set says which revision stands there: the second wins
#: unless somebody else writes the same record.
_ATTEMPTS = 3


class Canary:
    """One record, one outstanding flight; used by the replicator's thread alone.

    :param namespace: where the record lives
    :param identity: its key; unique among the running processes
    :param heartbeat: content of the record; called before each flight
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        namespace: namespaces.Namespace,
        identity: str,
        *,
        interval_seconds: float,
        bound_seconds: float,
        clock: Callable[[], float],
        heartbeat: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._synchronizer = synchronizer
        self._namespace = namespace
        self.key = records.RecordKey(namespace.name, identity)
        self._interval_seconds = interval_seconds
        self._bound_seconds = bound_seconds
        self._clock = clock
        self._heartbeat = heartbeat
        self._nonce = uuid.uuid4().hex
        self._sequence = 0
        self._revision = 0
        self._conflicts = 0
        self._next_at: float | None = None
        self._announced_at: float | None = None
        self._sent_at: float | None = None
        self._sent_version = 0
        #: When the last canary that came back was sent; None: unproved.
        self.proved_at: float | None = None
        #: How long that one flew.
        self.flight_seconds: float | None = None

    def reset(self) -> None:
        """Forget proof and flight: the store is about to be rebuilt."""
        self._next_at = self._sent_at = self.proved_at = self._announced_at = None

    def due_in_seconds(self) -> float:
        """Return how long until there is something to do here."""
        if self._next_at is None:
            return 0.0
        if self._sent_at is not None:
            return max(0.0, self._sent_at + self._bound_seconds - self._clock())
        return max(0.0, self._next_at - self._clock())

    def lag_seconds(self) -> float | None:
        """Return how far the feed was behind, by what is known now."""
        sent_at = self._sent_at  # other threads ask, too
        if sent_at is None:
            return self.flight_seconds
        return max(self.flight_seconds or 0.0, self._clock() - sent_at)

    def silent(self, at_seconds: float) -> bool:
        """Return whether the canary ought to have come back by a time, and did not."""
        return self._sent_at is not None and at_seconds - self._sent_at > self._bound_seconds

    def announce_if_due(self) -> None:
        """Write the heartbeat alone, now and then while a snapshot is read.

        It proves nothing, there is no feed that could bring it back: it tells
        others that who reads a large store lives.

        :raises BackendUnavailable: it was not written; the next call tries again
        """
        now = self._clock()
        if self._announced_at is None:
            # A short snapshot is over before anybody asks.
            self._announced_at = now
        elif now - self._announced_at >= self._interval_seconds:
            self._announced_at = now
            self._write(self._payload(now))

    def send_if_due(self) -> None:
        """Send a canary when the interval has passed and none is in flight.

        :raises BackendUnavailable: nothing was sent; the next call tries again
        """
        now = self._clock()
        if self._sent_at is not None or (self._next_at is not None and now < self._next_at):
            return
        written = self._write(self._payload(now))
        self._next_at = now + self._interval_seconds
        if written is not None:
            self._sent_at, self._sent_version = now, written.version

    def _payload(self, now: float) -> bytes:
        self._sequence += 1
        return codec.encode(
            {
                **self._heartbeat(),
                "nonce": self._nonce,
                "sequence": self._sequence,
                "sent_monotonic_seconds": now,
            },
            self._namespace.schema,
        )

    def _write(self, payload: bytes) -> records.Record | None:
        """Write the record; None where it is not known to have been written."""
        for _ in range(_ATTEMPTS):
            write = records.Write(self.key, self._revision, payload)
            [result] = self._synchronizer.write([write])
            # Of an unknown outcome the next attempt learns what stands there.
            standing = result.record
            self._revision = 0 if standing is None or standing.deleted else standing.revision
            if standing is not None and standing.payload == payload:
                return standing
        self._conflicts += 1
        if self._conflicts == 1:
            LOG.warning(
                "The beat of %(key)s could not be written in %(attempts)d attempts: is the "
                "same identity used by two processes?",
                {"key": self.key, "attempts": _ATTEMPTS},
            )
        return None

    def observe(self, batch: Iterable[records.Record]) -> float | None:
        """Look for the canary in what the feed brought and was applied.

        A later state of the record proves as much as the one that was sent.

        :returns: seconds it flew, or None where it was not among them
        """
        if self._sent_at is None:
            return None
        for record in batch:
            if record.key == self.key and record.version >= self._sent_version:
                self.flight_seconds = self._clock() - self._sent_at
                self.proved_at, self._sent_at = self._sent_at, None
                return self.flight_seconds
        return None

    def retire(self) -> None:
        """Remove the record: this process ends on purpose.

        :raises BackendUnavailable: the record stays, as after a crash
        """
        if self._revision:
            self._synchronizer.write([records.Write(self.key, self._revision, deleted=True)])
            self._revision = 0
