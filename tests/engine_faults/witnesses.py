# SPDX-License-Identifier: Apache-2.0
"""Who sees what heals by itself: marks that nobody touches again, and readers that lag.

Nearly every record of a world is written again within a second, and each
scheduler's sweep repairs what its feed missed. So a change that was lost shows
for a moment only. A mark is a record that is created once: whoever lacks it in
the end has missed it, and if the back end lacks it in its epoch, an
acknowledged write is gone. A laggard follows the feed as drivers' authors are
told to, with no sweep behind it, and is late on purpose.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Collection, Mapping

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing.conformance import contract_case

PREFIX = "mark-"


class Marks:
    """Marks that were acknowledged, by the epoch that they were written in; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_epoch: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)

    def acknowledge(self, epoch: str, key: tuple[str, str]) -> None:
        """Take note of a mark whose write was won while that epoch was in force."""
        with self._lock:
            self._by_epoch[epoch].add(key)

    def lost(self, epoch: str, held: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the marks of an epoch that the back end does not hold."""
        with self._lock:
            return sorted(self._by_epoch[epoch].difference(held))


class Laggard:
    """A reader of the feed which is late; started and stopped by the world.

    :param interval_seconds: pause between two fetches; None: it fetches only
        when it is asked to catch up
    """

    def __init__(
        self, name: str, client: contract.Synchronizer, interval_seconds: float | None
    ) -> None:
        self.name = name
        self._client = client
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reader: contract_case.FeedReader | None = None
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    @property
    def resyncs(self) -> int:
        """How many snapshots its feed made it read."""
        return 0 if self._reader is None else self._reader.resyncs

    def start(self) -> None:
        """Read a first snapshot.

        :raises BackendUnavailable: it does not answer
        """
        self._client.open()
        self._reader = contract_case.FeedReader(self._client)
        if self._interval_seconds is not None:
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)
        self._client.close()

    def _follow(self) -> None:
        while not self._ended.wait(self._interval_seconds):
            with self._lock, contextlib.suppress(errors.BackendUnavailable):
                assert self._reader is not None
                self._reader.step()

    def held(self) -> Mapping[tuple[str, str], bytes]:
        """Catch up with the head as it is now; return what it holds, by namespace and key.

        :raises BackendUnavailable: it does not answer
        """
        with self._lock:
            assert self._reader is not None
            head = self._client.head()
            while (cursor := self._reader.cursor).epoch != head.epoch or (
                cursor.version < head.version
            ):
                if not self._reader.step() and self._reader.cursor.version < head.version:
                    self._client.wait(self._reader.cursor, 0.05)
                if self._client.head().epoch != head.epoch:
                    head = self._client.head()
            return {
                (key.namespace, key.key): record.payload
                for key, record in self._reader.held.items()
            }


def key_of(identity: str, number: int, namespace: str) -> records.RecordKey:
    """Return the key of a scheduler's next mark."""
    return records.RecordKey(namespace, f"{PREFIX}{identity}-{number}")
