# SPDX-License-Identifier: Apache-2.0
"""What is true, whatever any record says, and what the made cloud's records should hold.

Plain dictionaries in the parent process; nothing of the store, the drivers or
the claims is used. The ledger writes whatever allocation it is told, as
Placement does when allocations race: what keeps hosts from being filled is the
claims alone. Records are computed from its answers.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.simulator.scenario import made_hosts
from nova_nodb_scheduler.store import declarations
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher

#: (consumer, host, VCPUs)
Allocation = tuple[str, str, int]

#: A place in a group is settled, and gone from its record, no sooner than this.
_SETTLED_AFTER_SECONDS = 1.0

ANTI_AFFINITY, AFFINITY = "anti-affinity", "affinity"


class Ledger:
    """The authority and the auditor; any thread.

    :param capacity: VCPUs by host
    :param policies: by server group
    :ivar broken: what must never be, in words
    """

    def __init__(self, capacity: Mapping[str, int], policies: Mapping[str, str]) -> None:
        self.capacity = dict(capacity)
        self.policies = dict(policies)
        self._lock = threading.Lock()
        self._allocated: dict[str, dict[str, int]] = {}
        self._granted: dict[str, tuple[str, int]] = {}
        self._group_of: dict[str, str] = {}
        self._writer_of: dict[str, str] = {}
        #: By server, the members of its group as its request was told of them.
        self._listed: dict[str, frozenset[str]] = {}
        self._granted_at: dict[str, float] = {}
        self.broken: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        #: Most VCPUs that were ever granted at once, by host.
        self.most: dict[str, int] = {}

    # -- as the authority -------------------------------------------------------------

    def join(self, group: str, consumers: Sequence[str]) -> list[str]:
        """Make servers members of a group before they are placed; return all members."""
        with self._lock:
            for consumer in consumers:
                self._group_of[consumer] = group
            members = [each for each, own in self._group_of.items() if own == group]
            self._listed.update(dict.fromkeys(consumers, frozenset(members)))
            return members

    def write(self, writer: str, allocations: Sequence[Allocation]) -> None:
        """Write allocations, whether there is room or not."""
        with self._lock:
            for consumer, host, vcpus in allocations:
                self._writer_of[consumer] = writer
                self._allocated.setdefault(consumer, {})[host] = vcpus

    def remove(self, places: Sequence[tuple[str, str]]) -> None:
        """Take allocations of servers on hosts away."""
        with self._lock:
            for consumer, host in places:
                held = self._allocated.get(consumer, {})
                held.pop(host, None)
                if not held:
                    self._allocated.pop(consumer, None)

    def allocations_of(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return a server's allocations by host."""
        with self._lock:
            held = self._allocated.get(consumer, {})
            return {host: {"VCPU": vcpus} for host, vcpus in held.items()}

    def allocations_on(self, host: str) -> dict[str, dict[str, int]]:
        """Return a host's allocations by server."""
        with self._lock:
            return {
                consumer: {"VCPU": held[host]}
                for consumer, held in self._allocated.items()
                if host in held
            }

    def host_of(self, consumer: str) -> str | None:
        """Return the host that a server was granted."""
        with self._lock:
            found = self._granted.get(consumer)
            return None if found is None else found[0]

    def servers_on(self, host: str) -> int:
        """Return how many servers a host was granted to."""
        with self._lock:
            return sum(each == host for each, _ in self._granted.values())

    # -- as the auditor ---------------------------------------------------------------

    def grant(self, placed: Sequence[Allocation]) -> None:
        """Take in what a scheduler answered, and see that it breaks nothing."""
        with self._lock:
            self.counts["granted"] += len(placed)
            for consumer, host, vcpus in placed:
                if consumer in self._granted:
                    self.broken.append(f"{consumer} was granted twice")
                if self._allocated.get(consumer) != {host: vcpus}:
                    held = self._allocated.get(consumer)
                    self.broken.append(f"{consumer} was granted {host}, and has {held}")
                self._granted[consumer] = (host, vcpus)
                self._granted_at[consumer] = time.monotonic()
            for host in {host for _, host, _ in placed}:
                self._check_capacity(host)
            for group in {self._group_of[c] for c, _, _ in placed if c in self._group_of}:
                self._check_group(group)

    def _check_capacity(self, host: str) -> None:
        used = sum(vcpus for each, vcpus in self._granted.values() if each == host)
        self.most[host] = max(used, self.most.get(host, 0))
        if used > self.capacity[host]:
            self.counts["over-commits"] += 1
            self.broken.append(f"{used} of {self.capacity[host]} VCPUs were granted on {host}")

    def _check_group(self, group: str) -> None:
        hosts = {
            consumer: host
            for consumer, (host, _) in self._granted.items()
            if self._group_of.get(consumer) == group
        }
        apart = self.policies[group] == ANTI_AFFINITY
        pairs = [
            (one, other)
            for one, other in itertools.combinations(sorted(hosts, key=self._at), 2)
            if (hosts[one] == hosts[other]) is apart
        ]
        if any(not self._is_old_list(one, other) for one, other in pairs):
            self.counts["policies broken"] += 1
            self.broken.append(
                f"{self.policies[group]} group {group} was granted {sorted(hosts.values())}"
            )
        elif pairs:
            self.counts["choices by old member lists"] += 1

    def _at(self, consumer: str) -> float:
        return self._granted_at[consumer]

    def _is_old_list(self, earlier: str, later: str) -> bool:
        """Say whether a request could not know of a member that had settled.

        Nova hands a request its group's members as they are when it begins. One
        that slept meanwhile does not know of a later member, whose place is no
        longer claimed once its server's own record shows it: a known limit.
        """
        return (
            earlier not in self._listed[later]
            and self._at(later) - self._at(earlier) > _SETTLED_AFTER_SECONDS
        )

    # -- as the user ------------------------------------------------------------------

    def standing(self) -> dict[str, tuple[str, int]]:
        """Return host and VCPUs of each server that was granted."""
        with self._lock:
            return dict(self._granted)

    def delete(self, consumer: str) -> None:
        """End a server."""
        with self._lock:
            self.counts["deleted"] += consumer in self._granted
            self._forget(consumer)

    def refuse(self, consumers: Sequence[str]) -> None:
        """End servers that a scheduler found no room for."""
        with self._lock:
            self.counts["refused"] += len(consumers)
            for consumer in consumers:
                if consumer in self._granted or consumer in self._allocated:
                    self.broken.append(f"{consumer} was refused, and something is left of it")
                self._forget(consumer)

    def bury(self, writer: str) -> None:
        """Delete the servers that a scheduler who died left in ERROR, as their user would."""
        with self._lock:
            for consumer, own in list(self._writer_of.items()):
                if own == writer and consumer not in self._granted:
                    self._forget(consumer)

    def _forget(self, consumer: str) -> None:
        for held in (self._granted, self._allocated, self._group_of, self._writer_of):
            held.pop(consumer, None)  # type: ignore[attr-defined]
        self._listed.pop(consumer, None)
        self._granted_at.pop(consumer, None)

    def unanswered(self) -> list[str]:
        """Return servers that have allocations and were never granted."""
        with self._lock:
            return sorted(self._allocated.keys() - self._granted.keys())


