# SPDX-License-Identifier: Apache-2.0
"""Sends servers on that a conductor wrote to their cells, and died before it sent them.

And those that were sent, and whose nova-compute gave them up before it had begun.

Nova's own way with an instance that exists, ``build_instances``, will not do: where nothing
was tried yet it takes a build request that is gone for a user's deletion, and a request that
has come to it through its legacy form has lost what ports ask for. So this is the second half
of ``schedule_and_build_instances`` for one server: hosts are asked for anew, in the cell where
it stands, and it is sent to the first.

The instance is what a user deletes meanwhile. Who deletes it before it is saved here ends
this; who deletes it behind that is found by the compute, which gives back what was allocated.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler.nova_adapter.waiting import abandoned_requests, request_payload

LOG = logging.getLogger(__name__)

#: What computes and notifications read of an instance.
_LOADED = (
    "flavor",
    "info_cache",
    "metadata",
    "numa_topology",
    "pci_devices",
    "pci_requests",
    "security_groups",
    "system_metadata",
    "tags",
)


def send_on(
    tasks: Any,
    context: Any,
    server: str,
    arguments: request_payload.BuildArguments,
    check: Callable[[str], None],
) -> None:
    """Find a host for a server that stands in its cell, and send it there.

    One that cannot be sent ends in ERROR with the reason. Blocks for Nova's databases, a
    scheduler and the message bus.

    :param tasks: Nova's ComputeTaskManager, which is told of what it asks for and sends
    :param context: of the user
    :param arguments: of this server alone
    :param check: raises where the server is somebody else's
    :raises abandoned_requests.NotCleared: it cannot be sent, and what it holds stays
    """
    mapping = objects.InstanceMapping.get_by_instance_uuid(context, server)
    cell = mapping.cell_mapping
    instance = abandoned_requests.instance_in(context, cell, server, _LOADED)
    if instance is None:
        return
    try:
        hosts = _hosts(tasks, context, server, arguments, cell)
    except Exception as error:
        LOG.exception("Server %(server)s cannot be sent on.", {"server": server})
        _give_up(tasks, context, cell, instance, error, check)
        return
    with nova_context.target_cell(context, cell) as targeted:
        instance._context = targeted
        instance.availability_zone = hosts[0].availability_zone
        # Of one that was given up it is gone, and the next look must not take it for that.
        instance.task_state = task_states.SCHEDULING
        # Who slept while hosts were found must not say of another's server that it is on its way.
        check(server)
        try:
            instance.save(expected_task_state=(task_states.SCHEDULING, None))
        except (
            nova_exception.InstanceNotFound,
            nova_exception.InstanceInfoCacheNotFound,
            nova_exception.UnexpectedDeletingTaskStateError,
        ):
            LOG.info("Server %(server)s was deleted by its user", {"server": server})
            abandoned_requests.clear_allocations(tasks.report_client, context, server, check)
            return
        _send(tasks, targeted, instance, arguments, hosts)


def _hosts(
    tasks: Any, context: Any, server: str, arguments: request_payload.BuildArguments, cell: Any
) -> list[Any]:
    spec = arguments.request_specs[0]
    if _has_accelerators(spec, arguments.requested_networks):
        # They may be bound to the host that was chosen first, and nobody knows by what ids.
        raise abandoned_requests.ConductorDied
    with _kept_in(context, spec, cell):
        found = tasks._schedule_instances(context, spec, [server], return_alternates=True)
    hosts = list(found[0])
    scheduler_utils.fill_provider_mapping(spec, hosts[0])
    return hosts


def _has_accelerators(spec: Any, requested_networks: Any) -> bool:
    if "accel:device_profile" in (spec.flavor.extra_specs or {}):
        return True
    return any(each.device_profile for each in requested_networks or ())


@contextlib.contextmanager
def _kept_in(context: Any, spec: Any, cell: Any) -> Iterator[None]:
    """Have hosts of one cell alone be asked for, beside what the user asked for."""
    had = spec.requested_destination if "requested_destination" in spec else None
    if had:
        wanted = had.obj_clone()
        wanted.cell = cell
    else:
        wanted = objects.Destination(context, cell=cell)
    spec.requested_destination = wanted
    try:
        yield
    finally:
        spec.requested_destination = had


def _send(
    tasks: Any,
    targeted: Any,
    instance: Any,
    arguments: request_payload.BuildArguments,
    hosts: list[Any],
) -> None:
    spec, host = arguments.request_specs[0], hosts[0]
    properties = spec.to_legacy_filter_properties_dict()
    scheduler_utils.populate_retry(properties, instance.uuid)
    scheduler_utils.populate_filter_properties(properties, host)
    tasks.compute_rpcapi.build_and_run_instance(
        targeted,
        instance=instance,
        image=arguments.image,
        request_spec=spec,
        filter_properties=properties,
        admin_password=arguments.admin_password,
        injected_files=arguments.injected_files,
        requested_networks=arguments.requested_networks,
        security_groups=[each.identifier for each in spec.security_groups],
        block_device_mapping=objects.BlockDeviceMappingList.get_by_instance_uuid(
            targeted, instance.uuid
        ),
        host=host.service_host,
        node=host.nodename,
        limits=host.limits,
        host_list=hosts[1:],
        accel_uuids=[],
    )


def _give_up(
    tasks: Any,
    context: Any,
    cell: Any,
    instance: Any,
    error: Exception,
    check: Callable[[str], None],
) -> None:
    # First: whoever finds it in ERROR takes nothing more away from it.
    abandoned_requests.clear_allocations(tasks.report_client, context, instance.uuid, check)
    check(instance.uuid)
    abandoned_requests.fail(context, cell, instance, error)
