# SPDX-License-Identifier: Apache-2.0
"""One round: an empty cloud, clients and faults, quiet, an audit, and an empty cloud again."""

import collections
import datetime
import pathlib
import subprocess
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import pymysql
from keystoneauth1 import exceptions as keystone_exceptions

from tests.chaos import audit, clients, deployment, injection, ledger, plan, usage_history
from tests.chaos import snapshot as snapshot_module
from tests.chaos.logs import decision_lines, novas_own, withdrawals
from tests.faults import trial as faults_trial
from tests.faults import watch as watch_module
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

QUIET_SECONDS = 300.0
"""How long what is under way may take to settle: a conductor asks a second and a third scheduler
when one did not answer for a minute."""
ORPHAN_SECONDS = 120.0
"""How long what lies about may take to be taken away then: twice the interval of nova-compute's."""
MEMORY_SECONDS = 180.0
COMPARE_SECONDS = 120.0
FILL_SECONDS = 180.0
REPORT_SECONDS = 150.0
"""How long a nova-compute may be taken for dead behind the faults: it waits a minute for the answer
to a report that a bus lost, and is dead to all for as long as that."""

NO_MEMORY = "not from memory again"
COMPARE = "compare differs"
NO_SERVICE = "a service stays down"
ENDED = "a service ended by itself"
TRACELESS = "requests without a trace"
ROOM_LOST = "room that nobody gets"
BROKEN_RUN = "the round itself"

_ASK_AGAIN_SECONDS = 20.0
_SAMPLE_SECONDS = 30.0
_RPC_SECONDS = 60.0
"""Nova's own ``rpc_response_timeout``."""
_LOST_SECONDS = 40.0
"""In one state, beyond a call that is answered by nobody: what its caller does then."""
_NO_PROGRESS_SECONDS = 90.0
_NO_HOPE_SECONDS = 25.0
"""Where all that does not go is told already; it was asked for once more within them."""
_BLIND_SECONDS = 60.0
#: What a request before a refused one had claimed by then is written behind the refusal.
_CLAIMED_SECONDS = 12.0
"""Longer than a server is stopped, or killed and started; what went on meanwhile nobody saw."""
_FREE_LEASES = 1.5
_BEYOND = 2
_CELL0 = "nova_cell0"
_LOG_SECONDS = 1.0
"""A sample of what a log tells may be that much older than its line."""
"""Servers asked for beyond the last slot, when all is quiet."""
_REASONS = {
    "No valid host was found": "no valid host",
    "Timed out waiting for a reply": "timed out",
    "MessagingTimeout": "timed out",
    "Exceeded maximum number of retries": "builds failed",
    "Build of instance": "builds failed",
    "Failed to update allocations": "allocation in doubt",
}

Say = Callable[[str], None]


@attrs.frozen
class Outcome:
    """What became of one round.

    :param control_plane: see :attr:`.deployment.Shape.control_plane`
    :param kinds: of faults that were drawn from
    :param plan: the faults, in their order
    :param slots: servers that there is room for
    :param most_active: that stood at once, in any sample
    :param ends: what became of the servers that were asked for
    :param withdrawn: hosts that held too much until who wrote it took it back, unanswered; no
        finding, see :mod:`.grants`
    :param room_throughout: servers refused while all of their request had room in every sample of
        its time and for 12 s behind it, each on its host; None: nobody looked
    :param room_at_every_moment: of these, those that had it between the samples, too, see
        :mod:`.usage_history`; None: nobody looked
    :param lost: what is stuck where Nova itself loses requests, see
        :meth:`.plan.Fault.loses_in_stock`; no finding
    :param left_by_nova: build requests and allocations of moves that Nova itself left, proved by
        :mod:`.logs.novas_own`: each with its uuid and the line of the log; no finding
    :param answer_p99_seconds: from a request for a server until it was seen ACTIVE or in ERROR
    :param call_p99_seconds: of calls of the API
    :param quiet_seconds: from the end of the faults until nothing was under way or lay about; None:
        not within the bound
    :param memory_seconds: from the end of the faults until every cell was served from memory
    :param fallbacks: requests that left memory, by reason, by the schedulers' logs
    :param blind_seconds: the longest time without a sample
    :param own_path: see :class:`.deployment.Shape`
    :param phases: seconds of each step of it, in their order
    :param revision: of the code; empty where nobody filed it
    """

    seed: int
    control_plane: str
    kinds: tuple[str, ...]
    plan: tuple[str, ...]
    seconds: float
    slots: int
    asked: int
    ends: Mapping[str, int]
    done: Mapping[str, int]
    calls: Mapping[str, int]
    most_active: int
    active_at_end: int
    findings: tuple[Mapping[str, Any], ...]
    lost: tuple[str, ...]
    answer_p50_seconds: float
    answer_p99_seconds: float
    answer_longest_seconds: float
    call_p99_seconds: float
    call_longest_seconds: float
    quiet_seconds: float | None
    memory_seconds: float | None
    fallbacks: Mapping[str, int]
    samples: int
    blind_seconds: float
    revived: tuple[str, ...]
    notes: tuple[str, ...]
    run_on: str
    withdrawn: tuple[Mapping[str, Any], ...] = ()
    left_by_nova: tuple[str, ...] = ()
    own_path: str | None = None
    phases: Mapping[str, float] = attrs.field(factory=dict)
    revision: str = ""
    room_throughout: int | None = None
    room_at_every_moment: int | None = None

    def subjects(self, *kinds: str) -> int:
        """Return how many hosts, groups or servers findings of some kinds are about."""
        # Of a host each resource class is found.
        found = {str(f["subject"]).split(" ", 1)[0] for f in self.findings if f["kind"] in kinds}
        return len(found)


