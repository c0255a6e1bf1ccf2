# SPDX-License-Identifier: Apache-2.0
"""Lost replies, schedulers that die between two steps, and epochs that begin meanwhile."""

from __future__ import annotations

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.claims import claim_rules, ledger_claimer
from nova_nodb_scheduler.testing import single_claims
from nova_nodb_scheduler.testing.conformance import held_up
from nova_nodb_scheduler.testing.conformance_claims import claims_case as cases


class UnknownOutcomes(cases.ClaimsCase):
    """Replies that are lost, and back ends that go away in mid-write."""

    def test_a_claim_whose_reply_was_lost_is_recognised_and_counted_once(self) -> None:
        for carried_out in (True, False):
            host = f"host-{carried_out}"
            scheduler = self.scheduler()
            cases.lose_replies(scheduler.client, 1, carried_out=carried_out)
            granted = self.granted(scheduler.claim(cases.claim("server", host, 3)))
            self.assertEqual({"VCPU": 3}, scheduler.hosts.read(host).used({}))
            cases.lose_replies(scheduler.client, 1, carried_out=carried_out)
            self.granted(scheduler.hosts.confirm(granted))
            held = scheduler.hosts.read(host).claims["server"]
            self.assertIs(model.ClaimState.CONFIRMED, held.state)
            cases.lose_replies(scheduler.client, 1, carried_out=carried_out)
            scheduler.hosts.release(granted)
            self.assertEqual(set(), self.consumers(scheduler, host))

    def test_a_claim_left_unknown_is_settled_by_another_client(self) -> None:
        scheduler, other = self.scheduler(), self.scheduler()
        view = other.client.head()
        cases.cut_off(scheduler.client)
        unknown = scheduler.claim(cases.claim("server", "host"))
        self.assertIsInstance(unknown, single_claims.GrantUnknown)
        assert isinstance(unknown, single_claims.GrantUnknown)
        self.granted(other.hosts.settle_unknown(unknown, view))
        other.hosts.release(unknown)
        self.assertIsInstance(other.hosts.settle_unknown(unknown, view), model.Gone)

    def test_settling_a_claim_that_never_arrived_fences_it(self) -> None:
        scheduler = self.scheduler()
        late = records.Write(claim_rules.host_key("host"), 0, b"\x01{}")
        unknown = single_claims.GrantUnknown(cases.claim("server", "host"), "never-arrived")
        answer = scheduler.hosts.settle_unknown(unknown, scheduler.client.head())
        self.assertIsInstance(answer, model.Gone)
        [result] = scheduler.client.write([late])
        self.assertIs(records.Verdict.LOST, result.verdict)


