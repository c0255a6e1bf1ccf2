# SPDX-License-Identifier: Apache-2.0
"""Which hosts hold claims, and whose, as far as the store has come."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import settling_evidence

_CLAIMS = namespaces.CLAIM_RECORDS.name


class ClaimIndex:
    """Follows a store when it is asked, by what changed since; any thread, no I/O.

    What it tells is where to look: what stands there the snapshot says.
    """

    def __init__(self, store: host_state_store.HostStateStore) -> None:
        self._store = store
        self._subscription = store.subscribe((_CLAIMS,))
        self._lock = threading.Lock()
        #: Consumers by host, and hosts by consumer.
        self._consumers: dict[str, frozenset[str]] = {}
        self._hosts: dict[str, set[str]] = {}

    def follow(self) -> snapshot_module.Snapshot:
        """Come to the present; return a snapshot of it."""
        with self._lock:
            # What is written between the two is in the snapshot, and looked at once more.
            touched = self._subscription.drain()
            snapshot = self._store.snapshot()
            if touched is None:
                self._consumers.clear()
                self._hosts.clear()
                hosts: Iterable[str] = snapshot.namespace(_CLAIMS).keys()
            else:
                hosts = touched.get(_CLAIMS, ())
            for host in hosts:
                self._note(host, frozenset(settling_evidence.claims_of(snapshot, host)))
            return snapshot

    def hosts(self) -> list[str]:
        """Return the hosts with claims, in one order for all."""
        with self._lock:
            return sorted(self._consumers)

    def hosts_of(self, consumer: str) -> list[str]:
        """Return the hosts on which a consumer holds claims."""
        with self._lock:
            return sorted(self._hosts.get(consumer, ()))

    def _note(self, host: str, consumers: frozenset[str]) -> None:
        before = self._consumers.pop(host, frozenset())
        for consumer in before - consumers:
            self._hosts[consumer].discard(host)
            if not self._hosts[consumer]:
                del self._hosts[consumer]
        for consumer in consumers - before:
            self._hosts.setdefault(consumer, set()).add(host)
        if consumers:
            self._consumers[host] = consumers
