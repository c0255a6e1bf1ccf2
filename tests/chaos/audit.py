# SPDX-License-Identifier: Apache-2.0
"""What is wrong in a snapshot: at any moment, and once nothing is under way any more."""

import collections
from collections.abc import Container, Iterable, Iterator

import attrs

from tests.chaos import snapshot as snapshot_module

OVER_COMMIT = "over-commit"
CROWDED = "crowded host"
GROUP = "broken group"
GROUP_LATE = "broken group while building"
UNALLOCATED = "no allocation"
MISPLACED = "allocation elsewhere"
STUCK = "stuck"
ORPHAN = "orphan"
ORPHAN_MIGRATION = "orphan of a move"

NO_SERVER = "a build request without a server"

AT_ANY_MOMENT = (OVER_COMMIT, CROWDED, GROUP, GROUP_LATE, UNALLOCATED, MISPLACED)
AFTER_QUIET = (STUCK, ORPHAN, ORPHAN_MIGRATION)


@attrs.frozen
class Finding:
    """One thing that is wrong.

    :param subject: uuid or name of what it is wrong with: the same in every sample
    :param excess: by how much, where that can be counted
    :param hosts: those that hold what they should not, or lack what they should hold; none where
        that is not all that is wrong
    :param placed: the servers that it is about, each with its host
    :param group: whose policy is broken
    :param state: a server's, ``vm_state``
    :param cell: the database of a server's cell; empty: of none; None: nobody can tell
    """

    kind: str
    subject: str
    detail: str
    excess: int = 0
    hosts: tuple[str, ...] = ()
    placed: tuple[tuple[str, str], ...] = ()
    group: snapshot_module.Group | None = None
    state: str | None = None
    cell: str | None = None


def at_any_moment(now: snapshot_module.Snapshot, leaving: Container[str] = ()) -> list[Finding]:
    """Return what may never be, not for a moment.

    :param leaving: uuids of servers whose deletion was asked for: Nova's API and a nova-compute
        that is building one see to it both, and one of them may be done with the allocation before
    """
    found = (finding for finding in misplaced(now) if finding.subject not in leaving)
    return [*over_committed(now), *_crowded(now), *_broken_groups(now), *found]


def after_quiet(now: snapshot_module.Snapshot) -> list[Finding]:
    """Return what may not last while nobody asks for anything."""
    return [*_stuck(now), *_orphans(now)]


def over_committed(now: snapshot_module.Snapshot) -> Iterator[Finding]:
    """Yield what has more allocated than there is; the subject is a provider and a class."""
    for (provider, kind), used in sorted(now.used.items()):
        capacity = now.capacity.get((provider, kind), 0.0)
        if used > capacity:
            detail = f"{used} of {capacity:.0f} {kind} are allocated on {provider}"
            yield Finding(OVER_COMMIT, f"{provider} {kind}", detail, int(used - capacity))


def _crowded(now: snapshot_module.Snapshot) -> Iterator[Finding]:
    """Hosts by the servers that say they stand there, whatever Placement says."""
    standing: dict[str, list[snapshot_module.Server]] = collections.defaultdict(list)
    for server in now.servers.values():
        if server.node and server.vm_state in ("active", "resized"):
            standing[server.node].append(server)
    for node, servers in sorted(standing.items()):
        capacity = now.capacity.get((node, "VCPU"), 0.0)
        vcpus = sum(server.vcpus for server in servers)
        if vcpus > capacity:
            who = "; ".join(f"{s.uuid} ({s.name} {s.vm_state}, {s.task_state})" for s in servers)
            where = f"stand on {node}, which has {capacity:.0f}"
            detail = f"servers with {vcpus} VCPU {where}: {who}"
            placed = tuple((server.uuid, node) for server in servers)
            yield Finding(CROWDED, node, detail, int(vcpus - capacity), placed=placed)


def _broken_groups(now: snapshot_module.Snapshot) -> Iterator[Finding]:
    for group in now.groups:
        if group.policy not in ("affinity", "anti-affinity"):
            continue
        members = [now.servers[uuid] for uuid in sorted(group.members) if uuid in now.servers]
        placed = [s for s in members if s.host and s.vm_state != "error" and not s.is_leaving]
        standing = [server for server in placed if server.vm_state != "building"]
        for kind, counted in ((GROUP, standing), (GROUP_LATE, placed)):
            told = _broken(group, counted)
            if told:
                where = tuple((server.uuid, server.host or "") for server in counted)
                yield Finding(kind, group.name, told, placed=where, group=group)
                break


