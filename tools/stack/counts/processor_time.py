# SPDX-License-Identifier: Apache-2.0
"""Processor time of a stack's processes, by what they are for."""

import collections

from tools.stack import stack as stack_module

_KINDS = {
    "nova-scheduler": "schedulers",
    "nova-super-conductor": "super conductor",
    "nova-conductor": "conductors",
    "nova-compute": "computes",
    "nova-api": "nova-api",
    "placement": "Placement",
    "mariadb": "MariaDB",
    "rabbitmq": "RabbitMQ",
}
"""By how the names of processes begin."""


def by_kind(stack: stack_module.Stack) -> dict[str, float]:
    """Return seconds of all processes of each kind since they began, forked ones included."""
    found: collections.Counter[str] = collections.Counter()
    for name in stack.processes.names():
        for beginning, kind in _KINDS.items():
            if name.startswith(beginning):
                found[kind] += stack.processes.processor_seconds(name)
    return dict(found)
