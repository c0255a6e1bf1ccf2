# SPDX-License-Identifier: Apache-2.0
"""Keep the engine's hosts equal to the store.

Called before each decision. What changed since the last call is known by key;
only the hosts those records belong to are made anew, and of a heartbeat only
the time is taken over. What a claim adds to its host hangs on records that are
not the host's: the consumer's instance and migrations, and the other instances
there; so hosts with claims are looked at when those change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.facts import aggregate_facts, fact_source, journal_reader
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, node_facts, provider_facts
from nova_nodb_scheduler.scheduling.reservations import host_reservations
from nova_nodb_scheduler.store import collector, host_state_store
from nova_nodb_scheduler.store import store_snapshot as snapshot_module

_INSTANCES = known_namespaces.INSTANCES.name
_MIGRATIONS = known_namespaces.MIGRATIONS.name


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
                # What has left is counted still where it came from, until that is saved again.
                places.update(each.ends_of_move(key))
        for place in places:
            if place is not None:
                again.update(self._hosts.intersection(source.nodes_of_host(*place)))
        return again


def _has_claims(source: fact_source.FactSource, uuid: str) -> bool:
    try:
        return bool(source.claims(uuid))
    except errors.InvalidRecord:
        return True


LOG = logging.getLogger(__name__)

_NODES = known_namespaces.COMPUTE_NODES.name
_SERVICES = known_namespaces.SERVICES.name
_LIVENESS = known_namespaces.SERVICE_LIVENESS.name
_AGGREGATES = known_namespaces.AGGREGATES.name
_PROVIDERS = known_namespaces.PROVIDERS.name
_CLAIMS = known_namespaces.CLAIM_RECORDS.name

#: From so many on the collector of cycles is kept from walking over them.
_MANY_HOSTS = 1000

#: What hosts are made of. Of instances nothing is kept here.
_WATCHED = (_NODES, _SERVICES, _LIVENESS, _AGGREGATES, _PROVIDERS, _CLAIMS)


#: (frame, node uuid, (cell, host) or None where not even that is known) -> whether a
#: request might go to a host whose records cannot be understood.
MayTake = Callable[[host_frame.HostFrame, str, tuple[str, str] | None], bool]


class FrameOwner(Protocol):
    """Whose hosts are kept."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Re-entrant; held for a whole catch-up."""

    @property
    def frame(self) -> host_frame.HostFrame:
        """Where the hosts stand; read and written with the lock held."""

    def tick(self, now_seconds: float) -> Any:
        """Say which services are up at a time."""


