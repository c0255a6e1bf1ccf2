# SPDX-License-Identifier: Apache-2.0
"""What schedulers with ``candidates = placement`` leave when they die, at each moment.

Two workers over Nova's databases and a real Placement: one lives, looks after claims and
looks for orphans in its own threads, with short bounds. The other is frozen for good within
a request, and no heartbeat of it was ever seen.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

import attrs
from keystoneauth1 import exceptions as keystone
from nova import exception, objects

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.orphans import orphan_audit, orphan_finder, orphan_verdicts
from nova_nodb_scheduler.nova_adapter.placement.allocations import placement_calls, verification
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.settlement import settlement_worker
from nova_nodb_scheduler.testing import patience
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.decisions import test_memory_decisions

WAIT_SECONDS = 60.0
QUICK = settlement_worker.SettlementOptions(
    look_seconds=0.1,
    ask_after_seconds=0.5,
    ask_most_seconds=0.5,
    hasten_seconds=0.05,
    cool_down_seconds=0.0,
    others_seconds=0.2,
)
#: Another's claim that was there before; it is nobody's orphan.
FOREIGN = "scheduler-9:1:1:0a0b0c0d"


class Killed(BaseException):
    """What ends a frozen thread when its test is over."""


class NotedCase(test_memory_decisions.MemoryDecisionsCase):
    def setUp(self) -> None:
        self.over = threading.Event()
        super().setUp()
        pauses = mock.patch.object(verification.AllocationVerifier, "_pause", lambda *_: None)
        pauses.start()
        self.addCleanup(pauses.stop)
        self.look_quickly()

    def use(self, fixture: Any) -> None:
        self.override("candidates", "placement", "nodb_scheduler")
        super().use(fixture)

    def unproved(self) -> Any:
        self.beat()
        missing = self.runtime.views.open().proof.missing
        return [missing] if missing else []

    def look_quickly(self) -> None:
        upkeep = self.runtime.upkeep
        upkeep.claim_duty.settler.pace(QUICK)
        duty = upkeep.orphan_duty
        duty.stop()
        duty._turn_seconds = 0.05
        duty.finder.pace(
            orphan_finder.OrphanFinderOptions(
                first_seconds=0.5, prove_seconds=0.3, again_seconds=0.1, forget_seconds=1.0
            )
        )
        duty.finder._writers._silent_seconds = 1.0
        duty.start()

    def end_leases(self) -> None:
        """Let the back end's time go on until no lease of before runs."""
        own, seconds = self.hub._clock, self.plugin.options.claim_lease_seconds + 1.0
        self.hub._clock = lambda: own() + seconds

    def wait(self, condition: Any) -> None:
        patience.wait_until(condition, WAIT_SECONDS, lambda: "", 0.05)

    # -- what dies --------------------------------------------------------------------

    def other(self) -> Any:
        """Return another worker's manager, whose threads, and heartbeats, do not run."""
        made = manager.SchedulerManager(host="scheduler-2")
        made.nodb._make_server = None
        self.addCleanup(made.nodb.synchronizer.close)
        return made

    def asked(self, by: Any, servers: int = 1, **fields: Any) -> tuple[list[str], Any]:
        own, self.manager = self.manager, by
        try:
            return self.select(servers, **fields)
        finally:
            self.manager = own

    def frozen(self, place: Any, *, servers: int = 1, by: Any = None) -> list[str]:
        """Have a worker take a request and freeze somewhere in it; return the servers.

        :param place: a context manager; given what blocks the thread, and says so
        """
        reached, dying = threading.Event(), by or self.other()
        uuids = [str(uuid.uuid4()) for _ in range(servers)]
        spec = self.spec(uuids)

        def freeze() -> None:
            if threading.current_thread() is thread:
                reached.set()
                self.over.wait()
                raise Killed

        def run() -> None:
            with contextlib.suppress(Killed):
                dying.select_destinations(
                    self.admin, spec_obj=spec, instance_uuids=uuids, return_objects=True
                )

        thread = threading.Thread(target=run, daemon=True)
        patcher = place(freeze)
        patcher.__enter__()
        thread.start()
        self.addCleanup(thread.join, WAIT_SECONDS)
        self.addCleanup(self.over.set)
        self.assertTrue(reached.wait(WAIT_SECONDS))
        patcher.__exit__(None, None, None)
        return uuids

    @contextlib.contextmanager
    def before_the_write(self, freeze: Any) -> Iterator[None]:
        with self.around_the_write(lambda call: (freeze(), call())[1]):
            yield

    @contextlib.contextmanager
    def after_the_write(self, freeze: Any) -> Iterator[None]:
        def frozen(call: Any) -> Any:
            done = call()
            freeze()
            return done

        with self.around_the_write(frozen):
            yield

    @contextlib.contextmanager
    def around_the_write(self, fault: Any) -> Iterator[None]:
        with contextlib.ExitStack() as patches:
            for name in ("put", "post"):
                own = getattr(self.client, name)

                def sent(url: str, *args: Any, own: Any = own, **kwargs: Any) -> Any:
                    if not url.startswith("/allocations"):
                        return own(url, *args, **kwargs)
                    return fault(lambda: own(url, *args, **kwargs))

                patches.enter_context(mock.patch.object(self.client, name, sent))
            yield

    # -- what is there ------------------------------------------------------------------

    def record(self, host: str) -> model.ClaimRecord:
        key = claim_rules.host_key(self.nodes[host].uuid)
        found = self.synchronizer.read([key]).get(key)
        state = None if found is None or found.deleted else codec.decode_state(found.payload)
        return model.ClaimRecord.from_state(key.key, state, 1)

    def noted(self, consumer: str) -> model.HeldClaim | None:
        for host in self.nodes:
            found = self.record(host).claims.get(consumer)
            if found is not None:
                return found
        return None

    def lapsed(self, consumer: str) -> bool:
        return any(consumer in self.record(host).lapsed for host in self.nodes)

    def remembered(self, consumer: str) -> bool:
        return self.lapsed(consumer) or self.noted(consumer) is not None

    def is_allocated(self, consumer: str) -> bool:
        return bool(self.ask("get", f"/allocations/{consumer}")["allocations"])

    def bury(self, consumer: str) -> None:
        """Have the conductor give up, as it does after ``rpc_response_timeout``."""
        self.instance(cloud.CELL0, None, uuid=consumer, vm_state="error")
        self.beat()

    def figures(self) -> dict[str, float]:
        return dict(self.runtime.upkeep.figures())


