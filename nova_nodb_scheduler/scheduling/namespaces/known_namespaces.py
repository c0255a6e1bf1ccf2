# SPDX-License-Identifier: Apache-2.0
"""The namespaces a compute scheduler needs, as declarations.

States of Nova's tables are the table's row, verbatim, below ``row``; fields
that this release does not know are kept. ``cell`` is the uuid of the cell the
row lives in, ``object_version`` the version of Nova's object that wrote it.
Namespaces of the API database have no cell.
"""

from __future__ import annotations

import math

from nova_nodb_scheduler.model import host_relations
from nova_nodb_scheduler.model import namespaces as model
from nova_nodb_scheduler.scheduling.namespaces import (
    claim_facts,
    digest_forms,
    node_facts,
    pending_facts,
    provider_facts,
    service_facts,
)

#: Owner of what mirrors Nova's tables: the reporters.
NOVA = "nova"
#: Owner of what schedulers claim before one another: the claims ledger.
CLAIMS = "claims"
#: Owner of what the plugin's own processes say of themselves.
NODB = "nodb"
#: Owner of what mirrors Placement: the schedulers, one of which keeps it.
PLACEMENT = "placement"
#: Owner of requests that wait for room: conductors put them there, schedulers wake them.
QUEUE = "queue"

_V1 = model.SchemaVersion(1, 0)
_CELL = model.Column("cell", model.Kind.CATEGORY, ("cell",), "")
#: Where each request wants sums by cell.
_STEADY_CELL = model.Column("cell", model.Kind.CATEGORY, ("cell",), "", steady=True)


def _row(name: str, kind: model.Kind, default: object = 0, *, steady: bool = False) -> model.Column:
    return model.Column(name, kind, ("row", name), default, steady=steady)


_INT = model.Kind.INT
_FLOAT = model.Kind.FLOAT
_BOOL = model.Kind.BOOL
_TEXT = model.Kind.CATEGORY

_CELL_HOST = model.Index("cell_host", (("cell",), ("row", "host")))
_HOST = model.Index("host", (("row", "host"),))
_BY_CELL = model.Index("cell", (("cell",),), few_values=True)

#: key: node uuid; row: ``compute_nodes``
COMPUTE_NODES = model.Namespace(
    name="compute_nodes",
    owner=NOVA,
    schema=_V1,
    columns=(
        _CELL,
        _row("id", _INT),
        _row("host", _TEXT, ""),
        _row("hypervisor_hostname", _TEXT, ""),
        _row("hypervisor_type", _TEXT, ""),
        _row("vcpus", _INT),
        _row("vcpus_used", _INT),
        _row("memory_mb", _INT),
        _row("memory_mb_used", _INT),
        _row("free_ram_mb", _INT),
        _row("local_gb", _INT),
        _row("local_gb_used", _INT),
        _row("free_disk_gb", _INT),
        _row("disk_available_least", _INT),
        _row("running_vms", _INT),
        _row("current_workload", _INT),
        _row("cpu_allocation_ratio", _FLOAT, 0.0),
        _row("ram_allocation_ratio", _FLOAT, 0.0),
        _row("disk_allocation_ratio", _FLOAT, 0.0),
    ),
    indexes=(
        _CELL_HOST,
        _HOST,
        model.Index("node", (("row", "hypervisor_hostname"),)),
        _BY_CELL,
    ),
    digest=node_facts.digest,
    digest_row=node_facts.ROW,
    digest_form=digest_forms.NodeRows(),
)

#: key: service uuid; row: ``services`` without the fields a heartbeat changes
SERVICES = model.Namespace(
    name="services",
    owner=NOVA,
    schema=_V1,
    columns=(
        _STEADY_CELL,
        _row("host", _TEXT, ""),
        _row("binary", _TEXT, "", steady=True),
        _row("topic", _TEXT, ""),
        _row("version", _INT, steady=True),
        _row("disabled", _BOOL, False),
        _row("forced_down", _BOOL, False, steady=True),
    ),
    indexes=(
        model.Index("cell_binary", (("cell",), ("row", "binary")), few_values=True),
        model.Index("binary", (("row", "binary"),), few_values=True),
        _CELL_HOST,
        _BY_CELL,
    ),
    digest=service_facts.digest,
    digest_form=digest_forms.Services(),
)

