# SPDX-License-Identifier: Apache-2.0
"""Who subscribed hears of every key that changed, and keeps a bounded number of them."""

import attrs
import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec
from tests.unit.store import store_samples


class TestSubscriptions(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.store = store_samples.store()
        self.subscription = self.store.subscribe(["pools"], most_keys=8)
        self.subscription.drain()

    def test_the_first_call_says_that_everything_is_to_be_read(self):
        self.store.apply(store_samples.change("a", 1, {}))

        subscription = self.store.subscribe(["pools"])
        self.assertIsNone(subscription.drain())
        self.assertEqual({}, subscription.drain())

    def test_what_came_changed_or_went_is_told_once(self):
        for number, key in enumerate("abc"):
            self.store.apply(store_samples.change(key, 1 + number, {}))
        self.store.apply(store_samples.change("a", 9, {"backend": "x"}))
        self.store.apply(store_samples.change("b", 10))

        self.assertEqual({"pools": {"a", "b", "c"}}, self.subscription.drain())
        self.assertEqual({}, self.subscription.drain())

    def test_what_is_not_newer_or_refused_or_of_another_namespace_is_not_told(self):
        self.store.apply(store_samples.change("a", 2, {}))
        self.subscription.drain()
        self.store.apply(store_samples.change("a", 1, {}))
        self.store.apply(store_samples.change("s", 3, {}, namespace="shelves"))
        self.assertRaises(
            errors.InvalidRecord, self.store.apply, store_samples.change("a", 4, {"ratio": []})
        )

        self.assertEqual({}, self.subscription.drain())

    def test_what_a_snapshot_no_longer_held_is_told(self):
        self.store.apply_page([store_samples.change("a", 1, {}), store_samples.change("b", 2, {})])
        self.subscription.drain()
        self.store.retain("pools", ["a"], 9)

        self.assertEqual({"pools": {"b"}}, self.subscription.drain())

    def test_a_batch_that_breaks_off_means_everything(self):
        """What it brought before is not told again by the snapshot that mends the rest."""

        def digest(key, state):
            if key == "b":
                raise MemoryError
            return key

        namespace = attrs.evolve(store_samples.POOLS, digest=digest)
        store = host_state_store.HostStateStore([namespace], codec.decode_state)
        store.apply(store_samples.change("a", 1, {}))
        subscription = store.subscribe([namespace.name])
        subscription.drain()
        page = [store_samples.change("a", 2), store_samples.change("b", 3, {})]
        self.assertRaises(MemoryError, store.apply_page, page)
        self.assertEqual(0, len(store.snapshot().namespace(namespace.name)))

        self.assertIsNone(subscription.drain())

    def test_a_new_epoch_means_everything(self):
        self.store.begin_epoch()

        self.assertIsNone(self.subscription.drain())
        self.store.apply(store_samples.change("a", 1, {}))
        self.assertEqual({"pools": {"a"}}, self.subscription.drain())

    def test_more_keys_than_are_kept_mean_everything(self):
        self.store.apply_page([store_samples.change(f"k{n}", 1 + n, {}) for n in range(9)])

        self.assertIsNone(self.subscription.drain())
        self.assertEqual({}, self.subscription.drain())

    def test_one_key_that_changes_often_is_still_one_key(self):
        self.store.apply_page([store_samples.change("a", 1 + n, {}) for n in range(50)])

        self.assertEqual({"pools": {"a"}}, self.subscription.drain())

    def test_two_subscribers_do_not_take_from_one_another(self):
        other = self.store.subscribe(["pools", "shelves"])
        other.drain()
        self.store.apply(store_samples.change("a", 1, {}))
        self.subscription.drain()

        self.assertEqual({"pools": {"a"}}, other.drain())

    def test_an_undeclared_namespace_is_refused(self):
        self.assertRaises(errors.UnknownNamespace, self.store.subscribe, ["nonsense"])
