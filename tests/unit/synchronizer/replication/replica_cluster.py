# SPDX-License-Identifier: Apache-2.0
"""A made cluster: hosts, servers, schedulers' replicas, and what is true of them.

The truth is kept in plain dictionaries, beside the system under test: which
allocation stands, which server exists, which grant still holds. The protocols
are right if the truth never shows a host, or a group's rule, exceeded.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims, namespaces, records
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces as scheduling_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.testing import single_claims
from nova_nodb_scheduler.wire import codec

#: Small: the fewer hosts and places there are, the more often schedulers meet.
CAPACITY = 2
LEASE_SECONDS = 10.0
HOSTS = ("host-0", "host-1")

#: The authority: allocations by consumer on a host, and the epoch in which
#: its owner looked.
ALLOCATIONS = namespaces.Namespace(
    "allocations",
    "hosts",
    namespaces.SchemaVersion(1, 0),
    columns=(namespaces.Column("count", namespaces.Kind.INT, ("count",)),),
)
DECLARED = (
    ALLOCATIONS,
    scheduling_namespaces.CLAIM_RECORDS,
    scheduling_namespaces.GROUP_CLAIMS,
    scheduling_namespaces.SCHEDULERS,
)

APART = group_model.ServerGroup("apart", group_model.Policy.ANTI_AFFINITY)
TOGETHER = group_model.ServerGroup("together", group_model.Policy.AFFINITY)
GROUPS = (APART, TOGETHER)


@attrs.frozen
class Server:
    """A consumer; its size and group never change."""

    name: str
    vcpus: int
    group: group_model.ServerGroup | None = None


SERVERS = {
    server.name: server
    for server in (
        *(Server(f"one-{n}", 1) for n in range(2)),
        *(Server(f"two-{n}", 2) for n in range(2)),
        *(Server(f"apart-{n}", 1, APART) for n in range(2)),
        *(Server(f"together-{n}", 1, TOGETHER) for n in range(2)),
    )
}


@attrs.define(eq=False)
class Grant:
    """A grant as the scheduler that holds it knows it."""

    granted: claims.Granted
    grouped: group_model.GroupGranted | None
    epoch: str
    deadline_seconds: float
    #: Hosts that the consumer leaves for this one.
    leaves: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        return self.granted.claim.consumer, self.granted.claim.host


class Client(memory.MemorySynchronizer):
    """A client in whose reads and writes others come between."""

    def __init__(self, options: memory.MemoryOptions, hub: memory.MemoryHub) -> None:
        super().__init__(options, hub)
        self.meanwhile: list[Callable[[], None]] = []
        #: While others come between: its process cannot do anything else then.
        self.is_busy = False

    def write(self, writes):
        if self.meanwhile:
            self.is_busy = True
            try:
                self.meanwhile.pop()()
            finally:
                self.is_busy = False
        return super().write(writes)


class Truth:
    """What is the case, whatever any record says."""

    def __init__(self) -> None:
        #: (consumer, host) -> id of the claim it was written for.
        self.allocations: dict[tuple[str, str], str] = {}
        #: (consumer, host) of servers whose claim was confirmed.
        self.servers: set[tuple[str, str]] = set()
        #: claim id -> pending grant; the newest lease of each.
        self.pending: dict[str, Grant] = {}

    def allocate(self, grant: Grant) -> bool:
        """PUT /allocations: False on a conflict with another claim's allocation."""
        consumer, host = grant.place
        if self.allocations.get(grant.place) not in (None, grant.granted.claim_id):
            return False
        for old in grant.leaves:
            self.remove((consumer, old))
        self.allocations[consumer, host] = grant.granted.claim_id
        return True

    def remove(self, place: tuple[str, str]) -> None:
        self.allocations.pop(place, None)
        self.servers.discard(place)

    def remove_allocation_of(self, grant: Grant) -> None:
        """Delete an allocation by its own generation: never another claim's."""
        if self.allocations.get(grant.place) == grant.granted.claim_id:
            self.remove(grant.place)

    def occupied(self, host: str, epoch: str, now: float) -> set[str]:
        """Consumers with a server, or with a grant that still must hold."""
        held = {
            grant.place[0]
            for grant in self.pending.values()
            if grant.place[1] == host and grant.epoch == epoch and grant.deadline_seconds > now
        }
        return held | {consumer for consumer, where in self.servers if where == host}


