# SPDX-License-Identifier: Apache-2.0
"""The claims protocol against a real back end: every driver runs these cases.

As with :class:`.conformance.ConformanceSuite`, a driver's author gives
``make_synchronizer()``. The cases ask whether the driver's compare-and-set,
unknown outcomes and clock carry the promises of DESIGN.md "Claims"; with a
driver that declares several atomic keys they run over one write, with any
other over the one-key protocol.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import claims, contract, group_claims, publisher
from nova_nodb_scheduler.testing.conformance import base

CAPACITY = {"VCPU": 4}
#: A lease that ends within a test, and one that does not.
SHORT_SECONDS = 1.0
LONG_SECONDS = 600.0
CLAIMERS = 6


class Crashed(BaseException):
    """The scheduler died here; nothing in it may catch this."""


def fits(claim: model.Claim, record: model.ClaimRecord) -> bool:
    """Say whether a claim fits into CAPACITY beside a record's claims."""
    used = record.used({})
    return all(
        used.get(name, 0) + amount <= CAPACITY[name] for name, amount in claim.resources.items()
    )


def claim(
    consumer: str, host: str, vcpus: int = 1, replaces: model.Granted | None = None
) -> model.Claim:
    former = {replaces.claim.host: replaces.claim_id} if replaces else {}
    return model.Claim(consumer, host, {"VCPU": vcpus}, former)


def state_of(number: int, _state: publisher.State | None) -> publisher.State:
    """Compute some state of a compute node."""
    return {"row": {"vcpus_used": number}}


def lose_replies(client: contract.Synchronizer, count: int, *, carried_out: bool) -> None:
    """Let the next writes of a client end unknown, carried out or not."""
    write = client.write
    left = [count]

    def unreliable(
        writes: Sequence[records.Write], *, atomic: bool = False
    ) -> list[records.WriteResult]:
        if left[0] <= 0:
            return write(writes, atomic=atomic)
        left[0] -= 1
        if carried_out:
            write(writes, atomic=atomic)
        return [records.WriteResult(records.Verdict.UNKNOWN) for _ in writes]

    client.write = unreliable  # type: ignore[method-assign]


def cut_off(client: contract.Synchronizer) -> None:
    """Let the next write end unknown, and every read after it fail."""
    lose_replies(client, 1, carried_out=True)
    write = client.write

    def last(writes: Sequence[records.Write], *, atomic: bool = False) -> list[records.WriteResult]:
        results = write(writes, atomic=atomic)

        def unreachable(keys: object) -> None:
            raise errors.BackendUnavailable(client.name, "cut off by the test")

        client.read = unreachable  # type: ignore[assignment, method-assign]
        return results

    client.write = last  # type: ignore[method-assign]


class Scheduler:
    """One scheduler: a client with both ledgers, which may be told to crash."""

    def __init__(
        self,
        client: contract.Synchronizer,
        writer: str = "scheduler",
        lease_seconds: float = LONG_SECONDS,
        crash_after: str | None = None,
        claimable: Callable[[str], bool] = lambda host: True,
    ) -> None:
        self.client = client
        #: Seconds that this scheduler believes the back end's clock to be
        #: further: lets leases end without a wait.
        self.ahead_seconds = 0.0
        self._crash_after = crash_after
        self.hosts = claims.ClaimLedger(
            client,
            writer,
            lambda: str(uuid.uuid4()),
            lease_seconds,
            claimable,
            now_seconds=self._now_seconds,
            after_step=self._after_step,
        )
        self.groups = group_claims.GroupLedger(
            client,
            self.hosts,
            writer,
            lambda: str(uuid.uuid4()),
            lease_seconds,
            now_seconds=self._now_seconds,
            after_step=self._after_step,
        )

    def claim(self, wanted: model.Claim) -> model.ClaimAnswer:
        return self.hosts.claim(wanted, lambda record: fits(wanted, record), self.client.head())

    def claim_all(
        self, wanted: Sequence[model.Claim]
    ) -> tuple[model.Granted, ...] | model.Refused | model.Lost | model.Unknown:
        return self.hosts.claim_all(wanted, fits, self.client.head())

    def join(
        self, group: group_model.Group, wanted: model.Claim
    ) -> group_model.GroupGranted | model.Refused | model.Lost | model.Unknown:
        return self.groups.claim(
            group, wanted, lambda record: fits(wanted, record), self.client.head(), {}
        )

    def _now_seconds(self) -> float:
        return self.client.now_seconds() + self.ahead_seconds

    def _after_step(self, step: str) -> None:
        if step == self._crash_after:
            raise Crashed(step)