class FrameKeeper:
    """Brings an engine to a store's present.

    :param present: gave the frame its callbacks; told of each snapshot
    :param ratios: what stands for a ratio that a node's record lacks
    :param reservations: what this process reserved and no record shows yet
    :param journals: of the store; None where nobody journals heartbeats
    :param most_keys: beyond so many changed records everything is read anew
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        engine: FrameOwner,
        present: fact_source.Present,
        *,
        ratios: node_facts.DefaultRatios,
        reservations: host_reservations.ReservedUsage | None = None,
        journals: journal_reader.JournalReader | None = None,
        most_keys: int = host_state_store.MOST_KEYS,
    ) -> None:
        self._store = store
        self._journals = journals
        self._engine = engine
        self._frame = engine.frame
        self._present = present
        self._ratios = ratios
        if reservations is None:
            reservations = host_reservations.NoReservations()
        self._reservations: host_reservations.ReservedUsage = reservations
        self._subscription = store.subscribe(_WATCHED, most_keys)
        self._claimed_hosts = ClaimedHosts(store, most_keys)
        self._unreadable: dict[str, str] = {}
        self._memberships = aggregate_facts.AggregateMemberships()
        self._sharing: dict[str, frozenset[str]] = {}
        #: False where the frame may be anything: before the first call, and
        #: after one that did not reach its end.
        self._sound = False

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Why records were refused, by uuid: hosts left out, and aggregates."""
        return dict(self._unreadable)

    def left_out(self, may_take: MayTake) -> str | None:
        """Return a host left out that a request might have gone to; None if there is none.

        As the last :meth:`catch_up` found it. From any thread; waits for the
        engine's lock.

        :param may_take: says it of one host, with the lock held
        """
        with self._engine.lock:
            source, frame = self._present.source, self._frame
            if source is None:
                return None
            for uuid in self._unreadable:
                if source.has_node(uuid) and may_take(frame, uuid, source.host_of_node(uuid)):
                    return uuid
            return None

    def catch_up(self, now_seconds: float) -> snapshot_module.Snapshot:
        """Bring the engine to the store's present; return what was read.

        From any thread; waits for the engine's lock. Costs what changed since
        the last call, and a pass over all records after a new epoch. A second
        call without changes between does nothing but look at the time.

        :param now_seconds: since the epoch, for the liveness of services
        """
        with self._engine.lock:
            former, sound = self._present.source, self._sound
            self._sound = False
            # Drained first: what is written in between is in the snapshot, and
            # looked at again next time.
            touched = self._subscription.drain()
            self._claimed_hosts.drain()
            snapshot = self._store.snapshot()
            heard = None if self._journals is None else self._journals.look(snapshot)
            source = fact_source.FactSource(snapshot, reservations=self._reservations, heard=heard)
            self._present.source = source
            lapsed = self._reservations.expire()
            for uuid in lapsed:
                # Its record may be the very one that the columns were filled from.
                row = self._frame.row_of(uuid)
                if row is not None:
                    self._frame.recount(row)
            if touched is None or former is None or not sound:
                self._claimed_hosts.take_all(source)
                with collector.at_rest():
                    self._take_all(source)
            else:
                claimed = self._claimed_hosts.take(
                    touched.get(_CLAIMS, ()), touched.get(_NODES, ()), former, source
                )
                told = journal_reader.changed_times(former.heard, heard)
                if touched or lapsed or claimed or told:
                    self._take_changes(touched, lapsed, claimed, told, former, source)
            self._engine.tick(now_seconds)
            self._sound = True
            unsettled = len(self._frame) >= _MANY_HOSTS and not collector.is_settled()
        if unsettled:
            collector.settle()
        return snapshot

    # -- everything ---------------------------------------------------------------

    def _take_all(self, source: fact_source.FactSource) -> None:
        self._unreadable.clear()
        self._sharing.clear()
        self._memberships.clear()
        for uuid in source.aggregate_uuids():
            self._take_aggregate(source, uuid)
        self._frame.set_aggregates(self._memberships.aggregates())
        for uuid in self._frame.uuids():
            if not source.has_node(uuid):
                self._frame.remove(uuid)
        self._frame.expect(len(source.snapshot.namespace(_NODES)))
        self._take_hosts(source)
        self._take_sharing(source, source.provider_uuids())
        self._frame.sharing = dict(self._sharing)
        if self._unreadable:
            self._tell_of_unreadable()

    # -- what changed ---------------------------------------------------------------

    def _take_changes(
        self,
        touched: Mapping[str, Collection[str]],
        lapsed: Collection[str],
        claimed: Collection[str],
        told: Collection[str],
        former: fact_source.FactSource,
        source: fact_source.FactSource,
    ) -> None:
        """Make anew what hosts hang on these changes.

        :param told: services of which journals tell something else
        """
        refused_before = len(self._unreadable)
        nodes = touched.get(_NODES, ())
        changed = self._take_aggregates(source, touched.get(_AGGREGATES, ()))
        parts = {uuid for host in changed for uuid in source.nodes_named(host)}
        # A service may have moved: its former host lost it.
        places = {
            place
            for key in touched.get(_SERVICES, ())
            for place in (
                former.services.host_of_service(key),
                source.services.host_of_service(key),
            )
            if place is not None
        }
        for key in {*touched.get(_LIVENESS, ()), *told}:
            place = source.services.host_of_service(key)
            if place is not None and place not in places and not self._heard(source, key, place):
                places.add(place)
        served = {uuid for place in places for uuid in source.nodes_of_host(*place)}
        provided = {*touched.get(_PROVIDERS, ()), *lapsed, *claimed}
        parts |= served
        parts.update(filter(source.has_node, provided))
        whole = {*nodes, *(uuid for uuid in parts if not self._is_sound(uuid))}
        for uuid in parts - whole:
            self._take_parts(
                source,
                uuid,
                with_service=uuid in served,
                with_provider=uuid in provided,
                with_claims=uuid in claimed,
            )
        for uuid in nodes:
            if not source.has_node(uuid):
                self._unreadable.pop(uuid, None)
                self._frame.remove(uuid)
        if whole:
            self._take_hosts(source, whole)
        self._take_sharing(source, provided.union(nodes))
        if len(self._unreadable) > refused_before:
            self._tell_of_unreadable()

    def _heard(self, source: fact_source.FactSource, key: str, place: tuple[str, str]) -> bool:
        """Take over when a service was heard of; False if there is more to it."""
        if not source.services.is_only_service(key, *place):
            return False
        try:
            seen = source.services.last_seen_seconds(key)
        except errors.InvalidRecord:
            return False
        rows = self._frame.rows_of_host(*place)
        if seen is None or not all(self._frame.has_service[row] for row in rows):
            return False
        for row in rows:
            self._frame.heard(row, seen)
        return True

    def _take_aggregates(self, source: fact_source.FactSource, uuids: Collection[str]) -> set[str]:
        """Take over aggregates; return the hosts that are in others than before."""
        changed: set[str] = set()
        for uuid in uuids:
            changed |= self._take_aggregate(source, uuid)
        if uuids:
            self._frame.set_aggregates(self._memberships.aggregates())
        return changed

    def _take_aggregate(self, source: fact_source.FactSource, uuid: str) -> frozenset[str]:
        facts = source.aggregate(uuid)
        if facts is None or facts.fault is None:
            self._unreadable.pop(uuid, None)
        else:
            self._unreadable[uuid] = facts.fault
        return self._memberships.take(uuid, facts)

    # -- hosts --------------------------------------------------------------------

    def _take_hosts(
        self, source: fact_source.FactSource, uuids: Collection[str] | None = None
    ) -> None:
        """Make hosts anew from all their records.

        :param uuids: None for all
        """
        for hosts in fact_source.read_hosts(source, self._ratios, self._memberships, uuids):
            for place in hosts.page.places:
                self._unreadable.pop(place.uuid, None)
            if hosts.page:
                self._frame.take(hosts.page)
            for uuid, reason in hosts.refused.items():
                self._leave_out(uuid, reason)

    def _is_sound(self, uuid: str) -> bool:
        """Tell whether a host is in the frame, and can be made anew in parts."""
        return self._memberships.faultless and self._frame.row_of(uuid) is not None

    def _take_parts(
        self,
        source: fact_source.FactSource,
        uuid: str,
        *,
        with_service: bool,
        with_provider: bool,
        with_claims: bool,
    ) -> None:
        """Make a sound host anew from some records beside its node's, which did not change.

        :param with_claims: what claims add changed, to the provider and to the node's numbers
        """
        row = self._frame.row_of(uuid)
        assert row is not None
        place = self._frame.place(row)
        news: dict[str, Any] = {}
        try:
            if with_service:
                news["service"] = source.services.of_host(place.cell, place.host)
            if with_provider:
                # Otherwise the very object stays: what was used since is in the
                # frame's columns, and counted from there.
                unreported, news["provider"] = source.claimed(uuid)
                left = source.consumable(uuid, unreported) if with_claims else None
                if left is not None:
                    news["consumable"] = left
        except errors.InvalidRecord as error:
            self._leave_out(uuid, str(error))
            return
        self._frame.amend(row, self._memberships.of(place.host), **news)

    def _take_sharing(self, source: fact_source.FactSource, uuids: Iterable[str]) -> None:
        """Look at roots again that are no hosts, or that may have become hosts."""
        changed = False
        for uuid in uuids:
            provider = None if source.has_node(uuid) else source.shared(uuid)
            shared = provider_facts.sharing(provider) if provider is not None else frozenset()
            if shared != self._sharing.get(uuid, frozenset()):
                changed = True
                if shared:
                    self._sharing[uuid] = shared
                else:
                    del self._sharing[uuid]
        if changed:
            self._frame.sharing = dict(self._sharing)

    def _leave_out(self, uuid: str, reason: str) -> None:
        self._unreadable[uuid] = reason
        self._frame.remove(uuid)

    def _tell_of_unreadable(self) -> None:
        uuid, reason = next(reversed(self._unreadable.items()))
        LOG.warning(
            "%(count)d hosts or aggregates are left out, for their records cannot be "
            "understood; the latest is %(uuid)s: %(reason)s",
            {"count": len(self._unreadable), "uuid": uuid, "reason": reason},
        )
