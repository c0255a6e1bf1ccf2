# SPDX-License-Identifier: Apache-2.0
"""What is kept beside a record for its readers, and look-ups by a pass over columns."""

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec
from tests.unit.store import store_samples


class TestDigests(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = store_samples.store(store_samples.DRIVES)

    def drives(self):
        return self.store.snapshot().namespace("drives")

    def put(self, key, revision, state=None):
        self.store.apply(store_samples.change(key, revision, state, namespace="drives"))

    def test_a_digest_follows_its_record_and_a_snapshot_keeps_its_own(self):
        self.put("a", 1, {"size": 1})
        before = self.drives()
        self.put("a", 2, {"size": 2})
        after = self.drives()
        self.put("a", 3)

        self.assertEqual(("a", 1), before.digest("a"))
        self.assertEqual(("a", 2), after.digest("a"))
        self.assertIsNone(self.drives().digest("a"))

    def test_no_record_is_decoded_for_its_digest(self):
        decoded = []

        def decode(payload):
            decoded.append(payload)
            return codec.decode_state(payload)

        self.store = host_state_store.HostStateStore((store_samples.DRIVES,), decode)
        self.put("a", 1, {"size": 1})

        self.assertEqual(("a", 1), self.drives().digest("a"))
        self.assertEqual([], decoded)

    def test_an_index_of_few_values_needs_its_columns(self):
        index = namespaces.Index("x", (("x",),), few_values=True)
        declared = namespaces.Namespace("n", "o", store_samples.V1, (), (index,))

        self.assertRaises(errors.ConfigurationError, store_samples.store, declared)

    @settings(deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from("abcdef"),
                st.none()
                | st.fixed_dictionaries(
                    {},
                    optional={
                        "zone": st.sampled_from(["z1", "z2", None]),
                        "backend": st.sampled_from(["lvm", "ceph"]),
                    },
                ),
            ),
            max_size=20,
        )
    )
    def test_a_pass_over_columns_finds_what_a_model_finds(self, writes):
        self.store = store_samples.store(store_samples.DRIVES)
        live = {}
        for revision, (key, state) in enumerate(writes, 1):
            self.put(key, revision, state)
            live[key] = state
            held = {key: state for key, state in live.items() if state is not None}
            for zone in ("z1", "z2", "none", "z9"):
                there = sorted(
                    key for key, state in held.items() if (state.get("zone") or "none") == zone
                )
                self.assertEqual(tuple(there), self.drives().lookup("zone", zone))
                of_lvm = tuple(key for key in there if held[key].get("backend") == "lvm")
                self.assertEqual(of_lvm, self.drives().lookup("zone_backend", zone, "lvm"))
            for key, state in held.items():
                self.assertEqual((state.get("zone") or "none",), self.drives().indexed(key, "zone"))
            self.assertIsNone(self.drives().indexed("g", "zone"))

    def test_many_records_below_one_value_come_and_go(self):
        self.store = store_samples.store(store_samples.POOLS)
        keys = [f"k{number:02}" for number in range(40)]
        for revision, key in enumerate(keys, 1):
            self.store.apply(store_samples.change(key, revision, {"backend": "lvm"}))
            found = self.store.snapshot().namespace("pools").lookup("backend", "lvm")
            self.assertEqual(tuple(keys[:revision]), found)
        for revision, key in enumerate(keys, 100):
            self.store.apply(store_samples.change(key, revision))
            found = self.store.snapshot().namespace("pools").lookup("backend", "lvm")
            self.assertEqual(tuple(keys[revision - 99 :]), found)