class Rounds:
    """Rounds on one deployment, one after the other.

    :param watch: of the schedulers; None where the plugin is off
    :param say: told what happens
    """

    def __init__(
        self,
        deployed: deployment.Deployment,
        watch: watch_module.Watch | None,
        clients_count: int,
        servers_per_client: int,
        say: Say,
    ) -> None:
        self._deployed = deployed
        self._stack = deployed.stack
        self._watch = watch
        self._clients_count = clients_count
        self._servers_per_client = servers_per_client
        self._say = say
        self._logs = NovasLogs(
            novas_own.ServiceLogs(self._service_logs("conductor"), novas_own.abandoned),
            novas_own.ServiceLogs(self._service_logs("compute"), novas_own.unfreed),
            novas_own.ServiceLogs(self._service_logs("compute"), novas_own.undone),
            novas_own.ServiceLogs(self._service_logs("scheduler"), novas_own.untold),
            novas_own.ServiceLogs(self._service_logs("conductor"), novas_own.unreverted),
            novas_own.ServiceLogs(self._service_logs("compute"), novas_own.not_reverted),
            novas_own.ServiceLogs(self._service_logs("compute"), novas_own.migrations),
            novas_own.ServiceLogs(self._service_logs("conductor"), novas_own.ended_burials),
            novas_own.ServiceLogs(self._service_logs("scheduler"), novas_own.requests),
            novas_own.ServiceLogs(
                [*self._service_logs("compute"), *self._service_logs("api")], novas_own.freed
            ),
            novas_own.ServiceLogs(self._service_logs("conductor"), novas_own.given_up_moves),
            novas_own.ServiceLogs(self._service_logs("scheduler"), novas_own.selected),
            novas_own.ServiceLogs(self._service_logs("compute"), novas_own.deleted_moves),
            novas_own.ServiceLogs(self._service_logs("api"), novas_own.confirmed),
            sends_again=deployed.shape.wait_seconds > 0,
        )
        #: What earlier rounds found, and may have left.
        self._counted: set[str] = set()

    def _service_logs(self, kind: str) -> list[pathlib.Path]:
        names = (*self._stack.settings.control_plane_names, *self._stack.settings.compute_names)
        return [self._stack.settings.log / f"{name}.log" for name in names if kind in name]

    def run(self, seed: int, faults: Sequence[plan.Fault], seconds: float) -> Outcome:
        """Run one round; what goes wrong with the cloud is in its outcome, and never raised."""
        if not self._deployed.shape.with_plugin:
            faults = plan.without_backend(faults)
        reader = snapshot_module.Reader(self._stack.settings)
        left = AfterQuiet(self._logs, self._counted)
        rpc_seconds = self._deployed.shape.rpc_seconds or _RPC_SECONDS
        lost_seconds = rpc_seconds + _LOST_SECONDS
        round_ = _Round(self._stack, self._watch, seed, faults, self._say, left, lost_seconds)
        if self._watch is not None:
            round_.wait_memory()
            self._watch.begin()
        try:
            told = withdrawals.since_now(
                [
                    *self._service_logs("scheduler"),
                    # For alternates, and forced moves.
                    *self._service_logs("conductor"),
                    self._stack.settings.log / "placement.log",
                ]
            )
            with ledger.Ledger(reader.snapshot, told) as watched:
                outcome = self._go(round_, watched, faults, seconds)
        finally:
            reader.close()
        self._counted |= {str(finding["subject"]) for finding in outcome.findings}
        self._counted |= round_.lost.keys() | left.by_nova.keys()
        return outcome

    def _go(
        self,
        round_: "_Round",
        watched: ledger.Ledger,
        faults: Sequence[plan.Fault],
        seconds: float,
    ) -> Outcome:
        shape = self._deployed.shape
        settings = self._stack.settings
        lines = decision_lines.DecisionLines(
            settings.log / f"{name}.log" for name in settings.scheduler_names
        )
        began = time.monotonic()
        work = clients.Workload(
            self._stack.cloud,
            round_.prefix,
            round_.seed,
            self._clients_count,
            self._servers_per_client,
            lambda: watched.latest,
            watched.leaving,
        )
        injector = injection.Injection(
            self._stack, self._deployed.backend, self._deployed.links, self._say
        )
        with injector:
            with work:
                injector.begin(faults)
                round_.begin(injector.began)
                time.sleep(max(0.0, began + seconds - time.monotonic()))
            round_.say("clients stopped")
            round_.ended("clients")
            injector.wait()
            healed = time.monotonic()
            round_.say("faults over, everything runs")
            round_.ended("rest of the faults")
            memory_seconds = round_.wait_memory(watched, healed) if self._watch else None
            round_.ended("memory")
            quiet_seconds = round_.wait_quiet(watched, healed)
            active_at_end = watched.latest.active() if watched.latest else 0
            round_.ended("quiet")
            if self._watch:
                round_.compare(watched)
            round_.ended("compare")
            # What a scheduler that died had claimed is held for a lease.
            wait = healed + _FREE_LEASES * shape.lease_seconds - time.monotonic()
            time.sleep(max(0.0, wait if shape.with_plugin else 0.0))
            round_.ended("leases")
            round_.wait_services(watched, healed)
            round_.ended("services")
            round_.fill(watched)
            if self._watch:
                # What came back must have stayed.
                round_.wait_memory(watched)
            round_.ended("last slots")
            fallbacks = lines.left_memory()
            ends = round_.ends(work, watched)
            usage = round_.usage_through_time(watched)
            round_.empty(watched, work)
            round_.ended("emptying")
        failures = [*injector.failures, *work.errors, *watched.failures]
        if watched.blind_seconds > _BLIND_SECONDS:
            failures.append(f"blind for {watched.blind_seconds:.0f} s")
        broken = [audit.Finding(BROKEN_RUN, told, told) for told in failures]
        watched.note([*broken, *ended_by_themselves(injector.ended, faults)], time.monotonic())
        answers = round_.answers(work, watched)
        refused = round_.refused_with_room(work, watched, ends, usage)
        calls = work.calls.seconds()
        latest = watched.latest
        told = Told(
            undone={_host_of(name): of for name, of in self._logs.builds.by_process().items()},
            unfreed=self._logs.unfreed(),
            untold=tuple(self._logs.schedulers.left().values()),
            nodes=latest.provider_uuids if latest else {},
            began=watched.clock_ahead_seconds,
            history=watched,
        )
        seen, novas = by_nova(watched.seen(), told)
        found = ledger.merged(seen)
        return Outcome(
            seed=round_.seed,
            control_plane=shape.control_plane,
            kinds=shape.kinds,
            plan=tuple(map(str, faults)),
            seconds=round(time.monotonic() - began, 1),
            slots=watched.latest.slots() if watched.latest else 0,
            asked=len(work.asked),
            ends=dict(collections.Counter(ends.values())),
            done=dict(work.done),
            calls=work.calls.answers(),
            most_active=watched.most_active,
            active_at_end=active_at_end,
            room_throughout=len(refused),
            room_at_every_moment=None if usage is None else sum(refused.values()),
            lost=tuple(f"{uuid}: {told}" for uuid, told in sorted(round_.lost.items())),
            findings=tuple(map(_told_of, found)),
            withdrawn=tuple(map(_told_of, watched.withdrawn())),
            left_by_nova=tuple(
                f"{subject}: {line}"
                for subject, line in sorted({**round_.left.by_nova, **novas}.items())
            ),
            answer_p50_seconds=_quantile(answers, 0.5),
            answer_p99_seconds=_quantile(answers, 0.99),
            answer_longest_seconds=_quantile(answers, 1.0),
            call_p99_seconds=_quantile(calls, 0.99),
            call_longest_seconds=_quantile(calls, 1.0),
            quiet_seconds=quiet_seconds,
            memory_seconds=memory_seconds,
            fallbacks=fallbacks,
            samples=watched.samples,
            blind_seconds=round(watched.blind_seconds, 1),
            revived=tuple(injector.revived),
            notes=tuple(round_.notes),
            run_on=datetime.datetime.now(datetime.UTC).date().isoformat(),
            own_path=shape.own_path,
            phases=round_.phases,
        )


