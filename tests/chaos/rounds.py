# SPDX-License-Identifier: Apache-2.0
"""One round: an empty cloud, clients and faults, quiet, an audit, and an empty cloud again."""

import collections
import datetime
import pathlib
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pymysql
from keystoneauth1 import exceptions as keystone_exceptions

from tests.chaos import audit, clients, deployment, injection, ledger, plan
from tests.chaos import snapshot as snapshot_module
from tests.chaos.logs import decision_lines, novas_own, withdrawals
from tests.faults import trial as faults_trial
from tests.faults import watch as watch_module
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
NO_COMPUTE = "a compute service stays down"
ROOM_LOST = "room that nobody gets"
BROKEN_RUN = "the round itself"

_ASK_AGAIN_SECONDS = 20.0
_SAMPLE_SECONDS = 30.0
_LOST_SECONDS = 100.0
"""In one state: beyond a call that is answered by nobody, and what its caller does then."""
_NO_PROGRESS_SECONDS = 90.0
_FREE_LEASES = 1.5
_BEYOND = 2
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
    :param room_left: servers refused while a slot was free in every sample of their time
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
    room_left: int
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
    revision: str = ""

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
        round_ = _Round(self._stack, self._watch, seed, faults, self._say, left)
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
            injector.wait()
            healed = time.monotonic()
            round_.say("faults over, everything runs")
            memory_seconds = round_.wait_memory(watched, healed) if self._watch else None
            quiet_seconds = round_.wait_quiet(watched, healed)
            active_at_end = watched.latest.active() if watched.latest else 0
            if self._watch:
                round_.compare(watched)
            # What a scheduler that died had claimed is held for a lease.
            wait = healed + _FREE_LEASES * shape.lease_seconds - time.monotonic()
            time.sleep(max(0.0, wait if shape.with_plugin else 0.0))
            round_.wait_computes(watched, healed)
            round_.fill(watched)
            fallbacks = lines.left_memory()
            ends = round_.ends(work)
            round_.empty(watched, work)
        failures = [*injector.failures, *work.errors, *watched.failures]
        watched.note([audit.Finding(BROKEN_RUN, told, told) for told in failures], time.monotonic())
        answers = round_.answers(work, watched)
        calls = work.calls.seconds()
        told_by = (self._logs.builds, self._logs.computes, self._logs.schedulers)
        found, novas = by_nova(watched.records(), *(logs.left() for logs in told_by))
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
            room_left=round_.room_left(work, watched, ends),
            lost=tuple(f"{uuid}: {told}" for uuid, told in sorted(round_.lost.items())),
            findings=tuple(attrs.asdict(record) for record in found),
            withdrawn=tuple(attrs.asdict(record) for record in watched.withdrawn()),
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
            left = self.computes.left().get(finding.subject)
            left = left or self.moves.left().get(finding.subject)
            if left is None:
                server = self.migrations.left().get(finding.subject, "")
                return self.reverts.left().get(server)
        elif finding.kind == audit.STUCK and not self.sends_again:
            # Its first call was lost, with a conductor or RabbitMQ, and so was what it says then.
            left = self.builds.left().get(finding.subject)
        return None if left is None else left.line


