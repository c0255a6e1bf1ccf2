# SPDX-License-Identifier: Apache-2.0
"""The oracle: Nova's HostManager over host states that Nova's code makes of drawn rows.

The rows go through the objects' own ``_from_db_object``. Databases are poisoned:
what Nova would read there is answered from the cluster, anything else fails.
"""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.db.api import api as api_db
from nova.db.main import api as main_db
from nova.objects import service as service_module
from nova.scheduler import host_manager as nova_host_manager
from nova.scheduler import manager as nova_manager
from oslo_utils import fixture as time_fixture

from tests.differential import cases, coverage, specs
from tests.differential.drawn import setting_strategies, words

CONF = nova.conf.CONF


class DatabaseRead(AssertionError):
    """Something asked a database: the case is not what it claims to be."""


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise DatabaseRead("a database was asked during a decision")


@contextlib.contextmanager
def configured(settings: setting_strategies.Settings) -> Iterator[None]:
    """Set Nova's options for a while; options that this Nova lacks are left out."""
    overridden = []
    values = {("filter_scheduler", "track_instance_changes"): False, **settings.values}
    for (group, name), value in values.items():
        if name in CONF[group]:
            CONF.set_override(name, value, group=group)
            overridden.append((group, name))
    try:
        yield
    finally:
        for group, name in overridden:
            CONF.clear_override(name, group=group)


class HostManager(nova_host_manager.HostManager):
    """Nova's own, with its reads answered from a cluster."""

    def __init__(self, cluster: cases.Cluster, reached: coverage.Coverage | None = None) -> None:
        self.cluster = cluster
        self._instances_of: dict[str, dict[str, Any]] = {}
        super().__init__()
        if reached is not None:
            reached.watch(self)

    def refresh_cells_caches(self) -> None:
        self.cells = {uuid: specs.cell_mapping(uuid) for uuid in words.CELLS}
        self.enabled_cells = [self.cells[uuid] for uuid in self.cluster.enabled_cells]
        self.host_to_cell_uuid = {}

    def _init_aggregates(self) -> None:
        for made in (_aggregate(each, each.metadata) for each in self.cluster.aggregates):
            self.aggs_by_id[made.id] = made
            for host in made.hosts:
                self.host_aggregates_map[host].add(made.id)

    def _nodes(self, cell: str) -> list[Any]:
        return [compute_node(each) for each in self.cluster.nodes if each.cell == cell]

    def _get_computes_for_cells(
        self, context: Any, cells: Any, compute_uuids: Any
    ) -> tuple[Mapping[str, list[Any]], Mapping[str, Any]]:
        nodes: dict[str, list[Any]] = collections.defaultdict(list)
        services = {}
        for cell in cells:
            services.update(
                {
                    each.row["host"]: service(each)
                    for each in self.cluster.services
                    if each.cell == cell.uuid
                }
            )
            nodes[cell.uuid] += [
                node
                for node in self._nodes(cell.uuid)
                if compute_uuids is None or node.uuid in compute_uuids
            ]
        return nodes, services

    def get_compute_nodes_by_host_or_node(
        self, ctxt: Any, host: str | None, node: str | None, cell: Any = None
    ) -> Any:
        if host and not cell:
            mapped = self.cluster.cell_of(host)
            cell = self.cells[mapped] if mapped else None
        for each in [cell] if cell else self.enabled_cells:
            found = [
                made
                for made in self._nodes(each.uuid)
                if (not host or made.host == host)
                and (not node or made.hypervisor_hostname == node)
            ]
            if found:
                return objects.ComputeNodeList(objects=found)
        return objects.ComputeNodeList()

    def _get_instance_info(self, context: Any, compute: Any) -> dict[str, Any]:
        # As with track_instance_changes: one and the same for all nodes of a host.
        if compute.host not in self._instances_of:
            self._instances_of[compute.host] = {
                each.uuid: instance(each)
                for each in self.cluster.instances
                if each.host == compute.host
            }
        return self._instances_of[compute.host]


def _aggregate(drawn: cases.Aggregate, metadata: Mapping[str, str]) -> Any:
    return objects.Aggregate(
        id=drawn.id,
        uuid=drawn.uuid,
        name=f"agg{drawn.id}",
        hosts=list(drawn.hosts),
        metadata=dict(metadata),
    )


def compute_node(drawn: cases.Node) -> Any:
    """Return Nova's ComputeNode of a row."""
    context = nova_context.get_admin_context()
    return objects.ComputeNode._from_db_object(
        context, objects.ComputeNode(context), dict(drawn.row)
    )


def service(drawn: cases.Service) -> Any:
    """Return Nova's Service of a row."""
    context = nova_context.get_admin_context()
    return objects.Service._from_db_object(context, objects.Service(context), dict(drawn.row))


def instance(drawn: cases.Instance) -> Any:
    """Return Nova's Instance, with what Nova would fill in from its metadata."""
    return objects.Instance(
        nova_context.get_admin_context(),
        uuid=drawn.uuid,
        host=drawn.host,
        node=drawn.node,
        project_id=drawn.project,
        image_ref=drawn.image_ref,
        system_metadata={f"image_{name}": value for name, value in drawn.image.items()},
    )


def _by_metadata(
    cluster: cases.Cluster, key: str | None = None, value: str | None = None
) -> list[Any]:
    """Answer as Nova's query: each aggregate with those pairs alone that match."""
    found = []
    for each in cluster.aggregates:
        pairs = {
            name: text
            for name, text in each.metadata.items()
            if (key is None or name == key) and (value is None or text == value)
        }
        if pairs:
            found.append(_aggregate(each, pairs))
    return found


