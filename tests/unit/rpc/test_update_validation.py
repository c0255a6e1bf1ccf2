# SPDX-License-Identifier: Apache-2.0
"""What update_host_states takes, and what it refuses by name."""

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.rpc import update_validation
from nova_nodb_scheduler.wire import decoded_sizes, objects
from tests.unit.store import store_samples

LEDGER = namespaces.Namespace("claims", "claims", store_samples.V1)


def update(key, state, namespace="pools"):
    return objects.HostStateUpdate(namespace=namespace, key=key, state=state)


class AdmissionTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.now_seconds = 0.0

    def admission(self, **limits):
        bounds = {
            "records_per_update": 10,
            "update_bytes": 1024,
            "updates_per_second": 1000.0,
            "page_size": 10,
        }
        return update_validation.UpdateValidation(
            [store_samples.POOLS, store_samples.SHELVES, LEDGER],
            update_validation.UpdateLimits(**{**bounds, **limits}),
            protected=["claims"],
            clock=lambda: self.now_seconds,
        )

    def test_states_and_deletions_that_fit_are_admitted(self):
        admitted = self.admission().admit(
            "cinder", [update("a", {"ratio": 2.0}), update("b", None)]
        )

        self.assertEqual(
            {
                records.RecordKey("pools", "a"): {"ratio": 2.0},
                records.RecordKey("pools", "b"): None,
            },
            dict(admitted.states),
        )
        self.assertEqual([], list(admitted.errors))

    def test_a_record_that_does_not_fit_is_named_and_the_others_are_admitted(self):
        admitted = self.admission().admit(
            "cinder",
            [update("a", {}), update("b", {"pool": {"free_gb": "much"}}), update("c", {})],
        )

        self.assertEqual({"a", "c"}, {key.key for key in admitted.states})
        [error] = admitted.errors
        self.assertEqual(("pools/b", "pool.free_gb"), (error.record, error.field))

    def test_a_value_json_cannot_carry_is_named(self):
        admitted = self.admission().admit("cinder", [update("a", {"x": [float("nan")]})])

        [error] = admitted.errors
        self.assertEqual(("pools/a", "x.0"), (error.record, error.field))

    def test_a_key_that_occurs_twice_is_refused_both_times(self):
        admitted = self.admission().admit(
            "cinder", [update("a", {}), update("a", None), update("b", {})]
        )

        self.assertEqual({"b"}, {key.key for key in admitted.states})
        self.assertEqual(["key", "key"], [error.field for error in admitted.errors])

    def test_keys_no_back_end_bears_are_refused(self):
        bad = ["", "a\nb", "k" * 201, "\ud800"]

        admitted = self.admission().admit("cinder", [update(key, {}) for key in bad])

        self.assertEqual({}, dict(admitted.states))
        self.assertEqual(["key"] * 4, [error.field for error in admitted.errors])

    def test_only_the_owner_may_write(self):
        error = self.assertRaises(
            errors.NotOwner, self.admission().admit, "nova", [update("a", {})]
        )

        self.assertEqual("pools", error.namespace)

    def test_one_foreign_namespace_refuses_the_whole_call(self):
        self.assertRaises(
            errors.NotOwner,
            self.admission().admit,
            "cinder",
            [update("a", {}), update("a", {}, "claims")],
        )

    def test_what_protocols_write_nobody_writes_over_rpc(self):
        self.assertRaises(
            errors.NotOwner, self.admission().admit, "claims", [update("a", {}, "claims")]
        )

    def test_an_undeclared_namespace_is_named_with_the_choices(self):
        error = self.assertRaises(
            errors.UnknownNamespace, self.admission().admit, "cinder", [update("a", {}, "tapes")]
        )

        self.assertIn("pools, shelves", str(error))

    def test_too_many_records_are_refused_naming_the_option(self):
        error = self.assertRaises(
            errors.LimitExceeded,
            self.admission(records_per_update=2).admit,
            "cinder",
            [update(key, {}) for key in "abc"],
        )

        self.assertIn("rpc_max_records_per_update", str(error))

    def test_too_many_bytes_are_refused_naming_the_option(self):
        error = self.assertRaises(
            errors.LimitExceeded,
            self.admission(update_bytes=1024).admit,
            "cinder",
            [update(key, {"x": "y" * 400}) for key in "abc"],
        )

        self.assertIn("rpc_max_update_bytes", str(error))

    def test_bytes_are_counted_as_they_are_decoded_and_not_as_they_are_compressed(self):
        """100 kB of one letter are some hundred bytes in a payload."""
        long = self.assertRaises(
            errors.LimitExceeded,
            self.admission(update_bytes=50_000).admit,
            "cinder",
            [update("a", {"x": "y" * 100_000})],
        )
        # 3 kB of JSON, which take 64 kB of memory.
        many = self.assertRaises(
            errors.LimitExceeded,
            self.admission(update_bytes=50_000).admit,
            "cinder",
            [update("a", {"x": [[] for _ in range(1000)]})],
        )

        for error in (long, many):
            self.assertIn("rpc_max_update_bytes", str(error))

    def test_what_is_too_large_is_refused_before_it_is_walked_to_its_end(self):
        read = []

        class Counted(list):
            def __iter__(self):
                for each in super().__iter__():
                    read.append(each)
                    yield each

        self.assertRaises(
            errors.LimitExceeded,
            self.admission(update_bytes=10_000).admit,
            "cinder",
            [update("a", {"x": Counted([{} for _ in range(100_000)])})],
        )
        self.assertLess(len(read), 1000)

    def test_a_tower_of_lists_is_refused_by_its_name(self):
        state = tower = {}
        for _ in range(decoded_sizes.MAX_DEPTH + 1):
            tower["x"] = {}
            tower = tower["x"]

        error = self.assertRaises(
            errors.InvalidRecord,
            self.admission(update_bytes=1 << 20).admit,
            "cinder",
            [update("a", state)],
        )
        self.assertEqual("pools/a", error.record)

    def test_what_is_no_record_is_named_by_its_place(self):
        unset = objects.HostStateUpdate(namespace="pools", key="a")
        for updates, record, field in (
            ([update("a", {}), {"key": "b"}], "number 1", "(record)"),
            ([unset], "number 0", "state"),
            ("text", "(all)", "records"),
        ):
            with self.subTest(record):
                error = self.assertRaises(
                    errors.InvalidRecord, self.admission().admit, "cinder", updates
                )
                self.assertEqual((record, field), (error.record, error.field))

    def test_more_calls_than_the_rate_are_refused_until_time_passes(self):
        admitted = self.admission(updates_per_second=3.0)
        for _ in range(3):
            admitted.admit("cinder", [])

        error = self.assertRaises(errors.LimitExceeded, admitted.admit, "cinder", [])
        self.assertIn("rpc_max_updates_per_second", str(error))

        self.now_seconds = 1.0
        admitted.admit("cinder", [])

    def test_a_rate_below_one_a_second_stretches_the_window(self):
        admitted = self.admission(updates_per_second=0.5)
        admitted.admit("cinder", [])
        self.now_seconds = 1.9
        self.assertRaises(errors.LimitExceeded, admitted.admit, "cinder", [])
        self.now_seconds = 2.0
        admitted.admit("cinder", [])
