# SPDX-License-Identifier: Apache-2.0
"""Claims on hosts, one at a time and several at once."""

from __future__ import annotations

import functools
from collections.abc import Callable

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import claim_batches, publisher, record_editor
from nova_nodb_scheduler.testing.conformance_claims import base as cases


class HostClaims(cases.ClaimsCase):
    """Claims on hosts."""

    def test_exactly_the_capacity_is_granted_to_racing_claimers(self) -> None:
        answers: list[model.ClaimAnswer] = []

        def job(number: int) -> Callable[[], None]:
            scheduler = self.scheduler(f"scheduler-{number}")

            def run() -> None:
                for attempt in range(2):
                    wanted = cases.claim(f"server-{number}-{attempt}", "host")
                    answer = scheduler.claim(wanted)
                    while isinstance(answer, model.Lost):
                        answer = scheduler.claim(wanted)
                    answers.append(answer)

            return run

        self.in_threads([job(number) for number in range(cases.CLAIMERS)])
        granted = [answer for answer in answers if isinstance(answer, model.Granted)]
        self.assertEqual(cases.CAPACITY["VCPU"], len(granted))
        for answer in answers:
            if answer not in granted:
                self.refused(answer, model.Reason.FULL)
        self.assertEqual(
            {answer.claim.consumer for answer in granted},
            self.consumers(self.scheduler(), "host"),
        )

    def test_threads_of_several_schedulers_get_exactly_the_capacity(self) -> None:
        stood: list[str] = []

        def job(scheduler: cases.Scheduler, number: int) -> Callable[[], None]:
            def run() -> None:
                for attempt in range(3):
                    name = f"server-{number}-{attempt}"
                    wanted = cases.claim(name, "host")
                    answer = scheduler.claim(wanted)
                    while isinstance(answer, model.Lost):
                        answer = scheduler.claim(wanted)
                    if not isinstance(answer, model.Granted):
                        self.refused(answer, model.Reason.FULL)
                    elif attempt == 0:
                        # Others find its room.
                        scheduler.hosts.release(answer)
                    else:
                        self.granted(scheduler.hosts.confirm(answer))
                        stood.append(name)

            return run

        schedulers = [self.scheduler(f"scheduler-{number}") for number in range(3)]
        self.in_threads([job(schedulers[number % 3], number) for number in range(12)])
        held = schedulers[0].hosts.read("host").claims
        self.assertEqual(set(stood), set(held))
        # What was given back last may have found nobody to take it.
        left = cases.CAPACITY["VCPU"] - len(stood)
        self.assertGreaterEqual(left, 0)
        for number in range(left):
            self.granted(schedulers[0].claim(cases.claim(f"rest-{number}", "host")))
        self.refused(schedulers[1].claim(cases.claim("more", "host")), model.Reason.FULL)

    def test_a_second_claim_by_the_same_consumer_is_the_same_claim(self) -> None:
        one, other = self.scheduler("one"), self.scheduler("other")
        first = self.granted(one.claim(cases.claim("server", "host", 3)))
        second = self.granted(other.claim(cases.claim("server", "host", 3)))
        self.assertEqual(first.claim_id, second.claim_id)
        self.assertEqual({"VCPU": 3}, one.hosts.read("host").used({}))
        self.granted(one.hosts.confirm(first))
        again = self.granted(other.claim(cases.claim("server", "host", 3)))
        self.assertIs(model.ClaimState.CONFIRMED, again.state)
        self.refused(other.claim(cases.claim("server", "host", 1)), model.Reason.HELD)

    def test_other_resources_replace_a_pending_claim_only_if_they_fit(self) -> None:
        scheduler = self.scheduler()
        first = self.granted(scheduler.claim(cases.claim("server", "host", 1)))
        second = self.granted(scheduler.claim(cases.claim("server", "host", 4)))
        self.assertEqual({"VCPU": 4}, scheduler.hosts.read("host").used({}))
        self.assertIsInstance(scheduler.hosts.confirm(first), model.Gone)
        self.granted(scheduler.hosts.confirm(second))

    def test_source_and_destination_of_a_move_coexist(self) -> None:
        scheduler = self.scheduler()
        source = self.granted(scheduler.claim(cases.claim("server", "host-a")))
        self.granted(scheduler.hosts.confirm(source))
        destination = self.granted(scheduler.claim(cases.claim("server", "host-b")))
        self.granted(scheduler.hosts.confirm(destination))
        self.assertEqual({"server"}, self.consumers(scheduler, "host-a"))
        self.assertEqual({"server"}, self.consumers(scheduler, "host-b"))
        for _ in range(2):
            scheduler.hosts.release(source)
            self.assertEqual(set(), self.consumers(scheduler, "host-a"))
        self.assertEqual({"server"}, self.consumers(scheduler, "host-b"))

    def test_a_lease_ends_by_the_back_ends_clock_and_its_owner_finds_the_claim_gone(
        self,
    ) -> None:
        sleeper, other = self.scheduler("sleeper", cases.SHORT_SECONDS), self.scheduler("other")
        asleep = self.granted(sleeper.claim(cases.claim("first", "host", 4)))
        self.refused(other.claim(cases.claim("second", "host", 4)), model.Reason.FULL)
        self.wait_out(other.client, cases.SHORT_SECONDS)
        awake = self.granted(other.claim(cases.claim("second", "host", 4)))
        self.assertIsInstance(sleeper.hosts.confirm(asleep), model.Gone)
        self.granted(other.hosts.confirm(awake))
        self.assertEqual({"second"}, self.consumers(other, "host"))

    def test_time_alone_never_ends_a_confirmed_claim(self) -> None:
        scheduler = self.scheduler()
        self.granted(
            scheduler.hosts.confirm(self.granted(scheduler.claim(cases.claim("a", "host"))))
        )
        self.granted(scheduler.claim(cases.claim("b", "host")))
        self.assertEqual((), scheduler.hosts.expire("host"))
        scheduler.ahead_seconds = cases.LONG_SECONDS + 1
        self.assertEqual(("b",), scheduler.hosts.expire("host"))
        self.assertEqual({"a"}, self.consumers(scheduler, "host"))

    def test_a_late_confirm_holds_if_nobody_dropped_the_claim(self) -> None:
        scheduler = self.scheduler()
        late = self.granted(scheduler.claim(cases.claim("server", "host")))
        scheduler.ahead_seconds = cases.LONG_SECONDS + 1
        self.granted(scheduler.hosts.confirm(late))
        self.assertEqual((), scheduler.hosts.expire("host"))

    def test_settling_hands_over_to_the_authority_and_refuses_older_views(self) -> None:
        scheduler = self.scheduler()
        before = scheduler.client.head()
        self.granted(
            scheduler.hosts.confirm(self.granted(scheduler.claim(cases.claim("a", "host"))))
        )
        self.granted(scheduler.claim(cases.claim("b", "host")))
        shown_at = self.publication(scheduler.client)
        self.assertEqual(("a",), scheduler.hosts.settle("host", ["a", "b", "c"], shown_at))
        self.assertEqual({"b"}, self.consumers(scheduler, "host"))
        late = scheduler.hosts.claim(cases.claim("c", "host"), lambda record: True, before)
        self.refused(late, model.Reason.STALE_VIEW)
        self.granted(scheduler.hosts.claim(cases.claim("c", "host"), lambda record: True, shown_at))

    def test_what_was_shown_before_the_confirm_settles_nothing(self) -> None:
        scheduler = self.scheduler()
        granted = self.granted(scheduler.claim(cases.claim("back again", "host")))
        former_stay = self.publication(scheduler.client)
        self.granted(scheduler.hosts.confirm(granted))
        self.assertEqual((), scheduler.hosts.settle("host", ["back again"], former_stay))
        # The same in a record that others have rewritten since.
        self.granted(scheduler.claim(cases.claim("other", "host")))
        self.assertEqual((), scheduler.hosts.settle("host", ["back again"], former_stay))
        # And with a claim that was taken once more after it was confirmed.
        shown_at = self.publication(scheduler.client)
        self.granted(scheduler.claim(cases.claim("back again", "host")))
        self.assertEqual((), scheduler.hosts.settle("host", ["back again"], shown_at))
        shown_at = self.publication(scheduler.client)
        settled = scheduler.hosts.settle("host", ["back again"], shown_at)
        self.assertEqual(("back again",), settled)

    def test_what_was_shown_in_a_former_epoch_settles_nothing(self) -> None:
        scheduler = self.scheduler()
        for _ in range(10):
            shown_at = self.publication(scheduler.client)
        scheduler.client.reset()
        self.granted(
            scheduler.hosts.confirm(self.granted(scheduler.claim(cases.claim("a", "host"))))
        )
        self.assertEqual((), scheduler.hosts.settle("host", ["a"], shown_at))

    def test_reconciling_drops_what_is_proved_absent_only(self) -> None:
        scheduler = self.scheduler()
        for consumer in ("there", "absent"):
            granted = self.granted(scheduler.claim(cases.claim(consumer, "host")))
            self.granted(scheduler.hosts.confirm(granted))
        self.granted(scheduler.claim(cases.claim("pending", "host")))
        dropped = scheduler.hosts.reconcile("host", lambda consumer: consumer == "there")
        self.assertEqual(("absent",), dropped)
        self.assertEqual({"there", "pending"}, self.consumers(scheduler, "host"))

    def test_a_claim_on_a_host_not_published_in_this_epoch_is_refused(self) -> None:
        scheduler = cases.Scheduler(self.client(), claimable=lambda host: host == "published")
        self.refused(scheduler.claim(cases.claim("a", "silent")), model.Reason.NOT_CLAIMABLE)
        self.granted(scheduler.claim(cases.claim("a", "published")))

    def test_a_claim_checked_against_a_former_epoch_is_undone(self) -> None:
        scheduler = self.scheduler()
        view = scheduler.client.head()
        scheduler.client.reset()
        answer = scheduler.hosts.claim(cases.claim("a", "host"), lambda record: True, view)
        self.refused(answer, model.Reason.EPOCH_CHANGED)
        self.assertEqual(set(), self.consumers(scheduler, "host"))

    def test_a_claim_of_another_scheduler_is_not_undone_with_a_stale_repetition(self) -> None:
        # Both were asked for the same server: the conductor's call had timed out.
        owner, late = self.scheduler("owner"), self.scheduler("late")
        view = late.client.head()
        late.client.reset()
        granted = self.granted(owner.claim(cases.claim("a", "host")))
        answer = late.hosts.claim(cases.claim("a", "host"), lambda record: True, view)
        self.refused(answer, model.Reason.EPOCH_CHANGED)
        self.assertEqual({"a"}, self.consumers(owner, "host"))
        self.assertEqual(
            model.ClaimState.CONFIRMED, self.granted(owner.hosts.confirm(granted)).state
        )

    def test_claims_and_publications_of_one_host_do_not_disturb_each_other(self) -> None:
        key = records.RecordKey(namespaces.COMPUTE_NODES.name, "host")
        reporter = self.client()
        publishing = publisher.Publisher(
            reporter, {namespaces.COMPUTE_NODES.name: namespaces.COMPUTE_NODES}, namespaces.NOVA
        )
        scheduler = self.scheduler()
        lost = []

        def publish() -> None:
            for number in range(10):
                report = publishing.publish({key: functools.partial(cases.state_of, number)})
                self.assertEqual(1, report.published)
                lost.append(report.repeated)

        def take() -> None:
            for number in range(cases.CAPACITY["VCPU"]):
                granted = self.granted(scheduler.claim(cases.claim(f"server-{number}", "host")))
                self.granted(scheduler.hosts.confirm(granted))

        self.in_threads([publish, take])
        self.assertEqual([0] * 10, lost)
        self.assertEqual(cases.CAPACITY, scheduler.hosts.read("host").used({}))