class KilledTest(NotedCase):
    def test_before_its_note_it_leaves_nothing(self):
        dying = self.other()

        @contextlib.contextmanager
        def before_the_note(freeze: Any) -> Iterator[None]:
            own = dying.nodb.synchronizer.open
            with mock.patch.object(dying.nodb.synchronizer, "open", lambda: (freeze(), own())[1]):
                yield

        [server] = self.frozen(before_the_note, by=dying)
        self.assertFalse(self.is_allocated(server))
        self.assertFalse(self.remembered(server))

    def test_between_its_note_and_its_write_it_leaves_a_note_that_is_forgotten(self):
        [server] = self.frozen(self.before_the_write)
        self.assertIs(model.ClaimState.PENDING, self.noted(server).state)
        self.end_leases()
        # It lapses, and is forgotten at once: the lease ended a second ago.
        self.wait(lambda: not self.remembered(server))
        self.assertEqual(1.0, self.figures()["expired"])
        self.assertFalse(self.is_allocated(server))
        self.assertEqual(0.0, self.figures()["orphans_deleted"])

    def test_between_its_write_and_its_answer_what_it_left_is_deleted(self):
        """Nobody knows the server: its user deleted what asked for it."""
        [server] = self.frozen(self.after_the_write)
        self.assertTrue(self.is_allocated(server))
        self.assertNotEqual(self.runtime.replicator.status().identity, self.noted(server).writer)
        self.end_leases()
        self.wait(lambda: not self.is_allocated(server))
        self.wait(lambda: not self.remembered(server))
        self.assertEqual(1.0, self.figures()["orphans_deleted"])

    def test_of_a_server_that_was_buried_what_it_left_is_deleted(self):
        [server] = self.frozen(self.after_the_write)
        self.end_leases()
        self.bury(server)
        self.wait(lambda: not self.is_allocated(server))

    def test_behind_its_answer_what_it_left_is_deleted(self):
        """It is written, looked at and confirmed; the conductor never hears of it."""
        [server], _chosen = self.asked(self.other())
        self.assertIs(model.ClaimState.CONFIRMED, self.noted(server).state)
        self.bury(server)
        self.wait(lambda: not self.is_allocated(server))
        self.wait(lambda: not self.remembered(server))

    def test_within_a_request_for_several_all_that_it_left_is_deleted(self):
        written: list[bool] = []

        @contextlib.contextmanager
        def behind_the_second(freeze: Any) -> Iterator[None]:
            def fault(call: Any) -> Any:
                done = call()
                written.append(True)
                if len(written) == 2:
                    freeze()
                return done

            with self.around_the_write(fault):
                yield

        servers = self.frozen(behind_the_second, servers=3)
        left = [each for each in servers if self.is_allocated(each)]
        self.assertEqual(2, len(left))
        self.assertEqual(
            {model.ClaimState.CONFIRMED, model.ClaimState.PENDING},
            {self.noted(each).state for each in left},
        )
        self.end_leases()
        for server in servers:
            self.bury(server)
        self.wait(lambda: not any(map(self.is_allocated, servers)))

    def test_what_several_left_is_deleted(self):
        first, second = (self.frozen(self.after_the_write)[0] for _ in range(2))
        self.end_leases()
        self.wait(lambda: not self.is_allocated(first) and not self.is_allocated(second))
        self.assertEqual(2.0, self.figures()["orphans_deleted"])


