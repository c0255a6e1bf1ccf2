# SPDX-License-Identifier: Apache-2.0
"""Judges how many workers nova-scheduler forks, each of which holds all hosts.

Nova's default is one for each CPU. Stock Nova needs them, for a worker spends seconds of a
core on a request; a worker of the plugin spends milliseconds, waits for Placement meanwhile,
and takes other requests in its threads.
"""

from __future__ import annotations

from nova_nodb_scheduler.cmd.overview import deployment
from nova_nodb_scheduler.cmd.upgrade_check import judgements

_OPTION = "[scheduler] workers"
_MIB = 1024 * 1024
#: Of a worker, Python and Nova included, with four servers a host (reference/performance).
_MEASURED_MIB = 250


def judge_workers(
    configured: int | None, cpus: int, found: deployment.Deployment | None
) -> judgements.Judgement:
    """Say whether nova.conf chose a number of workers.

    :param configured: None or 0 leave it to Nova
    :param cpus: of this machine; Nova's number then
    :param found: what schedulers say of themselves; None where that is not known
    """
    if configured:
        return judgements.success(f"{_OPTION} is {configured}.")
    unset = f"{_OPTION} is unset: nova-scheduler forks a worker for each CPU"
    if cpus < 2:
        return judgements.success(f"{unset}, one on this machine.")
    return judgements.warning(
        f"{unset}, {cpus} on this machine, and each holds all hosts: {_memory(cpus, found)}. "
        f"Set it to 1 on each host, or to 2 where one that is restarted has no other host "
        "beside it: a worker decides several requests at once, in its threads ([DEFAULT] "
        "executor_thread_pool_size, 64)."
    )


def _memory(cpus: int, found: deployment.Deployment | None) -> str:
    sizes = [
        each["memory_bytes"]
        for each in (found.schedulers if found is not None else ())
        if each["alive"] and each["memory_bytes"]
    ]
    if not sizes:
        return (
            "no scheduler that runs the plugin tells how much that is, some "
            f"{_MEASURED_MIB} MiB with 10,000 hosts"
        )
    largest = max(sizes)
    return (
        f"the largest that lives has {largest // _MIB} MiB, {cpus} of its size "
        f"{cpus * largest // _MIB} MiB"
    )