class Crashes(cases.ClaimsCase):
    """A scheduler dies after each step; the others go on."""

    def test_a_scheduler_that_dies_after_any_step_leaves_no_lasting_pending_claim(self) -> None:
        for step in ("claimed", "confirmed", "released"):
            with self.subTest(step=step):
                self._die_after(step)

    def _die_after(self, step: str) -> None:
        a, b = f"{step}-a", f"{step}-b"
        victim = self.scheduler("victim", crash_after=step)
        other = self.scheduler("other")
        blocker = self.granted(other.claim(cases.claim("blocker", b, 4)))
        self.granted(other.hosts.confirm(blocker))
        with self.assertRaises(cases.Crashed):
            # A life that comes by every step, refusals included.
            answers = victim.claim_each([cases.claim("one", a), cases.claim("two", b)])
            held = [
                each for each in answers.values() if isinstance(each, ledger_claimer.StandingClaim)
            ]
            victim.batches.confirm(held)
            victim.batches.release(held)
        other.ahead_seconds = cases.LONG_SECONDS + 1
        for host in (a, b):
            other.hosts.expire(host)
            for held_claim in other.hosts.read(host).claims.values():
                self.assertIs(model.ClaimState.CONFIRMED, held_claim.state)
            other.hosts.reconcile(host, lambda consumer: consumer == "blocker")
        self.assertEqual({"blocker"}, self.consumers(other, b))
        for number in range(cases.CAPACITY["VCPU"]):
            self.granted(other.claim(cases.claim(f"{step}-{number}", a)))

    def test_a_member_whose_scheduler_dies_after_any_step_never_breaks_the_policy(self) -> None:
        for step in ledger_claimer.ClaimBatches.STEPS:
            with self.subTest(step=step):
                self._die_in_group_after(step)

    def _die_in_group_after(self, step: str) -> None:
        group = group_model.ServerGroup(f"group {step}", group_model.Policy.ANTI_AFFINITY)
        host = f"host {step}"
        victim = self.scheduler("victim", crash_after=step)
        other = self.scheduler("other")
        with self.assertRaises(cases.Crashed, msg=f"the protocol has no step {step}"):
            granted = self.joined(victim.join(group, cases.claim("victim", host)))
            self.granted(victim.groups.confirm(granted))
            victim.groups.release(granted)
        held = self.consumers(other, host)
        members = {consumer for consumer, _ in other.groups.read(group.uuid).members}
        # A claim without a member would break the policy.
        self.assertLessEqual(held, members)
        other.ahead_seconds = cases.LONG_SECONDS + 1
        other.hosts.expire(host)
        other.groups.expire(group.uuid)
        other.hosts.reconcile(host, lambda consumer: False)
        other.groups.reconcile(group.uuid, lambda consumer, host: False)
        self.joined(other.join(group, cases.claim("other", host)))


class NewEpochs(cases.ClaimsCase):
    """A new epoch begins while a claim is under way; who begins it may die half-way."""

    def test_a_confirm_held_up_over_a_new_epoch_that_began_half_grants_nothing(self) -> None:
        first = self.scheduler()
        granted = self.granted(first.claim(cases.claim("first", "first")))
        of_confirm = held_up.steps_of(first.client, lambda: first.hosts.confirm(granted))
        of_reset = held_up.steps_of(first.client, first.client.reset)
        for confirm_step in of_confirm:
            # The whole of a reset first: whom it waits for stands in the way of its parts, too.
            for reset_step in (None, *of_reset):
                with self.subTest(held_up_at=confirm_step, died_at=reset_step):
                    try:
                        self._hold_up(confirm_step, reset_step)
                    except TimeoutError:
                        break

    def _hold_up(self, confirm_step: str, reset_step: str | None) -> None:
        """See the case.

        :raises TimeoutError: no epoch begins while the confirm stands still there
        """
        slow, other, beginner = self.scheduler("slow"), self.scheduler("other"), self.client()
        host = f"host {confirm_step} {reset_step}"
        epoch = other.client.head().epoch
        granted = self.granted(slow.claim(cases.claim("slow", host, cases.CAPACITY["VCPU"])))
        confirming = held_up.HeldUp(slow.client, confirm_step, lambda: slow.hosts.confirm(granted))
        self.addCleanup(confirming.let_go)
        confirming.stands_still()

        def grant_in_next_epoch() -> object:
            """Grant all of the host, where an epoch begins before the one held up has written."""
            was_in_time = other.hosts.read(host).claims["slow"].state is model.ClaimState.CONFIRMED
            held_up.begin_epoch(beginner, reset_step)
            if was_in_time or other.client.head().epoch == epoch:
                return None
            return other.claim(cases.claim("other", host, cases.CAPACITY["VCPU"]))

        taken = held_up.beside(confirming, grant_in_next_epoch)
        answer = confirming.let_go()
        if taken is not None:
            self.granted(other.hosts.confirm(self.granted(taken)))
            # Where nobody can tell, it is to be asked again.
            self.assertNotIsInstance(answer, model.Granted)
            self.assertIsInstance(slow.hosts.confirm(granted), model.Gone)
            self.assertEqual({"other"}, self.consumers(other, host))
        for client in (slow.client, other.client, beginner):
            # An engine may take some connections only.
            client.close()