def _non_matching(cluster: cases.Cluster, ignored: Sequence[str], value: str) -> list[Any]:
    return [
        _aggregate(each, each.metadata)
        for each in cluster.aggregates
        if any(
            name.startswith("trait:") and text == value and name not in ignored
            for name, text in each.metadata.items()
        )
    ]


class Held:
    """The cluster that databases hold: it may change between requests."""

    def __init__(self, cluster: cases.Cluster) -> None:
        self.cluster = cluster


@contextlib.contextmanager
def databases_of(cluster: cases.Cluster) -> Iterator[Held]:
    """Answer Nova's reads outside the HostManager from the cluster; refuse all others."""
    held = Held(cluster)
    aggregates = objects.AggregateList
    with contextlib.ExitStack() as stack:
        for replaced, name, answer in (
            (
                aggregates,
                "get_by_metadata",
                lambda context, key=None, value=None: _by_metadata(held.cluster, key, value),
            ),
            (
                aggregates,
                "get_non_matching_by_metadata_keys",
                lambda context, ignored, prefix, value: _non_matching(held.cluster, ignored, value),
            ),
            (
                objects.CellMapping,
                "get_by_uuid",
                lambda context, uuid: specs.cell_mapping(uuid),
            ),
            (main_db, "create_context_manager", _NoDatabase),
            # The default of a missing ratio, which Nova writes where it reads.
            (main_db, "compute_node_update", lambda context, key, values: None),
            # Servers of this request, which no cell's database has yet.
            (main_db, "instances_fill_metadata", _no_metadata),
            (objects.Instance, "get_by_uuid", _no_instance),
            (service_module, "get_minimum_version_all_cells", lambda *args, **kwargs: 60),
        ):
            stack.enter_context(mock.patch.object(replaced, name, answer))
        for factory in (api_db.context_manager, main_db.context_manager):
            stack.enter_context(mock.patch.object(factory._factory, "_create_session", _refuse))
        stack.enter_context(_fixture(time_fixture.TimeFixture(words.NOW)))
        yield held


def _no_metadata(context: Any, instances: Any, **kwargs: Any) -> list[dict[str, Any]]:
    return [{"uuid": each["uuid"], "system_metadata": []} for each in instances]


def _no_instance(context: Any, uuid: str, **kwargs: Any) -> Any:
    raise exception.InstanceNotFound(instance_id=uuid)


class _NoDatabase:
    """A cell's database: to name it is allowed, to read it is not."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return _refuse


@contextlib.contextmanager
def _fixture(fixture: Any) -> Iterator[Any]:
    fixture.setUp()
    try:
        yield fixture
    finally:
        fixture.cleanUp()


class Decision:
    """Nova's way through one request, instance by instance.

    :param candidates: Placement's allocation requests by provider; None for a
        rebuild, which asks Placement nothing
    :ivar hosts: HostStates that are left, with their weights by node uuid
    """

    def __init__(
        self,
        manager: HostManager,
        spec: Any,
        candidates: Mapping[str, Sequence[Mapping[str, Any]]] | None,
        summaries: Sequence[str],
    ) -> None:
        self.manager, self.spec = manager, spec
        uuids = None if candidates is None else list(summaries)
        states = list(
            manager.get_host_states_by_uuids(nova_context.get_admin_context(), uuids, spec)
        )
        if candidates is not None:
            for state in states:
                state.allocation_candidates = copy.deepcopy(list(candidates.get(state.uuid, ())))
        self.states = states
        self.hosts: list[Any] = states
        self.weights: dict[tuple[str, str], float] = {}

    def run(self, index: int, instance_uuid: str) -> None:
        """Filter and weigh for the next instance."""
        self.spec.instance_uuid = instance_uuid
        self.spec.obj_reset_changes(["instance_uuid"])
        self.hosts = list(self.manager.get_filtered_hosts(self.hosts, self.spec, index) or [])
        weighed = self.manager.get_weighed_hosts(self.hosts, self.spec) if self.hosts else []
        self.weights = {name_of(each.obj): each.weight for each in weighed}

    def again(self, index: int, instance_uuid: str) -> None:
        """Do the same for a later instance.

        :raises NovaRaised: as Nova's weighers do where its stub of a server is asked for more
        """
        try:
            self.run(index, instance_uuid)
        except NOVA_RAISES as error:
            raise NovaRaised(type(error).__name__) from error

    def consume(self, name: tuple[str, str], instance_uuid: str) -> bool:
        """Take what the instance needs from the host that the plugin chose.

        :returns: False where Nova gives up half-way, and only says so in its
            log: the devices or NUMA cells of a host that no filter looked at
        """
        state = next(each for each in self.hosts if name_of(each) == name)
        before = state.num_io_ops
        nova_manager.SchedulerManager._consume_selected_host(
            state, self.spec, instance_uuid=instance_uuid
        )
        return bool(state.num_io_ops > before)


class NovaRaised(Exception):
    """Nova's own code failed in the middle of a request."""


def name_of(state: Any) -> tuple[str, str]:
    """Return (host, node): what names a HostState, even one without a uuid."""
    return state.host, state.nodename


#: What Nova's filters and weighers raise where rows or requests are nonsense.
NOVA_RAISES = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    TypeError,
    ValueError,
    exception.NovaException,
)