def is_broken(group: snapshot_module.Group, hosts: Iterable[str]) -> bool:
    """Say whether members on such hosts, one for each member, break a strict group's policy."""
    counts = collections.Counter(hosts)
    if group.policy == "affinity":
        return len(counts) > 1
    return max(counts.values(), default=0) > group.most_per_host


def _broken(group: snapshot_module.Group, members: list[snapshot_module.Server]) -> str:
    """How members break their group's policy; empty if they keep it."""
    hosts = collections.defaultdict(list)
    for member in members:
        state = f"{member.name} {member.vm_state}, {member.task_state}"
        hosts[member.host].append(f"{member.uuid} ({state})")
    if group.policy == "affinity":
        wrong = dict(hosts) if len(hosts) > 1 else {}
    else:
        wrong = {host: there for host, there in hosts.items() if len(there) > group.most_per_host}
    told = "; ".join(f"{', '.join(there)} on {host}" for host, there in sorted(wrong.items()))
    return f"{group.policy} {group.name}: {told}" if told else ""


def misplaced(now: snapshot_module.Snapshot) -> Iterator[Finding]:
    """Yield servers that stand without their allocation, or with another one."""
    moving = {each.server for each in now.migrations.values() if each.is_under_way}
    for server in now.servers.values():
        if server.vm_state not in ("active", "resized") or server.task_state is not None:
            continue
        if server.uuid in moving:
            continue
        providers = set(now.allocated.get(server.uuid, {}))
        if not providers:
            detail = f"{server.name} is {server.vm_state} on {server.node}, without an allocation"
            yield Finding(UNALLOCATED, server.uuid, detail, hosts=(server.node or "",))
        elif providers != {server.node}:
            where = ", ".join(sorted(providers))
            detail = f"{server.name} is {server.vm_state} on {server.node}, allocated on {where}"
            # Without its own host's, another one's is not all that is wrong.
            others = providers - {server.node} if server.node in providers else ()
            yield Finding(MISPLACED, server.uuid, detail, hosts=tuple(sorted(others)))


def _stuck(now: snapshot_module.Snapshot) -> Iterator[Finding]:
    for server in now.servers.values():
        if not server.is_settled:
            detail = f"{server.name} is {server.vm_state}, {server.task_state} on {server.host}"
            state = server.vm_state
            yield Finding(STUCK, server.uuid, detail, state=state, cell=server.cell)
    for move in now.migrations.values():
        moved = now.servers.get(move.server)
        if move.is_under_way and moved is not None and moved.is_settled:
            detail = f"a move of {moved.name}, which is {moved.vm_state}, is {move.status}"
            yield Finding(STUCK, move.uuid, detail, cell=moved.cell)
    for uuid in sorted(now.build_requests - set(now.servers)):
        yield Finding(STUCK, uuid, NO_SERVER, cell="")


def _orphans(now: snapshot_module.Snapshot) -> Iterator[Finding]:
    moved = {each.server for each in now.migrations.values()}
    for consumer, providers in sorted(now.allocated.items()):
        hosts = tuple(sorted(providers))
        where = ", ".join(hosts)
        migration = now.migrations.get(consumer)
        server = now.servers.get(consumer)
        if migration is not None:
            if migration.is_over or migration.server not in now.servers:
                detail = f"a move of {migration.server} that is {migration.status} holds {where}"
                yield Finding(ORPHAN_MIGRATION, consumer, detail, hosts=hosts)
        elif server is not None:
            if server.vm_state == "error" and server.host is None:
                detail = f"{server.name}, which failed before it had a host, holds {where}"
                yield Finding(ORPHAN, consumer, detail, hosts=hosts)
            elif server.vm_state == "error" and consumer not in moved:
                others = tuple(host for host in hosts if host not in (server.host, server.node))
                if others:
                    detail = f"{server.name}, which failed on {server.host}, holds {where}"
                    yield Finding(ORPHAN, consumer, detail, hosts=others)
        elif consumer not in now.build_requests:
            told = f"a consumer that is nothing holds {where}"
            yield Finding(ORPHAN, consumer, told, hosts=hosts)