def _told_of(record: ledger.Record) -> dict[str, Any]:
    """Return what is kept of a record."""
    return attrs.asdict(record, filter=lambda field, _value: field.name != "finding")


def ended_by_themselves(
    ended: Iterable[tuple[str, float]], faults: Collection[plan.Fault]
) -> list[audit.Finding]:
    """Return the services that ended by themselves while nothing that they need was away.

    :param ended: names of processes, and when that was seen, in seconds of the round
    """
    return [
        audit.Finding(ENDED, name, f"{name} had ended by itself {at:.1f} s into the round")
        for name, at in ended
        if not any(fault.ends_others(at) for fault in faults)
    ]


def unfinished(
    seed: int, shape: deployment.Shape, faults: Iterable[plan.Fault], why: str
) -> Outcome:
    """Return what is kept of a round that broke off: it found something, whatever it was."""
    finding = audit.Finding(BROKEN_RUN, "round", why)
    return Outcome(
        seed=seed,
        control_plane=shape.control_plane,
        kinds=shape.kinds,
        plan=tuple(map(str, faults)),
        seconds=0.0,
        slots=0,
        asked=0,
        ends={},
        done={},
        calls={},
        most_active=0,
        active_at_end=0,
        findings=(_told_of(ledger.Record(finding.kind, finding.subject, why, 0.0, 0.0)),),
        lost=(),
        answer_p50_seconds=0.0,
        answer_p99_seconds=0.0,
        answer_longest_seconds=0.0,
        call_p99_seconds=0.0,
        call_longest_seconds=0.0,
        quiet_seconds=None,
        memory_seconds=None,
        fallbacks={},
        samples=0,
        blind_seconds=0.0,
        revived=(),
        notes=(),
        run_on=datetime.datetime.now(datetime.UTC).date().isoformat(),
        own_path=shape.own_path,
    )