HOSTS = 6
VCPUS = 4

_KIND = made_hosts.HostKind(VCPUS, 65_536, 1_000, 1.0)
#: uuid -> host
MADE = {
    each.uuid: each
    for each in (made_hosts.MadeHost(number, 0, _KIND, 1.0) for number in range(HOSTS))
}

State = dict[str, Any]

#: (keys) -> by key what is to be published, None where there is nothing; asked
#: after the record was read.
Ask = Callable[[Sequence[records.RecordKey]], Mapping[records.RecordKey, State | None]]

#: What says how full a host is comes before what makes it claimable.
_ORDER = (
    (known_namespaces.PLACEMENT, (known_namespaces.PROVIDERS.name,)),
    (known_namespaces.NOVA, (known_namespaces.INSTANCES.name, known_namespaces.SERVICES.name)),
    (
        known_namespaces.NOVA,
        (known_namespaces.COMPUTE_NODES.name, known_namespaces.SERVICE_LIVENESS.name),
    ),
)


def host_keys(uuid: str) -> list[records.RecordKey]:
    """Return the keys of a host's own records."""
    host = MADE[uuid]
    return [
        records.RecordKey(known_namespaces.PROVIDERS.name, uuid),
        records.RecordKey(known_namespaces.SERVICES.name, host.service_uuid),
        records.RecordKey(known_namespaces.COMPUTE_NODES.name, uuid),
        records.RecordKey(known_namespaces.SERVICE_LIVENESS.name, host.service_uuid),
    ]


def instance_key(consumer: str) -> records.RecordKey:
    """Return the key of a server's record."""
    return records.RecordKey(known_namespaces.INSTANCES.name, made_hosts.instance_key(consumer))


def row(
    key: records.RecordKey,
    allocations_on: Callable[[str], Mapping[str, Mapping[str, int]]],
    host_of: Callable[[str], str | None],
    servers_on: Callable[[str], int],
) -> State | None:
    """Return what a record should hold now; None where it should not be."""
    if key.namespace == known_namespaces.INSTANCES.name:
        uuid = host_of(key.key.partition("@")[0])
        return None if uuid is None else made_hosts.instance(MADE[uuid], {})
    if key.namespace in (known_namespaces.SERVICES.name, known_namespaces.SERVICE_LIVENESS.name):
        [host] = [each for each in MADE.values() if each.service_uuid == key.key]
        if key.namespace == known_namespaces.SERVICES.name:
            return made_hosts.service(host)
        return made_hosts.liveness(int(time.time()), 0.0)
    host = MADE[key.key]
    if key.namespace == known_namespaces.COMPUTE_NODES.name:
        # Saved anew every second, as a periodic report of each host's would be in time.
        seconds = time.time() - made_hosts.BEGINNING_SECONDS
        return made_hosts.node(host, {}, servers_on(key.key), seconds)
    return made_hosts.provider(host, 1, allocations_on(key.key))


class Reporter:
    """Publishes records by what the ledger says once they were read; any thread."""

    def __init__(self, synchronizer: contract.Synchronizer, ask: Ask) -> None:
        declared = {each.name: each for each in declarations.load_namespaces()}
        self._publishers = {
            owner: publisher.Publisher(synchronizer, declared, owner)
            for owner in (known_namespaces.NOVA, known_namespaces.PLACEMENT)
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
            def compute(
                _state: publisher.State | None,
            ) -> publisher.State | publisher.PublishOutcome:
                found = known[key]
                return publisher.DELETE if found is None else found

            return compute

        by.publish({key: compute_of(key) for key in keys}, refresh)
