# SPDX-License-Identifier: Apache-2.0
"""Which processes made RPC calls, seen by RabbitMQ.

oslo.messaging makes a process's reply queue on its first call, and keeps it. A scheduler that
consumes from no reply queue has therefore never asked a conductor (or anybody) for anything:
nothing was read on its behalf.
"""

import collections

from tools.stack import stack as stack_module


def reply_queues(stack: stack_module.Stack) -> collections.Counter[str]:
    """Number of reply queues by RabbitMQ user, which is the name of the process."""
    user_of_channel = dict(_rows(stack.rabbitmqctl("list_channels", "pid", "user")))
    users: collections.Counter[str] = collections.Counter()
    vhosts = ("/", *stack.settings.cell_names)
    for vhost in vhosts:
        consumers = stack.rabbitmqctl(
            "list_consumers", "--vhost", vhost, "queue_name", "channel_pid"
        )
        for queue, channel in _rows(consumers):
            if queue.startswith("reply_"):
                users[user_of_channel.get(channel, "?")] += 1
    return users


def _rows(output: str) -> list[tuple[str, str]]:
    lines = [line.split("\t") for line in output.splitlines()]
    return [(fields[0], fields[1]) for fields in lines if len(fields) == 2]
