# SPDX-License-Identifier: Apache-2.0
"""A move from one back end to another while schedulers claim and reporters write."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.compute_nodes import cell_modes
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.drivers import etcd, memcached, memory, redis
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.synchronizer.migration import migration_fence, migrator
from nova_nodb_scheduler.testing import (
    etcd_server,
    patience,
    redis_server,
    servers,
)
from nova_nodb_scheduler.testing.conformance import (
    contract_case,
    feed,
    races,
    snapshots,
    upkeep,
    writes,
)
from nova_nodb_scheduler.testing.conformance_claims import claims_case as cases
from nova_nodb_scheduler.wire import codec
from tests.functional.synchronizer import commands

OWN = (known_namespaces.SCHEDULERS.name, known_namespaces.LEASES.name, known_namespaces.CELLS.name)
CAPACITY = cases.CAPACITY["VCPU"]
#: More room than is claimed while a test runs: who is refused writes nothing, and meets no fence.
HOSTS = 2000
PATIENCE_SECONDS = 60.0


class TestGuardedConformance(
    writes.CompareAndSet,
    feed.FeedOrder,
    snapshots.Snapshots,
    upkeep.EpochChanges,
    upkeep.Life,
    races.Races,
):
    """A guarded driver keeps the contract as the driver does, wherever it looks at the marker.

    Names and collection pass it as they are.
    """

    def setUp(self) -> None:
        super().setUp()
        self.hub = memory.MemoryHub()

    def make_synchronizer(self) -> migration_fence.FencedSynchronizer:
        return migration_fence.FencedSynchronizer(
            memory.MemorySynchronizer(memory.MemoryOptions(), self.hub)
        )


class _Counted(memory.MemorySynchronizer):
    """Counts how often the marker is read."""

    looks = 0

    def read(self, keys: Collection[records.RecordKey]) -> Mapping[records.RecordKey, Any]:
        self.looks += migration_fence.MARKER in keys
        return super().read(keys)


class TestLooks(testtools.TestCase):
    """A look at the marker holds for a while, and the mover waits for longer."""

    def setUp(self) -> None:
        super().setUp()
        self.hub = memory.MemoryHub()
        self.now = 0.0
        self.inner = _Counted(memory.MemoryOptions(), self.hub)
        self.guarded = migration_fence.FencedSynchronizer(self.inner, clock=lambda: self.now)
        self.guarded.open()
        self.inner.looks = 0

    def write(self, name: str) -> records.Verdict:
        key = records.RecordKey(known_namespaces.COMPUTE_NODES.name, name)
        return self.guarded.write([records.Write(key, 0, b"\x01{}")])[0].verdict

    def test_writes_within_half_a_second_of_a_look_cost_none(self) -> None:
        for number in range(10):
            self.assertIs(records.Verdict.WON, self.write(f"host-{number}"))
        self.assertEqual(0, self.inner.looks)
        self.now += migration_fence.LOOK_SECONDS
        self.write("late")
        self.write("later")
        self.assertEqual(1, self.inner.looks)

    def test_behind_a_marker_that_nobody_can_read_nothing_is_acknowledged(self) -> None:
        later = {"place": "of a later release", "move": "m", "other": "o", "at": 0.0}
        for payload in (b"\x00garbage", b"[]", b"{}", json.dumps(later).encode()):
            with self.subTest(payload=payload):
                cursor = self.guarded.head()
                self.now += migration_fence.LOOK_SECONDS
                standing = self.inner.read([migration_fence.MARKER]).get(migration_fence.MARKER)
                revision = standing.revision if standing is not None else 0
                self.inner.write([records.Write(migration_fence.MARKER, revision, payload)])
                self.assertIs(records.Verdict.UNKNOWN, self.write(f"host-{payload!r}"))
                self.assertRaises(errors.BackendUnavailable, self.guarded.fetch, cursor)
                self.assertRaises(errors.BackendUnavailable, self.guarded.snapshot)
                self.assertRaises(errors.BackendUnavailable, self.guarded.open)

    def test_what_is_acknowledged_by_an_old_look_is_carried(self) -> None:
        target_hub = memory.MemoryHub()
        target = memory.MemorySynchronizer(memory.MemoryOptions(), target_hub)
        target.open()
        source = memory.MemorySynchronizer(memory.MemoryOptions(), self.hub)
        source.open()
        acknowledged: list[str] = []

        def sleep(seconds: float) -> None:
            # The fence stands. Everybody's last look was just before it.
            for number in range(20):
                with contextlib.suppress(errors.BackendUnavailable):
                    if self.write(f"host-{number}") is records.Verdict.WON:
                        acknowledged.append(f"host-{number}")
                self.now += seconds / 19

        migrator.Migrator(source, target, (), sleep=sleep).move()
        found = {
            record.key.key for page in target.snapshot(["compute_nodes"]).pages for record in page
        }
        self.assertTrue(acknowledged)
        self.assertLess(len(acknowledged), 20)
        self.assertLessEqual(set(acknowledged), found)


class TestLossesOfTheSource(testtools.TestCase):
    """What happens to the source while it is left shows in the target."""

    def setUp(self) -> None:
        super().setUp()
        self.hubs = memory.MemoryHub(), memory.MemoryHub()
        self.source, self.target = (
            memory.MemorySynchronizer(memory.MemoryOptions(), hub) for hub in self.hubs
        )
        for each in (self.source, self.target):
            each.open()

    def test_what_stood_in_a_former_epoch_of_the_source_does_not_serve_without_its_claims(
        self,
    ) -> None:
        for number in range(20):
            _put(self.source, known_namespaces.COMPUTE_NODES.name, f"host-{number}", b"\x01{}")
        ledger = cases.ClaimingScheduler(self.source)
        assert isinstance(ledger.claim(cases.claim("server", "host-1")), model.Granted)

        def lose_all(phase: str, _count: int) -> None:
            # Behind the last batch, and before the source is marked.
            if phase == "follow" and not lost:
                lost.append(phase)
                self.hubs[0].begin_epoch()

        lost: list[str] = []
        mover = migrator.Migrator(
            self.source, self.target, (), progress=lose_all, sleep=lambda _seconds: None
        )
        mover.move()
        self.assertEqual(["follow"], lost)
        self.assertEqual({}, contract_case.everything(_guarded(self.target)))

    def test_claims_that_nobody_can_read_are_carried_as_they_are(self) -> None:
        unreadable = {"garbage": b"\x00garbage", "odd": _odd_claims()}
        for name, payload in unreadable.items():
            _put(self.source, known_namespaces.CLAIM_RECORDS.name, name, payload)
        ledger = cases.ClaimingScheduler(self.source)
        assert isinstance(ledger.claim(cases.claim("server", "host")), model.Granted)
        mover = migrator.Migrator(self.source, self.target, (), sleep=lambda _seconds: None)
        self.assertEqual(3, mover.move().claims)
        held = contract_case.everything(_guarded(self.target))
        found = {key.key: record.payload for key, record in held.items()}
        self.assertEqual(unreadable | {"host": found["host"]}, found)


def _put(client: contract.Synchronizer, namespace: str, name: str, payload: bytes) -> None:
    [result] = client.write([records.Write(records.RecordKey(namespace, name), 0, payload)])
    assert result.won


def _guarded(client: contract.Synchronizer) -> migration_fence.FencedSynchronizer:
    guarded = migration_fence.FencedSynchronizer(client)
    guarded.open()
    return guarded


def _odd_claims() -> bytes:
    """Return claims that are JSON, and none that this release writes."""
    state = {"claims": {"server": {"deadline_seconds": "soon"}}}
    return codec.encode(state, known_namespaces.CLAIM_RECORDS.schema)


class TestSharedOpenings(testtools.TestCase):
    """Threads share a guarded client: each opens it before it uses it."""

    def setUp(self) -> None:
        super().setUp()
        self.hub = memory.MemoryHub()
        self.inner = memory.MemorySynchronizer(memory.MemoryOptions(), self.hub)
        self.guarded = migration_fence.FencedSynchronizer(self.inner)

    def test_one_that_fails_closes_what_another_opened_for_nobody(self) -> None:
        self.guarded.open()
        self.hub.faults.fail_next(memory.Fault.UNAVAILABLE, operation="read")
        self.assertRaises(errors.BackendUnavailable, self.guarded.open)
        self.guarded.head()

    def test_the_first_that_fails_leaves_nothing_open(self) -> None:
        self.hub.faults.fail_next(memory.Fault.UNAVAILABLE, operation="read")
        self.assertRaises(errors.BackendUnavailable, self.guarded.open)
        self.assertRaises(errors.BackendUnavailable, self.inner.head)
        self.guarded.open()
        self.guarded.head()

    def test_beside_one_that_finds_the_records_moved_nothing_is_served_or_written(self) -> None:
        """The driver is open by then, and the marker is only being read."""
        mover = memory.MemorySynchronizer(memory.MemoryOptions(), self.hub)
        mover.open()
        migration_fence.set_mark(mover, migration_fence.FencePlace.MOVED, "a move", "etcd")
        write = records.Write(records.RecordKey("compute_nodes", "late"), 0, b"\x01{}")
        served: list[str] = []
        read = self.inner.read
        beside: dict[str, Callable[[], object]] = {
            "head": self.guarded.head,
            "fetch": lambda: self.guarded.fetch(mover.head()),
            "read": lambda: self.guarded.read([write.key]),
            "write": lambda: self.guarded.write([write]),
            "now_seconds": self.guarded.now_seconds,
            "statistics": self.guarded.statistics,
            "reset": self.guarded.reset,
        }

        def looking(keys: Collection[records.RecordKey]) -> Mapping[records.RecordKey, Any]:
            self.inner.read = read  # type: ignore[method-assign]
            for name, call in beside.items():
                with contextlib.suppress(errors.BackendUnavailable):
                    call()
                    served.append(name)
            return read(keys)

        at = mover.head()
        self.inner.read = looking  # type: ignore[method-assign]
        self.assertRaises(errors.BackendUnavailable, self.guarded.open)
        self.assertEqual([], served)
        self.assertEqual(at, mover.head())

    def test_one_that_finds_the_records_moved_leaves_the_reason_to_be_told(self) -> None:
        self.guarded.open()
        mover = memory.MemorySynchronizer(memory.MemoryOptions(), self.hub)
        mover.open()
        migration_fence.set_mark(mover, migration_fence.FencePlace.MOVED, "a move", "etcd")
        for refused in (self.guarded.open, self.guarded.head, self.guarded.open):
            error = self.assertRaises(errors.BackendUnavailable, refused)
            self.assertIn("moved to etcd", str(error))
        migration_fence.remove_mark(mover)
        self.guarded.head()


class Service:
    """A thread that works through a guarded client until its back end is left."""

    def __init__(self, client: contract.Synchronizer, work: Callable[[Service, int], None]) -> None:
        self.client = client
        self._work = work
        self._stop = threading.Event()
        self.failures: list[str] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                self._work(self, number)
            except errors.BackendUnavailable as error:
                self.failures.append(str(error))
                self._stop.wait(0.02)
            except BaseException as error:  # told by stop()
                self.error = error
                return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error


class TestSQLiteToMemcached(unittest.TestCase):
    """The back ends differ by subclass."""

    def setUp(self) -> None:
        super().setUp()
        self.make_source, self.make_target = self.back_ends()
        self.told: dict[records.RecordKey, bytes] = {}
        #: Written without an answer: each writer's last before the fence, if any.
        self.unknown: dict[records.RecordKey, bytes] = {}
        self.granted: Counter[str] = Counter()
        self.kept: dict[tuple[str, str], model.ClaimState] = {}
        self.lock = threading.Lock()

    def back_ends(
        self,
    ) -> tuple[Callable[[], contract.Synchronizer], Callable[[], contract.Synchronizer]]:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        server = self.enterContext(servers.Memcached("-m", "64", "-M"))
        return _sqlite(f"{directory}/source.sqlite"), _memcached(server.address)

    def opened(self, make: Callable[[], contract.Synchronizer]) -> contract.Synchronizer:
        synchronizer = make()
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        return synchronizer

    def guarded(
        self, make: Callable[[], contract.Synchronizer]
    ) -> migration_fence.FencedSynchronizer:
        guarded = migration_fence.FencedSynchronizer(make())
        guarded.open()
        self.addCleanup(guarded.close)
        return guarded

    def mover(
        self, progress: migrator.TellProgress = lambda _phase, _count: None
    ) -> migrator.Migrator:
        return migrator.Migrator(
            self.opened(self.make_source), self.opened(self.make_target), OWN, progress=progress
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        patience.wait_until(condition, PATIENCE_SECONDS, "the traffic goes on", 0.05)
        # And some more of the same, under load as well.
        time.sleep(0.5)

    # --- traffic ---

    def report(self, name: str) -> Callable[[Service, int], None]:
        """Keep writing one's own records, and remember what was accepted."""

        def work(service: Service, number: int) -> None:
            key = records.RecordKey(known_namespaces.COMPUTE_NODES.name, f"{name}-{number % 40}")
            payload = codec.encode(
                {"row": {"number": number}}, known_namespaces.COMPUTE_NODES.schema
            )
            standing = service.client.read([key]).get(key)
            revision = 0 if standing is None or standing.deleted else standing.revision
            [result] = service.client.write([records.Write(key, revision, payload)])
            if result.won:
                self.told[key] = payload
            elif result.verdict is records.Verdict.UNKNOWN:
                self.unknown[key] = payload

        return work

    def claim(self, name: str) -> Callable[[Service, int], None]:
        """Claim a slot of some host; confirm every second claim."""
        schedulers: dict[int, cases.ClaimingScheduler] = {}

        def work(service: Service, number: int) -> None:
            scheduler = schedulers.setdefault(
                id(service), cases.ClaimingScheduler(service.client, name)
            )
            host, consumer = f"host-{number % HOSTS}", f"{name}-{number}"
            answer = scheduler.claim(cases.claim(consumer, host))
            if not isinstance(answer, model.Granted):
                return
            with self.lock:
                self.granted[host] += 1
                self.kept[host, consumer] = model.ClaimState.PENDING
            if number % 2 and isinstance(scheduler.hosts.confirm(answer), model.Granted):
                self.kept[host, consumer] = model.ClaimState.CONFIRMED

        return work

    def test_nothing_acknowledged_is_lost_and_nothing_granted_twice(self) -> None:
        source = self.guarded(self.make_source)
        source.write([records.Write(records.RecordKey("schedulers", "beat"), 0, b"own")])
        deleted = records.RecordKey(known_namespaces.INSTANCES.name, "deleted")
        [created] = source.write([records.Write(deleted, 0, b"\x01{}")])
        services = [
            Service(self.guarded(self.make_source), self.report("first")),
            Service(self.guarded(self.make_source), self.report("second")),
            Service(self.guarded(self.make_source), self.claim("old")),
        ]
        self.wait_for(lambda: len(self.told) > 10 and bool(self.granted))

        def delete_in_between(phase: str, _count: int) -> None:
            if phase == "copy" and created.record is not None:
                source.write([records.Write(deleted, created.record.revision, deleted=True)])

        moved = self.mover(delete_in_between).move()
        # Restarted one after the other: for a while both kinds run.
        new = [Service(self.guarded(self.make_target), self.claim("new"))]
        self.wait_for(lambda: all(service.failures for service in services))
        for service in services:
            service.stop()
        before = dict(self.told)
        new.append(Service(self.guarded(self.make_target), self.report("third")))
        self.wait_for(lambda: len(self.told) > len(before))
        self.wait_for(lambda: any(consumer[:3] == "new" for _, consumer in list(self.kept)))
        for service in new:
            service.stop()
        self.assertIn("restart this service", services[0].failures[-1])
        self.assertFalse(new[0].failures + new[1].failures)
        target = self.guarded(self.make_target)
        held = contract_case.everything(target)
        self.assertGreater(len(before), 10)
        self.assertLessEqual(len(self.unknown), 2)
        for key, payload in before.items():
            self.assertIn(held[key].payload, (payload, self.unknown.get(key)))
        self.assertNotIn(deleted, held)
        self.assertNotIn(records.RecordKey("schedulers", "beat"), held)
        self.assertGreaterEqual(moved.records, 10)
        self._check_claims(target)

    def _check_claims(self, target: contract.Synchronizer) -> None:
        scheduler = cases.ClaimingScheduler(target)
        self.assertLessEqual(max(self.granted.values()), CAPACITY)
        for (host, consumer), state in self.kept.items():
            held = scheduler.hosts.read(host).claims.get(consumer)
            assert held is not None, f"the claim of {consumer} on {host} is lost"
            if state is model.ClaimState.CONFIRMED:
                self.assertIs(state, held.state)
        self.assertEqual({"old", "new"}, {consumer[:3] for _, consumer in self.kept})

    def test_a_claim_is_settled_in_the_target_by_a_publication_there_alone(self) -> None:
        source = self.guarded(self.make_source)
        scheduler = cases.ClaimingScheduler(source)
        answer = scheduler.claim(cases.claim("server", "host"))
        assert isinstance(answer, model.Granted)
        scheduler.hosts.confirm(answer)
        key = records.RecordKey(known_namespaces.COMPUTE_NODES.name, "host")
        payload = codec.encode({"row": {}}, known_namespaces.COMPUTE_NODES.schema)
        source.write([records.Write(key, 0, payload)])
        self.mover().move()
        target = self.guarded(self.make_target)
        ledger = cases.ClaimingScheduler(target).hosts
        [carried] = target.read([key]).values()
        shown_at = records.Cursor(target.head().epoch, carried.version)
        self.assertEqual((), ledger.settle("host", ["server"], shown_at))
        [result] = target.write([records.Write(key, carried.revision, payload)])
        assert result.record is not None
        shown_at = records.Cursor(target.head().epoch, result.record.version)
        self.assertEqual(("server",), ledger.settle("host", ["server"], shown_at))

    def test_a_pending_claim_goes_on_by_the_targets_clock(self) -> None:
        source = self.opened(self.make_source)
        scheduler = cases.ClaimingScheduler(source, lease_seconds=100.0)
        began = time.monotonic()
        assert isinstance(scheduler.claim(cases.claim("server", "host")), model.Granted)
        self.mover().move()
        target = self.guarded(self.make_target)
        [held] = cases.ClaimingScheduler(target).hosts.read("host").claims.values()
        assert held.deadline_seconds is not None
        left = held.deadline_seconds - target.now_seconds()
        # A move takes what a machine takes for it; clocks are apart by less than 15 s.
        self.assertLessEqual(left, 115.0)
        self.assertGreaterEqual(left, 85.0 - (time.monotonic() - began))

    # --- writers at the fence ---

    def test_a_write_behind_the_fence_is_never_acknowledged(self) -> None:
        client = self.guarded(self.make_source)
        key = records.RecordKey(known_namespaces.COMPUTE_NODES.name, "host")
        steps = client.inner.STEPS
        before = steps[0]
        mover = self.mover()

        def move(step: str) -> None:
            if step == before:
                client.on_step = lambda _step: None
                mover.move()

        client.on_step = move
        [result] = client.write([records.Write(key, 0, b"\x01{}")])
        self.assertIs(records.Verdict.UNKNOWN, result.verdict)
        with self.assertRaisesRegex(errors.BackendUnavailable, "restart this service"):
            client.read([key])
        self.assertEqual({}, self.guarded(self.make_target).read([key]))

    def test_a_claim_behind_the_fence_is_granted_to_nobody(self) -> None:
        client = self.guarded(self.make_source)
        scheduler = cases.ClaimingScheduler(client)
        view = client.head()
        self.mover().move()
        wanted = cases.claim("server", "host")
        with self.assertRaises(errors.BackendUnavailable):
            answer = scheduler.hosts.claim(wanted, lambda record: True, view)
            self.assertNotIsInstance(answer, model.Granted)
            raise errors.BackendUnavailable("", "it answered without a grant")
        self.assertEqual({}, self.opened(self.make_target).read([claim_rules.host_key("host")]))

    def test_a_follower_of_the_old_back_end_learns_that_it_was_left(self) -> None:
        follower = contract_case.FeedReader(self.guarded(self.make_source))
        self.mover().move()
        with self.assertRaisesRegex(errors.BackendUnavailable, "restart this service"):
            for _ in range(10):
                follower.step()

    # --- interruptions ---

    def test_a_move_interrupted_in_any_phase_is_completed_by_the_next(self) -> None:
        source = self.guarded(self.make_source)
        ledger = cases.ClaimingScheduler(source)
        for number in range(20):
            key = records.RecordKey(known_namespaces.COMPUTE_NODES.name, f"host-{number}")
            source.write([records.Write(key, 0, b"\x01{}")])
        assert isinstance(ledger.claim(cases.claim("server", "host")), model.Granted)
        for phase in ("copy", "follow", "claims"):
            with self.assertRaises(_Interrupted):
                self.mover(_interrupt_at(phase)).move()
            with self.assertRaisesRegex(errors.BackendUnavailable, "being filled"):
                self.guarded(self.make_target)
            serves = phase != "claims"
            written = _writes(source, f"after-{phase}")
            self.assertEqual(serves, written)
        self.mover().move()
        names = {key.key for key in contract_case.everything(self.guarded(self.make_target))}
        hosts = {f"host-{number}" for number in range(20)}
        # "after-claims" was not acknowledged; it may have been carried out.
        wanted = hosts | {"host", "after-copy", "after-follow"}
        self.assertEqual(wanted, names - {"after-claims"})

    def test_a_fence_that_fell_meanwhile_keeps_the_target_closed(self) -> None:
        source = self.guarded(self.make_source)
        ledger = cases.ClaimingScheduler(source)
        assert isinstance(ledger.claim(cases.claim("server", "host")), model.Granted)

        def fell(phase: str, _count: int) -> None:
            if phase == "claims":
                migration_fence.remove_mark(source.inner)

        with self.assertRaisesRegex(errors.BackendUnavailable, "lost the marker"):
            self.mover(fell).move()
        self.assertTrue(_writes(source, "in between"))
        with self.assertRaisesRegex(errors.BackendUnavailable, "being filled"):
            self.guarded(self.make_target)
        self.mover().move()
        held = contract_case.everything(self.guarded(self.make_target))
        self.assertEqual({"host", "in between"}, {key.key for key in held})

    def test_a_move_called_off_leaves_the_old_back_end_serving(self) -> None:
        source = self.guarded(self.make_source)
        self.assertTrue(_writes(source, "one"))
        ledger = cases.ClaimingScheduler(source)
        assert isinstance(ledger.claim(cases.claim("server", "host")), model.Granted)
        with self.assertRaises(_Interrupted):
            self.mover(_interrupt_at("claims")).move()
        self.assertFalse(_writes(source, "two"))
        self.assertTrue(self.mover().cancel())
        self.assertTrue(_writes(source, "three"))
        self.assertFalse(self.mover().cancel())
        self.mover().move()
        names = {key.key for key in contract_case.everything(self.guarded(self.make_target))}
        # "two" was not acknowledged; it may have been carried out.
        self.assertEqual({"one", "three", "host"}, names - {"two"})

    def test_a_move_and_back_again(self) -> None:
        source = self.guarded(self.make_source)
        self.assertTrue(_writes(source, "kept"))
        [gone] = source.write([records.Write(records.RecordKey("instances", "g"), 0, b"\x01{}")])
        self.mover().move()
        target = self.guarded(self.make_target)
        [standing] = target.read([records.RecordKey("instances", "g")]).values()
        target.write([records.Write(standing.key, standing.revision, deleted=True)])
        back = migrator.Migrator(self.opened(self.make_target), self.opened(self.make_source), OWN)
        back.move()
        held = contract_case.everything(self.guarded(self.make_source))
        self.assertEqual(["kept"], [key.key for key in held])
        self.assertFalse(_writes(target, "late"))
        self.assertTrue(gone.won)

    # --- bad input ---

    def test_a_target_that_holds_records_is_refused(self) -> None:
        self.assertTrue(_writes(self.opened(self.make_target), "somebody's"))
        with self.assertRaisesRegex(errors.ConfigurationError, "name an empty one"):
            self.mover().move()
        self.assertTrue(_writes(self.guarded(self.make_source), "still serves"))

    def test_the_same_back_end_under_another_name_is_refused(self) -> None:
        source = self.opened(self.make_source)
        for _ in range(2):
            with self.assertRaisesRegex(errors.ConfigurationError, "is to be left"):
                migrator.Migrator(source, self.opened(self.make_source), OWN).move()
            self.assertTrue(_writes(self.guarded(self.make_source), "still serves"))

    def test_a_record_too_large_for_the_target_is_named_before_the_fence(self) -> None:
        limit_bytes = self.opened(self.make_target).capabilities.max_payload_bytes
        source = self.guarded(self.make_source)
        if source.capabilities.max_payload_bytes <= limit_bytes:
            self.skipTest("the target takes what the source takes")
        source.write(
            [records.Write(records.RecordKey("instances", "large"), 0, bytes(limit_bytes + 1))]
        )
        with self.assertRaisesRegex(errors.PayloadTooLarge, "large"):
            self.mover().move()
        self.assertTrue(_writes(source, "still serves"))