class NeverDeletedTest(NotedCase):
    def stays(self, consumer: str, looks: int = 4) -> None:
        """Let the living worker look that often, and see what is left."""
        finder = self.runtime.upkeep.orphan_duty.finder
        since = finder.status.looked
        self.wait(lambda: finder.status.looked >= since + looks)
        self.assertTrue(self.is_allocated(consumer))
        self.assertEqual(0.0, self.figures()["orphans_deleted"])

    def test_a_server_whose_conductor_waits_keeps_what_its_dead_scheduler_wrote(self):
        [server] = self.frozen(self.after_the_write)
        instance = objects.Instance(self.admin, uuid=server, project_id="p", user_id="u")
        objects.BuildRequest(
            self.admin, instance_uuid=server, project_id="p", instance=instance
        ).create()
        self.end_leases()
        self.stays(server)

    def test_what_a_living_scheduler_wrote_for_nobody_yet_is_kept(self):
        [server], _chosen = self.select()
        self.stays(server)

    def test_a_dead_scheduler_without_an_answer_of_the_back_end_left_no_note(self):
        dying = self.other()
        with self.assertLogs("nova_nodb_scheduler", "WARNING") as logged:
            with mock.patch.object(dying.nodb.synchronizer, "open", self.back_end_away):
                [server], _chosen = self.asked(dying)
        self.assertIn("are verified without claims", "".join(logged.output))
        self.assertFalse(self.remembered(server))
        self.bury(server)
        # Nobody is to delete it by itself; an operator is told.
        [row] = self.audited()
        self.assertEqual((server, "", False), (row.judged.consumer, row.writer, row.deletable))
        self.assertTrue(self.is_allocated(server))

    def back_end_away(self) -> None:
        raise errors.BackendUnavailable("memory", "made away")

    def audited(self) -> Any:
        judge = orphan_verdicts.OrphanJudge(placement_calls.AllocationCalls(self.client))
        return orphan_audit.OrphanAudit(self.synchronizer, judge, 30.0, 300.0).rows()


class UnnotedTest(test_memory_decisions.MemoryDecisionsCase):
    """Claims are switched off: there are no notes to look after."""

    def use(self, fixture: Any) -> None:
        self.override("candidates", "placement", "nodb_scheduler")
        self.override("claims", "off", "nodb_scheduler")
        super().use(fixture)

    def unproved(self) -> Any:
        self.beat()
        return []

    def test_nothing_is_noted_and_nobody_looks_after_notes(self):
        self.select()
        self.assertIsNone(self.runtime.upkeep)
        names = [known_namespaces.CLAIM_RECORDS.name, known_namespaces.LEASES.name]
        pages = self.runtime.synchronizer.snapshot(names).pages
        self.assertEqual([], [record.key for page in pages for record in page])


