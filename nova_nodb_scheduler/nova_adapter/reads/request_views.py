# SPDX-License-Identifier: Apache-2.0
"""What one request sees of the cloud: one snapshot, one proof, from its beginning to its end.

What Nova's scheduler asks its databases for each request is answered from it.
Where the request would be refused, and something of what it saw was over, it
begins again: with a view of the present.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
from nova import context as nova_context
from nova import objects

from nova_nodb_scheduler.nova_adapter import decision_log
from nova_nodb_scheduler.nova_adapter.conversion import nova_rows
from nova_nodb_scheduler.nova_adapter.reads import deferred_candidates
from nova_nodb_scheduler.nova_adapter.reporting import nova_tables
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.nova_adapter.reporting import state_proof as proof_module
from nova_nodb_scheduler.scheduling.facts import journal_reader
from nova_nodb_scheduler.scheduling.namespaces import claim_facts, known_namespaces
from nova_nodb_scheduler.scheduling.reservations import claim_fit
from nova_nodb_scheduler.store import host_state_store, store_snapshot

LOG = logging.getLogger(__name__)

COMPUTE_BINARY = "nova-compute"


@attrs.define(eq=False, weakref_slot=False)
class _BuiltObject:
    """What was built for a revision.

    :ivar is_used: somebody found it since it came, or since it last was the first to go
    """

    revision: object
    made: Any
    is_used: bool = attrs.field(init=False, default=False)


class Built:
    """A bounded memory of objects built from records, by key and revision.

    Shared by all requests: what is in it must not be changed by its users.

    What was not used goes first, by "second chance" (the clock algorithm): the oldest goes,
    unless it was found meanwhile; then it is the newest. To order all by their last use would
    want the lock, and three calls, each time that one is found; this wants none.

    :param limit: most objects kept
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[Hashable, _BuiltObject] = collections.OrderedDict()

    def get(self, key: str, revision: object, build: Callable[[], Any]) -> Any:
        """Return what was built for this revision, or build it."""
        found = self._kept.get(key)
        if found is not None and found.revision == revision:
            found.is_used = True
            return found.made
        made = build()
        self.keep(key, revision, made)
        return made

    def find(self, key: Hashable, revision: object) -> Any | None:
        """Return what was built for this revision; None where it was not."""
        found = self._kept.get(key)
        if found is None or found.revision != revision:
            return None
        found.is_used = True
        return found.made

    def keep(self, key: Hashable, revision: object, made: Any) -> None:
        """Keep what was built for a revision."""
        with self._lock:
            # Before it comes in, or it would be the first that nobody used.
            while key not in self._kept and len(self._kept) >= self._limit:
                self._turn()
            self._kept[key] = _BuiltObject(revision, made)
            self._kept.move_to_end(key)

    def _turn(self) -> None:
        """Drop the oldest one, or make it the newest. Called with the lock."""
        key, oldest = next(iter(self._kept.items()))
        if oldest.is_used:
            oldest.is_used = False
            self._kept.move_to_end(key)
        else:
            del self._kept[key]

    def clear(self) -> None:
        """Forget everything: revisions of another epoch mean other states."""
        with self._lock:
            self._kept.clear()


class BuiltObjects:
    """Objects kept between requests, for one store.

    :param hosts: how many hosts to keep them for
    """

    def __init__(self, hosts: int = 20_000) -> None:
        self.nodes = Built(hosts)
        self.services = Built(hosts)
        self.aggregates = Built(10_000)
        self.all_aggregates = Built(1)
        self.host_aggregates = Built(1)
        self.service_versions = Built(1)
        self.prepared = Built(1000)

    def clear(self) -> None:
        """Forget everything: a new epoch began."""
        for built in (
            self.nodes,
            self.services,
            self.aggregates,
            self.all_aggregates,
            self.host_aggregates,
            self.service_versions,
            self.prepared,
        ):
            built.clear()


