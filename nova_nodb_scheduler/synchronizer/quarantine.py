# SPDX-License-Identifier: Apache-2.0
"""Keep aside, by key, the records that cannot be read.

A record that this release cannot decode must neither stop the feed nor leave
an older state of the same key to be taken for the current one. Who places
servers asks :meth:`Quarantine.keys` and goes another way for what these
records belong to.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping

import attrs

from nova_nodb_scheduler.model import records

LOG = logging.getLogger(__name__)


@attrs.frozen
class Quarantined:
    """A record that was kept aside.

    :param version: its place in the feed
    :param size_bytes: size of its payload, which itself is not kept
    """

    key: records.RecordKey
    revision: int
    version: int
    reason: str
    size_bytes: int


class Quarantine:
    """Bounded; any method from any thread; none blocks for longer than a dictionary takes.

    :param limit: how many records are kept by key. Beyond it a namespace is
        only known to hold more of them (:meth:`overflowed`), until the next
        snapshot.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: dict[records.RecordKey, Quarantined] = {}
        self._keys: dict[str, frozenset[str]] = {}
        self._overflow: Counter[str] = Counter()
        self._admitted = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def admitted(self) -> int:
        """How many records were ever kept aside, newer ones of one key included."""
        return self._admitted

    def admit(self, record: records.Record, reason: str) -> bool:
        """Keep a record aside.

        :returns: False where this revision, or a newer one, is here already
        """
        key = record.key
        with self._lock:
            known = self._entries.get(key)
            if known is not None and known.revision >= record.revision:
                return False
            self._admitted += 1
            if known is None and len(self._entries) >= self._limit:
                # Of namespaces nobody declared there may be any number.
                self._overflow[key.namespace] += 1
                return True
            self._entries[key] = Quarantined(
                key, record.revision, record.version, reason, len(record.payload)
            )
            self._keys.pop(key.namespace, None)
        # Whoever writes these writes many: one line for the first of a key.
        if known is None:
            LOG.warning(
                "Record %(key)s at version %(version)d is kept aside: %(reason)s",
                {"key": key, "version": record.version, "reason": reason},
            )
        return True

    def release(self, key: records.RecordKey, revision: int) -> bool:
        """Let a key go, because a newer, readable revision of it came."""
        if not self._entries or key not in self._entries:
            return False
        with self._lock:
            known = self._entries.get(key)
            if known is None or known.revision >= revision:
                return False
            del self._entries[key]
            self._keys.pop(key.namespace, None)
            return True

    def clear(self) -> None:
        """Forget everything: what is still unreadable comes again with the snapshot."""
        with self._lock:
            self._entries.clear()
            self._keys.clear()
            self._overflow.clear()

    def get(self, key: records.RecordKey) -> Quarantined | None:
        return self._entries.get(key)

    def keys(self, namespace: str) -> frozenset[str]:
        """Return the keys of a namespace whose current state is unknown.

        Not all of them where :meth:`overflowed` is True.
        """
        found = self._keys.get(namespace)
        if found is not None:
            return found
        with self._lock:
            found = frozenset(key.key for key in self._entries if key.namespace == namespace)
            # Asked for by each request; names nobody holds are not remembered.
            if found:
                self._keys[namespace] = found
            return found

    def overflowed(self, namespace: str) -> bool:
        """Return whether a namespace holds more unreadable records than are kept by key."""
        return namespace in self._overflow

    def entries(self) -> tuple[Quarantined, ...]:
        """Return what is kept aside, in order of key, for people to read."""
        with self._lock:
            return tuple(self._entries[key] for key in sorted(self._entries))

    def count_by_namespace(self) -> Mapping[str, int]:
        """Return how many records of each namespace are unreadable, overflow included."""
        with self._lock:
            counts = Counter(key.namespace for key in self._entries)
            return dict(counts + self._overflow)
