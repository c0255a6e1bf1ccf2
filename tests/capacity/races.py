# SPDX-License-Identifier: Apache-2.0
"""The races: more requests than there is room for, all at once."""

import collections
import concurrent.futures
import contextlib
import time
from collections.abc import Callable
from typing import Any

import attrs

from tests.capacity import ledger as ledger_module
from tests.chaos import snapshot as snapshot_module
from tools.stack import cloud as stack_cloud
from tools.stack import stack as stack_module

SETTLED_SECONDS = 300.0
_NO_VALID_HOST = "No valid host was found"


@attrs.frozen
class Run:
    """What became of one run.

    :param refused: servers in ERROR because no host was valid
    :param other: servers that ended in any other way
    :param reschedules: attempts to build a server beyond its first
    :param failed_builds: attempts on the host where builds fail
    :param late_checks_failed: times a compute found the group's policy broken
    :param crowded: servers beyond what their host has room for, or their group allows there
    :param over_allocated: most given away beyond what a host offers, at any moment
    :param faults: what became of the servers that ended in another way
    :param unseen: why Placement's tables could not be looked at, of each time
    """

    race: str
    number: int
    active: int
    refused: int
    other: int
    reschedules: int
    failed_builds: int
    late_checks_failed: int
    crowded: int
    over_allocated: int
    samples: int
    seconds: float
    faults: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


@attrs.frozen
class Race:
    """A kind of run.

    :param requests: asked for, at the same time
    :param slots: how many of them there is room for
    :param per_host: how many of them a host may have
    :param group: policy of the server group that all are of
    :param failing_host: builds fail there, and each finds room on an alternate
    """

    name: str
    requests: int
    slots: int
    per_host: int
    group: str | None = None
    failing_host: str | None = None

    def kept(self, run: Run) -> bool:
        """Say whether a run went as promised."""
        if run.late_checks_failed or run.crowded or run.over_allocated:
            return False
        if run.unseen or not run.samples:
            return False
        if run.reschedules != run.failed_builds:
            return False
        active = min(self.slots, self.requests)
        return (run.active, run.refused, run.other) == (active, self.requests - active, 0)


def races(hosts: int, vcpus_per_host: int) -> tuple[Race, ...]:
    """Return the races for a stack: 24 slots and 40 requests with six hosts of four VCPU."""
    slots = hosts * vcpus_per_host
    return (
        Race("slots", slots * 5 // 3, slots, vcpus_per_host),
        Race("group", 2 * hosts, hosts, 1, group="anti-affinity"),
    )


def races_with_failing_builds(
    hosts: int, vcpus_per_host: int, failing_host: str
) -> tuple[Race, ...]:
    """Return those where every build on one host fails and the others have room for all."""
    slots = (hosts - 1) * vcpus_per_host
    return (
        Race("slots", slots * 4 // 5, slots, vcpus_per_host, failing_host=failing_host),
        Race("group", hosts - 1, hosts - 1, 1, "anti-affinity", failing_host),
    )


def run(race: Race, number: int, stack: stack_module.Stack, say: Callable[[str], None]) -> Run:
    """Run a race once and leave the cloud empty again."""
    begin = time.monotonic()
    cloud = stack.cloud
    image = cloud.image_id()
    more: dict[str, Any] = {}
    if race.group is not None:
        more["group"] = cloud.create_group(f"race-{race.name}-{number}", race.group)
    violated = ledger_module.late_checks_failed(stack.settings)
    with (
        contextlib.closing(snapshot_module.Reader(stack.settings)) as reader,
        ledger_module.OverCommitWatch(reader.snapshot) as watch,
    ):
        names = [f"race-{race.name}-{number}-{i:02}" for i in range(race.requests)]
        with concurrent.futures.ThreadPoolExecutor(race.requests) as pool:
            ids = list(pool.map(lambda name: cloud.boot(name, image, "42", **more), names))
        servers = cloud.wait_settled(ids, SETTLED_SECONDS)
        now = watch.look()
    seconds = time.monotonic() - begin
    found = _found(race, number, stack, servers, watch, now, seconds, violated)
    say(
        f"{race.name} {number}: {found.active} ACTIVE, {found.refused} refused, {found.other} "
        f"other, {found.reschedules} reschedules, {found.seconds:.0f} s"
    )
    cloud.delete_servers(ids, SETTLED_SECONDS)
    return found


def _found(
    race: Race,
    number: int,
    stack: stack_module.Stack,
    servers: list[stack_cloud.Json],
    watch: ledger_module.OverCommitWatch,
    now: snapshot_module.Snapshot,
    seconds: float,
    violated: int,
) -> Run:
    ids = [str(server["id"]) for server in servers]
    active = [server for server in servers if server["status"] == "ACTIVE"]
    refused = [server for server in servers if _is_refused(server)]
    standing = ledger_module.standing(now, [str(server["id"]) for server in active])
    builds = ledger_module.builds(stack, ids)
    attempts = collections.Counter(build.server for build in builds)
    return Run(
        race=race.name,
        number=number,
        active=len(active),
        refused=len(refused),
        other=race.requests - len(active) - len(refused),
        reschedules=sum(count - 1 for count in attempts.values()),
        failed_builds=sum(build.host == race.failing_host for build in builds),
        late_checks_failed=ledger_module.late_checks_failed(stack.settings) - violated,
        crowded=sum(max(0, len(there) - race.per_host) for there in standing.values()),
        over_allocated=watch.over_allocated,
        samples=watch.samples,
        seconds=seconds,
        faults=_other_faults(servers),
        unseen=tuple(watch.failures),
    )


def _is_refused(server: stack_cloud.Json) -> bool:
    message = server.get("fault", {}).get("message", "")
    return server["status"] == "ERROR" and _NO_VALID_HOST in message


def _other_faults(servers: list[stack_cloud.Json]) -> tuple[str, ...]:
    return tuple(
        f"{server['name']} is {server['status']}: {server.get('fault', {}).get('message', '')}"
        for server in servers
        if server["status"] != "ACTIVE" and not _is_refused(server)
    )