class ClaimsCase(base.Case):
    """What the parts below share."""

    def scheduler(
        self,
        writer: str = "scheduler",
        lease_seconds: float = LONG_SECONDS,
        crash_after: str | None = None,
    ) -> Scheduler:
        return Scheduler(self.client(), writer, lease_seconds, crash_after)

    def granted(self, answer: object) -> model.Granted:
        self.assertIsInstance(answer, model.Granted)
        assert isinstance(answer, model.Granted)
        return answer

    def joined(self, answer: object) -> group_model.GroupGranted:
        self.assertIsInstance(answer, group_model.GroupGranted)
        assert isinstance(answer, group_model.GroupGranted)
        return answer

    def refused(self, answer: object, reason: model.Reason) -> None:
        self.assertIsInstance(answer, model.Refused)
        assert isinstance(answer, model.Refused)
        self.assertIs(reason, answer.reason)

    def consumers(self, scheduler: Scheduler, host: str) -> set[str]:
        return set(scheduler.hosts.read(host).claims)

    def publication(self, client: contract.Synchronizer) -> records.Cursor:
        """Write what the authority would; returns its epoch and version."""
        key = records.RecordKey(namespaces.COMPUTE_NODES.name, str(uuid.uuid4()))
        written = self.win(client, records.Write(key, 0, b"payload"))
        return records.Cursor(client.head().epoch, written.version)

    def wait_out(self, client: contract.Synchronizer, seconds: float) -> None:
        """Wait by the back end's clock."""
        end = client.now_seconds() + seconds
        self.eventually(lambda: client.now_seconds() > end, "the back end's clock goes on")