@attrs.frozen
class NovasLogs:
    """Of the services that leave things behind by themselves; see :mod:`.logs.novas_own`.

    :ivar sends_again: a server that a nova-compute gave up is sent again, and a request whose
        conductor ended is taken up by another: they may not be stuck
    """

    conductors: novas_own.ServiceLogs[novas_own.Abandoned]
    computes: novas_own.ServiceLogs[novas_own.Unfreed]
    builds: novas_own.ServiceLogs[novas_own.Undone]
    schedulers: novas_own.ServiceLogs[novas_own.Untold]
    moves: novas_own.ServiceLogs[novas_own.Unfreed]
    reverts: novas_own.ServiceLogs[str]
    migrations: novas_own.ServiceLogs[str]
    burials: novas_own.ServiceLogs[novas_own.EndedBurial]
    requests: novas_own.ServiceLogs[str]
    freed: novas_own.ServiceLogs[str]
    given_up_moves: novas_own.ServiceLogs[novas_own.LateMove]
    selected: novas_own.ServiceLogs[novas_own.LateMove]
    deleted_moves: novas_own.ServiceLogs[novas_own.Unfreed]
    confirmed: novas_own.ServiceLogs[str]
    sends_again: bool = False

    def proof(self, finding: audit.Finding) -> str | None:
        """Return the line by which Nova itself left what was found; None without one."""
        left: (
            novas_own.Abandoned
            | novas_own.EndedBurial
            | novas_own.Unfreed
            | novas_own.Undone
            | None
        ) = None
        if _is_build_request(finding):
            left = self.conductors.left().get(finding.subject)
            if left is None and not self.sends_again:
                asked, burials = self.requests.left(), self.burials.left()
                left = novas_own.unburied(finding.subject, asked, burials)
        elif finding.kind in (audit.ORPHAN, audit.ORPHAN_MIGRATION):
            left = self._unfreed(finding)
            left = left or self.moves.left().get(finding.subject)
            left = left or self._unconfirmed(finding.subject)
            if left is None:
                server = self.migrations.left().get(finding.subject, "")
                return self.reverts.left().get(server)
        elif finding.state == "building" and not self.sends_again:
            # Its first call was lost, with a conductor or RabbitMQ, and so was what it says then.
            left = self.builds.left().get(finding.subject)
        return None if left is None else left.line

    def _unconfirmed(self, migration: str) -> novas_own.Unfreed | None:
        """Return the deletion that left what a migration holds; None where it is not known."""
        deleted = self.deleted_moves.left().get(migration)
        if deleted is None or deleted.server in self.confirmed.left():
            return None
        return deleted

    def unfreed(self) -> dict[str, dict[str, novas_own.Unfreed]]:
        """Return what nobody freed, by host and consumer."""
        found = novas_own.late_answers(self.given_up_moves.left(), self.selected.left())
        for name, of in self.computes.by_process().items():
            found.setdefault(_host_of(name), {}).update(of)
        return found

    def _unfreed(self, finding: audit.Finding) -> novas_own.Unfreed | None:
        """Return why nobody freed what a consumer holds; of a server, on each of its hosts."""
        found = self.computes.left().get(finding.subject)
        if found is None or found.consumer != found.server:
            return found
        by_host = {_host_of(name): of for name, of in self.computes.by_process().items()}
        is_all = all(finding.subject in by_host.get(host, {}) for host in finding.hosts)
        return found if finding.hosts and is_all else None


def _host_of(compute: str) -> str:
    return compute.replace("nova-compute-", "host")


class History(Protocol):
    """When servers were first seen, in seconds of the round; None: never."""

    def first_seen(self, uuid: str) -> float | None: ...

    def there_since(self, uuid: str, host: str) -> float | None: ...


@attrs.frozen
class Told:
    """What services' logs prove of a round that Nova did by itself.

    :param undone: by host, and by server
    :param unfreed: likewise, of builds
    :param nodes: providers' uuids, by host
    :param began: of the round, in seconds since the epoch
    """

    undone: Mapping[str, Mapping[str, novas_own.Undone]] = attrs.field(factory=dict)
    unfreed: Mapping[str, Mapping[str, novas_own.Unfreed]] = attrs.field(factory=dict)
    untold: Collection[novas_own.Untold] = ()
    nodes: Mapping[str, str] = attrs.field(factory=dict)
    began: float = 0.0
    history: History | None = None

    def lines(self, record: ledger.Record) -> list[str]:
        """Return the lines that tell all of what a record is of; none if they do not."""
        finding = record.finding
        if finding is None:
            return []
        until = self.began + record.first_seconds + _LOG_SECONDS
        if record.kind == audit.UNALLOCATED:
            return self._all(self.undone, finding.subject, finding.hosts, until)
        if record.kind == audit.MISPLACED:
            return self._all(self.unfreed, finding.subject, finding.hosts, until)
        if record.kind == audit.GROUP_LATE:
            return self._of_group(finding, until)
        if record.kind == audit.CROWDED:
            told = [self._all(self.undone, who, (host,), until) for who, host in finding.placed]
            there = [line for lines in told for line in lines]
            return there if finding.excess <= len(there) else []
        return []

    def _all(
        self,
        told: Mapping[str, Mapping[str, novas_own.Undone | novas_own.Unfreed]],
        server: str,
        hosts: Collection[str],
        until: float,
    ) -> list[str]:
        """Return a line of a server for each of some hosts; none where one has none by then."""
        found = [told.get(host, {}).get(server) for host in hosts]
        lines = [
            each.line
            for each in found
            if each is not None
            and each.at <= until
            and (isinstance(each, novas_own.Unfreed) or each.stands)
        ]
        return lines if len(lines) == len(hosts) else []

    def _of_group(self, finding: audit.Finding, until: float) -> list[str]:
        """Return the lines of members but for which the group's policy is kept.

        Whom a member meets that stood there before it was asked for, it could have seen.
        """
        assert finding.group is not None
        lines: dict[tuple[str, str], str] = {}
        for each in self.untold:
            for server, host in finding.placed:
                is_it = each.server == server and each.node == self.nodes.get(host)
                if is_it and each.group == finding.group.uuid and each.at <= until:
                    lines[server, host] = each.line
        unseen = {
            (server, host)
            for server, host in lines
            if not any(
                self._stood_before(other, server)
                for other in finding.placed
                if other not in lines and (other[1] == host) != (finding.group.policy == "affinity")
            )
        }
        kept = [host for server, host in finding.placed if (server, host) not in unseen]
        if audit.is_broken(finding.group, kept):
            return []
        return [lines[each] for each in sorted(unseen)]

    def _stood_before(self, other: tuple[str, str], server: str) -> bool:
        """Say whether a member was on its host before another one was asked for."""
        if self.history is None:
            return False
        asked, there = self.history.first_seen(server), self.history.there_since(*other)
        return asked is not None and there is not None and there < asked


