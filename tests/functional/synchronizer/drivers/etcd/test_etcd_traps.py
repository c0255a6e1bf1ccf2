# SPDX-License-Identifier: Apache-2.0
"""The etcd driver without one of its precautions fails the tests laid for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import attrs

from nova_nodb_scheduler.synchronizer.drivers.etcd import epochs, following, layout, transactions
from tests.functional.synchronizer.drivers import test_conformance, traps
from tests.functional.synchronizer.drivers.etcd import test_etcd_faults


class TestTraps(traps.TrapCase):
    def test_a_watch_that_falls_silent_after_a_compaction_is_caught(self) -> None:
        """As etcd3gw's watcher does."""

        def messages(stream: Any, *arguments: Any) -> Iterator[following.Message]:
            for message in whole(stream, *arguments):
                if not message.get("canceled"):
                    yield message

        whole = following.Stream.messages
        with mock.patch.object(following.Stream, "messages", messages):
            self.assert_caught(
                test_etcd_faults.TestWatch,
                "test_compaction_past_the_cursor_needs_a_resync",
                may_raise=True,
            )

    def test_a_feed_that_believes_a_watch_without_looking_at_the_head_is_caught(self) -> None:
        def fetch(feed: Any, meta: epochs.Meta, version: int, limit: int) -> Any:
            feed.follow_from(meta, version)
            with feed._changed:
                return feed._changes(version, feed._place_of(version), limit)

        with mock.patch.object(following.Feed, "fetch", fetch):
            self.assert_caught(
                test_etcd_faults.TestWatch,
                "test_a_watch_open_on_one_side_only_is_noticed_by_the_next_fetch",
            )

    def test_writes_that_do_not_compare_the_epoch_are_caught(self) -> None:
        def compare(self: epochs.Epochs, epoch: layout.Epoch) -> transactions.Operation:
            # True of every key that exists.
            held = transactions.unchanged(self._keys.epoch_key, 0)
            return {**held, "result": "GREATER"}

        with mock.patch.object(epochs.Epochs, "compare", compare):
            self.assert_caught(
                test_etcd_faults.TestSlowClients,
                "test_a_creator_paused_over_a_new_epoch_creates_in_that_one",
            )

    def test_versions_without_the_place_in_the_transaction_are_caught(self) -> None:
        def encode_value(write: Any, place: int) -> bytes:
            return whole(write, 0)

        whole = layout.encode_value
        with mock.patch.object(layout, "encode_value", encode_value):
            self.assert_caught(
                test_conformance.TestEtcd,
                "test_pages_of_any_limit_bring_everything_once_and_say_if_more_waits",
            )

    def test_a_store_that_is_not_known_by_its_cluster_is_caught(self) -> None:
        def decode(held: layout.KeyValue) -> layout.Epoch:
            epoch = whole(held)
            return attrs.evolve(epoch, cluster=_AnyCluster(epoch.cluster))

        whole = layout.Epoch.decode
        with mock.patch.object(layout.Epoch, "decode", decode):
            self.assert_caught(
                test_etcd_faults.TestOtherStores,
                "test_a_restored_backup_is_a_new_epoch_and_gives_nothing_of_it",
            )

    def test_a_history_that_is_not_compared_is_caught(self) -> None:
        with mock.patch.object(epochs.Witness, "is_contradicted", autospec=True) as told:
            told.return_value = False
            self.assert_caught(
                test_etcd_faults.TestOtherStores,
                "test_a_backup_restored_with_the_token_of_its_cluster_is_a_new_epoch",
            )
            self.assert_caught(
                test_etcd_faults.TestOtherStores,
                "test_records_are_not_read_of_a_store_that_was_put_back",
            )


class _AnyCluster(str):
    """The id of a cluster that is taken for every other one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0
