# SPDX-License-Identifier: Apache-2.0
"""Which hosts hold claims, and which of them to look at again.

What a claim adds to its host hangs on records that are not the host's: the
consumer's instance and migrations, and the other instances there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling import fact_source, namespaces
from nova_nodb_scheduler.store import host_state_store

_INSTANCES = namespaces.INSTANCES.name
_MIGRATIONS = namespaces.MIGRATIONS.name


class ClaimedHosts:
    """The hosts with claims; used by the frame's keeper, with its lock held.

    Servers come and go by the thousand on hosts without claims: those cost a
    look-up each.
    """

    def __init__(self, store: host_state_store.HostStateStore, most_keys: int) -> None:
        # Apart from what hosts are made of: too many changes of these cost a
        # look at the hosts with claims, and not at all hosts.
        self._subscription = store.subscribe((_INSTANCES, _MIGRATIONS), most_keys)
        self._touched: Mapping[str, Collection[str]] | None = {}
        self._hosts: set[str] = set()

    def drain(self) -> None:
        """Note what changed; before the snapshot is taken."""
        self._touched = self._subscription.drain()

    def take_all(self, source: fact_source.FactSource) -> None:
        """Look at all claim records."""
        self._hosts = {uuid for uuid in source.claimed_uuids() if _has_claims(source, uuid)}

    def take(
        self,
        changed: Collection[str],
        nodes: Collection[str],
        former: fact_source.FactSource,
        source: fact_source.FactSource,
    ) -> set[str]:
        """Return the hosts whose claims may add something else than before.

        :param changed: uuids of hosts whose claim records changed
        :param nodes: uuids of compute nodes whose records changed
        """
        before = self._hosts
        self._hosts = before.difference(changed)
        self._hosts.update(uuid for uuid in changed if _has_claims(source, uuid))
        again = set(changed)
        if not (before or self._hosts):
            return again
        touched = self._touched
        if touched is None:
            return again | self._hosts
        places: set[tuple[str, str] | None] = set()
        for each in (former, source):
            # Another node may have come to the host, or left it.
            places.update(map(each.host_of_node, nodes))
            for key in touched.get(_INSTANCES, ()):
                places.add(each.host_of_instance(key))
            for key in touched.get(_MIGRATIONS, ()):
                places.add(each.destination(key))
        for place in places:
            if place is not None:
                again.update(self._hosts.intersection(source.nodes_of_host(*place)))
        return again


def _has_claims(source: fact_source.FactSource, uuid: str) -> bool:
    try:
        return bool(source.claims(uuid))
    except errors.InvalidRecord:
        return True
