# SPDX-License-Identifier: Apache-2.0
"""Keys that are kept in few bytes, and numbers that are kept in as few as they need."""

import uuid

import attrs
import numpy as np
import testtools
from hypothesis import given
from hypothesis import strategies as st

from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store, key_rows, record_chunks
from nova_nodb_scheduler.wire import codec
from tests.unit.store import store_samples

PACKED = attrs.evolve(store_samples.POOLS, uuid_keys=True)

_PLAIN = f"{uuid.UUID(int=2**127 + 10)}@cell"
#: What a server's key may look like, and what only looks like one.
ODD_KEYS = [
    _PLAIN,
    _PLAIN.replace("@cell", "@another"),
    _PLAIN[:36],
    _PLAIN[:35],
    _PLAIN.upper(),
    _PLAIN.replace("-", ""),
    _PLAIN.replace("-", "_"),
    _PLAIN[1:9] + _PLAIN[0] + _PLAIN[9:],
    "g" + _PLAIN[1:],
    "\u0661" + _PLAIN[1:],
    "",
]


class TestKeyPacking(testtools.TestCase):
    def test_a_key_of_a_server_is_seventeen_bytes_and_comes_back_as_it_was(self):
        packing = key_rows.KeyPacking()
        key = f"{uuid.uuid4()}@{uuid.uuid4()}"
        self.assertIsNone(packing.packed(key))  # nobody entered its cell
        found = packing.enter(key)
        self.assertEqual((17, key), (len(found), packing.text(found)))
        self.assertEqual(found, packing.packed(key))

    def test_more_cells_than_codes_leave_their_keys_as_texts(self):
        rows = key_rows.PackedRowsMutation()
        keys = [f"{uuid.UUID(int=cell)}@cell-{cell}" for cell in range(300)]
        for row, key in enumerate(keys):
            rows[key] = row
        self.assertEqual(255, sum(rows.packing.packed(key) is not None for key in keys))
        self.assertEqual(list(range(300)), [rows.get(key) for key in keys])
        held = rows.freeze()
        for key in keys:
            del rows[key]
        self.assertEqual((0, []), (len(rows), list(rows)))
        self.assertEqual((300, set(keys)), (len(held), set(held)))

    @given(st.lists(st.sampled_from(ODD_KEYS) | st.uuids().map("{}@cell".format), max_size=6))
    def test_a_page_is_packed_as_each_of_its_keys(self, keys):
        one, other = key_rows.KeyPacking(), key_rows.KeyPacking()
        packed = one.page(keys)
        singly = list(map(other.enter, keys))
        if packed is None:
            self.assertIn(None, singly)
        else:
            self.assertEqual(singly, [each.tobytes() for each in packed])

    def test_a_page_with_more_cells_than_codes_is_not_packed(self):
        packing = key_rows.KeyPacking()
        for cells in (256, 300):
            keys = [f"{uuid.UUID(int=cell)}@cell-{cell}" for cell in range(cells)]
            self.assertIsNone(packing.page(keys))

    def test_a_key_has_one_row(self):
        rows = key_rows.PackedRowsMutation()
        for key in (str(uuid.UUID(int=7)), "odd"):
            rows[key] = 1
            self.assertRaises(KeyError, rows.__setitem__, key, 2)
            self.assertEqual(1, rows.get(key))
            del rows[key]
            self.assertRaises(KeyError, rows.__delitem__, key)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(("page", "one", "remove", "snapshot")),
                st.lists(st.integers(0, 2**6), min_size=1, max_size=40, unique=True),
            ),
            max_size=25,
        )
    )
    def test_keys_that_came_by_pages_and_one_by_one_are_found_as_in_a_dictionary(self, steps):
        # Equal first halves, equal halves but for the cell, and neighbours.
        keys = [
            f"{uuid.UUID(int=(n % 5 << 64) | n // 13)}@{'ab'[n % 13 % 2]}" for n in range(2**6 + 1)
        ]
        rows, model, frozen = key_rows.PackedRowsMutation(), {}, []
        for cell in "ab":
            rows.packing.enter(f"{uuid.UUID(int=0)}@{cell}")
        for number, (step, chosen) in enumerate(steps):
            wanted = list(dict.fromkeys(keys[at] for at in chosen))
            if step == "page":
                packed = self.packed(rows.packing, wanted)
                # One that was removed may be refused as well: then there is a record of it.
                if rows.has_any(packed):
                    continue
                self.assertFalse(model.keys() & set(wanted))
                here = np.arange(len(wanted)) + 100 * number
                rows.enter_page(packed, here)
                model.update(zip(wanted, here.tolist(), strict=True))
            elif step == "one":
                for key in filter(lambda key: key not in model, wanted):
                    rows[key] = model[key] = number
            elif step == "remove":
                for key in filter(model.__contains__, wanted):
                    del rows[key]
                    del model[key]
            else:
                frozen.append((rows.freeze(), dict(model)))
        for held, expected in [*frozen, (rows.freeze(), model), (rows, model)]:
            self.assertEqual(len(expected), len(held))
            self.assertEqual(sorted(expected), sorted(held))
            self.assertEqual([expected.get(key) for key in keys], list(map(held.get, keys)))

    @staticmethod
    def packed(packing, keys):
        found = b"".join(map(packing.packed, keys))
        return np.frombuffer(found, np.uint8).reshape(-1, 17)

    def test_a_key_that_came_twice_unseen_is_refused_in_the_end_and_no_look_fails(self):
        keys = [f"{uuid.UUID(int=number << 70)}@a" for number in range(20)]
        for pages in ([keys[:3], keys[:1]], [[keys[5]] * 2], [keys[:9], keys[9:], keys[8:9]]):
            for looks in (False, True):
                rows = key_rows.PackedRowsMutation()
                rows.packing.enter(keys[0])
                rows.check()
                refused = False
                for number, page in enumerate(pages):
                    packed = self.packed(rows.packing, page)
                    # What was looked at is known at once.
                    if rows.has_any(packed, gathered=False):
                        refused = True
                        continue
                    rows.enter_page(packed, np.arange(len(page)) + 100 * number)
                    if looks:
                        rows.freeze()
                        rows.get(keys[0])
                if not refused:
                    self.assertRaises(ValueError, rows.check)

    def test_keys_in_order_are_sorted_once_for_all_pages(self):
        rows = key_rows.PackedRowsMutation()
        keys = [f"{uuid.UUID(int=number << 64)}@a" for number in range(1000)]
        rows.packing.enter(keys[0])
        for first in range(0, 1000, 100):
            packed = self.packed(rows.packing, keys[first : first + 100])
            self.assertFalse(rows.has_any(packed))
            rows.enter_page(packed, np.arange(first, first + 100))
            self.assertEqual((), rows._pages)
        self.assertTrue(rows.has_any(packed))
        self.assertEqual(list(range(1000)), list(map(rows.get, keys)))

    @given(st.text(max_size=80) | st.uuids().map(str) | st.from_regex(r"[0-9a-fA-F -]{36}(@c)?"))
    def test_any_text_is_packed_so_that_it_comes_back_or_not_at_all(self, key):
        packing = key_rows.KeyPacking()
        found = packing.enter(key)
        self.assertTrue(found is None or packing.text(found) == key)


