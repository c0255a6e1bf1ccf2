# SPDX-License-Identifier: Apache-2.0
"""Packed payloads read as they came, in snapshots taken before and after."""

import testtools

from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec, payload_packing
from tests.unit.store import store_samples


def state(number):
    return {"backend": f"b{number}", "tags": [f"tag-{n}" for n in range(40)]}


class TestPackedStores(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = host_state_store.HostStateStore(
            (store_samples.POOLS, store_samples.SHELVES),
            codec.decode_state,
            packing=payload_packing.DictionaryPacking,
        )
        self.changes = [store_samples.change(f"k{n:03}", 1 + n, state(n)) for n in range(600)]

    def read(self, snapshot):
        view = snapshot.namespace("pools")
        found = map(view.get, sorted(view.keys()))
        return [(record.payload, record.state["backend"]) for record in found]

    def kept_bytes(self):
        view = self.store.snapshot().namespace("pools")
        return sum(len(view.get(key)._kept) for key in view.keys())  # noqa: SIM118

    def pack(self):
        while self.store.pack(100):
            pass

    def test_readers_see_no_difference(self):
        self.store.apply_page(self.changes)
        expected = [(change.record.payload, change.state["backend"]) for change in self.changes]
        before, size = self.store.snapshot(), self.kept_bytes()
        self.pack()

        self.assertEqual(expected, self.read(before))
        self.assertEqual(expected, self.read(self.store.snapshot()))
        self.assertLess(self.kept_bytes() * 4, size)
        self.assertIs(before, self.store.snapshot())

    def test_a_change_after_packing_is_packed_the_next_time(self):
        self.store.apply_page(self.changes)
        self.pack()
        size = self.kept_bytes()
        self.store.apply(store_samples.change("k007", 10_000, state(7777)))
        self.assertGreater(self.kept_bytes(), size)
        self.pack()

        self.assertAlmostEqual(size, self.kept_bytes(), delta=50)
        view = self.store.snapshot().namespace("pools")
        self.assertEqual("b7777", view.get("k007").state["backend"])

    def test_a_snapshot_of_an_ended_epoch_still_reads(self):
        self.store.apply_page(self.changes[:9])
        self.pack()
        before = self.store.snapshot()
        self.store.begin_epoch()
        self.store.apply_page(self.changes[300:309])
        self.pack()

        self.assertEqual("b3", before.namespace("pools").get("k003").state["backend"])
        after = self.store.snapshot().namespace("pools")
        self.assertEqual("b303", after.get("k303").state["backend"])

    def test_there_is_nothing_to_pack_twice(self):
        self.store.apply_page(self.changes)
        self.pack()

        self.assertFalse(self.store.pack(1))