def by_nova(
    records: Iterable[ledger.Record], told: Told
) -> tuple[list[ledger.Record], dict[str, str]]:
    """Tell what is wrong from what only follows from servers that Nova took theirs from.

    A host may be crowded by no more than such servers that stand there, for Placement gave their
    room to others. A server that was built elsewhere may hold what its first host did not free.
    A group whose member nobody could be told of is Nova's to look at while it is built.

    :param records: one for each way in which something was wrong, see :meth:`.ledger.Ledger.seen`
    :returns: what is left, and by the subject of what is not what it was, with a line of a log
    """
    left: list[ledger.Record] = []
    novas: dict[str, str] = {}
    for record in records:
        lines = told.lines(record)
        if lines:
            novas.setdefault(record.subject, f"{record.kind}, {record.detail}; {lines[0]}")
            continue
        left.append(record)
    return left, novas


class AfterQuiet:
    """Tells what a round left from what an earlier one did, and from what Nova itself leaves.

    :param counted: uuids that an earlier round counted; nothing is counted twice
    :ivar by_nova: by what Nova left, servers with a build request and migrations with an
        allocation among it, what was found, with a line of a log
    """

    def __init__(self, logs: NovasLogs, counted: Collection[str]) -> None:
        self._logs = logs
        self._counted = frozenset(counted)
        self.by_nova: dict[str, str] = {}

    def findings(self, now: snapshot_module.Snapshot) -> list[audit.Finding]:
        """Return what may not last and is this round's; see :func:`audit.after_quiet`."""
        findings = []
        for each in audit.after_quiet(now):
            if each.subject in self._counted:
                continue
            line = self._logs.proof(each)
            if line is None:
                findings.append(each)
            else:
                self.by_nova[each.subject] = f"{each.kind}, {each.detail}; {line}"
        return findings

    def unended(
        self, now: snapshot_module.Snapshot, leaving: Container[str]
    ) -> list[audit.Finding]:
        """Return what servers lack that nobody deletes any more, though that was asked for.

        At other moments such servers are let alone: see :func:`audit.at_any_moment`. Who began
        with a deletion and lost it has freed the allocation, and says so.
        """
        findings = []
        for each in audit.misplaced(now):
            if each.subject not in leaving:
                continue
            line = self._logs.freed.left().get(each.subject)
            if line is None or each.kind != audit.UNALLOCATED:
                findings.append(each)
            else:
                self.by_nova[each.subject] = f"{each.kind}, {each.detail}; {line}"
        return findings