class HostClaims(ClaimsCase):
    """Claims on hosts."""

    def test_exactly_the_capacity_is_granted_to_racing_claimers(self) -> None:
        answers: list[model.ClaimAnswer] = []

        def job(number: int) -> Callable[[], None]:
            scheduler = self.scheduler(f"scheduler-{number}")

            def run() -> None:
                for attempt in range(2):
                    wanted = claim(f"server-{number}-{attempt}", "host")
                    answer = scheduler.claim(wanted)
                    while isinstance(answer, model.Lost):
                        answer = scheduler.claim(wanted)
                    answers.append(answer)

            return run

        self.in_threads([job(number) for number in range(CLAIMERS)])
        granted = [answer for answer in answers if isinstance(answer, model.Granted)]
        self.assertEqual(CAPACITY["VCPU"], len(granted))
        for answer in answers:
            if answer not in granted:
                self.refused(answer, model.Reason.FULL)
        self.assertEqual(
            {answer.claim.consumer for answer in granted},
            self.consumers(self.scheduler(), "host"),
        )

    def test_a_second_claim_by_the_same_consumer_is_the_same_claim(self) -> None:
        one, other = self.scheduler("one"), self.scheduler("other")
        first = self.granted(one.claim(claim("server", "host", 3)))
        second = self.granted(other.claim(claim("server", "host", 3)))
        self.assertEqual(first.claim_id, second.claim_id)
        self.assertEqual({"VCPU": 3}, one.hosts.read("host").used({}))
        self.granted(one.hosts.confirm(first))
        again = self.granted(other.claim(claim("server", "host", 3)))
        self.assertIs(model.ClaimState.CONFIRMED, again.state)
        self.refused(other.claim(claim("server", "host", 1)), model.Reason.HELD)

    def test_other_resources_replace_a_pending_claim_only_if_they_fit(self) -> None:
        scheduler = self.scheduler()
        first = self.granted(scheduler.claim(claim("server", "host", 1)))
        second = self.granted(scheduler.claim(claim("server", "host", 4)))
        self.assertEqual({"VCPU": 4}, scheduler.hosts.read("host").used({}))
        self.assertIsInstance(scheduler.hosts.confirm(first), model.Gone)
        self.granted(scheduler.hosts.confirm(second))

    def test_a_claim_on_another_host_replaces_the_first_when_it_is_confirmed(self) -> None:
        scheduler = self.scheduler()
        first = self.granted(scheduler.claim(claim("server", "host-a")))
        self.granted(scheduler.hosts.confirm(first))
        second = self.granted(scheduler.claim(claim("server", "host-b", replaces=first)))
        self.assertEqual({"server"}, self.consumers(scheduler, "host-a"))
        self.granted(scheduler.hosts.confirm(second))
        self.assertEqual(set(), self.consumers(scheduler, "host-a"))
        self.assertEqual({"server"}, self.consumers(scheduler, "host-b"))

    def test_a_replacement_leaves_a_newer_claim_on_the_former_host(self) -> None:
        scheduler = self.scheduler()
        first = self.granted(scheduler.claim(claim("server", "host-a")))
        second = self.granted(scheduler.claim(claim("server", "host-b", replaces=first)))
        scheduler.hosts.release(first)
        self.granted(scheduler.claim(claim("server", "host-a")))
        self.granted(scheduler.hosts.confirm(second))
        self.assertEqual({"server"}, self.consumers(scheduler, "host-a"))

    def test_source_and_destination_of_a_move_coexist(self) -> None:
        scheduler = self.scheduler()
        source = self.granted(scheduler.claim(claim("server", "host-a")))
        self.granted(scheduler.hosts.confirm(source))
        destination = self.granted(scheduler.claim(claim("server", "host-b")))
        self.granted(scheduler.hosts.confirm(destination))
        self.assertEqual({"server"}, self.consumers(scheduler, "host-a"))
        self.assertEqual({"server"}, self.consumers(scheduler, "host-b"))
        self.assertIsInstance(scheduler.hosts.release(source), model.Released)
        self.assertIsInstance(scheduler.hosts.release(source), model.Gone)
        self.assertEqual({"server"}, self.consumers(scheduler, "host-b"))

    def test_a_lease_ends_by_the_back_ends_clock_and_its_owner_finds_the_claim_gone(
        self,
    ) -> None:
        sleeper, other = self.scheduler("sleeper", SHORT_SECONDS), self.scheduler("other")
        asleep = self.granted(sleeper.claim(claim("first", "host", 4)))
        self.refused(other.claim(claim("second", "host", 4)), model.Reason.FULL)
        self.wait_out(other.client, SHORT_SECONDS)
        awake = self.granted(other.claim(claim("second", "host", 4)))
        self.assertIsInstance(sleeper.hosts.confirm(asleep), model.Gone)
        self.granted(other.hosts.confirm(awake))
        self.assertEqual({"second"}, self.consumers(other, "host"))

    def test_time_alone_never_ends_a_confirmed_claim(self) -> None:
        scheduler = self.scheduler()
        self.granted(scheduler.hosts.confirm(self.granted(scheduler.claim(claim("a", "host")))))
        self.granted(scheduler.claim(claim("b", "host")))
        self.assertEqual((), scheduler.hosts.expire("host"))
        scheduler.ahead_seconds = LONG_SECONDS + 1
        self.assertEqual(("b",), scheduler.hosts.expire("host"))
        self.assertEqual({"a"}, self.consumers(scheduler, "host"))

    def test_a_late_confirm_holds_if_nobody_dropped_the_claim(self) -> None:
        scheduler = self.scheduler()
        late = self.granted(scheduler.claim(claim("server", "host")))
        scheduler.ahead_seconds = LONG_SECONDS + 1
        self.granted(scheduler.hosts.confirm(late))
        self.assertEqual((), scheduler.hosts.expire("host"))

    def test_settling_hands_over_to_the_authority_and_refuses_older_views(self) -> None:
        scheduler = self.scheduler()
        before = scheduler.client.head()
        self.granted(scheduler.hosts.confirm(self.granted(scheduler.claim(claim("a", "host")))))
        self.granted(scheduler.claim(claim("b", "host")))
        shown_at = self.publication(scheduler.client)
        self.assertEqual(("a",), scheduler.hosts.settle("host", ["a", "b", "c"], shown_at))
        self.assertEqual({"b"}, self.consumers(scheduler, "host"))
        late = scheduler.hosts.claim(claim("c", "host"), lambda record: True, before)
        self.refused(late, model.Reason.STALE_VIEW)
        self.granted(scheduler.hosts.claim(claim("c", "host"), lambda record: True, shown_at))

    def test_what_was_shown_before_the_confirm_settles_nothing(self) -> None:
        scheduler = self.scheduler()
        granted = self.granted(scheduler.claim(claim("back again", "host")))
        former_stay = self.publication(scheduler.client)
        self.granted(scheduler.hosts.confirm(granted))
        self.assertEqual((), scheduler.hosts.settle("host", ["back again"], former_stay))
        # The same in a record that others have rewritten since.
        self.granted(scheduler.claim(claim("other", "host")))
        self.assertEqual((), scheduler.hosts.settle("host", ["back again"], former_stay))
        # And with a claim that was taken once more after it was confirmed.
        shown_at = self.publication(scheduler.client)
        self.granted(scheduler.claim(claim("back again", "host")))
        self.assertEqual((), scheduler.hosts.settle("host", ["back again"], shown_at))
        shown_at = self.publication(scheduler.client)
        settled = scheduler.hosts.settle("host", ["back again"], shown_at)
        self.assertEqual(("back again",), settled)

    def test_what_was_shown_in_a_former_epoch_settles_nothing(self) -> None:
        scheduler = self.scheduler()
        for _ in range(10):
            shown_at = self.publication(scheduler.client)
        scheduler.client.reset()
        self.granted(scheduler.hosts.confirm(self.granted(scheduler.claim(claim("a", "host")))))
        self.assertEqual((), scheduler.hosts.settle("host", ["a"], shown_at))

    def test_reconciling_drops_what_is_proved_absent_only(self) -> None:
        scheduler = self.scheduler()
        for consumer in ("there", "absent"):
            granted = self.granted(scheduler.claim(claim(consumer, "host")))
            self.granted(scheduler.hosts.confirm(granted))
        self.granted(scheduler.claim(claim("pending", "host")))
        dropped = scheduler.hosts.reconcile("host", lambda consumer: consumer == "there")
        self.assertEqual(("absent",), dropped)
        self.assertEqual({"there", "pending"}, self.consumers(scheduler, "host"))

    def test_a_claim_on_a_host_not_published_in_this_epoch_is_refused(self) -> None:
        scheduler = Scheduler(self.client(), claimable=lambda host: host == "published")
        self.refused(scheduler.claim(claim("a", "silent")), model.Reason.NOT_CLAIMABLE)
        self.granted(scheduler.claim(claim("a", "published")))

    def test_a_claim_checked_against_a_former_epoch_is_undone(self) -> None:
        scheduler = self.scheduler()
        view = scheduler.client.head()
        scheduler.client.reset()
        answer = scheduler.hosts.claim(claim("a", "host"), lambda record: True, view)
        self.refused(answer, model.Reason.EPOCH_CHANGED)
        self.assertEqual(set(), self.consumers(scheduler, "host"))

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
                report = publishing.publish({key: functools.partial(state_of, number)})
                self.assertEqual(1, report.published)
                lost.append(report.repeated)

        def take() -> None:
            for number in range(CAPACITY["VCPU"]):
                granted = self.granted(scheduler.claim(claim(f"server-{number}", "host")))
                self.granted(scheduler.hosts.confirm(granted))

        self.in_threads([publish, take])
        self.assertEqual([0] * 10, lost)
        self.assertEqual(CAPACITY, scheduler.hosts.read("host").used({}))