class MemoryReads:
    """Nova's reads over one snapshot. Cheap to make: one per request.

    :param generation: of the store: revisions of two generations do not compare
    :param context: an admin context, untargeted; goes into the objects
    :param heard: what journals tell of services; None where there are none
    """

    def __init__(
        self,
        snapshot: store_snapshot.Snapshot,
        generation: int,
        built: BuiltObjects,
        context: Any,
        heard: journal_reader.HeardTimes | None = None,
    ) -> None:
        self._heard = heard
        self._snapshot = snapshot
        self._generation = generation
        self._built = built
        self._kept = built.prepared
        self._context = context
        self._nodes = snapshot.namespace(known_namespaces.COMPUTE_NODES.name)
        self._services = snapshot.namespace(known_namespaces.SERVICES.name)
        self._liveness = snapshot.namespace(known_namespaces.SERVICE_LIVENESS.name)
        self._instances = snapshot.namespace(known_namespaces.INSTANCES.name)
        self._aggregates = snapshot.namespace(known_namespaces.AGGREGATES.name)
        self._host_mappings = snapshot.namespace(known_namespaces.HOST_MAPPINGS.name)

    @property
    def claims(self) -> store_snapshot.NamespaceView:
        """The claim records of the snapshot."""
        return self._snapshot.namespace(known_namespaces.CLAIM_RECORDS.name)

    @property
    def generation(self) -> int:
        """Of the store, when the snapshot was taken."""
        return self._generation

    def instance_rows(self, uuid: str, cells: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return a server's rows by cell, of those cells that have it."""
        found = ((cell, self._instances.get(nova_tables.cell_key(uuid, cell))) for cell in cells)
        return {cell: stored.state["row"] for cell, stored in found if stored is not None}

    # -- requests like earlier ones ------------------------------------------

    def prepared(self, key: Hashable) -> Any | None:
        """Return what :meth:`keep_prepared` kept, while no record that it was made of changed."""
        return self._kept.find(key, self._prepared_revision)

    def keep_prepared(self, key: Hashable, made: Any) -> None:
        """Keep what was made of aggregates and the versions of services."""
        self._kept.keep(key, self._prepared_revision, made)

    @property
    def _prepared_revision(self) -> object:
        return self._generation, self._aggregates.version, self._services.steady_mark

    # -- compute nodes ------------------------------------------------------

    def compute_nodes(self, cell: str, uuids: Collection[str] | None) -> list[Any]:
        """Return a cell's compute nodes, all or those of some uuids.

        Each has its NUMA topology's JSON in ``nodb_numa_topology`` instead of
        ``numa_topology``.

        :raises UnknownObjectVersion: a record is of another major version
        """
        keys = self._nodes.lookup("cell", cell) if uuids is None else uuids
        found = (self._nodes.get(key) for key in keys)
        return [
            self._node(record)
            for record in found
            if record is not None and record.state["cell"] == cell
        ]

    def knows_node(self, uuid: str) -> bool:
        """Tell whether a compute node of that uuid is in the store, in any cell."""
        return uuid in self._nodes

    def nodes_by_host_or_node(self, cell: str, host: str | None, node: str | None) -> list[Any]:
        """Return a cell's compute nodes by host, by node name, or by both."""
        if host:
            keys = self._nodes.lookup("cell_host", cell, host)
        else:
            keys = self._nodes.lookup("node", node or "")
        found = (self._nodes.get(key) for key in keys)
        return [
            self._node(record)
            for record in found
            if record is not None
            and record.state["cell"] == cell
            and (not node or record.state["row"]["hypervisor_hostname"] == node)
        ]

    def _node(self, record: store_snapshot.StoredRecord) -> Any:
        def build() -> Any:
            node, numa_topology = nova_rows.compute_node(self._context, record)
            node.nodb_numa_topology = numa_topology
            return node

        return self._built.nodes.get(record.key, (self._generation, record.revision), build)

    def claimed(self, uuid: str) -> claim_facts.UnreportedUsage:
        """Return what claims take of a compute node beside what it reports."""
        return claim_fit.unreported_usage_of(self._snapshot, uuid)

    # -- services -----------------------------------------------------------

    def services(self, cell: str, hosts: Collection[str]) -> dict[str, Any]:
        """Return the nova-compute services of some hosts of a cell, by host."""
        found = {}
        for host in hosts:
            for key in self._services.lookup("cell_host", cell, host):
                record = self._services.get(key)
                if record is not None and record.state["row"]["binary"] == COMPUTE_BINARY:
                    found[host] = self._service(record)
        return found

    def _service(self, record: store_snapshot.StoredRecord) -> Any:
        liveness = self._liveness.get(record.key)
        liveness_revision = liveness.revision if liveness is not None else 0
        heard = None if self._heard is None else self._heard.of(record.key)
        revisions = (self._generation, record.revision, liveness_revision, heard)
        return self._built.services.get(
            record.key,
            revisions,
            lambda: nova_rows.service(self._context, record, liveness, heard),
        )

    def minimum_service_versions(self, cell: str, binaries: Collection[str]) -> dict[str, int]:
        """Return the lowest version of a cell's services by binary, disabled ones too.

        As the database does it, services that are forced down do not count,
        and a binary without services is left out.
        """
        # Nova asks this with every request, and a big cloud has a service for each host.
        known: Mapping[str, Mapping[str, int]] = self._built.service_versions.get(
            "", (self._generation, self._services.steady_mark), self._least_versions
        )
        of_cell = known.get(cell, {})
        return {name: of_cell[name] for name in binaries if name in of_cell}

    def _least_versions(self) -> dict[str, dict[str, int]]:
        """Return the least version by cell and binary, in one pass over the services."""
        view = self._services
        counted = ~view.column("forced_down")
        cells, binaries = view.column("cell")[counted], view.column("binary")[counted]
        kinds, places = np.unique(np.stack([cells, binaries]), axis=1, return_inverse=True)
        least = np.full(kinds.shape[1], np.iinfo(np.int64).max)
        np.minimum.at(least, places.reshape(-1), view.column("version")[counted])
        found: dict[str, dict[str, int]] = {}
        for cell, binary, version in zip(*kinds.tolist(), least.tolist(), strict=True):
            of_cell = found.setdefault(view.vocabulary("cell").text(cell), {})
            of_cell[view.vocabulary("binary").text(binary)] = version
        return found

    # -- instances ------------------------------------------------------------

    def instances(
        self, cell: str, host: str, context: Callable[[], Any]
    ) -> nova_rows.InstancesByUuid:
        """Return the instances on a host of a cell, by uuid.

        :param context: names a context targeted to the cell
        """
        records = {}
        for key in self._instances.lookup("cell_host", cell, host):
            record = self._instances.get(key)
            if record is not None:
                records[nova_tables.uuid_of(key)] = record
        return nova_rows.InstancesByUuid(records, context)

    # -- the API database -----------------------------------------------------

    def cell_of_host(self, host: str) -> str | None:
        """Return the cell a host is mapped to, None where it is not mapped."""
        record = self._host_mappings.get(host)
        return None if record is None else str(record.state["cell"])

    def aggregates_of_host(self, host: str) -> list[Any]:
        """Return the aggregates that hold a host; shared objects, not to be changed."""
        by_host = self._built.host_aggregates.get(
            "", (self._generation, self._aggregates.version), self._group_aggregates
        )
        return list(by_host.get(host, ()))

    def aggregates(self) -> list[Any]:
        """Return all aggregates in the order of their ids, as the database gives them.

        Shared objects, not to be changed.
        """
        revision = (self._generation, self._aggregates.version)
        return list(self._built.all_aggregates.get("", revision, self._make_aggregates))

    def _make_aggregates(self) -> list[Any]:
        found = [self._aggregates.get(key) for key in self._aggregates.keys()]  # noqa: SIM118
        made = [self._aggregate(record) for record in found if record is not None]
        return sorted(made, key=lambda aggregate: int(aggregate.id))

    def _aggregate(self, record: store_snapshot.StoredRecord) -> Any:
        return self._built.aggregates.get(
            record.key,
            (self._generation, record.revision),
            lambda: nova_rows.aggregate(self._context, record),
        )

    def _group_aggregates(self) -> dict[str, list[Any]]:
        by_host: dict[str, list[Any]] = {}
        for aggregate in self.aggregates():
            for host in aggregate.hosts:
                by_host.setdefault(host, []).append(aggregate)
        return by_host


FellBack = Callable[[str, proof_module.UnprovedReason], None]

#: Takes a snapshot and judges it.
Look = Callable[[], tuple[MemoryReads, proof_module.StateProof]]


@attrs.define(eq=False, slots=False)
class RequestView:
    """A request's view of the cloud, and where it had to leave memory.

    :param reads: None only with ``stock``
    :param cells: uuids of all cells but cell0, enabled or not
    :param stock: True to take Nova's own path for every cell
    :param look: see :meth:`renew`; None where it is what it was made with for good
    """

    _reads: MemoryReads | None
    proof: proof_module.StateProof
    cells: tuple[str, ...]
    _fell_back: FellBack
    stock: bool = attrs.field(default=False, kw_only=True)
    _look: Look | None = attrs.field(default=None, kw_only=True)
    _judged: frozenset[str] = attrs.field(init=False)
    #: Cell of each host among the candidates, once they are known.
    cell_of_host: Mapping[str, str] = attrs.field(init=False, factory=dict)
    #: The host manager's CellMappings by uuid, once hosts are made states of.
    cell_mappings: Mapping[str, Any] = attrs.field(init=False, factory=dict)
    #: Of cells that are not served: instance uuids by host, once read.
    instances_read: dict[str, Mapping[str, Any]] = attrs.field(init=False, factory=dict)
    #: By (cell, host): one mapping for all nodes of a host, as Nova tracks them,
    #: so that a server placed on one is seen on the others.
    instances_of: dict[tuple[str, str], Any] = attrs.field(init=False, factory=dict)
    #: The providers of Placement's answer, where Nova's own code chooses among them.
    offered: tuple[str, ...] = attrs.field(init=False, default=())
    #: Cells whose hosts Nova's own code could not read and left out, and why.
    unread: dict[str, str] = attrs.field(init=False, factory=dict)
    #: True once Placement offered a host that the store does not know.
    unknown_candidates: bool = attrs.field(init=False, default=False)
    #: The questions to Placement, kept back; None where Placement is asked.
    deferred: deferred_candidates.DeferredCandidates | None = attrs.field(init=False, default=None)
    #: How far Nova's own code has prepared it; see :mod:`.prepared_requests`.
    preparation: Any = attrs.field(init=False, default=None)
    #: True where the choice itself is made over columns.
    decides: bool = attrs.field(init=False, default=False)
    #: Why it was not, in the end; None if it was.
    asked_placement: str | None = attrs.field(init=False, default=None)
    #: What the decision came to, for those who ask later.
    trace: decision_log.DecisionTrace = attrs.field(init=False, factory=decision_log.DecisionTrace)
    #: Scopes that were answered from memory.
    served: set[str] = attrs.field(init=False, factory=set)
    #: Scopes that were not, and why.
    missed: dict[str, proof_module.UnprovedReason] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._judged = frozenset(_judged(self.cells))

    def renew(self) -> bool:
        """See the present from here on; False if what was served is not proved now.

        Host states made before are of the former view: who decides again makes others.
        """
        if self._look is None:
            return True
        reads, proof = self._look()
        if reads.generation != self.reads.generation or self.served & proof.missing.keys():
            return False
        self._reads, self.proof = reads, proof
        self.instances_of.clear()
        self.instances_read.clear()
        self.unread.clear()
        return True

    @property
    def reads(self) -> MemoryReads:
        """The reads; for scopes that are served."""
        assert self._reads is not None  # a stock view serves nothing
        return self._reads

    def serves(self, scope: str) -> bool:
        """Tell whether a scope is answered from memory; note it either way."""
        if self.stock or scope in self.missed:
            return False
        lacking = self.lacks(scope)
        if lacking is not None:
            self.miss(scope, lacking)
            return False
        self.served.add(scope)
        return True

    def lacks(self, scope: str) -> proof_module.UnprovedReason | None:
        """Return why a scope is not proved; None if it is."""
        if scope not in self._judged:
            # A cell that was made after this scheduler last read the cells.
            return proof_module.UnprovedReason.COLD
        return self.proof.missing.get(scope)

    def serves_all(self, scopes: Collection[str]) -> bool:
        """Tell whether all of some scopes are answered from memory; note it for each."""
        served = [self.serves(scope) for scope in scopes]
        return all(served)

    def miss(self, scope: str, reason: proof_module.UnprovedReason) -> None:
        """Send a scope to Nova's own path for the rest of this request."""
        self.served.discard(scope)
        if scope not in self.missed:
            self.missed[scope] = reason
            self._fell_back(scope, reason)


@attrs.define(eq=False, slots=False)
class RequestViews:
    """Opens views over a store; keeps the current request's per thread.

    :param cells: uuids of the cells the scheduler knows
    :param generation: grows when the store begins to be built anew
    :param fell_back: told of each scope and request that left memory
    :param journals: of the store; None where nobody journals heartbeats
    """

    _store: host_state_store.HostStateStore
    _judge: proof_module.StateJudge
    _built: BuiltObjects
    _cells: Callable[[], list[str]]
    _generation: Callable[[], int]
    _fell_back: FellBack
    _journals: journal_reader.JournalReader | None = None
    #: For the objects that are built, which all requests share.
    _context: Any = attrs.field(init=False, factory=nova_context.get_admin_context)

    def open(self) -> RequestView:
        """Take a snapshot and judge it; a fault of ours is Nova's own path, loudly."""
        try:
            return self._open()
        except Exception:
            LOG.exception("The states in memory cannot be used for this request.")
            view = self.stock()
            for scope in self._cells():
                view.miss(scope, proof_module.UnprovedReason.FAULT)
            return view

    def stock(self) -> RequestView:
        """Return a view that takes Nova's own path for everything."""
        proof = proof_module.StateProof({})
        return RequestView(None, proof, tuple(self._cells()), self._fell_back, stock=True)

    def _open(self) -> RequestView:
        cells = tuple(self._cells())
        look = functools.partial(self._looked, cells)
        return RequestView(*look(), cells, self._fell_back, look=look)

    def _looked(self, cells: tuple[str, ...]) -> tuple[MemoryReads, proof_module.StateProof]:
        generation = self._generation()
        # Before the snapshot: asked behind it, the feed may be proved, and a record readable,
        # by what came since, which the snapshot lacks.
        feed_proved = self._judge.feed_proved()
        unreadable = self._judge.unreadable()
        snapshot = self._store.snapshot()
        scopes = _judged(cells)
        proof = self._judge.judge(snapshot, scopes, unreadable)
        if not feed_proved or generation != self._generation():
            # The snapshot may have been taken from a store half built, or behind, and
            # the feed proved only after it was whole again.
            proof = proof_module.StateProof(dict.fromkeys(scopes, proof_module.UnprovedReason.FEED))
        heard = None if self._journals is None else self._journals.look(snapshot)
        return MemoryReads(snapshot, generation, self._built, self._context, heard), proof

    def proof(self) -> proof_module.StateProof:
        """Judge the store of now, for nobody's request: nothing is counted."""
        return self._open().proof

    def still_proved(self, view: RequestView) -> bool:
        """Tell whether what a view answered from memory would be proved now, too."""
        if not view.served:
            return True
        _reads, now = self._looked(view.cells)
        return not view.served & now.missing.keys()


def _judged(cells: Collection[str]) -> list[str]:
    """Return the scopes that every view is judged by."""
    return [*cells, objects.CellMapping.CELL0_UUID, scopes_module.API]


_current = threading.local()


def current() -> RequestView | None:
    """Return the view of the request this thread works on, if any."""
    return getattr(_current, "view", None)


@contextlib.contextmanager
def working_on(view: RequestView) -> Iterator[RequestView]:
    """Make a view the current one of this thread."""
    before = current()
    _current.view = view
    try:
        yield view
    finally:
        _current.view = before
