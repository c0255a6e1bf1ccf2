# SPDX-License-Identifier: Apache-2.0
"""Pages of a query: in order, whole, and stable while records come and go."""

import testtools

from nova_nodb_scheduler.rpc import pages
from tests.unit.store import samples


class PagesTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = samples.store()
        self.revision = 0
        for key in "dbecaf":
            self.write(key, {"pool": {"free_gb": ord(key) - ord("a")}})

    def write(self, key, state):
        self.revision += 1
        self.store.apply(samples.change(key, self.revision, state))

    def cut(self, limit=2, marker=None, keys=None, predicate=()):
        view = self.store.snapshot().namespace("pools")
        page = pages.cut(view, keys, predicate, limit, marker)
        return [record.key for record in page.records], page.next_marker

    def test_pages_follow_one_another_in_order_of_key(self):
        self.assertEqual((["a", "b"], "b"), self.cut())
        self.assertEqual((["c", "d"], "d"), self.cut(marker="b"))
        self.assertEqual((["e", "f"], None), self.cut(marker="d"))

    def test_a_last_page_that_is_not_full_is_the_last(self):
        self.assertEqual((["e", "f"], None), self.cut(limit=4, marker="d"))

    def test_a_marker_whose_record_went_still_stands_for_its_place(self):
        self.write("b", None)

        self.assertEqual((["c", "d"], "d"), self.cut(marker="b"))

    def test_a_record_that_comes_before_the_marker_shifts_nothing(self):
        self.write("aa", {})

        self.assertEqual((["c", "d"], "d"), self.cut(marker="b"))

    def test_only_asked_keys_that_exist_are_given(self):
        self.assertEqual((["b", "f"], None), self.cut(keys=["f", "b", "absent"], limit=5))

    def test_keys_and_a_predicate_must_both_hold(self):
        self.assertEqual((["e"], None), self.cut(keys=["a", "e"], predicate=[["free_gb", ">", 2]]))

    def test_a_predicate_is_paged_too(self):
        predicate = [["free_gb", ">=", 1]]

        self.assertEqual((["b", "c"], "c"), self.cut(predicate=predicate))
        self.assertEqual((["d", "e"], "e"), self.cut(predicate=predicate, marker="c"))
        self.assertEqual((["f"], None), self.cut(predicate=predicate, marker="e"))

    def test_nothing_found_is_an_empty_last_page(self):
        self.assertEqual(([], None), self.cut(keys=[]))