def by_nova(
    records: Iterable[ledger.Record],
    undone: Mapping[str, novas_own.Undone],
    unfreed: Mapping[str, novas_own.Unfreed],
    untold: Mapping[str, novas_own.Untold],
) -> tuple[list[ledger.Record], dict[str, str]]:
    """Tell what is wrong from what only follows from servers that Nova took theirs from.

    A host may be crowded by no more than such servers that stand there, for Placement gave their
    room to others. A server that was built elsewhere may hold what its first host did not free.
    A group whose member nobody could be told of is Nova's to look at while it is built.

    :returns: what is left, and by the subject of what is not what it was, with a line of a log
    """
    left: list[ledger.Record] = []
    novas: dict[str, str] = {}
    undone = {server: each for server, each in undone.items() if each.stands}
    for record in records:
        lines: list[str] = []
        if record.kind == audit.UNALLOCATED and record.subject in undone:
            lines = [undone[record.subject].line]
        elif record.kind == audit.MISPLACED and record.subject in unfreed:
            lines = [unfreed[record.subject].line]
        elif record.kind == audit.GROUP_LATE:
            lines = [each.line for each in untold.values() if each.server in record.detail]
        elif record.kind == audit.CROWDED:
            there = [each.line for each in undone.values() if each.server in record.detail]
            lines = there if record.excess <= len(there) else []
        if lines:
            novas[record.subject] = f"{record.kind}, {record.detail}; {lines[0]}"
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
    ) -> None:
        self.seed = seed
        self.left = left
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
        self._began = at

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
                seconds = time.monotonic() - since
                self.say(f"nothing is under way any more after {seconds:.1f} s")
                return round(seconds, 1)
            if any(finding.kind == audit.STUCK for finding in found):
                deadline = begun + QUIET_SECONDS
            else:
                deadline = min(deadline, time.monotonic() + ORPHAN_SECONDS)
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
            and time.monotonic() > since + _LOST_SECONDS
            and any(fault.loses_in_stock(since - self._began) for fault in self._faults)
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
        """Compare records with Nova's databases until they are equal, or for too long."""
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
                self.say(f"compare is clean after {time.monotonic() - begun:.1f} s")
                return
            told = faults_trial.differences(answer.stdout) or answer.stderr[-500:]
            self.say(f"compare: {told}")
            time.sleep(2.0)
        watched.note([audit.Finding(COMPARE, "compare", told)], time.monotonic())

    def wait_computes(self, watched: ledger.Ledger, since: float) -> None:
        """Wait until no nova-compute is taken for dead: slots on its host are nobody's meanwhile.

        :param since: the faults were over then
        """
        waits = False
        while True:
            is_late = time.monotonic() > since + REPORT_SECONDS
            try:
                services = self._stack.cloud.services(binary="nova-compute")
            except keystone_exceptions.ClientException as error:
                # What asks the API next tells, if it stays so.
                self.say(f"whether computes are up is not known: {error}")
                return
            down = sorted(each["host"] for each in services if each["state"] != "up")
            if not down:
                if waits:
                    self.say(f"all computes are up after {time.monotonic() - since:.1f} s")
                return
            if is_late:
                break
            if not waits:
                self.say(f"taken for dead: {', '.join(down)}")
            waits = True
            time.sleep(1.0)
        watched.note(
            [audit.Finding(NO_COMPUTE, host, f"{host} is taken for dead") for host in down],
            time.monotonic(),
        )

    def fill(self, watched: ledger.Ledger) -> None:
        """Ask for more than is left: as many find room as there is, or something holds it."""
        now = watched.wait_newer(time.monotonic(), _SAMPLE_SECONDS)
        if now is None:
            return
        free = now.free()
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
        while time.monotonic() < min(begun + QUIET_SECONDS, progress_at + _NO_PROGRESS_SECONDS):
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
            if time.monotonic() > asked_again + _ASK_AGAIN_SECONDS:
                asked_again = time.monotonic()
                self._delete({*now.servers, *requests}, watched)
                # A slow API's calls, one after the other, are no time in which nothing went.
                progress_at += time.monotonic() - asked_again
        else:
            now = watched.latest
            if now is not None:
                self._keep(self.left.findings(now), watched)
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

    def ends(self, work: clients.Workload) -> dict[str, str]:
        """Return how each server ended that the API took: ACTIVE, or why not, by name."""
        reader = snapshot_module.Reader(self._stack.settings)
        try:
            messages = reader.faults(self.prefix)
            states = reader.states(self.prefix)
        except (pymysql.MySQLError, OSError) as error:
            self.notes.append(f"ends are not known: {error}")
            return {}
        finally:
            reader.close()
        return {
            name: "ACTIVE" if was_active else _reason(messages.get(name, ""), vm_state)
            for name, (was_active, vm_state) in states.items()
            if name in work.asked
        }

    def answers(self, work: clients.Workload, watched: ledger.Ledger) -> list[float]:
        """Return the seconds until each server was ACTIVE or in ERROR."""
        settled = watched.settled()
        return [settled[name][0] - asked for name, asked in work.asked.items() if name in settled]

    def room_left(
        self, work: clients.Workload, watched: ledger.Ledger, ends: Mapping[str, str]
    ) -> int:
        """Return how many were refused although a slot was free all the time."""
        settled = watched.settled()
        count = 0
        for name, asked in work.asked.items():
            if name in work.grouped or ends.get(name) != "no valid host" or name not in settled:
                continue
            least = watched.least_free(asked, settled[name][0] + 2.0)
            count += least is not None and least > 0
        return count


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
