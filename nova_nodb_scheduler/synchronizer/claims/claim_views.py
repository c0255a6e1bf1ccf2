# SPDX-License-Identifier: Apache-2.0
"""What a claimer knows: from a scheduler's own store, or of one host from the back end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling.facts import group_members
from nova_nodb_scheduler.scheduling.namespaces import claim_facts, known_namespaces
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_rules, group_rules, ledger_claimer
from nova_nodb_scheduler.synchronizer.replication import replicator
from nova_nodb_scheduler.wire import codec

#: Of a request decided on a snapshot, what tells whether a claim fits.
MakeFits = Callable[[snapshot_module.Snapshot, requests.Request], claim_rules.Fits]


@attrs.define(eq=False)
class StoreViews:
    """Views of a store that a replicator keeps; any thread, no I/O."""

    _store: host_state_store.HostStateStore
    _follower: replicator.Replicator
    _make_fits: MakeFits

    def view(self, request: requests.Request) -> ledger_claimer.ClaimView | None:
        """See :class:`.ledger_claimer.ClaimViews`."""
        moment = replicator.followed_snapshot(self._store, self._follower)
        if moment is None:
            return None
        cursor, snapshot = moment
        shown = ClaimsShown(snapshot)
        return ledger_claimer.ClaimView(
            cursor,
            self._make_fits(snapshot, request),
            shown.record,
            shown.ended,
            functools.partial(group_members.place_of, snapshot),
        )

    def shown(
        self, keys: Iterable[records.RecordKey]
    ) -> tuple[str, Iterable[records.Record]] | None:
        """Return the epoch, and the records of some keys that the feed has brought by now."""
        moment = replicator.followed_snapshot(self._store, self._follower)
        if moment is None:
            return None
        cursor, snapshot = moment
        return cursor.epoch, list(filter(None, map(ClaimsShown(snapshot).record, keys)))

    def members(self, group: requests.Group) -> group_rules.Known:
        """See :class:`.ledger_claimer.ClaimViews`: where members stand and move."""
        return group_members.known(self._store.snapshot(), group)

    def claimable(self, host: str) -> bool:
        """Tell whether a host was published in the epoch that the store holds."""
        return host in self._store.snapshot().namespace(known_namespaces.COMPUTE_NODES.name)


@attrs.define(eq=False)
class ClaimsShown:
    """What one snapshot shows of claims.

    Public for who has no feed, but a store of one host's records.
    """

    _snapshot: snapshot_module.Snapshot

    def record(self, key: records.RecordKey) -> records.Record | None:
        """Return a record as it is shown; None where it is not."""
        stored = self._snapshot.namespace(key.namespace).get(key.key)
        if stored is None:
            return None
        return records.Record(key, stored.revision, stored.version, stored.payload)

    def ended(self, claim: model.Claim, held: model.HeldClaim) -> bool:
        """Tell whether a confirmed claim is of a move that is over, for another begins.

        The former claim of a server that stays on its node was for a size that
        its migration has by now. One that comes has no allocation there any more:
        what it claimed before failed, or went back.
        """
        provider = self._snapshot.namespace(known_namespaces.PROVIDERS.name).get(claim.host)
        if held.confirmed_by is None or provider is None or provider.version <= held.confirmed_by:
            return False
        allocations = provider.state.get("allocations") or {}
        return claim_facts.stays(claim.node) or claim.consumer not in allocations


_OF_A_HOST = (
    known_namespaces.COMPUTE_NODES,
    known_namespaces.PROVIDERS,
    known_namespaces.CLAIM_RECORDS,
)

_DECLARED = (
    *_OF_A_HOST,
    known_namespaces.INSTANCES,
    known_namespaces.MIGRATIONS,
)


class DirectViews:
    """Views of one host, for one claim: :class:`.ledger_claimer.ClaimViews` without a store.

    For processes that claim now and then and follow no feed: a conductor that sends
    a server to an alternate. Of the host its node's, its provider's and its claims'
    records are read, of a server group where its members stand.

    Blocks for the back end. Only capacity is looked at, as Nova looks at an
    alternate or a forced host: no filter is run again. What other claims have
    fitted counts until they are settled, though the node may count it already:
    a server too many would be sent away by nova-compute.

    :param host: the node's uuid
    :param make_fitted: of a snapshot that holds the host, what tells whether
        NUMA cells and PCI devices are left there
    :param joined: names members of a group beside those that the request knows: it may be
        older than members of which the group's record has nothing any more
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        host: str,
        make_fitted: Callable[[snapshot_module.Snapshot], claim_fit.Fitted],
        joined: Callable[[requests.Group], Collection[str]] = lambda group: (),
    ) -> None:
        self._synchronizer = synchronizer
        self._host = host
        self._make_fitted = make_fitted
        self._joined = joined
        self._store = host_state_store.HostStateStore(_DECLARED, codec.decode_state)

    def view(self, request: requests.Request) -> ledger_claimer.ClaimView | None:
        """Read the host's records; None while the back end does not answer."""
        try:
            # Before the records: they hold all up to it, and perhaps more.
            cursor = self._synchronizer.head()
            self._read(records.RecordKey(namespace.name, self._host) for namespace in _OF_A_HOST)
        except errors.BackendUnavailable:
            return None
        snapshot = self._store.snapshot()
        fitted = self._make_fitted(snapshot)
        fits = claim_fit.make_fits(snapshot, claim_fit.InstanceLimits(), fitted=fitted)
        return ledger_claimer.ClaimView(cursor, fits, ended=ClaimsShown(snapshot).ended)

    def members(self, group: requests.Group) -> group_rules.Known:
        """Read where a group's members stand.

        Who they are is asked behind the view: of one that joined later the group's record is
        changed behind it, too.

        :raises BackendUnavailable: they cannot be read
        """
        group = attrs.evolve(group, members=group.members.union(self._joined(group)))
        keys = [
            records.RecordKey(known_namespaces.INSTANCES.name, f"{member}@{cell}")
            for cell in self._cells()
            for member in sorted(group.members)
        ]
        self._read(keys)
        return group_members.known(self._store.snapshot(), group)

    def place(self) -> str | None:
        """Return the host's name; None where the present epoch does not hold it.

        :raises BackendUnavailable: it cannot be read
        """
        self._read([records.RecordKey(known_namespaces.COMPUTE_NODES.name, self._host)])
        snapshot = self._store.snapshot()
        if self._host not in snapshot.namespace(known_namespaces.COMPUTE_NODES.name):
            return None
        return group_members.place_of(snapshot, self._host)

    def knows_provider(self) -> bool:
        """Say whether the present epoch holds what the node's provider gives.

        :raises BackendUnavailable: it cannot be read
        """
        self._read([records.RecordKey(known_namespaces.PROVIDERS.name, self._host)])
        providers = self._store.snapshot().namespace(known_namespaces.PROVIDERS.name)
        return self._host in providers

    def has(self, consumer: str) -> bool:
        """Say whether a server is on the host already; after :meth:`place`.

        :raises BackendUnavailable: it cannot be read
        """
        nodes = self._store.snapshot().namespace(known_namespaces.COMPUTE_NODES.name)
        there = nodes.indexed(self._host, "cell_host")
        if there is None:
            return False
        name = f"{consumer}@{there[0]}"
        self._read([records.RecordKey(known_namespaces.INSTANCES.name, name)])
        instances = self._store.snapshot().namespace(known_namespaces.INSTANCES.name)
        return instances.indexed(name, "cell_host") == there

    def _cells(self) -> Sequence[str]:
        pages = self._synchronizer.snapshot([known_namespaces.CELLS.name]).pages
        return sorted(record.key.key for page in pages for record in page)

    def _read(self, keys: Iterable[records.RecordKey]) -> None:
        wanted: Collection[records.RecordKey] = list(keys)
        declared = {namespace.name: namespace for namespace in _DECLARED}
        found = self._synchronizer.read(wanted) if wanted else {}
        for record in found.values():
            self._store.apply(_change(record, declared[record.key.namespace]))


def _change(record: records.Record, namespace: namespaces_model.Namespace) -> records.Change:
    if record.deleted:
        return records.Change(record, None)
    decoded = codec.decode(record.payload)
    codec.check_readable(decoded.schema, namespace)
    return records.Change(record, decoded.state)
