# SPDX-License-Identifier: Apache-2.0
"""Prints each host of a cloud with what is used of it, from the schedulers' memory."""

import sys
from collections.abc import Iterator
from typing import Any

from nova import config, context, objects, rpc

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.rpc import api, client
from nova_nodb_scheduler.wire import objects as nodb_objects


def connect(topic: str = "nodb_scheduler") -> client.Client:
    """Make a client, with Nova's configuration read before."""
    for module in api.EXCEPTION_MODULES:  # or every error is a RemoteError
        rpc.add_extra_exmods(module)
    return client.Client(
        rpc.create_transport(rpc.get_transport_url()),
        topic,  # [nodb_scheduler] rpc_topic
        rpc.RequestContextSerializer(nodb_objects.Serializer()),
        timeout_seconds=5.0,
    )


def lines(nodb: client.Client, admin: Any, **query: Any) -> Iterator[str]:
    """Tell of each host how much of it is used, and whether servers may go there."""
    for host in nodb.iterate_hosts(admin, namespaces=["services", "instances"], **query):
        row = host.state["row"]
        services = [each.state["row"] for each in host.related if each.namespace == "services"]
        open_ = any(not each["disabled"] for each in services)
        yield (
            f"{host.host}: {host.counts['instances']} servers, {row['vcpus_used']} of "
            f"{row['vcpus']} VCPUs, {'open' if open_ else 'closed'}"
        )


def main() -> int:
    """Print, or say why there is nothing to print; a cut list is never printed as if whole."""
    config.parse_args(["inventory", "--config-file", "/etc/nova/nova.conf"], init_rpc=False)
    objects.register_all()
    try:
        for line in lines(connect(), context.get_admin_context(), search="east-%"):
            print(line)
    except (errors.StatesNotProved, errors.MethodNotServed) as error:
        print(f"Not all hosts were listed. {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