#: key: service uuid; what heartbeats change: ``report_count`` and
#: ``last_seen_up`` (ISO 8601, UTC) of the row, and ``unreported``: heartbeats
#: that no reporter saw; ``counted_at``, when the count was heard (seconds since the
#: epoch). Where heartbeats are stored: ``seen_at`` (back-end seconds)
#: of the latest, and ``unwritten``, the highest count that stands in no row
SERVICE_LIVENESS = model.Namespace(
    name="service_liveness",
    owner=NOVA,
    schema=_V1,
    columns=(
        _STEADY_CELL,
        model.Column("report_count", _INT, ("report_count",)),
        model.Column("unreported", _INT, ("unreported",), steady=True),
        # NaN where a release that does not note it wrote the record.
        model.Column("counted_at", _FLOAT, ("counted_at",), math.nan),
    ),
    indexes=(_BY_CELL,),
    digest=service_facts.heartbeat,
    digest_form=digest_forms.Seconds(),
)

#: key: instance uuid; row: the fields of ``instances`` that place it
INSTANCES = model.Namespace(
    name="instances",
    owner=NOVA,
    schema=_V1,
    columns=(
        _CELL,
        _row("host", _TEXT, ""),
        _row("node", _TEXT, ""),
        _row("vm_state", _TEXT, ""),
        _row("task_state", _TEXT, ""),
        _row("project_id", _TEXT, ""),
        _row("memory_mb", _INT),
        _row("vcpus", _INT),
        _row("root_gb", _INT),
        _row("ephemeral_gb", _INT),
    ),
    indexes=(_CELL_HOST, _BY_CELL),
    uuid_keys=True,
)

#: key: migration uuid; row: ``migrations``, while it is in progress
MIGRATIONS = model.Namespace(
    name="migrations",
    owner=NOVA,
    schema=_V1,
    columns=(
        _CELL,
        _row("status", _TEXT, ""),
        _row("migration_type", _TEXT, ""),
        _row("source_compute", _TEXT, ""),
        _row("dest_compute", _TEXT, ""),
    ),
    indexes=(
        model.Index("instance", (("row", "instance_uuid"),)),
        model.Index("source", (("row", "source_compute"),)),
        model.Index("destination", (("row", "dest_compute"),)),
        _BY_CELL,
    ),
)

#: key: aggregate uuid; row: ``aggregates`` with ``hosts`` and ``metadata``
AGGREGATES = model.Namespace(
    name="aggregates",
    owner=NOVA,
    schema=_V1,
    columns=(
        _row("id", _INT),
        _row("name", _TEXT, ""),
        _row("hosts", model.Kind.BITS, ()),
    ),
)

#: key: host name; row: ``host`` and ``cell`` of ``host_mappings``
HOST_MAPPINGS = model.Namespace(
    name="host_mappings",
    owner=NOVA,
    schema=_V1,
    columns=(_CELL,),
    indexes=(_BY_CELL,),
)

#: key: node uuid; consumers with pending and confirmed claims on that host
CLAIM_RECORDS = model.Namespace(name="claims", owner=CLAIMS, schema=_V1, digest=claim_facts.digest)

#: key: server group uuid; members with the hosts they stand on
GROUP_CLAIMS = model.Namespace(name="group_claims", owner=CLAIMS, schema=_V1)

#: key: ``group_claims``; ``settled`` is the place in the feed up to which a view must
#: have come to know whatever was settled in records removed there
CLAIM_FLOORS = model.Namespace(name="claim_floors", owner=CLAIMS, schema=_V1)

#: key: reporter id; heartbeats of every process that reports Nova's writes
REPORTERS = model.Namespace(
    name="reporters",
    owner=NODB,
    schema=_V1,
    columns=(_CELL, model.Column("binary", _TEXT, ("binary",), "")),
    indexes=(_BY_CELL,),
)

#: key: scheduler worker id; heartbeats and lag of every scheduler worker
SCHEDULERS = model.Namespace(name="schedulers", owner=NODB, schema=_V1)

#: key: cell uuid, or ``api`` for the API database; imports and sweeps. ``swept_version``:
#: the back end's head when the last sweep began, in its ``epoch``
CELLS = model.Namespace(name="cells", owner=NODB, schema=_V1)

#: key: cell uuid; where the heartbeats of its compute services stand, and since when
HEARTBEAT_MODES = model.Namespace(name="heartbeat_modes", owner=NODB, schema=_V1)

#: key: ``<journal>.<slot>``; heartbeats of one flush of a conductor, see
#: :mod:`.heartbeat_journals`
HEARTBEAT_JOURNALS = model.Namespace(name="heartbeat_journals", owner=NOVA, schema=_V1)