class Replica:
    """One scheduler: client, store, replicator, ledgers, and its grants."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.grants: list[Grant] = []
        self.unknown: list[
            tuple[single_claims.GrantUnknown, records.Cursor, float, tuple[str, ...]]
        ] = []
        # Two clients, as a process has: the feed's may die by itself.
        self.feed = Client(cluster.options, cluster.hub)
        self.client = Client(cluster.options, cluster.hub)
        self.client.open()
        self.store = host_state_store.HostStateStore(DECLARED, codec.decode_state)
        self.replicator = replicator.Replicator(
            self.feed,
            self.store,
            DECLARED,
            identity=name,
            options=replicator_contract.ReplicatorOptions(
                batch_limit=3,
                anti_entropy_interval_seconds=20.0,
                anti_entropy_page_seconds=1.0,
                collect_interval_seconds=25.0,
                collect_keep_seconds=5.0,
            ),
            clock=cluster.clock,
        )
        self.batches = ledger_claimer.ClaimBatches(
            self.client,
            name,
            cluster.make_id,
            LEASE_SECONDS,
            self.claimable,
            pause=lambda _: None,
        )
        now_seconds, pause = self.client.now_seconds, lambda _: None
        self.hosts = single_claims.HostClaimsOneByOne(self.client, self.batches, now_seconds, pause)
        self.groups = single_claims.GroupClaimsOneByOne(
            self.client, self.batches, now_seconds, pause
        )

    @property
    def view(self) -> records.Cursor | None:
        """How far the store has come; None while it proves nothing."""
        status = self.replicator.status()
        if status.cursor_version is None:
            return None
        return records.Cursor(status.epoch, status.cursor_version)

    def published(self, host: str) -> Mapping[str, Any] | None:
        """A host's allocations as the store shows them, if of the present epoch."""
        stored = self.store.snapshot().namespace(ALLOCATIONS.name).get(host)
        if stored is None or self.view is None or stored.state["epoch"] != self.view.epoch:
            return None
        return stored.state

    def claimable(self, host: str) -> bool:
        return self.published(host) is not None

    def fits(self, claim: claims.Claim, record: claims.ClaimRecord) -> bool:
        known = (self.published(claim.host) or {"consumers": {}})["consumers"]
        shown = {consumer: {"VCPU": vcpus} for consumer, vcpus in known.items()}
        used = record.used(shown, without=claim.consumer).get("VCPU", 0)
        return used + claim.resources["VCPU"] <= CAPACITY

    def members(self, group: group_model.ServerGroup) -> dict[str, list[str]]:
        """Hosts by consumer of a group's servers, as the store shows them."""
        found: dict[str, list[str]] = {}
        for host in HOSTS:
            for consumer in (self.published(host) or {"consumers": {}})["consumers"]:
                if SERVERS[consumer].group == group:
                    found.setdefault(consumer, []).append(host)
        return found

    def drop(self, grant: Grant) -> None:
        """Forget a grant that came to its end, in the middle of an operation or after it."""
        if grant in self.grants:
            self.grants.remove(grant)

    def catch_up(self) -> bool:
        """Step until nothing is waiting; says whether anything was done."""
        busy = False
        for _ in range(1000):
            outcome = self.replicator.step()
            if outcome is replicator_contract.StepOutcome.IDLE:
                return busy
            busy = True
            if outcome is replicator_contract.StepOutcome.BACKING_OFF:
                self.cluster.clock.now += 1.0
        raise AssertionError(f"{self.name} is still busy: {outcome}")


