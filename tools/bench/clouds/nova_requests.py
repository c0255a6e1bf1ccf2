# SPDX-License-Identifier: Apache-2.0
"""Makes Nova's request specs of the workload's requests, as the conductor hands them over."""

from collections.abc import Mapping, Sequence
from typing import Any

from nova import context, objects

from tools.bench.clouds import workload

_PROJECT = "b" * 32
_IMAGE = {
    "id": "8b0a4f63-7f09-4d8c-9a43-2b6a6a4d2f10",
    "name": "cirros",
    "status": "active",
    "container_format": "bare",
    "disk_format": "qcow2",
    "min_ram": 0,
    "min_disk": 0,
    "size": 21692416,
    "owner": _PROJECT,
    "visibility": "public",
    "properties": {"hw_rng_model": "virtio"},
}


class NovaRequests:
    """A factory of (context, RequestSpec)."""

    def __init__(self) -> None:
        self._image = objects.ImageMeta.from_dict(_IMAGE)

    def make(self, request: workload.Request, consumers: Sequence[str]) -> tuple[Any, Any]:
        """Return what one call of select_destinations gets, for these new servers."""
        asker = context.RequestContext(
            user_id=_PROJECT, project_id=_PROJECT, is_admin=False, roles=["member"]
        )
        asked = request.flavor
        spec = objects.RequestSpec.from_components(
            asker,
            consumers[0],
            self._image,
            flavor(asked.name, asked.vcpus, asked.memory_mb, asked.disk_gb, asked.extra_specs),
            None,
            objects.InstancePCIRequests(requests=[]),
            {},
            None,
            request.zone,
        )
        spec.num_instances = len(consumers)
        return asker, spec


def flavor(
    name: str, vcpus: int, memory_mb: int, disk_gb: int, extra_specs: Mapping[str, str]
) -> Any:
    """Return Nova's flavor; ``memory_mb`` in MiB, ``disk_gb`` in GiB."""
    return objects.Flavor(
        id=1,
        flavorid=name,
        name=name,
        vcpus=vcpus,
        memory_mb=memory_mb,
        root_gb=disk_gb,
        ephemeral_gb=0,
        swap=0,
        rxtx_factor=1.0,
        vcpu_weight=0,
        disabled=False,
        is_public=True,
        extra_specs=dict(extra_specs),
        projects=[],
    )