class _Round:
    """The steps of a round that come behind its faults."""

    def __init__(
        self,
        stack: stack_module.Stack,
        watch: watch_module.Watch | None,
        seed: int,
        faults: Sequence[plan.Fault],
        say: Say,
        left: AfterQuiet,
        lost_seconds: float,
    ) -> None:
        self.seed = seed
        self.left = left
        self.phases: dict[str, float] = {}
        self._phase_began = time.monotonic()
        self._lost_seconds = lost_seconds
        self._faults = faults
        self.prefix = f"chaos{seed}-{int(time.time()) % 100000}-"
        self.notes: list[str] = []
        self.lost: dict[str, str] = {}
        self._stack = stack
        self._watch = watch
        self._say = say
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def begin(self, at: float) -> None:
        """The faults' times count from now on (monotonic)."""
        self._began = self._phase_began = at

    def ended(self, phase: str) -> None:
        """Keep how long a step took, from the end of the one before."""
        now = time.monotonic()
        self.phases[phase] = round(now - self._phase_began, 1)
        self._phase_began = now

    # -- waits ----------------------------------------------------------------------------

    def wait_quiet(self, watched: ledger.Ledger, since: float) -> float | None:
        """Wait until nothing is under way and nothing lies about; what does not end is kept.

        Returns the seconds since a moment; None if it does not come.
        """
        begun = asked_again = time.monotonic()
        deadline = begun + QUIET_SECONDS
        found: list[audit.Finding] | None = None
        while time.monotonic() < deadline:
            now = watched.wait_newer(time.monotonic(), _SAMPLE_SECONDS)
            if now is None:
                continue
            left = self.left.findings(now)
            found = [finding for finding in left if not self._is_lost(finding, watched)]
            if not found:
                self._keep(left, watched)
                watched.note(self.left.unended(now, watched.leaving), time.monotonic())
                seconds = time.monotonic() - since
                self.say(f"nothing is under way any more after {seconds:.1f} s")
                return round(seconds, 1)
            if any(finding.kind == audit.STUCK for finding in found):
                deadline = begun + QUIET_SECONDS
            else:
                deadline = min(deadline, time.monotonic() + ORPHAN_SECONDS)
                # A scheduler may have had the request in hand until then.
                written = max(watched.allocated_since(finding.subject) for finding in found)
                deadline = min(begun + QUIET_SECONDS, max(deadline, written + ORPHAN_SECONDS))
            if time.monotonic() > asked_again + _ASK_AGAIN_SECONDS:
                # Clients ask again; Nova forgets a deletion whose API worker ended.
                asked_again = time.monotonic()
                self._delete([s.uuid for s in now.servers.values() if s.is_leaving], watched)
                self.say(f"{len(found)} are under way or lie about, such as: {found[0].detail}")
        if found is None:
            found = [audit.Finding(BROKEN_RUN, "blind", "the databases could not be read")]
        self.say(f"{len(found)} do not end: {found[0].kind}: {found[0].detail}")
        self._keep(found, watched)
        return None

    def _is_lost(self, finding: audit.Finding, watched: ledger.Ledger) -> bool:
        """Whether Nova itself lost it, as far as one can tell, and will not find it again."""
        since = watched.in_state_since(finding.subject)
        # What a conductor or its database loses in mid-move holds the source's room for good,
        # behind the server's deletion, too. Schedulers allocate for servers, never for moves.
        is_novas = finding.kind == audit.STUCK or (
            finding.kind in (audit.ORPHAN, audit.ORPHAN_MIGRATION)
            and watched.is_unended_move(finding.subject)
        )
        return (
            is_novas
            and time.monotonic() > since + self._lost_seconds
            and any(f.loses_in_stock(since - self._began, finding.cell) for f in self._faults)
        )

    def _keep(self, found: Iterable[audit.Finding], watched: ledger.Ledger) -> None:
        """Keep what is left after quiet; what Nova itself may have lost apart."""
        findings = []
        for finding in found:
            if self._is_lost(finding, watched):
                self.lost[finding.subject] = finding.detail
            else:
                findings.append(finding)
        watched.note(findings, time.monotonic())

    def wait_memory(
        self, watched: ledger.Ledger | None = None, since: float | None = None
    ) -> float | None:
        """Wait until every scheduler serves every cell from memory.

        :param watched: keeps it if that does not come
        :param since: count from then
        """
        assert self._watch is not None
        begun = time.monotonic()
        missing: Mapping[str, str] | None = None
        while time.monotonic() < begun + MEMORY_SECONDS:
            missing = self._watch.missing(begun)
            if missing == {}:
                seconds = time.monotonic() - (since or begun)
                self.say(f"all is served from memory after {seconds:.1f} s")
                return round(seconds, 1)
            time.sleep(0.2)
        told = "a scheduler does not answer" if missing is None else str(dict(missing))
        self.say(f"not served from memory: {told}")
        if watched is not None:
            watched.note([audit.Finding(NO_MEMORY, "memory", told)], time.monotonic())
        return None

    def compare(self, watched: ledger.Ledger) -> None:
        """Compare records with Nova's databases until they are equal, or for too long.

        No request is under way by then, and what nova-compute writes by itself the
        command tells apart: a difference is found, though a sweep may mend it.
        """
        settings = self._stack.settings
        file = settings.etc / "nova" / "nova-manage" / "nova.conf"
        command = [settings.program("nova-nodb-manage"), "--config-file", str(file)]
        begun = time.monotonic()
        told = ""
        while time.monotonic() < begun + COMPARE_SECONDS:
            try:
                answer = subprocess.run(
                    [*command, "compare", "--json"],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=COMPARE_SECONDS,
                )
            except subprocess.TimeoutExpired as error:
                told = str(error)
                continue
            if answer.returncode == 0:
                settled = faults_trial.counted(answer.stdout, ("settled",))
                self.say(
                    f"compare is clean after {time.monotonic() - begun:.1f} s"
                    + (f"; just written, and settled: {settled}" if settled else "")
                )
                return
            differs = faults_trial.differences(answer.stdout)
            told = differs or answer.stderr[-500:]
            self.say(f"compare: {told}")
            if differs:
                watched.note([audit.Finding(COMPARE, "compare", told)], time.monotonic())
            time.sleep(2.0)
        watched.note([audit.Finding(COMPARE, "compare", told)], time.monotonic())

    def wait_services(self, watched: ledger.Ledger, since: float) -> None:
        """Wait until no service is taken for dead: slots on a compute's are nobody's meanwhile.

        :param since: the faults were over then
        """
        waits = False
        while True:
            is_late = time.monotonic() > since + REPORT_SECONDS
            try:
                down = missing_services(self._stack.settings, self._stack.cloud.services())
            except keystone_exceptions.ClientException as error:
                down = [f"all that the API should tell of: {error}"]
            if not down:
                if waits:
                    self.say(f"all services are up after {time.monotonic() - since:.1f} s")
                return
            if is_late:
                break
            if not waits:
                self.say(f"taken for dead: {', '.join(down)}")
            waits = True
            time.sleep(1.0)
        watched.note(
            [audit.Finding(NO_SERVICE, host, f"{host} is taken for dead") for host in down],
            time.monotonic(),
        )

    def fill(self, watched: ledger.Ledger) -> None:
        """Ask for more than is left: as many find room as there is, or something holds it."""
        now = watched.wait_newer(time.monotonic(), _SAMPLE_SECONDS)
        if now is None:
            told = "the databases could not be read"
            watched.note([audit.Finding(BROKEN_RUN, "fill", told)], time.monotonic())
            return
        free = sum(now.free().values())
        cloud = self._stack.cloud
        image = cloud.image_id()
        names = [f"{self.prefix}fill-{number}" for number in range(free + _BEYOND)]
        try:
            ids = [cloud.boot(name, image) for name in names]
            servers = cloud.wait_settled(ids, FILL_SECONDS)
        except keystone_exceptions.ClientException as error:
            told = f"the API does not serve behind the faults: {error}"
            watched.note([audit.Finding(BROKEN_RUN, "fill", told)], time.monotonic())
            return
        active = sum(1 for server in servers if server["status"] == "ACTIVE")
        self.say(f"{active} of {len(ids)} found the last {free} slots")
        if active < free:
            told = f"{active} of {len(ids)} servers found room, where {free} slots were left"
            watched.note([audit.Finding(ROOM_LOST, "fill", told)], time.monotonic())

    # -- the end --------------------------------------------------------------------------

    def empty(self, watched: ledger.Ledger, work: clients.Workload) -> None:
        """Delete everything; allocations that stay are orphans, and are taken away by hand."""
        asked_again = 0.0
        left: set[str] = set()
        progress_at = begun = time.monotonic()
        patience = _NO_PROGRESS_SECONDS
        while time.monotonic() < min(begun + QUIET_SECONDS, progress_at + patience):
            now = watched.wait_newer(time.monotonic(), _SAMPLE_SECONDS)
            if now is None:
                continue
            # One whose server stood in cell0 until now has none only from now on.
            requests = {each.subject for each in self.left.findings(now) if _is_build_request(each)}
            held = now.allocated.keys() - self.left.by_nova.keys()
            before, left = left, {*now.servers, *held, *requests}
            if not left:
                self._end_left_by_nova(now)
                self.say("the cloud is empty")
                break
            if left != before:
                progress_at = time.monotonic()
            told_before = told_of_left(now, self.lost, self.left.by_nova)
            patience = patience_seconds(left, told_before, watched.in_state_since, begun)
            if time.monotonic() > asked_again + _ASK_AGAIN_SECONDS:
                asked_again = time.monotonic()
                self._delete({*now.servers, *requests}, watched)
                # A slow API's calls, one after the other, are no time in which nothing went.
                progress_at += time.monotonic() - asked_again
        else:
            now = watched.wait_newer(time.monotonic(), _SAMPLE_SECONDS)
            if now is None:
                told = "the databases could not be read"
                watched.note([audit.Finding(BROKEN_RUN, "empty", told)], time.monotonic())
            else:
                self._keep(self.left.findings(now), watched)
                told_before = told_of_left(now, self.lost, self.left.by_nova)
                watched.note(undeletable(now, told_before), time.monotonic())
                self._force(now)
        work.delete_groups()

    def _end_left_by_nova(self, now: snapshot_module.Snapshot) -> None:
        """Take away what nobody else ever does, so that no later round finds it again."""
        left = sorted(now.build_requests & self.left.by_nova.keys())
        for uuid in left:
            self._stack.sql("DELETE FROM nova_api.build_requests WHERE instance_uuid = %s", uuid)
        if left:
            self.notes.append(f"taken away by hand: build requests of {', '.join(left)}")
            self.say(self.notes[-1])
        held = sorted(now.allocated.keys() & self.left.by_nova.keys())
        if held:
            self._delete_allocations(held)
            self.notes.append(f"taken away by hand: allocations of {', '.join(held)}")
            self.say(self.notes[-1])

    def _delete(self, servers: Collection[str], watched: ledger.Ledger) -> None:
        cloud = self._stack.cloud
        watched.leaving.update(servers)
        for server in servers:
            try:
                cloud.compute.delete(f"/servers/{server}")
            except keystone_exceptions.ClientException:
                continue

    def _force(self, now: snapshot_module.Snapshot) -> None:
        """Past every service, so that the next round begins with nothing."""
        self.notes.append(
            f"taken away by hand: {len(now.servers)} servers, {len(now.allocated)} allocations"
        )
        self.say(self.notes[-1])
        for server in now.servers.values():
            self._stack.sql(
                f"UPDATE {server.cell}.instances SET deleted = id, vm_state = 'deleted',"
                " task_state = NULL, deleted_at = UTC_TIMESTAMP() WHERE uuid = %s",
                server.uuid,
            )
        self._stack.sql("DELETE FROM nova_api.build_requests")
        self._delete_allocations(now.allocated)

    def _delete_allocations(self, consumers: Iterable[str]) -> None:
        placement = self._stack.cloud.placement
        for consumer in consumers:
            try:
                placement.delete(f"/allocations/{consumer}")
            except keystone_exceptions.ClientException as error:
                self.say(f"{consumer} keeps its allocation: {error}")

    # -- what became of the requests --------------------------------------------------------

    def ends(self, work: clients.Workload, watched: ledger.Ledger) -> dict[str, str]:
        """Return how each server ended that the API took: ACTIVE, or why not, by name."""
        reader = snapshot_module.Reader(self._stack.settings)
        try:
            # Before servers: a request that becomes one meanwhile is found there.
            requested = reader.requested()
            messages = reader.faults(self.prefix)
            states = reader.states(self.prefix)
        except (pymysql.MySQLError, OSError) as error:
            self.notes.append(f"ends are not known: {error}")
            watched.note([audit.Finding(BROKEN_RUN, "ends", self.notes[-1])], time.monotonic())
            return {}
        finally:
            reader.close()
        gone = sorted(work.taken - states.keys() - requested)
        if gone:
            told = f"the API took them, and nobody knows them: {', '.join(gone)}"
            watched.note([audit.Finding(TRACELESS, "requests", told)], time.monotonic())
        return {
            name: "ACTIVE" if was_active else _reason(messages.get(name, ""), vm_state)
            for name, (was_active, vm_state) in states.items()
            if name in work.asked
        }

    def answers(self, work: clients.Workload, watched: ledger.Ledger) -> list[float]:
        """Return the seconds until each server was ACTIVE or in ERROR."""
        settled = watched.settled()
        return [settled[name][0] - asked for name, asked in work.asked.items() if name in settled]

    def usage_through_time(self, watched: ledger.Ledger) -> usage_history.UsageHistory | None:
        """Return what was allocated at every moment; None, which is told, if nobody knows."""
        reader = snapshot_module.Reader(self._stack.settings)
        try:
            return reader.usage()
        except (pymysql.MySQLError, OSError, usage_history.IncompleteError) as error:
            self.notes.append(f"what was allocated between samples is not known: {error}")
            watched.note([audit.Finding(BROKEN_RUN, "usage", self.notes[-1])], time.monotonic())
            return None
        finally:
            reader.close()

    def refused_with_room(
        self,
        work: clients.Workload,
        watched: ledger.Ledger,
        ends: Mapping[str, str],
        usage: usage_history.UsageHistory | None,
    ) -> dict[str, bool]:
        """Return who was refused though all of its request had room in every sample, by name.

        And of each whether it had room at every moment between them, too.
        """
        settled = watched.settled()
        found: dict[str, bool] = {}
        for name, asked in work.asked.items():
            if name in work.grouped or ends.get(name) != "no valid host" or name not in settled:
                continue
            at, _ = settled[name]
            free = watched.always_free(asked, at + _CLAIMED_SECONDS)
            if free is None or free < work.together[name]:
                continue
            epoch = watched.clock_ahead_seconds - watched.began
            least = usage.least_free(epoch + asked, epoch + at + _CLAIMED_SECONDS) if usage else {}
            found[name] = sum(least.values()) >= work.together[name]
            self.say(
                f"{name}, asked for at {asked - watched.began:.1f} s, found no valid host "
                f"{at - asked:.1f} s later, and {free} slots were free in every sample, "
                f"{sum(least.values())} at every moment"
            )
        return found


