# SPDX-License-Identifier: Apache-2.0
"""Nova's RequestSpec of a drawn request."""

from __future__ import annotations

from typing import Any

from nova import context as nova_context
from nova import exception, objects
from nova.virt import hardware

from tests.differential import cases
from tests.differential.drawn import request_strategies, words


class UnthinkableRequest(Exception):
    """Nova's API would have refused this flavor and image."""


def cell_mapping(uuid: str) -> Any:
    """Return a cell's mapping; its database is one that must not be read."""
    return objects.CellMapping(
        uuid=uuid,
        name=uuid[:4],
        database_connection=f"sqlite:////nonexistent/{uuid[:4]}",
        transport_url="fake:///",
        disabled=False,
    )


def request_spec(asked: request_strategies.Asked, cluster: cases.Cluster) -> Any:
    """Return the RequestSpec that the conductor would send.

    :raises UnthinkableRequest: flavor and image contradict each other
    """
    flavor = objects.Flavor(
        id=1,
        flavorid="1",
        rxtx_factor=1.0,
        vcpu_weight=0,
        disabled=False,
        is_public=True,
        extra_specs=dict(asked.extra_specs),
        **asked.flavor,
    )
    image = objects.ImageMeta(
        disk_format=asked.disk_format, properties=objects.ImageMetaProps(**asked.image)
    )
    if asked.image_id is not None:
        image.id = asked.image_id
    try:
        numa_topology = hardware.numa_get_constraints(flavor, image)
    except (exception.Invalid, exception.NovaException) as error:
        raise UnthinkableRequest(str(error)) from error
    spec = objects.RequestSpec(
        nova_context.get_admin_context(),
        flavor=flavor,
        image=image,
        num_instances=asked.servers,
        instance_uuid=words.NEW_INSTANCES[0],
        numa_topology=numa_topology,
        pci_requests=objects.InstancePCIRequests(requests=_pci(asked)),
        project_id=asked.project,
        user_id="u",
        availability_zone=asked.zone,
        ignore_hosts=asked.ignore_hosts,
        force_hosts=asked.force_hosts,
        force_nodes=asked.force_nodes,
        limits=objects.SchedulerLimits(),
        retry=None,
        instance_group=_group(asked, cluster),
        requested_destination=_destination(asked),
        scheduler_hints=dict(asked.hints) if asked.hints is not None else {},
        requested_resources=[],
        security_groups=objects.SecurityGroupList(objects=[]),
        is_bfv=asked.volume,
    )
    spec.obj_reset_changes(recursive=True)
    return spec


def _pci(asked: request_strategies.Asked) -> list[Any]:
    return [
        objects.InstancePCIRequest(
            count=count,
            spec=[{"vendor_id": "8086", "product_id": product, "dev_type": "type-PCI"}],
            alias_name="a",
            request_id=words.made_uuid("pci", at),
            numa_policy=policy,
        )
        for at, (count, product, policy) in enumerate(asked.pci)
    ]


def _group(asked: request_strategies.Asked, cluster: cases.Cluster) -> Any:
    if asked.group is None:
        return None
    members = list(asked.group["members"])
    hosts = []
    if asked.group["hosts"] == "of members":
        hosts = sorted({each.host for each in cluster.instances if each.uuid in members})
    made = objects.InstanceGroup(
        id=1,
        uuid=words.GROUP,
        name="g",
        user_id="u",
        project_id=asked.project,
        policy=asked.group["policy"],
        policies=[asked.group["policy"]],
        members=members,
        hosts=hosts,
    )
    made._rules = dict(asked.group["rules"])
    return made


def _destination(asked: request_strategies.Asked) -> Any:
    if asked.destination is None:
        return None
    made = objects.Destination()
    for name in ("host", "node", "allow_cross_cell_move", "aggregates"):
        if name in asked.destination:
            value = asked.destination[name]
            setattr(made, name, list(value) if isinstance(value, list) else value)
    if "cell" in asked.destination:
        made.cell = cell_mapping(asked.destination["cell"])
    return made
