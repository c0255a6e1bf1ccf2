# SPDX-License-Identifier: Apache-2.0
"""Claims on hosts and of server group members, one at a time and several at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.claims import group_removal, group_rules, ledger_claimer
from nova_nodb_scheduler.synchronizer.records import publisher, record_editor
from nova_nodb_scheduler.testing import single_claims
from nova_nodb_scheduler.testing.conformance_claims import claims_case as cases


class HostClaims(cases.ClaimsCase):
    """Claims on hosts."""

    def test_exactly_the_capacity_is_granted_to_racing_claimers(self) -> None:
        answers: list[single_claims.ClaimAnswer] = []

        def job(number: int) -> Callable[[], None]:
            scheduler = self.scheduler(f"scheduler-{number}")

            def run() -> None:
                for attempt in range(2):
                    wanted = cases.claim(f"server-{number}-{attempt}", "host")
                    answer = scheduler.claim(wanted)
                    while isinstance(answer, single_claims.GrantLost):
                        answer = scheduler.claim(wanted)
                    answers.append(answer)

            return run

        self.in_threads([job(number) for number in range(cases.CLAIMERS)])
        granted = [answer for answer in answers if isinstance(answer, model.Granted)]
        self.assertEqual(cases.CAPACITY["VCPU"], len(granted))
        for answer in answers:
            if answer not in granted:
                self.refused(answer, model.RefusalReason.FULL)
        self.assertEqual(
            {answer.claim.consumer for answer in granted},
            self.consumers(self.scheduler(), "host"),
        )

    def test_threads_of_several_schedulers_get_exactly_the_capacity(self) -> None:
        stood: list[str] = []

        def job(scheduler: cases.ClaimingScheduler, number: int) -> Callable[[], None]:
            def run() -> None:
                for attempt in range(3):
                    name = f"server-{number}-{attempt}"
                    wanted = cases.claim(name, "host")
                    answer = scheduler.claim(wanted)
                    while isinstance(answer, single_claims.GrantLost):
                        answer = scheduler.claim(wanted)
                    if not isinstance(answer, model.Granted):
                        self.refused(answer, model.RefusalReason.FULL)
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
        self.refused(schedulers[1].claim(cases.claim("more", "host")), model.RefusalReason.FULL)

    def test_a_second_claim_by_the_same_consumer_is_the_same_claim(self) -> None:
        one, other = self.scheduler("one"), self.scheduler("other")
        first = self.granted(one.claim(cases.claim("server", "host", 3)))
        second = self.granted(other.claim(cases.claim("server", "host", 3)))
        self.assertEqual(first.claim_id, second.claim_id)
        self.assertEqual({"VCPU": 3}, one.hosts.read("host").used({}))
        self.granted(one.hosts.confirm(first))
        again = self.granted(other.claim(cases.claim("server", "host", 3)))
        self.assertIs(model.ClaimState.CONFIRMED, again.state)
        self.refused(other.claim(cases.claim("server", "host", 1)), model.RefusalReason.HELD)

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
        self.refused(other.claim(cases.claim("second", "host", 4)), model.RefusalReason.FULL)
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
        self.refused(late, model.RefusalReason.STALE_VIEW)
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
        scheduler = cases.ClaimingScheduler(
            self.client(), claimable=lambda host: host == "published"
        )
        self.refused(scheduler.claim(cases.claim("a", "silent")), model.RefusalReason.NOT_CLAIMABLE)
        self.granted(scheduler.claim(cases.claim("a", "published")))

    def test_a_claim_checked_against_a_former_epoch_is_undone(self) -> None:
        scheduler = self.scheduler()
        view = scheduler.client.head()
        scheduler.client.reset()
        answer = scheduler.hosts.claim(cases.claim("a", "host"), lambda record: True, view)
        self.refused(answer, model.RefusalReason.EPOCH_CHANGED)
        self.assertEqual(set(), self.consumers(scheduler, "host"))

    def test_a_claim_of_another_scheduler_is_not_undone_with_a_stale_repetition(self) -> None:
        # Both were asked for the same server: the conductor's call had timed out.
        owner, late = self.scheduler("owner"), self.scheduler("late")
        view = late.client.head()
        late.client.reset()
        granted = self.granted(owner.claim(cases.claim("a", "host")))
        answer = late.hosts.claim(cases.claim("a", "host"), lambda record: True, view)
        self.refused(answer, model.RefusalReason.EPOCH_CHANGED)
        self.assertEqual({"a"}, self.consumers(owner, "host"))
        self.assertEqual(
            model.ClaimState.CONFIRMED, self.granted(owner.hosts.confirm(granted)).state
        )

    def test_claims_and_publications_of_one_host_do_not_disturb_each_other(self) -> None:
        key = records.RecordKey(known_namespaces.COMPUTE_NODES.name, "host")
        reporter = self.client()
        publishing = publisher.Publisher(
            reporter,
            {known_namespaces.COMPUTE_NODES.name: known_namespaces.COMPUTE_NODES},
            known_namespaces.NOVA,
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
            self.refused(answers[consumer], model.RefusalReason.FULL)
        held = [each for each in answers.values() if isinstance(each, ledger_claimer.StandingClaim)]
        self.assertEqual(["a", "d"], sorted(each.granted.consumer for each in held))
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


class GroupClaims(cases.ClaimsCase):
    """Claims of server group members."""

    def race(self, group: group_model.ServerGroup, hosts: Sequence[str]) -> dict[str, str]:
        """Let schedulers race, each with its own host order; returns host by consumer."""
        placed: dict[str, str] = {}

        def job(number: int) -> Callable[[], None]:
            scheduler = self.scheduler(f"scheduler-{number}")
            consumer = f"server-{number}"

            def run() -> None:
                for step in range(len(hosts)):
                    host = hosts[(step + number) % len(hosts)]
                    answer = scheduler.join(group, cases.claim(consumer, host))
                    while isinstance(answer, single_claims.GrantLost):
                        answer = scheduler.join(group, cases.claim(consumer, host))
                    if isinstance(answer, group_model.GroupGranted):
                        self.granted(scheduler.groups.confirm(answer))
                        placed[consumer] = host
                        return

            return run

        self.in_threads([job(number) for number in range(cases.CLAIMERS)])
        return placed

    def test_racing_members_of_an_anti_affinity_group_never_share_a_host(self) -> None:
        group = group_model.ServerGroup("group", group_model.Policy.ANTI_AFFINITY)
        placed = self.race(group, ["one", "two", "three"])
        self.assertEqual(["one", "three", "two"], sorted(placed.values()))

    def test_max_server_per_host_members_share_a_host_and_no_more(self) -> None:
        group = group_model.ServerGroup("group", group_model.Policy.ANTI_AFFINITY, 2)
        placed = self.race(group, ["one", "two"])
        self.assertEqual(["one", "one", "two", "two"], sorted(placed.values()))

    def test_the_first_member_of_an_affinity_group_decides_the_host(self) -> None:
        group = group_model.ServerGroup("group", group_model.Policy.AFFINITY)
        placed = self.race(group, ["one", "two", "three"])
        self.assertEqual(1, len(set(placed.values())))
        # The host has room for four; a member refused there is not placed.
        self.assertEqual(cases.CAPACITY["VCPU"], len(placed))

    def test_soft_policies_never_refuse(self) -> None:
        scheduler = self.scheduler()
        for policy in (group_model.Policy.SOFT_AFFINITY, group_model.Policy.SOFT_ANTI_AFFINITY):
            group = group_model.ServerGroup(policy.value, policy)
            for number, host in enumerate(["one", "one", "two"]):
                wanted = cases.claim(f"{policy.value}-{number}", f"{policy.value}-{host}")
                self.joined(scheduler.join(group, wanted))

    def test_a_member_is_taken_out_when_its_host_is_full_or_it_is_released(self) -> None:
        scheduler = self.scheduler()
        self.granted(scheduler.claim(cases.claim("blocker", "full", 4)))
        group = group_model.ServerGroup("group", group_model.Policy.AFFINITY)
        self.refused(scheduler.join(group, cases.claim("a", "full")), model.RefusalReason.FULL)
        self.assertEqual({}, scheduler.groups.read("group").members)
        granted = self.joined(scheduler.join(group, cases.claim("a", "roomy")))
        self.refused(
            scheduler.join(group, cases.claim("b", "third")), model.RefusalReason.GROUP_POLICY
        )
        scheduler.groups.release(granted)
        self.assertEqual(set(), self.consumers(scheduler, "roomy"))
        self.joined(scheduler.join(group, cases.claim("b", "third")))

    def test_a_sleeping_member_finds_its_claim_gone(self) -> None:
        # That leases end by the back end's clock is waited for once, with claims on hosts.
        sleeper, other = self.scheduler("sleeper"), self.scheduler("other")
        group = group_model.ServerGroup("group", group_model.Policy.ANTI_AFFINITY)
        asleep = self.joined(sleeper.join(group, cases.claim("first", "host")))
        self.refused(
            other.join(group, cases.claim("second", "host")), model.RefusalReason.GROUP_POLICY
        )
        other.ahead_seconds = cases.LONG_SECONDS + 1
        awake = self.joined(other.join(group, cases.claim("second", "host")))
        self.assertIsInstance(sleeper.groups.confirm(asleep), model.Gone)
        self.granted(other.groups.confirm(awake))
        self.assertEqual({("second", "host")}, set(other.groups.read("group").members))
        self.assertEqual({"second"}, self.consumers(other, "host"))

    def test_settled_members_are_counted_from_the_authority_as_of_a_newer_view(self) -> None:
        scheduler = self.scheduler()
        group = group_model.ServerGroup("group", group_model.Policy.ANTI_AFFINITY)
        before = scheduler.client.head()
        granted = self.joined(scheduler.join(group, cases.claim("a", "host")))
        self.granted(scheduler.groups.confirm(granted))
        shown_at = self.publication(scheduler.client)
        settled = scheduler.groups.settle("group", [("a", "host")], shown_at)
        self.assertEqual((("a", "host"),), settled)

        def join(view: records.Cursor, known: dict[str, list[str]]) -> object:
            return scheduler.groups.claim(
                group, cases.claim("b", "host"), lambda record: True, view, known
            )

        self.refused(join(before, {}), model.RefusalReason.STALE_VIEW)
        self.refused(join(shown_at, {"a": ["host"]}), model.RefusalReason.GROUP_POLICY)
        self.joined(join(shown_at, {"a": ["elsewhere"]}))

    def test_nobody_joins_an_affinity_group_while_a_member_moves(self) -> None:
        scheduler = self.scheduler()
        group = group_model.ServerGroup("group", group_model.Policy.AFFINITY)
        source = self.joined(scheduler.join(group, cases.claim("a", "one")))
        self.refused(
            scheduler.join(group, cases.claim("a", "two")), model.RefusalReason.GROUP_POLICY
        )
        self.granted(scheduler.groups.confirm(source))
        destination = self.joined(scheduler.join(group, cases.claim("a", "two")))
        for host in ("one", "two"):
            self.refused(
                scheduler.join(group, cases.claim("b", host)), model.RefusalReason.GROUP_POLICY
            )
        self.granted(scheduler.groups.confirm(destination))
        scheduler.groups.release(source)
        self.joined(scheduler.join(group, cases.claim("b", "two")))


class RemovedGroups(cases.ClaimsCase):
    """Claims in a record that was removed, for nobody had used it for long."""

    GROUP = group_model.ServerGroup("group", group_model.Policy.ANTI_AFFINITY)

    def test_a_record_that_holds_claims_or_was_written_since_is_not_removed(self) -> None:
        scheduler = self.scheduler()
        granted = self.joined(scheduler.join(self.GROUP, cases.claim("a", "host")))
        self.assertEqual(0, self.remove(scheduler))
        scheduler.groups.release(granted)
        former = self.revision(scheduler) - 1
        self.assertEqual(0, self.remove(scheduler, former))
        self.assertEqual(1, self.remove(scheduler))
        self.assertEqual(0, self.remove(scheduler))
        self.joined(scheduler.join(self.GROUP, cases.claim("b", "host")))

    def test_a_removed_record_refuses_the_views_that_it_refused(self) -> None:
        scheduler = self.scheduler()
        before = scheduler.client.head()
        shown_at = self.settle_one(scheduler)
        self.assertEqual(1, self.remove(scheduler))
        self.refused(self.join(scheduler, before, {}), model.RefusalReason.STALE_VIEW)
        self.assertEqual({}, scheduler.groups.read("group").members)
        self.assertEqual(set(), self.consumers(scheduler, "host"))
        self.refused(
            self.join(scheduler, shown_at, {"a": ["host"]}), model.RefusalReason.GROUP_POLICY
        )
        self.joined(self.join(scheduler, scheduler.client.head(), {"a": ["elsewhere"]}))

    def test_a_record_that_was_made_anew_refuses_the_views_that_the_removed_one_did(self) -> None:
        """Its maker knew what was settled; who comes after it may not."""
        other, late = self.scheduler("other"), self.scheduler("late")
        before = late.client.head()
        self.settle_one(other)
        self.assertEqual(1, self.remove(other))
        self.joined(other.join(self.GROUP, cases.claim("c", "elsewhere")))
        self.refused(self.join(late, before, {}), model.RefusalReason.STALE_VIEW)
        self.assertEqual({("c", "elsewhere")}, set(other.groups.read("group").members))
        self.assertEqual(set(), self.consumers(other, "host"))

    def test_a_claimer_that_slept_through_a_life_of_the_record_is_refused(self) -> None:
        """It found no record, and its write comes when the record is gone again."""
        sleeper, other = self.scheduler("sleeper"), self.scheduler("other")
        view = sleeper.client.head()
        read = sleeper.client.read

        def sleep_after_reading(
            keys: Collection[records.RecordKey],
        ) -> Mapping[records.RecordKey, records.Record]:
            found = read(keys)
            sleeper.client.read = read  # type: ignore[method-assign]
            self.settle_one(other)
            self.assertEqual(1, self.remove(other))
            return found

        sleeper.client.read = sleep_after_reading  # type: ignore[method-assign]
        self.refused(self.join(sleeper, view, {}), model.RefusalReason.STALE_VIEW)
        self.assertEqual({}, other.groups.read("group").members)
        self.assertEqual(set(), self.consumers(other, "host"))

    def test_where_the_floor_cannot_be_read_nothing_stands(self) -> None:
        scheduler, other = self.scheduler(), self.scheduler("other")
        read = scheduler.client.read

        def cut_off_from_floors(
            keys: Collection[records.RecordKey],
        ) -> Mapping[records.RecordKey, records.Record]:
            if any(key.namespace == "claim_floors" for key in keys):
                raise errors.BackendUnavailable(scheduler.client.name, "cut off by the test")
            return read(keys)

        scheduler.client.read = cut_off_from_floors  # type: ignore[method-assign]
        with self.assertRaises(errors.BackendUnavailable):
            scheduler.join(self.GROUP, cases.claim("a", "host"))
        self.assertEqual({}, other.groups.read("group").members)
        self.assertEqual(set(), self.consumers(other, "host"))

    def join(
        self,
        scheduler: cases.ClaimingScheduler,
        view: records.Cursor,
        known: Mapping[str, list[str]],
    ) -> object:
        return scheduler.groups.claim(
            self.GROUP, cases.claim("b", "host"), lambda record: True, view, known
        )

    def settle_one(self, scheduler: cases.ClaimingScheduler) -> records.Cursor:
        """Have a member come and be settled; returns where a view knows it."""
        granted = self.joined(scheduler.join(self.GROUP, cases.claim("a", "host")))
        self.granted(scheduler.groups.confirm(granted))
        shown_at = self.publication(scheduler.client)
        settled = scheduler.groups.settle("group", [("a", "host")], shown_at)
        self.assertEqual((("a", "host"),), settled)
        self.assertEqual(("a",), scheduler.hosts.settle("host", ["a"], shown_at))
        return shown_at

    def revision(self, scheduler: cases.ClaimingScheduler) -> int:
        key = group_rules.group_key("group")
        return scheduler.client.read([key])[key].revision

    def remove(self, scheduler: cases.ClaimingScheduler, revision: int | None = None) -> int:
        removal = group_removal.GroupRemoval(scheduler.client, record_editor.RecordCache())
        if revision is None:
            revision = self.revision(scheduler)
        return removal.remove({group_rules.group_key("group"): revision})