class UnknownOutcomes(ClaimsCase):
    """Replies that are lost, and back ends that go away in mid-write."""

    def test_a_claim_whose_reply_was_lost_is_recognised_and_counted_once(self) -> None:
        for carried_out in (True, False):
            host = f"host-{carried_out}"
            scheduler = self.scheduler()
            lose_replies(scheduler.client, 1, carried_out=carried_out)
            granted = self.granted(scheduler.claim(claim("server", host, 3)))
            self.assertEqual({"VCPU": 3}, scheduler.hosts.read(host).used({}))
            lose_replies(scheduler.client, 1, carried_out=carried_out)
            self.granted(scheduler.hosts.confirm(granted))
            held = scheduler.hosts.read(host).claims["server"]
            self.assertIs(model.ClaimState.CONFIRMED, held.state)
            lose_replies(scheduler.client, 1, carried_out=carried_out)
            scheduler.hosts.release(granted)
            self.assertEqual(set(), self.consumers(scheduler, host))

    def test_a_claim_left_unknown_is_settled_by_another_client(self) -> None:
        scheduler, other = self.scheduler(), self.scheduler()
        view = other.client.head()
        cut_off(scheduler.client)
        unknown = scheduler.claim(claim("server", "host"))
        self.assertIsInstance(unknown, model.Unknown)
        assert isinstance(unknown, model.Unknown)
        self.granted(other.hosts.settle_unknown(unknown, view))
        other.hosts.release(unknown)
        self.assertIsInstance(other.hosts.settle_unknown(unknown, view), model.Gone)

    def test_settling_a_claim_that_never_arrived_fences_it(self) -> None:
        scheduler = self.scheduler()
        late = records.Write(claims.key_of("host"), 0, b"\x01{}")
        unknown = model.Unknown(claim("server", "host"), "never-arrived")
        answer = scheduler.hosts.settle_unknown(unknown, scheduler.client.head())
        self.assertIsInstance(answer, model.Gone)
        [result] = scheduler.client.write([late])
        self.assertIs(records.Verdict.LOST, result.verdict)


