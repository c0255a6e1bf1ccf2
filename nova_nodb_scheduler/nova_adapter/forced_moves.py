# SPDX-License-Identifier: Apache-2.0
"""What a server asks for on a host that it is forced to, for its claim there.

Nova forces a server without a request: it copies the allocation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nova import exception as nova_exception
from nova import objects

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.nova_adapter import fitted, request_conversion

LOG = logging.getLogger(__name__)


def request(context: Any, instance: Any, host: str) -> requests.Request:
    """Return the request that a scheduler would have got; reads Nova's API database.

    Forced: no filter, so no group's policy either, rules the host out. Others
    are to know of the member there all the same.

    :param host: the name of the host that it goes to
    """
    return requests.Request(
        requests.Flavor(
            vcpus=instance.flavor.vcpus,
            memory_mb=instance.flavor.memory_mb,
            root_gb=instance.flavor.root_gb,
            ephemeral_gb=instance.flavor.ephemeral_gb,
        ),
        group=_group_of(context, instance),
        force_hosts=(host,),
        fitted=_fitted_of(instance),
    )


_WITHOUT = "Server %(server)s is claimed for without %(what)s: %(error)s"


def _group_of(context: Any, instance: Any) -> requests.Group | None:
    """Return a server's group; None if it is in none."""
    try:
        group = objects.InstanceGroup.get_by_instance_uuid(context, instance.uuid)
    except nova_exception.InstanceGroupNotFound:
        return None
    except Exception as error:
        # Nova itself does not look for it here.
        about = {"server": instance.uuid, "what": "its server group", "error": error}
        LOG.warning(_WITHOUT, about, exc_info=True)
        return None
    return request_conversion.group(group)


def _fitted_of(instance: Any) -> Mapping[str, Any]:
    """Return the NUMA cells and PCI devices that a server wants."""
    try:
        return fitted.of_server(instance)
    except Exception as error:
        # Nova's own claim looks at none of them: nova-compute does, on the host.
        what = "its NUMA cells and PCI devices"
        LOG.warning(
            _WITHOUT, {"server": instance.uuid, "what": what, "error": error}, exc_info=True
        )
        return {}