class TestCells(testtools.TestCase):
    def test_servers_of_a_cell_that_went_away_may_come_back_to_a_new_one(self):
        store = host_state_store.HostStateStore((known_namespaces.INSTANCES,), codec.decode_state)
        servers = [str(uuid.UUID(int=number)) for number in range(600)]
        for round_, cell in enumerate(("a", "b", "a"), 1):
            state = {"cell": cell, "row": {"host": "h", "vcpus": 2**31 + round_}}
            store.apply_page(
                store_samples.change(f"{each}@{cell}", round_, state, namespace="instances")
                for each in servers
            )
            view = store.snapshot().namespace("instances")
            present = tuple(sorted(f"{each}@{cell}" for each in servers))
            self.assertEqual(present, view.lookup("cell_host", cell, "h"))
            self.assertEqual(set(present), set(view.keys()))
            self.assertEqual(600 * (2**31 + round_), view.column("vcpus").sum())
            store.retain("instances", [], version=round_)
            self.assertEqual(600, len(view))
        self.assertEqual((), store.snapshot().namespace("instances").row_keys())


class TestWidths(testtools.TestCase):
    @given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
    def test_as_many_bytes_are_needed_as_hold_each_number(self, numbers):
        width = record_chunks.bytes_needed(np.array(numbers, np.int64))
        self.assertEqual(numbers, np.array(numbers, np.int64).astype(f"i{width}").tolist())
        if width > 1:
            narrower = np.array(numbers, np.int64).astype(f"i{width // 2}")
            self.assertNotEqual(numbers, narrower.tolist())

    def test_readers_get_64_bits_whatever_is_kept(self):
        store = store_samples.store(PACKED)
        for number, free_gb in enumerate((1, 127, -128, 128, 2**15, -(2**31) - 1, 2**63 - 1), 1):
            store.apply(store_samples.change("a", number, {"pool": {"free_gb": free_gb}}))
            column = store.snapshot().namespace("pools").column("free_gb")
            self.assertEqual((np.dtype(np.int64), [free_gb]), (column.dtype, column.tolist()))

    def test_a_snapshot_keeps_its_number_when_a_wider_one_comes(self):
        store = store_samples.store(PACKED)
        store.apply(store_samples.change("a", 1, {"pool": {"free_gb": 1}}))
        held = store.snapshot().namespace("pools")
        store.apply(store_samples.change("a", 2**40, {"pool": {"free_gb": 2**40}}))
        self.assertEqual((1, [1]), (held.get("a").revision, held.column("free_gb").tolist()))
        changed = store.snapshot().namespace("pools").get("a")
        self.assertEqual((2**40, 2**40), (changed.revision, changed.version))
        self.assertIsInstance(changed.revision, int)
