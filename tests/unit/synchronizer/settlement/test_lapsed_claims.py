# SPDX-License-Identifier: Apache-2.0
"""A claim whose lease ended is remembered, for nobody else knows whose its allocation is."""

from __future__ import annotations

import testtools

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.claims import claim_rules
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.synchronizer.settlement import lapsed_claims, settlement_rules
from nova_nodb_scheduler.wire import codec

HOST = "n1"


def held(
    name: str = "a", deadline_seconds: float | None = 10.0, writer: str = "s1"
) -> model.HeldClaim:
    state = model.ClaimState.CONFIRMED if deadline_seconds is None else model.ClaimState.PENDING
    return model.HeldClaim({"VCPU": 1}, state, f"id-{name}", writer, deadline_seconds)


def taking(now_seconds: float) -> claim_rules.Taking:
    return claim_rules.Taking(
        {"new": "id-new"},
        "s2",
        lambda claim, record: not record.claims,
        records.Cursor("e", 5),
        now_seconds,
        now_seconds + 60,
    )


class LapsedClaimsTest(testtools.TestCase):
    def test_who_claims_where_a_lease_ended_remembers_the_claim_and_does_not_count_it(self):
        before = model.ClaimRecord(HOST, {"old": held("old")})
        claim = model.Claim("new", HOST, {"VCPU": 1})
        proposal = claim_rules.take_each(before, [claim], taking(10.0))
        after = model.ClaimRecord.from_state(HOST, proposal.state, 7)
        self.assertEqual(({"new"}, {"old"}), (set(after.claims), set(after.lapsed)))
        self.assertEqual("s1", after.lapsed["old"].writer)
        self.assertEqual({"VCPU": 1}, after.used({}))

    def test_who_settles_remembers_what_expired_and_not_what_was_settled(self):
        state = model.ClaimRecord(HOST, {"old": held("old"), "done": held("done", None)}).to_state()
        left = settlement_rules.HostClaimLedger().without(
            HOST, state, 7, {"old", "done"}, None, {"old"}
        )
        after = model.ClaimRecord.from_state(HOST, left, 8)
        self.assertEqual((set(), {"old"}), (set(after.claims), set(after.lapsed)))

    def test_a_record_remembers_a_bounded_number_the_latest(self):
        claims_ = {str(at): held(str(at), float(at)) for at in range(2 * model.MOST_LAPSED)}
        after = model.ClaimRecord(HOST, claims_).lapse(list(claims_))
        self.assertEqual(model.MOST_LAPSED, len(after.lapsed))
        self.assertEqual(
            float(model.MOST_LAPSED),
            min(each.deadline_seconds or 0.0 for each in after.lapsed.values()),
        )

    def test_who_forgets_claims_for_want_of_room_names_them(self):
        names = [f"old-{at}" for at in range(model.MOST_LAPSED)]
        lapsed = {name: held(name, float(at)) for at, name in enumerate(names)}
        before = model.ClaimRecord(HOST, {"late": held("late", 100.0)}, lapsed=lapsed)
        claim = model.Claim("new", HOST, {"VCPU": 1})
        state = before.to_state()
        logger = "nova_nodb_scheduler.synchronizer.claims.claim_rules"
        with self.assertLogs(logger, "WARNING") as said:
            claim_rules.take_each(before, [claim], taking(100.0))
            settlement_rules.HostClaimLedger().without(HOST, state, 7, {"late"}, None, {"late"})
        self.assertEqual(2, len(said.output))
        for line in said.output:
            self.assertIn("old-0", line)
            self.assertNotIn("old-1,", line)
        with self.assertNoLogs(logger, "WARNING"):
            room = model.ClaimRecord(HOST, {"late": held("late", 100.0)})
            claim_rules.take_each(room, [claim], taking(100.0))

    def test_a_record_without_any_is_written_as_before(self):
        state = model.ClaimRecord(HOST, {"a": held()}).to_state()
        self.assertEqual({"claims", "settled"}, set(state))
        self.assertIs(False, bool(model.ClaimRecord.from_state(HOST, state, 1).lapse(()).lapsed))

    def test_only_the_claim_of_that_id_is_forgotten_and_all_else_of_the_record_stays(self):
        synchronizer = memory.MemorySynchronizer()
        synchronizer.open()
        key = claim_rules.host_key(HOST)
        record = model.ClaimRecord(HOST, {"c": held("c")}, lapsed={"a": held("a"), "b": held("b")})
        payload = codec.encode(record.to_state(), known_namespaces.CLAIM_RECORDS.schema)
        self.assertTrue(synchronizer.write([records.Write(key, 0, payload)])[0].won)
        cache = record_editor.RecordCache()
        ids = {HOST: {"a": "id-a", "b": "of an earlier claim"}, "absent": {"a": "id-a"}}
        self.assertEqual(1, lapsed_claims.forget_lapsed(synchronizer, cache, ids))
        self.assertEqual(0, lapsed_claims.forget_lapsed(synchronizer, cache, ids))
        state = codec.decode(synchronizer.read([key])[key].payload).state
        after = model.ClaimRecord.from_state(HOST, state, 1)
        self.assertEqual(({"c"}, {"b"}), (set(after.claims), set(after.lapsed)))

    def test_what_is_noted_changes_no_claim_and_nothing_that_is_remembered(self):
        synchronizer = memory.MemorySynchronizer(None, memory.MemoryHub())
        synchronizer.open()
        key = claim_rules.host_key(HOST)
        record = model.ClaimRecord(HOST, {"c": held("c")}, lapsed={"a": held("a")})
        payload = codec.encode(record.to_state(), known_namespaces.CLAIM_RECORDS.schema)
        self.assertTrue(synchronizer.write([records.Write(key, 0, payload)])[0].won)
        cache = record_editor.RecordCache()
        noted = {"a": held("new"), "b": held("b"), "c": held("new")}
        wanted = {HOST: noted, "absent": {"b": held("b")}}
        self.assertEqual(2, lapsed_claims.note_lapsed(synchronizer, cache, wanted))
        self.assertEqual(0, lapsed_claims.note_lapsed(synchronizer, cache, wanted))
        found = lapsed_claims.read_claims(synchronizer, [HOST, "absent"])
        self.assertEqual(record.claims, found[HOST].claims)
        self.assertEqual(
            {"a": "id-a", "b": "id-b"},
            {name: each.claim_id for name, each in found[HOST].lapsed.items()},
        )
        self.assertEqual({"b"}, set(found["absent"].lapsed))

    def test_a_record_that_is_none_of_claims_is_left_out(self):
        synchronizer = memory.MemorySynchronizer(None, memory.MemoryHub())
        synchronizer.open()
        key = claim_rules.host_key(HOST)
        payload = codec.encode({"claims": {"a": {}}}, known_namespaces.CLAIM_RECORDS.schema)
        synchronizer.write([records.Write(key, 0, payload)])
        self.assertEqual(["n2"], list(lapsed_claims.read_claims(synchronizer, [HOST, "n2"])))

    def test_a_record_that_remembers_as_many_as_it_may_takes_no_more(self):
        names = [str(number) for number in range(model.MOST_LAPSED)]
        full = model.ClaimRecord(HOST, lapsed={name: held(name) for name in names})
        self.assertIs(full, full.with_lapsed({"a": held("a")}))
        after = full.without_lapsed({"0": "id-0"}).with_lapsed({"a": held("a"), "b": held("b")})
        self.assertEqual({*names[1:], "a"}, set(after.lapsed))


class WritersTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.now = 0.0
        self.version = 0
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self.writers = lapsed_claims.ClaimWriters(self.store, "own", 30.0, clock=lambda: self.now)

    def beat(self, namespace, key, **state):
        self.version += 1
        name = records.RecordKey(namespace.name, key)
        payload = codec.encode({"beat": self.version, **state}, namespace.schema)
        record = records.Record(name, self.version, self.version, payload)
        self.store.apply(records.Change(record, codec.decode_state(payload)))

    def looked(self, seconds):
        self.now += seconds
        self.writers.look()

    def test_who_says_that_its_request_is_over_is_gone_as_far_as_that_claim_goes(self):
        given_up = held(writer=f"{lapsed_claims.GIVEN_UP}:s1")
        self.assertTrue(lapsed_claims.writer_is_gone(given_up, {"s1"}, {}))
        self.assertFalse(lapsed_claims.writer_is_gone(held(), {"s1"}, {}))
        # A release that does not know it takes it for a scheduler without beats.
        self.assertNotIn(given_up.writer, {"s1"})

    def test_only_the_claim_of_that_id_is_given_up_and_all_else_of_the_record_stays(self):
        record = model.ClaimRecord(HOST, {"a": held("a")}, lapsed={"b": held("b"), "c": held("c")})
        after = record.given_up({"b": "id-b", "c": "id-of-a-later-one", "d": "id-d"}, "new")
        self.assertEqual((record.claims, record.lapsed["c"]), (after.claims, after.lapsed["c"]))
        self.assertEqual(held("b", writer="new"), after.lapsed["b"])
        self.assertIs(after, after.given_up({"b": "id-b"}, "new"))
        self.assertIs(record, record.given_up({"a": "id-a"}, "new"))

    def test_a_confirmed_claim_is_given_up_and_stands(self):
        record = model.ClaimRecord(HOST, {"a": held("a", None), "b": held("b", None)})
        after = record.given_up({"a": "id-a", "b": "id-of-a-later-one"}, "new")
        self.assertEqual({"a": held("a", None, "new"), "b": record.claims["b"]}, after.claims)
        self.assertIs(after, after.given_up({"a": "id-a"}, "new"))

    def test_nobody_is_gone_before_this_one_has_looked_for_a_while(self):
        self.assertFalse(self.writers.gone(held()))
        self.looked(0)
        self.assertFalse(self.writers.gone(held()))
        self.looked(31)
        self.assertTrue(self.writers.gone(held()))
        self.writers.forget()
        self.looked(0)
        self.assertFalse(self.writers.gone(held()))

    def test_the_worker_itself_and_who_beats_live(self):
        self.looked(0)
        for _ in range(5):
            self.beat(known_namespaces.SCHEDULERS, "s1")
            self.looked(20)
        self.assertFalse(self.writers.gone(held(writer="s1")))
        self.assertFalse(self.writers.gone(held(writer="own")))
        self.looked(31)
        self.assertTrue(self.writers.gone(held(writer="s1")))
        self.assertFalse(self.writers.gone(held(writer="own")))

    def test_a_conductor_lives_while_one_of_its_host_does_that_had_begun(self):
        def conductor(host, deadline=50.0):
            return held(deadline_seconds=deadline, writer=f"conductor:{host}:some-uuid")

        self.looked(0)
        for _ in range(5):
            self.beat(known_namespaces.REPORTERS, "r1", binary="conductor", host="h1", since=40.0)
            self.beat(known_namespaces.REPORTERS, "r2", binary="nova-api", host="h2", since=0.0)
            self.looked(20)
        self.assertFalse(self.writers.gone(conductor("h1")))
        # That one began after the lease had ended: it cannot have taken it.
        self.assertTrue(self.writers.gone(conductor("h1", 39.0)))
        # Of a confirmed claim nobody knows when it was taken.
        self.assertFalse(self.writers.gone(conductor("h1", None)))
        self.assertTrue(self.writers.gone(conductor("h2")))
