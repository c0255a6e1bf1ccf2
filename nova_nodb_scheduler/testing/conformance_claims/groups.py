# SPDX-License-Identifier: Apache-2.0
"""Claims of server group members."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import group_claims, group_removal, latest_records
from nova_nodb_scheduler.testing.conformance_claims import base as cases


class GroupClaims(cases.ClaimsCase):
    """Claims of server group members."""

    def race(self, group: group_model.Group, hosts: Sequence[str]) -> dict[str, str]:
        """Let schedulers race, each with its own host order; returns host by consumer."""
        placed: dict[str, str] = {}

        def job(number: int) -> Callable[[], None]:
            scheduler = self.scheduler(f"scheduler-{number}")
            consumer = f"server-{number}"

            def run() -> None:
                for step in range(len(hosts)):
                    host = hosts[(step + number) % len(hosts)]
                    answer = scheduler.join(group, cases.claim(consumer, host))
                    while isinstance(answer, model.Lost):
                        answer = scheduler.join(group, cases.claim(consumer, host))
                    if isinstance(answer, group_model.GroupGranted):
                        self.granted(scheduler.groups.confirm(answer))
                        placed[consumer] = host
                        return

            return run

        self.in_threads([job(number) for number in range(cases.CLAIMERS)])
        return placed

    def test_racing_members_of_an_anti_affinity_group_never_share_a_host(self) -> None:
        group = group_model.Group("group", group_model.Policy.ANTI_AFFINITY)
        placed = self.race(group, ["one", "two", "three"])
        self.assertEqual(["one", "three", "two"], sorted(placed.values()))

    def test_max_server_per_host_members_share_a_host_and_no_more(self) -> None:
        group = group_model.Group("group", group_model.Policy.ANTI_AFFINITY, 2)
        placed = self.race(group, ["one", "two"])
        self.assertEqual(["one", "one", "two", "two"], sorted(placed.values()))

    def test_the_first_member_of_an_affinity_group_decides_the_host(self) -> None:
        group = group_model.Group("group", group_model.Policy.AFFINITY)
        placed = self.race(group, ["one", "two", "three"])
        self.assertEqual(1, len(set(placed.values())))
        # The host has room for four; a member refused there is not placed.
        self.assertEqual(cases.CAPACITY["VCPU"], len(placed))

    def test_soft_policies_never_refuse(self) -> None:
        scheduler = self.scheduler()
        for policy in (group_model.Policy.SOFT_AFFINITY, group_model.Policy.SOFT_ANTI_AFFINITY):
            group = group_model.Group(policy.value, policy)
            for number, host in enumerate(["one", "one", "two"]):
                wanted = cases.claim(f"{policy.value}-{number}", f"{policy.value}-{host}")
                self.joined(scheduler.join(group, wanted))

    def test_a_member_is_taken_out_when_its_host_is_full_or_it_is_released(self) -> None:
        scheduler = self.scheduler()
        self.granted(scheduler.claim(cases.claim("blocker", "full", 4)))
        group = group_model.Group("group", group_model.Policy.AFFINITY)
        self.refused(scheduler.join(group, cases.claim("a", "full")), model.Reason.FULL)
        self.assertEqual({}, scheduler.groups.read("group").members)
        granted = self.joined(scheduler.join(group, cases.claim("a", "roomy")))
        self.refused(scheduler.join(group, cases.claim("b", "third")), model.Reason.GROUP_POLICY)
        scheduler.groups.release(granted)
        self.assertEqual(set(), self.consumers(scheduler, "roomy"))
        self.joined(scheduler.join(group, cases.claim("b", "third")))

    def test_a_sleeping_member_finds_its_claim_gone(self) -> None:
        sleeper, other = self.scheduler("sleeper", cases.SHORT_SECONDS), self.scheduler("other")
        group = group_model.Group("group", group_model.Policy.ANTI_AFFINITY)
        asleep = self.joined(sleeper.join(group, cases.claim("first", "host")))
        self.refused(other.join(group, cases.claim("second", "host")), model.Reason.GROUP_POLICY)
        self.wait_out(other.client, cases.SHORT_SECONDS)
        awake = self.joined(other.join(group, cases.claim("second", "host")))
        self.assertIsInstance(sleeper.groups.confirm(asleep), model.Gone)
        self.granted(other.groups.confirm(awake))
        self.assertEqual({("second", "host")}, set(other.groups.read("group").members))
        self.assertEqual({"second"}, self.consumers(other, "host"))

    def test_settled_members_are_counted_from_the_authority_as_of_a_newer_view(self) -> None:
        scheduler = self.scheduler()
        group = group_model.Group("group", group_model.Policy.ANTI_AFFINITY)
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

        self.refused(join(before, {}), model.Reason.STALE_VIEW)
        self.refused(join(shown_at, {"a": ["host"]}), model.Reason.GROUP_POLICY)
        self.joined(join(shown_at, {"a": ["elsewhere"]}))

    def test_nobody_joins_an_affinity_group_while_a_member_moves(self) -> None:
        scheduler = self.scheduler()
        group = group_model.Group("group", group_model.Policy.AFFINITY)
        source = self.joined(scheduler.join(group, cases.claim("a", "one")))
        self.refused(scheduler.join(group, cases.claim("a", "two")), model.Reason.GROUP_POLICY)
        self.granted(scheduler.groups.confirm(source))
        destination = self.joined(scheduler.join(group, cases.claim("a", "two")))
        for host in ("one", "two"):
            self.refused(scheduler.join(group, cases.claim("b", host)), model.Reason.GROUP_POLICY)
        self.granted(scheduler.groups.confirm(destination))
        scheduler.groups.release(source)
        self.joined(scheduler.join(group, cases.claim("b", "two")))


class RemovedGroups(cases.ClaimsCase):
    """Claims in a record that was removed, for nobody had used it for long."""

    GROUP = group_model.Group("group", group_model.Policy.ANTI_AFFINITY)

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
        self.refused(self.join(scheduler, before, {}), model.Reason.STALE_VIEW)
        self.assertEqual({}, scheduler.groups.read("group").members)
        self.assertEqual(set(), self.consumers(scheduler, "host"))
        self.refused(self.join(scheduler, shown_at, {"a": ["host"]}), model.Reason.GROUP_POLICY)
        self.joined(self.join(scheduler, scheduler.client.head(), {"a": ["elsewhere"]}))

    def test_a_record_that_was_made_anew_refuses_the_views_that_the_removed_one_did(self) -> None:
        """Its maker knew what was settled; who comes after it may not."""
        other, late = self.scheduler("other"), self.scheduler("late")
        before = late.client.head()
        self.settle_one(other)
        self.assertEqual(1, self.remove(other))
        self.joined(other.join(self.GROUP, cases.claim("c", "elsewhere")))
        self.refused(self.join(late, before, {}), model.Reason.STALE_VIEW)
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
        self.refused(self.join(sleeper, view, {}), model.Reason.STALE_VIEW)
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
        self, scheduler: cases.Scheduler, view: records.Cursor, known: Mapping[str, list[str]]
    ) -> object:
        return scheduler.groups.claim(
            self.GROUP, cases.claim("b", "host"), lambda record: True, view, known
        )

    def settle_one(self, scheduler: cases.Scheduler) -> records.Cursor:
        """Have a member come and be settled; returns where a view knows it."""
        granted = self.joined(scheduler.join(self.GROUP, cases.claim("a", "host")))
        self.granted(scheduler.groups.confirm(granted))
        shown_at = self.publication(scheduler.client)
        settled = scheduler.groups.settle("group", [("a", "host")], shown_at)
        self.assertEqual((("a", "host"),), settled)
        self.assertEqual(("a",), scheduler.hosts.settle("host", ["a"], shown_at))
        return shown_at

    def revision(self, scheduler: cases.Scheduler) -> int:
        key = group_claims.key_of("group")
        return scheduler.client.read([key])[key].revision

    def remove(self, scheduler: cases.Scheduler, revision: int | None = None) -> int:
        removal = group_removal.GroupRemoval(scheduler.client, latest_records.LatestRecords())
        if revision is None:
            revision = self.revision(scheduler)
        return removal.remove({group_claims.key_of("group"): revision})