class AuditedTest(NotedCase):
    HOSTS = tuple((cloud.CELL1, f"h{number}", 4, {}) for number in range(6))

    def test_where_placement_falls_silent_it_is_not_asked_for_each_host(self):
        asked: list[str] = []

        def silent(path: str) -> Any:
            asked.append(path)
            raise keystone.ConnectFailure("made away")

        judge = orphan_verdicts.OrphanJudge(placement_calls.AllocationCalls(self.client))
        audit = orphan_audit.OrphanAudit(self.synchronizer, judge, 30.0, 300.0, silent)
        self.assertEqual([], audit.rows())
        # None of them has a clean bill.
        self.assertEqual(
            {
                "Placement's list of providers",
                *(f"Placement's provider {node.uuid}" for node in self.nodes.values()),
            },
            set(audit.unseen),
        )
        self.assertEqual(3, len(asked))


class WokenTest(NotedCase):
    def test_a_late_write_whose_note_was_judged_goes_back(self):
        """Frozen before its write, it wakes when its note is long forgotten, and goes on."""
        wakes, reached = threading.Event(), threading.Event()
        chosen: list[Any] = []
        dying = self.other()
        server = str(uuid.uuid4())
        spec = self.spec([server])

        def freeze(call: Any) -> Any:
            if threading.current_thread() is thread and not reached.is_set():
                reached.set()
                wakes.wait(WAIT_SECONDS)
            return call()

        def run() -> None:
            chosen.append(
                dying.select_destinations(
                    self.admin, spec_obj=spec, instance_uuids=[server], return_objects=True
                )
            )

        thread = threading.Thread(target=run, daemon=True)
        self.addCleanup(thread.join, WAIT_SECONDS)
        self.addCleanup(wakes.set)
        with self.around_the_write(freeze):
            thread.start()
            self.assertTrue(reached.wait(WAIT_SECONDS))
            self.end_leases()
            self.wait(lambda: not self.remembered(server))
            self.bury(server)
            wakes.set()
            thread.join(WAIT_SECONDS)
        # The host that it had noted went back. What it answers with has a note that stands,
        # and is for nobody.
        [[[selection]]] = chosen
        self.assertIs(model.ClaimState.CONFIRMED, self.noted(server).state)
        allocated = self.ask("get", f"/allocations/{server}")["allocations"]
        self.assertLessEqual(set(allocated), {selection.compute_node_uuid})
        self.wait(lambda: not self.is_allocated(server))


