# SPDX-License-Identifier: Apache-2.0
"""What a claimer needs to know of one host, read from the back end.

For processes that claim now and then and follow no feed: a conductor that
sends a server to an alternate. Of the host its node's, its provider's and its
claims' records are read, of a server group where its members stand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling import claimed, group_members, namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import claim_batches, claim_views, contract, group_rules
from nova_nodb_scheduler.wire import codec

_OF_A_HOST = (namespaces.COMPUTE_NODES, namespaces.PROVIDERS, namespaces.CLAIM_RECORDS)

_DECLARED = (
    *_OF_A_HOST,
    namespaces.INSTANCES,
    namespaces.MIGRATIONS,
)


class DirectViews:
    """Views of one host, for one claim: :class:`.claimer.Views` without a store.

    Blocks for the back end. Only capacity is looked at, as Nova looks at an
    alternate or a forced host: no filter is run again. What other claims have
    fitted counts until they are settled, though the node may count it already:
    a server too many would be sent away by nova-compute.

    :param host: the node's uuid
    :param make_fitted: of a snapshot that holds the host, what tells whether
        NUMA cells and PCI devices are left there
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        host: str,
        make_fitted: Callable[[snapshot_module.Snapshot], claimed.Fitted],
    ) -> None:
        self._synchronizer = synchronizer
        self._host = host
        self._make_fitted = make_fitted
        self._store = host_state_store.HostStateStore(_DECLARED, codec.decode_state)

    def view(self, request: requests.Request) -> claim_batches.View | None:
        """Read the host's records; None while the back end does not answer."""
        try:
            # Before the records: they hold all up to it, and perhaps more.
            cursor = self._synchronizer.head()
            self._read(records.RecordKey(namespace.name, self._host) for namespace in _OF_A_HOST)
        except errors.BackendUnavailable:
            return None
        snapshot = self._store.snapshot()
        fitted = self._make_fitted(snapshot)
        fits = claimed.make_fits(snapshot, claimed.Bounds(), fitted=fitted)
        return claim_batches.View(cursor, fits, ended=claim_views.Shown(snapshot).ended)

    def members(self, group: requests.Group) -> group_rules.Known:
        """Read where a group's members stand.

        :raises BackendUnavailable: they cannot be read
        """
        keys = [
            records.RecordKey(namespaces.INSTANCES.name, f"{member}@{cell}")
            for cell in self._cells()
            for member in sorted(group.members)
        ]
        self._read(keys)
        return group_members.known(self._store.snapshot(), group)

    def place(self) -> str | None:
        """Return the host's name; None where the present epoch does not hold it.

        :raises BackendUnavailable: it cannot be read
        """
        self._read([records.RecordKey(namespaces.COMPUTE_NODES.name, self._host)])
        snapshot = self._store.snapshot()
        if self._host not in snapshot.namespace(namespaces.COMPUTE_NODES.name):
            return None
        return group_members.place_of(snapshot, self._host)

    def has(self, consumer: str) -> bool:
        """Say whether a server is on the host already; after :meth:`place`.

        :raises BackendUnavailable: it cannot be read
        """
        nodes = self._store.snapshot().namespace(namespaces.COMPUTE_NODES.name)
        there = nodes.indexed(self._host, "cell_host")
        if there is None:
            return False
        name = f"{consumer}@{there[0]}"
        self._read([records.RecordKey(namespaces.INSTANCES.name, name)])
        instances = self._store.snapshot().namespace(namespaces.INSTANCES.name)
        return instances.indexed(name, "cell_host") == there

    def _cells(self) -> Sequence[str]:
        pages = self._synchronizer.snapshot([namespaces.CELLS.name]).pages
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