class Crashes(ClaimsCase):
    """A scheduler dies after each step; the others go on."""

    def test_a_scheduler_that_dies_after_any_step_leaves_no_lasting_pending_claim(self) -> None:
        for step in claims.ClaimLedger.STEPS:
            with self.subTest(step=step):
                self._die_after(step)

    def _die_after(self, step: str) -> None:
        a, b = f"{step}-a", f"{step}-b"
        victim = self.scheduler("victim", crash_after=step)
        other = self.scheduler("other")
        blocker = self.granted(other.claim(claim("blocker", b, 4)))
        self.granted(other.hosts.confirm(blocker))
        with self.assertRaises(Crashed):
            # A life that comes by every step, refusal and undo included.
            old = self.granted(victim.claim(claim("moving", a)))
            victim.claim_all([claim("one", a), claim("two", b)])
            self.granted(victim.hosts.confirm(old))
            new = victim.claim(claim("moving", f"{step}-c", replaces=old))
            self.granted(victim.hosts.confirm(self.granted(new)))
            victim.hosts.release(self.granted(new))
            # Where one write takes all hosts, nothing is ever undone but for
            # a new epoch.
            victim.hosts.undo([self.granted(new)], {"moving": self.granted(new).claim_id})
        other.ahead_seconds = LONG_SECONDS + 1
        for host in (a, b, f"{step}-c"):
            other.hosts.expire(host)
            left = other.hosts.read(host).claims
            for held in left.values():
                self.assertIs(model.ClaimState.CONFIRMED, held.state)
            other.hosts.reconcile(host, lambda consumer: consumer == "blocker")
        self.assertEqual({"blocker"}, self.consumers(other, b))
        for number in range(CAPACITY["VCPU"]):
            self.granted(other.claim(claim(f"{step}-{number}", a)))

    def test_a_member_whose_scheduler_dies_after_any_step_never_breaks_the_policy(self) -> None:
        for step in (*group_claims.GroupLedger.STEPS, "claimed", "confirmed", "released"):
            with self.subTest(step=step):
                self._die_in_group_after(step)

    def _die_in_group_after(self, step: str) -> None:
        group = group_model.Group(f"group {step}", group_model.Policy.ANTI_AFFINITY)
        host = f"host {step}"
        victim = self.scheduler("victim", crash_after=step)
        other = self.scheduler("other")
        try:
            granted = self.joined(victim.join(group, claim("victim", host)))
            self.granted(victim.groups.confirm(granted))
            victim.groups.release(granted)
        except Crashed:
            pass
        else:
            # One write did both: these steps are not come by.
            self.assertIn(step, ("claimed", "confirmed"))
            self.assertGreater(other.client.capabilities.atomic_keys, 1)
            return
        held = self.consumers(other, host)
        members = {consumer for consumer, _ in other.groups.read(group.uuid).members}
        # A claim without a member would break the policy.
        self.assertLessEqual(held, members)
        other.ahead_seconds = LONG_SECONDS + 1
        other.hosts.expire(host)
        other.groups.expire(group.uuid)
        other.hosts.reconcile(host, lambda consumer: False)
        other.groups.reconcile(group.uuid, lambda consumer, host: False)
        self.joined(other.join(group, claim("other", host)))