class ServedTest(NotedCase):
    def test_a_note_ends_once_its_server_is_on_its_host(self):
        """Nobody keeps a mirror that could show its allocation, and nobody asks for it."""
        settler = self.runtime.upkeep.claim_duty.settler
        settler.pace(attrs.evolve(QUICK, ask_after_seconds=600.0))
        # What it finds as it begins is asked for at once.
        self.wait(lambda: settler.begun)
        [server], [[selection, *_]] = self.select()
        self.assertIs(model.ClaimState.CONFIRMED, self.noted(server).state)
        host = selection.service_host
        cell = next(cell for cell, name, *_ in self.HOSTS if name == host)
        asked = self.figures()["asked"]
        self.instance(cell, host, uuid=server)
        self.beat()
        self.wait(lambda: not self.remembered(server))
        self.assertTrue(self.is_allocated(server))
        self.assertEqual((1.0, asked), (self.figures()["settled"], self.figures()["asked"]))

    def test_a_server_that_is_resized_on_its_host_is_noted_beside_what_it_has(self):
        """Whoever judges counts both: its migration has what the server had."""
        (cell, host), *_ = [(cell, name) for cell, name, *_ in self.HOSTS]
        server = str(uuid.uuid4())
        self.instance(cell, host, uuid=server, vm_state="active", task_state="resize_prep")
        self.beat()
        others = [name for _, name, *_ in self.HOSTS if name != host]
        for name, instances in ((server, 0), (str(uuid.uuid4()), 1)):
            spec = self.spec([name], ignore_hosts=others)
            self.manager.select_destinations(
                self.admin, spec_obj=spec, instance_uuids=[name], return_objects=True
            )
            noted = self.record(host).claims[name]
            self.assertEqual((name, instances), (name, noted.node.instances))

    def test_what_a_note_costs_its_request(self):
        """As claims.rst tells: two writes, and five small questions."""
        inner = self.runtime.synchronizer.inner
        me, called = threading.current_thread(), collections.Counter[str]()

        def counting(name: str) -> Any:
            own = getattr(inner, name)

            def counted(*args: Any) -> Any:
                if threading.current_thread() is me:
                    called[name] += 1
                return own(*args)

            return mock.patch.object(inner, name, counted)

        self.select(ignore_hosts=["h2"])
        with contextlib.ExitStack() as patches:
            for name in ("head", "read", "write", "now_seconds", "snapshot", "fetch"):
                patches.enter_context(counting(name))
            self.select(ignore_hosts=["h2"])
        self.assertEqual({"head": 2, "now_seconds": 1, "read": 2, "write": 2}, dict(called))

    def test_a_note_of_a_deleted_server_ends(self):
        [server], _chosen = self.select()
        self.ask("put", f"/allocations/{server}", self.nothing(server))
        self.wait(lambda: not self.remembered(server))

    def nothing(self, server: str) -> Any:
        body = self.ask("get", f"/allocations/{server}")
        names = ("project_id", "user_id", "consumer_generation", "consumer_type")
        return {"allocations": {}, **{name: body[name] for name in names if name in body}}

    def test_a_server_that_did_not_fit_leaves_no_note(self):
        with self.assertRaises(exception.NoValidHost):
            self.select(vcpus=5)
        self.assertEqual([{}, {}], [dict(self.record(host).claims) for host in self.nodes])

    def test_beside_one_that_claims_a_note_counts_until_the_mirror_shows_its_allocation(self):
        """Its server's record is no reason to forget what others' mirror does not show yet."""
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NODB)
        key = records.RecordKey(known_namespaces.SCHEDULERS.name, FOREIGN)
        beat = {"host": "h", "claiming": True, "beat_at": self.synchronizer.now_seconds()}
        publisher.publish({key: lambda current: beat})
        [server], [[selection, *_]] = self.select()
        host = selection.service_host
        cell = next(cell for cell, name, *_ in self.HOSTS if name == host)
        self.instance(cell, host, uuid=server)
        self.beat()
        asked = self.figures()["asked"]
        self.wait(lambda: self.figures()["asked"] >= asked + 3)
        self.assertIs(model.ClaimState.CONFIRMED, self.noted(server).state)
        # It ends: from now on nobody judges.
        publisher.publish({key: lambda current: {**beat, "claiming": False}})
        self.wait(lambda: not self.remembered(server))

    def test_a_note_that_was_anothers_to_end_ends_when_that_one_does_not_judge_any_more(self):
        """It came so late that this one never looked at it, and nothing changes there again."""
        self.runtime.upkeep.claim_duty.settler.pace(attrs.evolve(QUICK, others_seconds=600.0))
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.NODB)
        key = records.RecordKey(known_namespaces.SCHEDULERS.name, FOREIGN)
        beat = {"host": "h", "claiming": True, "beat_at": self.synchronizer.now_seconds()}
        publisher.publish({key: lambda current: beat})
        self.wait(lambda: self.runtime.upkeep._others_judge and self.figures()["settles"])
        [server], _chosen = self.select()
        self.ask("put", f"/allocations/{server}", self.nothing(server))
        self.wait(lambda: self.figures()["confirmed"])
        settler, turns = self.runtime.upkeep.claim_duty.settler, []
        own = settler.turn
        with mock.patch.object(settler, "turn", lambda **how: (own(**how), turns.append(1))[0]):
            self.wait(lambda: len(turns) >= 2)
        self.assertIs(model.ClaimState.CONFIRMED, self.noted(server).state)
        publisher.publish({key: lambda current: {**beat, "claiming": False}})
        self.wait(lambda: not self.remembered(server))