class Clock:
    """Seconds, of the back end and of every process; they pass by order."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """Everything together, with the operations that a test interleaves."""

    def __init__(self, *, single_key: bool, replicas: int = 3, history_entries: int = 12) -> None:
        self.clock = Clock()
        epochs = (f"epoch-{n}" for n in itertools.count())
        self.hub = memory.MemoryHub(history_entries, self.clock, lambda: next(epochs))
        self.options = memory.MemoryOptions(single_key=single_key)
        self._ids = itertools.count()
        self.truth = Truth()
        self.reporter = Client(self.options, self.hub)
        self.reporter.open()
        self.publisher = publisher.Publisher(
            self.reporter, {ALLOCATIONS.name: ALLOCATIONS}, ALLOCATIONS.owner
        )
        self.replicas = [Replica(self, f"scheduler-{n}") for n in range(replicas)]

    def make_id(self) -> str:
        return f"{uuid.UUID(int=next(self._ids))}"

    # --- the operations -----------------------------------------------------

    def publish(self, *hosts: str) -> None:
        """Let the owner of some hosts write what is true of them."""
        updates = {
            records.RecordKey(ALLOCATIONS.name, host): self._allocations(host) for host in hosts
        }
        try:
            report = self.publisher.publish(updates)
        except errors.BackendUnavailable:
            return
        assert not report.rejected, report

    def _allocations(self, host: str) -> publisher.Compute:
        def compute(_state: publisher.State | None) -> publisher.State:
            epoch = self.hub.head().epoch
            consumers = sorted(c for c, where in self.truth.allocations if where == host)
            shown = {consumer: SERVERS[consumer].vcpus for consumer in consumers}
            return {"epoch": epoch, "consumers": shown, "count": len(shown)}

        return compute

    def claim(self, replica: Replica, name: str, host: str, *, leave: bool = False) -> None:
        """Take a claim of a server on a host, with its group if it has one."""
        view = replica.view
        server = SERVERS[name]
        # A server that stands is not placed there a second time.
        if view is None or (name, host) in self.truth.servers:
            return
        leaves = tuple(h for h in HOSTS if leave and h != host and (name, h) in self.truth.servers)
        claim = claims.Claim(name, host, {"VCPU": server.vcpus})
        if server.group is TOGETHER:
            # Members on a host that is not published yet would be overlooked.
            if not all(replica.claimable(each) for each in HOSTS):
                return
            # A server on two hosts for long is beyond what affinity can mean.
            if any(n == name and h != host and h not in leaves for n, h in self.truth.allocations):
                return
        deadline = self.clock.now + LEASE_SECONDS
        try:
            if server.group is None:
                answer: object = replica.hosts.claim(
                    claim, lambda record: replica.fits(claim, record), view
                )
            else:
                answer = replica.groups.claim(
                    server.group,
                    claim,
                    lambda record: replica.fits(claim, record),
                    view,
                    replica.members(server.group),
                )
        except errors.BackendUnavailable:
            return
        if isinstance(answer, single_claims.GrantUnknown):
            replica.unknown.append((answer, view, deadline, leaves))
        elif isinstance(answer, claims.Granted):
            self._granted(replica, Grant(answer, None, view.epoch, deadline, leaves))
        elif isinstance(answer, group_model.GroupGranted):
            self._granted(replica, Grant(answer.grant, answer, view.epoch, deadline, leaves))

    def claim_each(self, replica: Replica, names: tuple[str, str], hosts: tuple[str, str]) -> None:
        """Take two claims in one call, each by itself."""
        view = replica.view
        wanted = [
            claims.Claim(name, host, {"VCPU": SERVERS[name].vcpus})
            for name, host in zip(names, hosts, strict=True)
        ]
        if view is None or any((c.consumer, c.host) in self.truth.servers for c in wanted):
            return
        deadline = self.clock.now + LEASE_SECONDS
        answers = replica.batches.take(wanted, ledger_claimer.ClaimView(view, replica.fits))
        for answer in answers.values():
            if isinstance(answer, ledger_claimer.StandingClaim):
                self._granted(replica, Grant(answer.granted, None, view.epoch, deadline))

    def _granted(self, replica: Replica, grant: Grant) -> None:
        replica.grants.append(grant)
        if grant.granted.state is claims.ClaimState.PENDING:
            self.truth.pending[grant.granted.claim_id] = grant

    def allocate(self, grant: Grant) -> None:
        self.truth.allocate(grant)

    def confirm(self, replica: Replica, grant: Grant) -> None:
        """Write the allocation, confirm, and take it back if the claim is gone."""
        if not self.truth.allocate(grant):
            self.release(replica, grant)
            return
        try:
            if grant.grouped is None:
                answer = replica.hosts.confirm(grant.granted)
            else:
                answer = replica.groups.confirm(grant.grouped)
        except errors.BackendUnavailable:
            return
        if isinstance(answer, claims.Granted):
            self.truth.pending.pop(grant.granted.claim_id, None)
            if self.truth.allocations.get(grant.place) == grant.granted.claim_id:
                self.truth.servers.add(grant.place)
            replica.drop(grant)
        elif isinstance(answer, claims.Gone):
            self.truth.pending.pop(grant.granted.claim_id, None)
            self.truth.remove_allocation_of(grant)
            replica.drop(grant)

    def release(self, replica: Replica, grant: Grant) -> None:
        """Give a grant up: the allocation first, then the claim."""
        self.truth.pending.pop(grant.granted.claim_id, None)
        self.truth.remove_allocation_of(grant)
        try:
            if grant.grouped is None:
                replica.hosts.release(grant.granted)
            else:
                replica.groups.release(grant.grouped)
        except errors.BackendUnavailable:
            return
        replica.drop(grant)

    def settle_unknown(self, replica: Replica) -> None:
        if not replica.unknown:
            return
        unknown, view, deadline, leaves = replica.unknown.pop()
        try:
            answer = replica.hosts.settle_unknown(unknown, view)
        except errors.BackendUnavailable:
            return
        # A group's member may have been lost on the way: claim it again.
        if isinstance(answer, claims.Granted) and SERVERS[unknown.claim.consumer].group is None:
            self._granted(replica, Grant(answer, None, view.epoch, deadline, leaves))

    def settle(self, replica: Replica, host: str) -> None:
        """Drop the claims that a replica's store shows settled, groups' members too."""
        view = replica.view
        stored = replica.store.snapshot().namespace(ALLOCATIONS.name).get(host)
        if stored is None or view is None:
            return
        shown_at = records.Cursor(view.epoch, stored.version)
        shown = list(stored.state["consumers"])
        try:
            for group in GROUPS:
                replica.groups.settle(group.uuid, [(c, host) for c in shown], shown_at)
            replica.hosts.settle(host, shown, shown_at)
        except errors.BackendUnavailable:
            return

    def expire(self, replica: Replica, host: str) -> None:
        try:
            replica.hosts.expire(host)
            for group in GROUPS:
                replica.groups.expire(group.uuid)
        except errors.BackendUnavailable:
            return

    def reconcile(self, replica: Replica, host: str) -> None:
        try:
            replica.hosts.reconcile(host, lambda c: (c, host) in self.truth.allocations)
            for group in GROUPS:
                replica.groups.reconcile(group.uuid, lambda *p: p in self.truth.allocations)
        except errors.BackendUnavailable:
            return

    def restart(self, replica: Replica) -> Replica:
        """Lose everything a scheduler had in memory; its allocations are cleaned up."""
        for grant in replica.grants:
            self.truth.remove_allocation_of(grant)
        replica.client.close()
        replica.feed.close()
        place = self.replicas.index(replica)
        self.replicas[place] = Replica(self, replica.name)
        return self.replicas[place]

    def begin_epoch(self) -> None:
        self.hub.begin_epoch()

    # --- the invariants -----------------------------------------------------

    def check(self) -> None:
        """No capacity is granted twice, and no group's policy is broken."""
        epoch, now = self.hub.head().epoch, self.clock.now
        places = {host: self.truth.occupied(host, epoch, now) for host in HOSTS}
        for host, consumers in places.items():
            used = sum(SERVERS[consumer].vcpus for consumer in consumers)
            assert used <= CAPACITY, f"{host} holds {sorted(consumers)}: {used} of {CAPACITY}"
            apart = [c for c in consumers if SERVERS[c].group is APART]
            assert len(apart) <= 1, f"{host} holds {apart}"
        hosts_of: dict[str, set[str]] = {}
        for host, consumers in places.items():
            for consumer in consumers:
                if SERVERS[consumer].group is TOGETHER:
                    hosts_of.setdefault(consumer, set()).add(host)
        for one, other in itertools.combinations(hosts_of, 2):
            assert hosts_of[one] & hosts_of[other], f"affinity is broken: {hosts_of}"

    def end_faults(self) -> None:
        self.hub.faults.come_up()
        self.hub.faults.thaw()
        for client in [self.reporter, *(c for r in self.replicas for c in (r.client, r.feed))]:
            client.faults.come_up()
            client.faults.thaw()
            client.meanwhile.clear()
            for operation in ("write", "read"):
                while client.faults.take(operation):
                    pass

    def drain(self) -> None:
        """Let everybody come to rest."""
        self.end_faults()
        self.hub.deliver_late()
        self.publish(*HOSTS)
        for _ in range(50):
            # Everybody steps, whoever is done already.
            busy = [replica.catch_up() for replica in self.replicas]
            if not any(busy):
                return
        raise AssertionError("the replicas never come to rest")

    def check_equal(self) -> None:
        """Every store holds exactly what the back end holds: the last word."""
        held = {
            key: (record.revision, record.payload)
            for key, record in self.hub.read(self.hub.keys(None)).items()
        }
        for replica in self.replicas:
            snapshot = replica.store.snapshot()
            stored = {
                records.RecordKey(name, key): (found.revision, found.payload)
                for name in snapshot.namespaces()
                for key in snapshot.namespace(name).row_keys()
                if (found := snapshot.namespace(name).get(key))
            }
            assert stored == held, f"{replica.name} differs in {set(stored) ^ set(held)}"
            for host in HOSTS:
                shown = replica.published(host)
                true = {c for c, where in self.truth.allocations if where == host}
                assert shown is not None and set(shown["consumers"]) == true, (host, shown, true)
