# SPDX-License-Identifier: Apache-2.0
"""What a snapshot costs grows with the rows that changed, not with the hosts held.

Guarded by counts: the store's own counter, and all memory that Python, NumPy
and the persistent maps ask for, as tracemalloc sees it.
"""

import functools
import tracemalloc

import testtools

from nova_nodb_scheduler.store import record_chunks
from tests.unit.store import store_samples

CHANGED = 10
#: So that the numbers of all hosts are equally wide.
LEAST_FREE_GB = 2**16


@functools.cache
def store_of(hosts):
    store = store_samples.store()
    store.apply_page(
        store_samples.change(
            f"host-{number}",
            1,
            {
                "pool": {"free_gb": LEAST_FREE_GB + number},
                "backend": f"b{number % 7}",
                "zone": number,
                "tags": [],
            },
        )
        for number in range(hosts)
    )
    store.snapshot()
    return store


def next_change(store, number):
    """The next revision of a host, with other values in its columns and indexes."""
    key = f"host-{number}"
    revision = store.snapshot().namespace("pools").get(key).revision + 1
    return store_samples.change(key, revision, {"pool": {"free_gb": -revision}, "backend": "new"})


def spread_changes(store, hosts):
    """Changes of ten rows in ten chunks."""
    return [next_change(store, step * hosts // CHANGED) for step in range(CHANGED)]


class TestBytesCopied(testtools.TestCase):
    def copied(self, hosts):
        store = store_of(hosts)
        changes = spread_changes(store, hosts)
        held = store.snapshot()
        content = held.namespace("pools").column("free_gb").tobytes()
        before = store.bytes_copied

        self.assertEqual([True] * CHANGED, store.apply_page(changes))
        self.assertIsNot(held, store.snapshot())
        self.assertNotIn(True, store.apply_page(changes))  # not newer: copies nothing more

        self.assertEqual(content, held.namespace("pools")._gather(0).tobytes())
        return store.bytes_copied - before

    def test_ten_changed_rows_copy_at_most_ten_chunks_whatever_the_number_of_hosts(self):
        # An index by texts, and one by a column.
        chunk = record_chunks.Chunk(
            store_samples.POOLS.columns, 0, with_index_values=True, marked=(3,)
        )
        chunk.write_numbers(0, 0, LEAST_FREE_GB, 4)
        chunk_bytes = chunk.size_bytes

        few, many = self.copied(10_000), self.copied(100_000)

        self.assertEqual(few, many)
        self.assertEqual(CHANGED * chunk_bytes, many)
        self.assertLess(chunk_bytes, 100 * record_chunks.CHUNK_ROWS)

    def test_rows_changed_twice_between_snapshots_are_copied_once(self):
        store = store_of(10_000)
        revision = next_change(store, 1).record.revision
        store.apply(store_samples.change("host-1", revision, {}))
        before = store.bytes_copied

        for step in range(1, 50):
            store.apply(store_samples.change("host-1", revision + step, {"thin": True}))
            store.apply(store_samples.change("host-2", revision + step, {"thin": True}))
        self.assertEqual(before, store.bytes_copied)

        store.apply(next_change(store, 1))  # which takes a snapshot
        self.assertGreater(store.bytes_copied, before)

    def test_all_memory_asked_for_grows_with_the_changes_and_not_with_the_hosts(self):
        asked = {}
        for hosts in (10_000, 100_000):
            store = store_of(hosts)
            changes = spread_changes(store, hosts)
            held = store.snapshot()
            tracemalloc.start()
            try:
                store.apply_page(changes)
                present = store.snapshot()
                asked[hosts] = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            self.assertIsNot(held, present)

        # The paths of the maps are one level deeper at most; a single copied
        # column of 100,000 hosts alone would be 800 kB.
        self.assertLess(asked[100_000], asked[10_000] + 60_000)
        self.assertLess(asked[100_000], 500_000)