#: key: lease name; who does what only one process may do at a time
LEASES = model.Namespace(name="leases", owner=NODB, schema=_V1)

#: key: uuid of a tree's root provider (a host's is its node's uuid); one
#: record a tree. ``generation``, ``inventories``, ``traits``, ``aggregates``
#: and ``allocations`` (by consumer) are the root's; ``children`` holds the
#: other providers, ``tree_size`` counts all. Back-end seconds: ``whole_at``, when
#: the whole tree was read, ``read_at``, when the root's allocations were (both from before
#: the reading), ``read_until``, when that was over, and ``written_at``, when a scheduler
#: added what it had written itself.
#: ``broken``: why a tree cannot be used; such a record has nothing else to trust
PROVIDERS = model.Namespace(
    name="providers",
    owner=PLACEMENT,
    schema=_V1,
    columns=(
        model.Column("generation", _INT, ("generation",)),
        model.Column("tree_size", _INT, ("tree_size",), 1),
        model.Column("whole_at", _FLOAT, ("whole_at",), 0.0),
        model.Column("broken", _TEXT, ("broken",), ""),
    ),
    digest=provider_facts.digest,
    digest_form=digest_forms.Providers(),
)

#: key: ``placement``; when the mirror was last compared with Placement, in
#: which epoch, by whom, and what it found
MIRRORS = model.Namespace(name="mirrors", owner=PLACEMENT, schema=_V1)

#: key: uuid of a provider, or of a consumer (``consumer`` is true), whose
#: allocations were changed by a process that does not keep the mirror
PROVIDER_HINTS = model.Namespace(
    name="provider_hints",
    owner=NODB,
    schema=_V1,
)

#: key: ``<node uuid>@<cell>``; a row of ``compute_nodes`` where the back end answers for
#: them, live or deleted. Conductors and APIs read it; what schedulers decide by is made of it
NODE_ROWS = model.Namespace(name="node_rows", owner=NOVA, schema=_V1, followed=False)

#: key: ``<hash of host and node>@<cell>``; which row may have the name
NODE_NAMES = model.Namespace(name="node_names", owner=NOVA, schema=_V1, followed=False)

#: key: cell uuid; who answers for its compute nodes, and which id comes next
NODE_CELLS = model.Namespace(name="node_cells", owner=NOVA, schema=_V1, followed=False)

#: key: uuid of a request's first server; a request that waits for room, or is being placed
PENDING = model.Namespace(name="pending", owner=QUEUE, schema=_V1, digest=pending_facts.digest)

#: key: as in ``pending``; what the conductor was called with, encrypted
PENDING_PAYLOADS = model.Namespace(name="pending_payloads", owner=QUEUE, schema=_V1, followed=False)

BUILT_IN: tuple[model.Namespace, ...] = (
    COMPUTE_NODES,
    SERVICES,
    SERVICE_LIVENESS,
    INSTANCES,
    MIGRATIONS,
    AGGREGATES,
    HOST_MAPPINGS,
    CLAIM_RECORDS,
    GROUP_CLAIMS,
    CLAIM_FLOORS,
    REPORTERS,
    SCHEDULERS,
    CELLS,
    HEARTBEAT_MODES,
    HEARTBEAT_JOURNALS,
    LEASES,
    PROVIDERS,
    MIRRORS,
    PROVIDER_HINTS,
    NODE_ROWS,
    NODE_NAMES,
    NODE_CELLS,
    PENDING,
    PENDING_PAYLOADS,
)

_COMPUTE_SERVICE = (("binary", "nova-compute"),)

#: What belongs to a compute node, for whoever lists hosts with it.
HOST_TABLES = host_relations.HostTables(
    nodes=COMPUTE_NODES.name,
    services=SERVICES.name,
    relations=(
        host_relations.HostRelation(
            SERVICES.name, index=_CELL_HOST.name, conditions=_COMPUTE_SERVICE
        ),
        host_relations.HostRelation(SERVICE_LIVENESS.name, keys_of=SERVICES.name),
        host_relations.HostRelation(PROVIDERS.name, scope=PLACEMENT),
        host_relations.HostRelation(CLAIM_RECORDS.name, scope=CLAIMS),
        host_relations.HostRelation(
            INSTANCES.name, index=_CELL_HOST.name, node_column="node", counted=True
        ),
    ),
)