class MultiClaims(ClaimsCase):
    """Several claims, all or nothing."""

    def test_all_claims_are_taken_or_none(self) -> None:
        scheduler = self.scheduler()
        first = scheduler.claim_all([claim("a", "one", 2), claim("b", "two", 2)])
        assert isinstance(first, tuple)
        self.assertEqual(["a", "b"], [granted.claim.consumer for granted in first])
        wanted = [claim("c", "two", 1), claim("d", "one", 1), claim("e", "two", 3)]
        self.refused(scheduler.claim_all(wanted), model.Reason.FULL)
        self.assertEqual({"a"}, self.consumers(scheduler, "one"))
        self.assertEqual({"b"}, self.consumers(scheduler, "two"))

    def test_an_undo_leaves_what_stood_before_the_call(self) -> None:
        scheduler = self.scheduler()
        self.granted(scheduler.claim(claim("a", "one")))
        answer = scheduler.claim_all([claim("a", "one"), claim("b", "two", 5)])
        self.refused(answer, model.Reason.FULL)
        self.assertEqual({"a"}, self.consumers(scheduler, "one"))

    def test_racing_multi_claims_never_exceed_any_host(self) -> None:
        def job(number: int) -> Callable[[], None]:
            scheduler = self.scheduler(f"scheduler-{number}")
            hosts = ["one", "two"] if number % 2 else ["two", "one"]

            def run() -> None:
                for attempt in range(2):
                    wanted = [claim(f"{host}-{number}-{attempt}", host) for host in hosts]
                    while isinstance(scheduler.claim_all(wanted), model.Lost):
                        pass

            return run

        self.in_threads([job(number) for number in range(CLAIMERS)])
        reader = self.scheduler()
        one, two = self.consumers(reader, "one"), self.consumers(reader, "two")
        self.assertEqual(CAPACITY["VCPU"], len(one))
        self.assertEqual(
            {name.partition("-")[2] for name in one}, {name.partition("-")[2] for name in two}
        )


