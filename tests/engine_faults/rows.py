# SPDX-License-Identifier: Apache-2.0
"""What the records of the made cloud should hold, computed from the ledger's answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.simulator import cluster, host_records
from nova_nodb_scheduler.store import declarations
from nova_nodb_scheduler.synchronizer import contract, publisher

HOSTS = 6
VCPUS = 4

_KIND = cluster.Kind(VCPUS, 65_536, 1_000, 1.0)
#: uuid -> host
MADE = {
    each.uuid: each for each in (cluster.Host(number, 0, _KIND, 1.0) for number in range(HOSTS))
}

State = dict[str, Any]

#: (keys) -> by key what is to be published, None where there is nothing; asked
#: after the record was read.
Ask = Callable[[Sequence[records.RecordKey]], Mapping[records.RecordKey, State | None]]

#: What says how full a host is comes before what makes it claimable.
_ORDER = (
    (namespaces.PLACEMENT, (namespaces.PROVIDERS.name,)),
    (namespaces.NOVA, (namespaces.INSTANCES.name, namespaces.SERVICES.name)),
    (namespaces.NOVA, (namespaces.COMPUTE_NODES.name, namespaces.SERVICE_LIVENESS.name)),
)


def host_keys(uuid: str) -> list[records.RecordKey]:
    """Return the keys of a host's own records."""
    host = MADE[uuid]
    return [
        records.RecordKey(namespaces.PROVIDERS.name, uuid),
        records.RecordKey(namespaces.SERVICES.name, host.service_uuid),
        records.RecordKey(namespaces.COMPUTE_NODES.name, uuid),
        records.RecordKey(namespaces.SERVICE_LIVENESS.name, host.service_uuid),
    ]


def instance_key(consumer: str) -> records.RecordKey:
    """Return the key of a server's record."""
    return records.RecordKey(namespaces.INSTANCES.name, host_records.instance_key(consumer))


def row(
    key: records.RecordKey,
    allocations_on: Callable[[str], Mapping[str, Mapping[str, int]]],
    host_of: Callable[[str], str | None],
    servers_on: Callable[[str], int],
) -> State | None:
    """Return what a record should hold now; None where it should not be."""
    if key.namespace == namespaces.INSTANCES.name:
        uuid = host_of(key.key.partition("@")[0])
        return None if uuid is None else host_records.instance(MADE[uuid], {})
    if key.namespace in (namespaces.SERVICES.name, namespaces.SERVICE_LIVENESS.name):
        [host] = [each for each in MADE.values() if each.service_uuid == key.key]
        if key.namespace == namespaces.SERVICES.name:
            return host_records.service(host)
        return host_records.liveness(int(time.time()), 0.0)
    host = MADE[key.key]
    if key.namespace == namespaces.COMPUTE_NODES.name:
        # Saved anew every second, as a periodic report of each host's would be in time.
        seconds = time.time() - host_records.BEGINNING_SECONDS
        return host_records.node(host, {}, servers_on(key.key), seconds)
    return host_records.provider(host, 1, allocations_on(key.key))


class Reporter:
    """Publishes records by what the ledger says once they were read; any thread."""

    def __init__(self, synchronizer: contract.Synchronizer, ask: Ask) -> None:
        declared = {each.name: each for each in declarations.load_namespaces()}
        self._publishers = {
            owner: publisher.Publisher(synchronizer, declared, owner)
            for owner in (namespaces.NOVA, namespaces.PLACEMENT)
        }
        self._ask = ask

    def publish(self, keys: Iterable[records.RecordKey]) -> None:
        """Bring records up to date.

        :raises BackendUnavailable: some may not be
        """
        wanted = list(keys)
        for owner, names in _ORDER:
            batch = [key for key in wanted if key.namespace in names]
            if batch:
                self._publish(self._publishers[owner], batch)

    def _publish(self, by: publisher.Publisher, keys: Sequence[records.RecordKey]) -> None:
        known: dict[records.RecordKey, State | None] = {}

        def refresh(of_round: Collection[records.RecordKey]) -> None:
            known.update(self._ask(list(of_round)))

        def compute_of(key: records.RecordKey) -> publisher.Compute:
            def compute(_state: publisher.State | None) -> publisher.State | publisher.Outcome:
                found = known[key]
                return publisher.DELETE if found is None else found

            return compute

        by.publish({key: compute_of(key) for key in keys}, refresh)
