# SPDX-License-Identifier: Apache-2.0
"""The list of the scenarios: numbers, names, and what each needs."""

from collections.abc import Callable

import attrs

from tests.faults import backends, hosts, moves, plugin_lines, processes, retirement
from tests.faults import trial as trial_module


@attrs.frozen
class Scenario:
    """One fault. ``short``: part of the short selection.

    :param retired: whether it is of a stack without Nova's tables of compute nodes, or of one with
        them; None: of both
    """

    number: int
    fault: str
    run: Callable[[trial_module.Trial], None]
    short: bool = False
    conductors_per_cell: int = 1
    retired: bool | None = None


ALL = (
    Scenario(1, "a scheduler killed", processes.scheduler_killed, short=True),
    Scenario(2, "one of two conductors killed", processes.conductor_killed, conductors_per_cell=2),
    Scenario(3, "MariaDB restarted", backends.mariadb_restarted),
    Scenario(4, "RabbitMQ restarted", backends.rabbitmq_restarted),
    Scenario(5, "memcached restarted", backends.memcached_restarted),
    Scenario(
        6, "the synchronizer's tables emptied", backends.tables_emptied, short=True, retired=False
    ),
    Scenario(
        7,
        "one of two conductors without the plugin's lines",
        plugin_lines.one_conductor_without,
        conductors_per_cell=2,
        retired=False,
    ),
    Scenario(
        8,
        "one conductor's back end stalls for 30 s",
        backends.one_back_end_stalls,
        conductors_per_cell=2,
    ),
    Scenario(9, "a dead host forced down and back", hosts.dead_host_forced_down, short=True),
    Scenario(10, "a scheduler paused for 3 minutes", processes.scheduler_paused),
    Scenario(11, "a service deleted, a host renamed", hosts.service_deleted_host_renamed),
    Scenario(
        12, "rolling switch-off and switch-on", plugin_lines.rolling_there_and_back, retired=False
    ),
    Scenario(13, "every conductor of a cell killed", processes.every_conductor_of_a_cell_killed),
    Scenario(14, "a dead host nobody forces down", hosts.dead_host_not_told),
    Scenario(15, "moved to Redis and back", moves.to_redis_and_back, retired=False),
    Scenario(16, "Placement restarted", backends.placement_restarted),
    Scenario(17, "Placement paused for 30 s", backends.placement_paused),
    Scenario(18, "moved to memcached and back", moves.to_memcached_and_back, retired=False),
    Scenario(
        19, "restore and retire killed behind each change", retirement.command_killed, retired=True
    ),
    Scenario(
        20,
        "nodes made in one conductor, read in another",
        retirement.read_in_another_conductor,
        conductors_per_cell=2,
        retired=True,
    ),
    Scenario(
        21,
        "a conductor without the plugin's lines, no table",
        retirement.stock_conductor,
        conductors_per_cell=2,
        retired=True,
    ),
    Scenario(
        22,
        "the back end restored from yesterday, no table",
        retirement.restored_from_yesterday,
        retired=True,
    ),
)