class GroupClaims(ClaimsCase):
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
                    answer = scheduler.join(group, claim(consumer, host))
                    while isinstance(answer, model.Lost):
                        answer = scheduler.join(group, claim(consumer, host))
                    if isinstance(answer, group_model.GroupGranted):
                        self.granted(scheduler.groups.confirm(answer))
                        placed[consumer] = host
                        return

            return run

        self.in_threads([job(number) for number in range(CLAIMERS)])
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
        self.assertEqual(CAPACITY["VCPU"], len(placed))

    def test_soft_policies_never_refuse(self) -> None:
        scheduler = self.scheduler()
        for policy in (group_model.Policy.SOFT_AFFINITY, group_model.Policy.SOFT_ANTI_AFFINITY):
            group = group_model.Group(policy.value, policy)
            for number, host in enumerate(["one", "one", "two"]):
                wanted = claim(f"{policy.value}-{number}", f"{policy.value}-{host}")
                self.joined(scheduler.join(group, wanted))

    def test_a_member_is_taken_out_when_its_host_is_full_or_it_is_released(self) -> None:
        scheduler = self.scheduler()
        self.granted(scheduler.claim(claim("blocker", "full", 4)))
        group = group_model.Group("group", group_model.Policy.AFFINITY)
        self.refused(scheduler.join(group, claim("a", "full")), model.Reason.FULL)
        self.assertEqual({}, scheduler.groups.read("group").members)
        granted = self.joined(scheduler.join(group, claim("a", "roomy")))
        self.refused(scheduler.join(group, claim("b", "third")), model.Reason.GROUP_POLICY)
        self.assertIsInstance(scheduler.groups.release(granted), model.Released)
        self.joined(scheduler.join(group, claim("b", "third")))

    def test_a_sleeping_member_finds_its_claim_gone(self) -> None:
        sleeper, other = self.scheduler("sleeper", SHORT_SECONDS), self.scheduler("other")
        group = group_model.Group("group", group_model.Policy.ANTI_AFFINITY)
        asleep = self.joined(sleeper.join(group, claim("first", "host")))
        self.refused(other.join(group, claim("second", "host")), model.Reason.GROUP_POLICY)
        self.wait_out(other.client, SHORT_SECONDS)
        awake = self.joined(other.join(group, claim("second", "host")))
        self.assertIsInstance(sleeper.groups.confirm(asleep), model.Gone)
        self.granted(other.groups.confirm(awake))
        self.assertEqual({("second", "host")}, set(other.groups.read("group").members))
        self.assertEqual({"second"}, self.consumers(other, "host"))

    def test_settled_members_are_counted_from_the_authority_as_of_a_newer_view(self) -> None:
        scheduler = self.scheduler()
        group = group_model.Group("group", group_model.Policy.ANTI_AFFINITY)
        before = scheduler.client.head()
        granted = self.joined(scheduler.join(group, claim("a", "host")))
        self.granted(scheduler.groups.confirm(granted))
        shown_at = self.publication(scheduler.client)
        settled = scheduler.groups.settle("group", [("a", "host")], shown_at)
        self.assertEqual((("a", "host"),), settled)

        def join(view: records.Cursor, known: dict[str, list[str]]) -> object:
            return scheduler.groups.claim(
                group, claim("b", "host"), lambda record: True, view, known
            )

        self.refused(join(before, {}), model.Reason.STALE_VIEW)
        self.refused(join(shown_at, {"a": ["host"]}), model.Reason.GROUP_POLICY)
        self.joined(join(shown_at, {"a": ["elsewhere"]}))

    def test_nobody_joins_an_affinity_group_while_a_member_moves(self) -> None:
        scheduler = self.scheduler()
        group = group_model.Group("group", group_model.Policy.AFFINITY)
        source = self.joined(scheduler.join(group, claim("a", "one")))
        self.refused(scheduler.join(group, claim("a", "two")), model.Reason.GROUP_POLICY)
        self.granted(scheduler.groups.confirm(source))
        destination = self.joined(scheduler.join(group, claim("a", "two")))
        for host in ("one", "two"):
            self.refused(scheduler.join(group, claim("b", host)), model.Reason.GROUP_POLICY)
        self.granted(scheduler.groups.confirm(destination))
        scheduler.groups.release(source)
        self.joined(scheduler.join(group, claim("b", "two")))

    def test_a_moved_member_gives_up_its_former_place_when_confirmed(self) -> None:
        scheduler = self.scheduler()
        group = group_model.Group("group", group_model.Policy.AFFINITY)
        first = self.joined(scheduler.join(group, claim("a", "one")))
        self.granted(scheduler.groups.confirm(first))
        second = self.joined(scheduler.join(group, claim("a", "two", replaces=first.grant)))
        self.granted(scheduler.groups.confirm(second))
        self.assertEqual({("a", "two")}, set(scheduler.groups.read("group").members))
        self.assertEqual(set(), self.consumers(scheduler, "one"))


class ClaimsConformance(HostClaims, UnknownOutcomes, Crashes, MultiClaims, GroupClaims):
    """Everything the claims protocol promises, a sentence per test."""