class BatchClaims(cases.ClaimsCase):
    """Several claims of one call, each by itself."""

    def test_what_does_not_fit_stays_out_and_the_others_are_taken(self) -> None:
        scheduler = self.scheduler()
        wanted = [
            cases.claim("a", "one", 2),
            cases.claim("b", "two", 5),
            cases.claim("c", "one", 3),
            cases.claim("d", "one", 2),
        ]
        answers = scheduler.claim_each(wanted)
        self.assertEqual({"a", "d"}, self.consumers(scheduler, "one"))
        self.assertEqual(set(), self.consumers(scheduler, "two"))
        for consumer in ("b", "c"):
            self.refused(answers[consumer], model.Reason.FULL)
        held = [each for each in answers.values() if isinstance(each, claim_batches.Held)]
        self.assertEqual(["a", "d"], sorted(each.granted.claim.consumer for each in held))
        self.assertEqual([True, True], scheduler.batches.confirm(held))
        scheduler.batches.release(held[:1])
        self.assertEqual(1, len(self.consumers(scheduler, "one")))

    def test_racing_batches_never_exceed_any_host(self) -> None:
        def job(number: int) -> Callable[[], None]:
            scheduler = self.scheduler(f"scheduler-{number}")
            hosts = ["one", "two"] if number % 2 else ["two", "one"]

            def run() -> None:
                for attempt in range(2):
                    left = [cases.claim(f"{host}-{number}-{attempt}", host) for host in hosts]
                    while left:
                        answers = scheduler.claim_each(left)
                        lost = record_editor.Unwritten.LOST
                        left = [each for each in left if answers[each.consumer] is lost]

            return run

        self.in_threads([job(number) for number in range(cases.CLAIMERS)])
        reader = self.scheduler()
        for host in ("one", "two"):
            self.assertEqual(cases.CAPACITY["VCPU"], len(self.consumers(reader, host)))