def missing_services(
    settings: stack_settings.Settings, services: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Return the hosts of services that are not up, or that nobody tells of.

    :param services: as Nova's API tells them
    """
    up = {str(each["host"]) for each in services if each["state"] == "up"}
    names = (*settings.control_plane_names, *settings.compute_names)
    # nova-api has none.
    return sorted({settings.host_of(name) for name in names if name != "nova-api"} - up)


def told_of_left(
    now: snapshot_module.Snapshot, lost: Collection[str], by_nova: Collection[str]
) -> set[str]:
    """Return what is told already, and servers in cell0, which hold nothing.

    A conductor that ends as it buries a server may leave it where no API finds it. What a server
    leaves behind its end was not told with it.
    """
    buried = {uuid for uuid, server in now.servers.items() if server.cell == _CELL0}
    holders = now.allocated.keys() - now.servers.keys() - set(by_nova)
    return {*lost, *by_nova, *buried} - holders


def patience_seconds(
    left: Collection[str], told: Collection[str], since: Callable[[str], float], begun: float
) -> float:
    """Return how long what does not go is waited for.

    :param left: uuids of all that is left
    :param told: of what was told before
    :param since: says since when one is in its state; what its deletion changed may go yet
    :param begun: deletions were asked for from then on
    """
    is_hopeless = all(uuid in told and since(uuid) < begun for uuid in left)
    return _NO_HOPE_SECONDS if is_hopeless else _NO_PROGRESS_SECONDS


def undeletable(now: snapshot_module.Snapshot, told: Container[str]) -> list[audit.Finding]:
    """Return the servers that stay though their deletion was asked for again and again.

    :param told: uuids of what was found before
    """
    return [
        audit.Finding(audit.STUCK, uuid, f"{server.name} is {server.vm_state}, and is not deleted")
        for uuid, server in sorted(now.servers.items())
        if uuid not in told
    ]


def _is_build_request(finding: audit.Finding) -> bool:
    return finding.kind == audit.STUCK and finding.detail == audit.NO_SERVER


def reason_of(message: str) -> str:
    """Return why a server failed, in short, from its fault; a reason stays as it is."""
    for told, reason in _REASONS.items():
        if told in message:
            return reason
    return message[:80]


def _reason(message: str, vm_state: str | None) -> str:
    if message:
        return reason_of(message)
    return "deleted before it was ACTIVE" if vm_state == "deleted" else f"{vm_state} to the end"


def _quantile(values: Sequence[float], share: float) -> float:
    return round(float(np.quantile(values, share)), 2) if values else 0.0
