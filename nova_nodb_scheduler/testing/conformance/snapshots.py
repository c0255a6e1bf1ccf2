# SPDX-License-Identifier: Apache-2.0
"""Conformance of snapshots: complete, live, bounded pages, safe to follow on from."""

from __future__ import annotations

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.testing.conformance import contract_case

LARGEST_PAGE = 2000


class Snapshots(contract_case.Case):
    """What a snapshot promises while nobody else writes."""

    def test_an_empty_back_end_has_an_empty_snapshot_that_can_be_followed(self) -> None:
        client = self.client()
        taken = client.snapshot()
        self.assertEqual([], [record for page in taken.pages for record in page])
        written = self.put(client, "a", b"one")
        self.assertEqual((written,), self.changes(client, taken.cursor).records)

    def test_a_snapshot_holds_every_live_record_and_no_tombstone(self) -> None:
        client = self.client()
        written = self.fill(client, 30)
        dropped = self.drop(client, written[4])
        held = contract_case.everything(client)
        expected = {record.key: record for record in written if record.key != dropped.key}
        self.assertEqual(expected, held)

    def test_a_recreated_record_is_in_the_snapshot_once(self) -> None:
        client = self.client()
        self.drop(client, self.put(client, "a", b"one"))
        again = self.put(client, "a", b"two")
        pages = list(client.snapshot().pages)
        self.assertEqual([again], [record for page in pages for record in page])

    def test_a_snapshot_of_some_namespaces_holds_those_alone(self) -> None:
        client = self.client()
        mine = self.put(client, "a", b"one")
        theirs = self.put(client, "a", b"two", namespace=contract_case.OTHER)
        third = self.put(client, "a", b"three", namespace="third")
        taken = client.snapshot([contract_case.NAMESPACE, "third", "nobody's"])
        held = {record.key: record for page in taken.pages for record in page}
        self.assertEqual({mine.key: mine, third.key: third}, held)
        self.assertNotIn(theirs.key, held)

    def test_pages_are_bounded(self) -> None:
        client = self.client()
        self.fill(client, LARGEST_PAGE + 500)
        sizes = [len(page) for page in client.snapshot().pages]
        self.assertEqual(LARGEST_PAGE + 500, sum(sizes))
        self.assertLessEqual(max(sizes), LARGEST_PAGE)

    def test_what_is_written_while_pages_are_read_is_in_a_page_or_in_the_feed(self) -> None:
        client, writer = self.client(), self.client()
        written = self.fill(writer, 50)
        taken = client.snapshot()
        changed = self.put(writer, written[0].key.key, b"new", written[0].revision)
        dropped = self.drop(writer, written[1])
        added = self.put(writer, "added", b"new")
        reader = _Following(client, taken)
        self.assertEqual(changed, reader.held[changed.key])
        self.assertEqual(added, reader.held[added.key])
        self.assertNotIn(dropped.key, reader.held)
        self.assertEqual(contract_case.everything(client), reader.held)

    def test_a_snapshot_read_across_a_new_epoch_cannot_be_followed_on_from(self) -> None:
        client, operator = self.client(), self.client()
        self.fill(client, 50)
        taken = client.snapshot()
        operator.reset()
        try:
            for _ in taken.pages:
                pass
        except contract.SnapshotInterrupted:
            return
        answer = client.fetch(taken.cursor)
        self.assertIsInstance(answer, records.ResyncNeeded)


class _Following(contract_case.FeedReader):
    """A reader that goes on from a snapshot somebody else began."""

    def __init__(self, synchronizer: contract.Synchronizer, taken: contract.SnapshotPages) -> None:
        self._taken = taken
        super().__init__(synchronizer)
        self.catch_up()

    def load(self) -> None:
        self.cursor = self._taken.cursor
        for page in self._taken.pages:
            for record in page:
                self._apply(record)
