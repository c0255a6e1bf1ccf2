# SPDX-License-Identifier: Apache-2.0
"""Threads that want one host at the same moment: one write, each judged for itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import attrs
import hypothesis
import testtools
from hypothesis import strategies as st

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.synchronizer.claims import claim_rules, group_rules
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.testing import single_claims as ledgers
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.claims import claiming_schedulers

EXAMPLES = max(10, int(os.environ.get("NODB_PROPERTY_EXAMPLES", "200")) // 4)
CAPACITY = {"h1": 4, "h2": 4, "aside": 10_000}
#: Longer than any machine is busy.
PATIENCE_SECONDS = 60.0

APART = requests.Request(
    requests.Flavor(vcpus=1),
    queries=(),
    group=requests.Group("g1", "anti-affinity", frozenset(["anti-affinity"])),
)

Job = Callable[[], object]


class Breach(AssertionError):
    """A host had more claims than room, at some revision of its record."""


class Worker(claiming_schedulers.Scheduler):
    """A scheduler of several threads, whose back end can be held up."""

    def __init__(self, hub: memory.MemoryHub, name: str, clock: claiming_schedulers.Clock) -> None:
        client = memory.MemorySynchronizer(None, hub)
        client.open()
        super().__init__(client, name, CAPACITY, {}, clock=clock, sleep=clock.sleep)
        self._write = client.write
        client.write = self._gated  # type: ignore[method-assign]
        self._commit = self.batches._editor._commit
        self._held_up = threading.Event()
        self._go_on = threading.Event()
        self._armed = False
        self._numbers = 0
        #: Keys of each call that wrote.
        self.calls: list[list[str]] = []
        self.before_going_on: Callable[[], None] = lambda: None

    def _gated(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        if self._armed:
            self._armed = False
            self._held_up.set()
            assert self._go_on.wait(PATIENCE_SECONDS)
            return self._write(writes)
        self.calls.append([each.key.key for each in writes])
        return self._write(writes)

    def together(self, jobs: Sequence[Job]) -> list[object]:
        """Run each job in a thread, all of them queued up behind a write; return the answers."""
        answers: list[object] = [None] * len(jobs)
        self._held_up.clear()
        self._go_on.clear()
        self._armed, self.calls = True, []
        self._numbers += 1
        aside = claiming_schedulers.wanted(f"aside-{self._numbers}", "aside")
        threads = [threading.Thread(target=self._take, args=(aside,))]
        threads[0].start()
        assert self._held_up.wait(PATIENCE_SECONDS)

        def run(place: int, job: Job) -> None:
            answers[place] = job()

        for place, job in enumerate(jobs):
            queued = len(self._commit._waiting)
            threads.append(threading.Thread(target=run, args=(place, job)))
            threads[-1].start()
            while len(self._commit._waiting) == queued and threads[-1].is_alive():
                threading.Event().wait(0.0005)
        self.before_going_on()
        self._go_on.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
        return answers

    def _take(self, wanted: chosen_hosts.WantedClaim) -> object:
        return self.claimer.take(
            claiming_schedulers.REQUEST, [wanted], claiming_schedulers.DEADLINE
        )

    def taking(
        self,
        *wanted: chosen_hosts.WantedClaim,
        request: requests.Request = claiming_schedulers.REQUEST,
    ) -> Job:
        return lambda: self.claimer.take(request, list(wanted), claiming_schedulers.DEADLINE)

    def confirming(self, *taken: chosen_hosts.TakenClaim) -> Job:
        return lambda: self.claimer.confirm(list(taken))

    def releasing(self, *taken: chosen_hosts.TakenClaim) -> Job:
        return lambda: self.claimer.release(list(taken))


class Watched(memory.MemoryHub):
    """A hub that looks at each record of claims as it is written."""

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        results = super().write(writes)
        for result in results:
            if result.won and result.record is not None:
                self._look(result.record)
        return results

    def _look(self, record: records.Record) -> None:
        if record.key.namespace != known_namespaces.CLAIM_RECORDS.name:
            return
        state = codec.decode(record.payload).state
        held = model.ClaimRecord.from_state(record.key.key, state, record.version)
        if held.used({}).get("VCPU", 0) > CAPACITY[held.host]:
            raise Breach(str(held))


class TogetherCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.clock = claiming_schedulers.Clock()
        self.hub = Watched(clock=self.clock)
        self.worker, self.other = self.make("one"), self.make("other")

    def make(self, name: str) -> Worker:
        return Worker(self.hub, name, self.clock)

    def held(self, host: str) -> dict[str, model.HeldClaim]:
        return dict(ledgers.stranger(self.other.client).read(host).claims)

    def taken(self, answers: Sequence[object]) -> list[chosen_hosts.TakenClaim]:
        """Return what was taken, of answers of one server each."""
        return [each[0] for each in answers if isinstance(each[0], chosen_hosts.TakenClaim)]

    def take(self, worker: Worker, name: str, host: str, vcpus: int = 1) -> chosen_hosts.TakenClaim:
        [answer] = worker.taking(claiming_schedulers.wanted(name, host, vcpus))()
        self.assertIsInstance(answer, chosen_hosts.TakenClaim)
        return answer


class TogetherTest(TogetherCase):
    def test_threads_of_one_scheduler_lose_nothing_to_one_another(self):
        self.take(self.worker, "before", "h1")
        jobs = [self.worker.taking(claiming_schedulers.wanted(f"c{n}", "h1")) for n in range(8)]
        answers = self.worker.together(jobs)
        self.assertEqual(3, len(self.taken(answers)))
        self.assertEqual(4, len(self.held("h1")))
        self.assertEqual(0, self.worker.lost)
        # All that fit in one write, and those who did not looked at what it left.
        self.assertEqual([["h1"]], self.worker.calls)

    def test_who_does_not_fit_beside_the_others_is_told_full(self):
        jobs = [self.worker.taking(claiming_schedulers.wanted(f"c{n}", "h1", 3)) for n in range(2)]
        answers = [each[0] for each in self.worker.together(jobs)]
        [refused] = [each for each in answers if isinstance(each, chosen_hosts.RefusedClaim)]
        self.assertIs(chosen_hosts.ClaimRefusal.NEXT_HOST, refused.failure)
        self.assertEqual("full", refused.detail)

    def test_takes_confirms_and_releases_share_a_write(self):
        confirmed, released = (self.take(self.worker, name, "h1") for name in "ab")
        answers = self.worker.together(
            [
                self.worker.confirming(confirmed),
                self.worker.taking(claiming_schedulers.wanted("c", "h1")),
                self.worker.releasing(released),
                self.worker.taking(claiming_schedulers.wanted("d", "h1", 2)),
            ]
        )
        self.assertEqual([["h1"]], self.worker.calls)
        self.assertEqual([True], answers[0])
        self.assertEqual(2, len(self.taken([answers[1], answers[3]])))
        held = self.held("h1")
        self.assertEqual({"a", "c", "d"}, set(held))
        self.assertIs(model.ClaimState.CONFIRMED, held["a"].state)

    def test_a_confirm_that_shares_its_write_is_not_older_than_it(self):
        # Else a record of the authority from before the confirm would settle it.
        confirmed = self.take(self.worker, "a", "h1")
        self.worker.together(
            [
                self.worker.confirming(confirmed),
                self.worker.taking(claiming_schedulers.wanted("b", "h1")),
            ]
        )
        self.assertEqual([["h1"]], self.worker.calls)
        [record] = self.worker.client.read([claim_rules.host_key("h1")]).values()
        self.assertEqual(record.version, self.held("h1")["a"].confirmed_by)

    def test_a_groups_members_share_a_write_and_its_policy_holds(self):
        jobs = [
            self.worker.taking(claiming_schedulers.wanted(f"c{n}", f"h{n % 2 + 1}"), request=APART)
            for n in range(4)
        ]
        answers = [each[0] for each in self.worker.together(jobs)]
        hosts = [
            each.wanted.chosen.uuid for each in answers if isinstance(each, chosen_hosts.TakenClaim)
        ]
        self.assertEqual(["h1", "h2"], sorted(hosts))
        self.assertEqual(0, self.worker.lost)
        [record] = self.worker.client.read([group_rules.group_key("g1")]).values()
        members = codec.decode(record.payload).state["members"]
        self.assertEqual(2, sum(map(len, members.values())))

    def test_who_queued_up_behind_another_call_goes_on_from_what_it_left(self):
        # The call under way is for the same host.
        self.take(self.worker, "before", "h1")
        jobs = [self.worker.taking(claiming_schedulers.wanted(f"c{n}", "h1")) for n in range(2)]
        self.worker._take = lambda _aside: self.take(self.worker, "first", "h1")
        self.assertEqual(2, len(self.taken(self.worker.together(jobs))))
        self.assertEqual(0, self.worker.lost)
        self.assertEqual({"before", "first", "c0", "c1"}, set(self.held("h1")))

    def test_a_shared_write_that_loses_to_another_scheduler_is_absorbed_as_a_whole(self):
        self.take(self.worker, "before", "h1")
        self.worker.before_going_on = lambda: self.take(self.other, "rival", "h1")
        jobs = [self.worker.taking(claiming_schedulers.wanted(f"c{n}", "h1")) for n in range(2)]
        self.assertEqual(2, len(self.taken(self.worker.together(jobs))))
        self.assertEqual({"before", "rival", "c0", "c1"}, set(self.held("h1")))
        # One compare-and-set was lost, and both were judged again by what it lost to.
        self.assertEqual(1, self.worker.lost)
        self.assertEqual(2, self.worker.absorbed)
        self.assertEqual([["h1"], ["h1"]], self.worker.calls[:2])

    def test_what_the_other_scheduler_left_no_room_for_is_refused(self):
        self.take(self.worker, "before", "h1")
        self.worker.before_going_on = lambda: self.take(self.other, "rival", "h1", 2)
        jobs = [self.worker.taking(claiming_schedulers.wanted(f"c{n}", "h1")) for n in range(3)]
        self.assertEqual(1, len(self.taken(self.worker.together(jobs))))

    def test_after_a_lost_reply_each_finds_its_own(self):
        self.take(self.worker, "before", "h1")

        def lose() -> None:
            # The first one is of the write that is held up.
            self.worker._write = self.losing(memory.Fault.REPLY_LOST)

        self.worker.before_going_on = lose
        jobs = [self.worker.taking(claiming_schedulers.wanted(f"c{n}", "h1")) for n in range(3)]
        self.assertEqual(3, len(self.taken(self.worker.together(jobs))))
        self.assertEqual({"before", "c0", "c1", "c2"}, set(self.held("h1")))

    def test_a_shared_write_that_comes_late_has_no_effect(self):
        self.take(self.worker, "before", "h1")
        self.worker.before_going_on = lambda: setattr(
            self.worker, "_write", self.losing(memory.Fault.LATE)
        )
        jobs = [self.worker.taking(claiming_schedulers.wanted(f"c{n}", "h1")) for n in range(3)]
        self.assertEqual(3, len(self.taken(self.worker.together(jobs))))
        [late] = self.hub.deliver_late()
        self.assertIs(records.Verdict.LOST, late.verdict)

    def losing(self, fault: memory.Fault) -> Callable[..., list[records.WriteResult]]:
        """Return a write whose first call for h1 meets a fault."""
        write, left = self.worker._write, [fault]

        def lossy(writes: Sequence[records.Write]) -> list[records.WriteResult]:
            if left and writes[0].key.key == "h1":
                self.worker.client.faults.fail_next(left.pop())
            return write(writes)

        return lossy

    def test_a_thread_that_slept_beyond_its_lease_finds_its_claim_gone(self):
        asleep = self.take(self.worker, "asleep", "h1", 4)
        self.clock.now += claiming_schedulers.LEASE_SECONDS + 1
        answers = self.worker.together(
            [
                self.worker.taking(claiming_schedulers.wanted("awake", "h1", 4)),
                self.worker.confirming(asleep),
            ]
        )
        self.assertEqual(1, len(self.taken(answers[:1])))
        self.assertEqual([False], answers[1])
        self.assertEqual({"awake"}, set(self.held("h1")))

    def test_an_epoch_that_begins_while_they_wait_grants_nothing(self):
        for worker in (self.worker, self.other):
            worker.views.epoch = self.hub.head().epoch
        self.take(self.worker, "before", "h1")
        self.worker.before_going_on = self.hub.begin_epoch
        jobs = [self.worker.taking(claiming_schedulers.wanted(f"c{n}", "h1")) for n in range(3)]
        answers = [each[0] for each in self.worker.together(jobs)]
        failures = {each.failure for each in answers if isinstance(each, chosen_hosts.RefusedClaim)}
        self.assertEqual(
            [], [each for each in answers if isinstance(each, chosen_hosts.TakenClaim)]
        )
        self.assertEqual({chosen_hosts.ClaimRefusal.BEHIND}, failures)
        self.assertEqual({}, self.held("h1"))

    def test_one_whose_rule_fails_harms_no_other(self):
        fits = self.worker.views.fits

        def failing(claim: model.Claim, record: model.ClaimRecord) -> bool:
            if claim.consumer == "bad" and threading.current_thread() is not owner:
                raise ZeroDivisionError
            return fits(claim, record)

        owner = None

        def bad() -> object:
            nonlocal owner
            owner = threading.current_thread()
            return self.worker.taking(claiming_schedulers.wanted("bad", "h1"))()

        self.worker.views.fits = failing
        jobs = [self.worker.taking(claiming_schedulers.wanted("good", "h1")), bad]
        self.assertEqual(2, len(self.taken(self.worker.together(jobs))))


@attrs.frozen
class Step:
    """Threads of one worker that come together, and what befalls them.

    :param takes: host and VCPUs of each thread that takes
    :param confirms: how many of the worker's claims are confirmed, each in a thread
    :param releases: how many are given back
    :param rival: VCPUs that the other worker takes on h1 meanwhile
    :param fault: of the first write that follows
    """

    worker: int
    takes: list[tuple[str, int]]
    confirms: int
    releases: int
    rival: int
    fault: memory.Fault | None


STEPS = st.lists(
    st.builds(
        Step,
        worker=st.integers(0, 1),
        takes=st.lists(
            st.tuples(st.sampled_from(["h1", "h1", "h2"]), st.integers(1, 3)), max_size=4
        ),
        confirms=st.integers(0, 2),
        releases=st.integers(0, 2),
        rival=st.integers(0, 2),
        fault=st.sampled_from(
            [
                None,
                None,
                memory.Fault.REPLY_LOST,
                memory.Fault.REQUEST_LOST,
                memory.Fault.LATE,
                memory.Fault.UNAVAILABLE,
            ]
        ),
    ),
    min_size=1,
    max_size=6,
)


class Trial:
    """Carries out steps, and compares the records with what everybody was told."""

    def __init__(self) -> None:
        clock = claiming_schedulers.Clock()
        self.hub = Watched(clock=clock)
        self.workers = [Worker(self.hub, name, clock) for name in ("one", "other")]
        #: Claims that stand, by worker.
        self.standing: list[list[chosen_hosts.TakenClaim]] = [[], []]
        self._names = 0

    def run(self, step: Step) -> None:
        worker, own = self.workers[step.worker], self.standing[step.worker]
        rival = self.workers[1 - step.worker]
        released = [own.pop() for _ in range(min(step.releases, len(own)))]
        confirmed = own[: step.confirms]
        takes = [
            worker.taking(claiming_schedulers.wanted(self._name(), host, vcpus))
            for host, vcpus in step.takes
        ]
        jobs = [
            *takes,
            *(worker.confirming(each) for each in confirmed),
            *(worker.releasing(each) for each in released),
        ]

        def meanwhile() -> None:
            if step.rival:
                [answer] = rival.taking(
                    claiming_schedulers.wanted(self._name(), "h1", step.rival)
                )()
                if isinstance(answer, chosen_hosts.TakenClaim):
                    self.standing[1 - step.worker].append(answer)
            if step.fault is not None:
                worker.client.faults.fail_next(step.fault)

        worker.before_going_on = meanwhile
        answers = worker.together(jobs)
        worker.client.faults.come_up()
        for answer in answers[: len(takes)]:
            [found] = answer
            if isinstance(found, chosen_hosts.TakenClaim):
                own.append(found)
        for stands in answers[len(takes) : len(takes) + len(confirmed)]:
            assert stands == [True]
        self.hub.deliver_late()

    def _name(self) -> str:
        self._names += 1
        return f"c{self._names}"

    def claims(self) -> dict[str, set[tuple[str, str]]]:
        """Return consumer and id of the claims that stand on each host."""
        ledger = ledgers.stranger(self.workers[0].client)
        return {
            host: {(name, held.claim_id) for name, held in ledger.read(host).claims.items()}
            for host in ("h1", "h2")
        }

    def told(self) -> dict[str, set[tuple[str, str]]]:
        """Return the same of what was granted and not given back."""
        told: dict[str, set[tuple[str, str]]] = {"h1": set(), "h2": set()}
        for taken in (each for own in self.standing for each in own):
            granted = taken.grant.granted
            told[granted.claim.host].add((granted.claim.consumer, granted.claim_id))
        return told


class TogetherPropertyTest(testtools.TestCase):
    @hypothesis.settings(max_examples=EXAMPLES, deadline=None)
    @hypothesis.given(STEPS)
    def test_what_was_granted_stands_and_fits_at_every_revision(self, steps: list[Step]) -> None:
        trial = Trial()
        for step in steps:
            trial.run(step)
            stands, told = trial.claims(), trial.told()
            for host in stands:
                # A release whose write was lost may leave a claim to its lease.
                assert told[host] <= stands[host], (host, told, stands)
                if all(each.fault is None for each in steps):
                    assert told[host] == stands[host], (host, told, stands)
