# SPDX-License-Identifier: Apache-2.0
"""What processes say of themselves on the back end: their clocks, their memory, their number."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from nova_nodb_scheduler.cmd.doctor import findings
from nova_nodb_scheduler.cmd.overview import deployment
from nova_nodb_scheduler.observe import process_metrics
from nova_nodb_scheduler.synchronizer import contract

CLOCKS = "Clocks"
WORKERS = "Workers and their memory"

#: etcd tells its time in whole seconds; an NTP that works keeps milliseconds.
_APART_SECONDS = 2.0
#: A back end whose clock begins with its start is compared with nobody's.
_A_DATE_SECONDS = 1e9
_MIB = 1024 * 1024
_FULL = 0.9


def own_offset_seconds(synchronizer: contract.Synchronizer) -> float:
    """Return by how much this host's clock is ahead of the back end's.

    :raises NodbError: the back end does not answer
    """
    synchronizer.open_existing()
    try:
        began = time.time()
        theirs = synchronizer.now_seconds()
        return (began + time.time()) / 2 - theirs
    finally:
        synchronizer.close()


def clocks(found: deployment.Deployment, offset_seconds: float) -> list[findings.DoctorFinding]:
    """Tell whose clock differs: leases, heartbeats and logs are compared by them.

    :param offset_seconds: see :func:`own_offset_seconds`
    """
    remedy = "Let NTP keep the clocks of all control-plane hosts and of the back end together."
    apart = []
    # Of a clock that counts from its start only the differences between processes tell.
    is_date = found.backend.now_seconds > _A_DATE_SECONDS
    if is_date and abs(offset_seconds) > _APART_SECONDS:
        apart.append(f"The back end's clock is {_apart(-offset_seconds)} this host's.")
    compared = 0
    by_host: dict[str, float] = {}
    for each in (*found.schedulers, *found.reporters):
        theirs = each.get("clock_offset_seconds")
        if each["alive"] and theirs is not None:
            compared += 1
            by_host[str(each["host"])] = float(theirs) - offset_seconds
    apart += [
        f"The clock of {host} is {_apart(difference)} this host's."
        for host, difference in sorted(by_host.items())
        if abs(difference) > _APART_SECONDS
    ]
    if apart:
        return [findings.warning(CLOCKS, text, remedy) for text in apart]
    back_end = f"{abs(offset_seconds):.1f} s from the back end's" if is_date else "alone"
    return [
        findings.fine(CLOCKS, f"This host's is {back_end}; those of {len(by_host)} hosts agree.")
        if compared
        else findings.fine(CLOCKS, f"This host's is {back_end}; no process tells its own.")
    ]


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'}"


def counts(found: deployment.Deployment) -> dict[str, int]:
    """Return the processes that live, by role; several reporters of one process count once."""
    processes = {
        ("scheduler", each["host"], each["pid"]) for each in found.schedulers if each["alive"]
    } | {
        (str(each["role"]), each["host"], each["pid"]) for each in found.reporters if each["alive"]
    }
    totals: dict[str, int] = {}
    for role, _host, _pid in processes:
        totals[role] = totals.get(role, 0) + 1
    return totals


def hosts(found: deployment.Deployment) -> set[str]:
    """Return the hosts on which processes live."""
    return {str(each["host"]) for each in (*found.schedulers, *found.reporters) if each["alive"]}


def workers(found: deployment.Deployment, own_host: str) -> list[findings.DoctorFinding]:
    """Tell how much memory scheduler workers hold, each of which holds all hosts.

    :param own_host: ``[DEFAULT] host``: of its processes /proc knows more
    """
    by_host: dict[str, list[Mapping[str, Any]]] = {}
    for each in found.schedulers:
        if each["alive"]:
            by_host.setdefault(str(each["host"]), []).append(each)
    if not by_host:
        return [
            findings.unknown(
                WORKERS,
                "no scheduler with the plugin lives.",
                "Start nova-scheduler, and look again.",
            )
        ]
    return [
        finding
        for host, each in sorted(by_host.items())
        for finding in _of_host(host, each, is_own=host == own_host)
    ]


def _of_host(
    host: str, found: Collection[Mapping[str, Any]], *, is_own: bool
) -> list[findings.DoctorFinding]:
    sizes = [
        (process_metrics.resident_bytes(each["pid"]) if is_own else None) or each["memory_bytes"]
        for each in found
    ]
    known = [size for size in sizes if size is not None]
    text = f"{len(found)} scheduler workers on {host}"
    if len(known) < len(sizes):
        return [findings.fine(WORKERS, f"{text}; of an older release, which tells no memory.")]
    text += f" hold {sum(known) // _MIB} MiB, the largest {max(known) // _MIB}"
    machines = [tuple(each["machine_bytes"]) for each in found if each["machine_bytes"]]
    machine = process_metrics.machine_bytes() if is_own else None
    machine = machine or (machines[-1] if machines else None)
    if machine is None:
        return [findings.fine(WORKERS, f"{text}.")]
    total, available = machine
    text += f"; the machine has {total // _MIB}, of which {available // _MIB} are free."
    # A worker that is restarted reads everything beside what it will replace.
    if available < max(known) or sum(known) > _FULL * total:
        return [
            findings.warning(
                WORKERS,
                text,
                "Lower [scheduler] workers, or give the machine more memory: each worker holds "
                "all hosts, and one that starts needs as much as the largest.",
            )
        ]
    return [findings.fine(WORKERS, text)]