class TestMariaDBToSQLite(TestSQLiteToMemcached):
    def back_ends(
        self,
    ) -> tuple[Callable[[], contract.Synchronizer], Callable[[], contract.Synchronizer]]:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        database = self.enterContext(servers.MariaDB())
        return _sql(database.url), _sqlite(f"{directory}/target.sqlite")


class TestMariaDBToEtcd(TestSQLiteToMemcached):
    def back_ends(
        self,
    ) -> tuple[Callable[[], contract.Synchronizer], Callable[[], contract.Synchronizer]]:
        database = self.enterContext(servers.MariaDB())
        return _sql(database.url), _etcd(self.enterContext(etcd_server.Etcd()))


class TestEtcdToRedis(TestSQLiteToMemcached):
    def back_ends(
        self,
    ) -> tuple[Callable[[], contract.Synchronizer], Callable[[], contract.Synchronizer]]:
        source = self.enterContext(etcd_server.Etcd())
        return _etcd(source), _redis(self.enterContext(redis_server.Redis()).url)


class TestCommand(unittest.TestCase):
    """nova-nodb-manage synchronizer move, as an operator calls it."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.source = _sqlite(f"{self.directory}/source.sqlite")()
        self.source.open()
        self.addCleanup(self.source.close)
        self.conf = self.directory / "nova.conf"
        self.conf.write_text(
            f"[DEFAULT]\nstate_path = {self.directory}\n[nodb_scheduler]\nsynchronizer = "
            f"sqlalchemy\n[nodb_sqlalchemy]\nconnection = sqlite:///{self.directory}/source.sqlite\n"
        )
        self.target = self.directory / "target.conf"
        self.target.write_text(
            f"[nodb_sqlalchemy]\nconnection = sqlite:///{self.directory}/target.sqlite\n"
            "ordering = sequencer\n"
        )

    def run_move(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return commands.run(self.command(*arguments), self.directory)

    def command(self, *arguments: str) -> tuple[str, ...]:
        return ("--config-file", str(self.conf), "synchronizer", "move", *arguments)

    def test_a_counter_database_moves_into_a_sequenced_one(self) -> None:
        self.assertTrue(_writes(self.source, "host"))
        arguments = ("--to", "sqlalchemy", "--to-config", str(self.target), "--json")
        checked = self.run_move(*arguments, "--check")
        self.assertEqual(0, checked.returncode, checked.stderr)
        self.assertEqual("can be moved", json.loads(checked.stdout)["outcome"])
        done = self.run_move(*arguments)
        self.assertEqual(0, done.returncode, done.stderr)
        document = json.loads(done.stdout)
        self.assertEqual(("moved", 1), (document["outcome"], document["records"]))
        again = self.run_move(*arguments)
        self.assertEqual(3, again.returncode)
        self.assertIn("were moved to sqlalchemy already", again.stderr)

    def test_compute_nodes_that_stand_nowhere_else_go_to_no_back_end_that_forgets(self) -> None:
        cell_modes.CellModes(self.source).record("cell1", cell_modes.NodeMode.STORE)
        for arguments in ((), ("--check",)):
            done = self.run_move("--to", "memory", *arguments)
            self.assertEqual(3, done.returncode, done.stderr)
            self.assertIn("the compute nodes of cell1 stand nowhere else", done.stderr)
        cell_modes.CellModes(self.source).record("cell1", cell_modes.NodeMode.MIRROR)
        self.assertEqual(0, self.run_move("--to", "memory", "--check").returncode)

    def test_a_check_makes_no_database(self) -> None:
        self.assertTrue(_writes(self.source, "host"))
        arguments = ("--to", "sqlalchemy", "--to-config", str(self.target), "--json", "--check")
        before = self.contents()
        checked = self.run_move(*arguments)
        self.assertEqual(0, checked.returncode, checked.stderr)
        self.assertEqual("can be moved", json.loads(checked.stdout)["outcome"])
        self.assertEqual(before, self.contents())

    def test_a_check_of_a_back_end_that_was_left_refuses_a_new_target(self) -> None:
        self.assertTrue(_writes(self.source, "host"))
        moved = self.run_move("--to", "sqlalchemy", "--to-config", str(self.target))
        self.assertEqual(0, moved.returncode, moved.stderr)
        self.target.write_text(self.target.read_text().replace("target", "another"))
        before = self.contents()
        checked = self.run_move("--to", "sqlalchemy", "--to-config", str(self.target), "--check")
        self.assertEqual(3, checked.returncode)
        self.assertIn("were moved to sqlalchemy already", checked.stderr)
        self.assertEqual(before, self.contents())

    def contents(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}

    def test_people_are_told_what_to_do_next(self) -> None:
        arguments = self.command("--to", "sqlalchemy", "--to-config", str(self.target))
        done = commands.run_from_nothing(arguments, self.directory)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn(
            "start the schedulers, then the super conductor", " ".join(done.stdout.split())
        )

    def test_bad_input_is_refused_in_one_line_that_says_what_to_do(self) -> None:
        for arguments, told in (
            (("--to", "nonsense"), "--to = 'nonsense'"),
            (("--to", "sqlalchemy"), "--to-config"),
            (("--to", "sqlalchemy", "--to-config", "/nowhere"), "there is no such file"),
        ):
            with self.subTest(arguments=arguments):
                done = self.run_move(*arguments)
                self.assertEqual(3, done.returncode)
                self.assertIn(told, done.stderr)
                self.assertNotIn("Traceback", done.stderr)


class _Interrupted(Exception):
    pass


def _interrupt_at(wanted: str) -> migrator.TellProgress:
    def progress(phase: str, _count: int) -> None:
        if phase == wanted:
            raise _Interrupted

    return progress


def _writes(client: contract.Synchronizer, name: str) -> bool:
    """Write a record, and tell whether that was acknowledged."""
    key = records.RecordKey(known_namespaces.INSTANCES.name, name)
    try:
        standing = client.read([key]).get(key)
        revision = standing.revision if standing is not None else 0
        return client.write([records.Write(key, revision, b"\x01{}")])[0].won
    except errors.BackendUnavailable:
        return False


def _sql(url: str) -> Callable[[], contract.Synchronizer]:
    return lambda: sql.SQLAlchemySynchronizer(
        sql.SQLOptions(url, poll_interval_seconds=0.02, timeout_seconds=20.0, auto_upgrade=True)
    )


def _sqlite(path: str) -> Callable[[], contract.Synchronizer]:
    return _sql(f"sqlite:///{path}")


def _memcached(address: str) -> Callable[[], contract.Synchronizer]:
    return lambda: memcached.MemcachedSynchronizer(memcached.MemcachedOptions(servers=(address,)))


def _etcd(server: etcd_server.Etcd) -> Callable[[], contract.Synchronizer]:
    options = etcd.EtcdOptions(endpoints=(server.url,), key_prefix=server.key_prefix)
    return lambda: etcd.EtcdSynchronizer(options)


def _redis(url: str) -> Callable[[], contract.Synchronizer]:
    return lambda: redis.RedisSynchronizer(redis.RedisOptions(url=url))
