# SPDX-License-Identifier: Apache-2.0
"""Conformance of compare-and-set: who wins, who loses, what names are kept apart."""

from __future__ import annotations

import random
import unicodedata

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.testing.conformance import contract_case

WON = records.Verdict.WON
LOST = records.Verdict.LOST

#: Namespace and key of what no engine's record may be called.
REFUSED_NAMES: tuple[tuple[str, str], ...] = (
    (contract_case.NAMESPACE, "a\nb"),
    (contract_case.NAMESPACE, "a\x00b"),
    (contract_case.NAMESPACE, "\x1f"),
    (contract_case.NAMESPACE, "a\x7f"),
    (contract_case.NAMESPACE, "\x85"),
    (contract_case.NAMESPACE, "\ud800"),
    (contract_case.NAMESPACE, ""),
    (contract_case.NAMESPACE, "k" * 256),
    ("", "a"),
    ("n" * 65, "a"),
    ("a\tb", "a"),
)


class CompareAndSet(contract_case.Case):
    """One key at a time."""

    def test_expected_zero_creates_an_absent_record(self) -> None:
        client = self.client()
        written = self.put(client, "a", b"one")
        self.assertGreater(written.revision, 0)
        self.assertFalse(written.deleted)
        self.assertEqual({written.key: written}, client.read([written.key]))

    def test_the_revision_read_wins_and_the_revision_grows(self) -> None:
        client = self.client()
        first = self.put(client, "a", b"one")
        second = self.put(client, "a", b"two", first.revision)
        self.assertGreater(second.revision, first.revision)
        self.assertGreater(second.version, first.version)
        self.assertEqual(b"two", client.read([second.key])[second.key].payload)

    def test_second_writer_with_the_same_revision_loses_and_sees_the_winner(self) -> None:
        client, rival = self.client(), self.client()
        first = self.put(client, "a", b"one")
        winner = self.put(client, "a", b"mine", first.revision)
        [result] = rival.write([records.Write(first.key, first.revision, b"theirs")])
        self.assertEqual(records.WriteResult(LOST, winner), result)
        self.assertEqual({winner.key: winner}, rival.read([winner.key]))

    def test_expected_zero_loses_against_a_live_record(self) -> None:
        client = self.client()
        standing = self.put(client, "a", b"one")
        [result] = client.write([records.Write(standing.key, 0, b"two")])
        self.assertEqual(records.WriteResult(LOST, standing), result)

    def test_a_revision_of_an_absent_record_loses_and_shows_nothing(self) -> None:
        client = self.client()
        [result] = client.write([records.Write(contract_case.key("a"), 7, b"one")])
        self.assertEqual(records.WriteResult(LOST, None), result)
        self.assertEqual({}, client.read([contract_case.key("a")]))

    def test_deletion_leaves_a_tombstone_with_a_greater_revision(self) -> None:
        client = self.client()
        first = self.put(client, "a", b"one")
        tombstone = self.drop(client, first)
        self.assertTrue(tombstone.deleted)
        self.assertEqual(b"", tombstone.payload)
        self.assertGreater(tombstone.revision, first.revision)
        self.assertEqual({first.key: tombstone}, client.read([first.key]))

    def test_deletion_with_an_old_revision_loses(self) -> None:
        client = self.client()
        first = self.put(client, "a", b"one")
        second = self.put(client, "a", b"two", first.revision)
        [result] = client.write([records.Write(first.key, first.revision, deleted=True)])
        self.assertEqual(records.WriteResult(LOST, second), result)

    def test_expected_zero_wins_over_a_tombstone_and_the_revision_grows(self) -> None:
        client = self.client()
        tombstone = self.drop(client, self.put(client, "a", b"one"))
        again = self.put(client, "a", b"two")
        self.assertGreater(again.revision, tombstone.revision)
        self.assertFalse(again.deleted)
        self.assertEqual({again.key: again}, client.read([again.key]))

    def test_the_revision_of_a_tombstone_wins_over_it(self) -> None:
        client = self.client()
        tombstone = self.drop(client, self.put(client, "a", b"one"))
        again = self.put(client, "a", b"two", tombstone.revision)
        self.assertGreater(again.revision, tombstone.revision)

    def test_a_revision_from_before_the_deletion_loses_and_sees_the_tombstone(self) -> None:
        client = self.client()
        first = self.put(client, "a", b"one")
        tombstone = self.drop(client, first)
        [result] = client.write([records.Write(first.key, first.revision, b"late")])
        self.assertEqual(records.WriteResult(LOST, tombstone), result)

    def test_a_revision_from_before_deletion_and_recreation_loses(self) -> None:
        client = self.client()
        first = self.put(client, "a", b"one")
        self.drop(client, first)
        again = self.put(client, "a", b"one")
        [result] = client.write([records.Write(first.key, first.revision, b"late")])
        self.assertEqual(records.WriteResult(LOST, again), result)

    def test_writing_one_record_leaves_the_revision_of_another(self) -> None:
        client = self.client()
        quiet, busy = self.put(client, "quiet", b"q"), self.put(client, "busy", b"b")
        for _ in range(5):
            busy = self.put(client, "busy", b"b", busy.revision)
        self.assertEqual({quiet.key: quiet}, client.read([quiet.key]))
        self.put(client, "quiet", b"still", quiet.revision)

    def test_a_batch_answers_in_order_with_winners_and_losers_mixed(self) -> None:
        client = self.client()
        standing = self.fill(client, 40)
        writes = []
        for number, record in enumerate(standing):
            stale = number % 3 == 1
            expected = record.revision + 1000 if stale else record.revision
            writes.append(records.Write(record.key, expected, b"new", deleted=number % 3 == 2))
        results = client.write(writes)
        now = client.read([record.key for record in standing])
        for number, (record, result) in enumerate(zip(standing, results, strict=True)):
            self.assertIs(LOST if number % 3 == 1 else WON, result.verdict)
            self.assertEqual(now[record.key], result.record)
            self.assertEqual(number % 3 == 2, now[record.key].deleted)

    def test_a_key_twice_in_one_call_is_refused_and_nothing_written(self) -> None:
        client = self.client()
        writes = [records.Write(contract_case.key(name), 0, b"x") for name in ("a", "b", "a")]
        with self.assertRaises(ValueError):
            client.write(writes)
        self.assertEqual({}, contract_case.everything(client))

    def test_no_writes_have_no_results(self) -> None:
        self.assertEqual([], self.client().write([]))

    def test_reading_changes_nothing_and_leaves_out_what_is_absent(self) -> None:
        client = self.client()
        written = self.put(client, "a", b"one")
        head = client.head()
        for _ in range(3):
            self.assertEqual(
                {written.key: written}, client.read([written.key, contract_case.key("b")])
            )
        self.assertEqual(head, client.head())
        self.assertEqual({}, client.read([]))

    def test_an_accepted_write_is_seen_at_once_by_another_client(self) -> None:
        first, second = self.client(), self.client()
        record = self.put(first, "ping", b"0")
        for number in range(100):
            writer, reader = (first, second) if number % 2 else (second, first)
            record = self.put(writer, "ping", b"%d" % number, record.revision)
            self.assertEqual({record.key: record}, reader.read([record.key]))

    def test_thousands_of_records_are_written_and_read_in_one_call(self) -> None:
        client = self.client()
        written = self.fill(client, 2500)
        read = client.read([record.key for record in written])
        self.assertEqual({record.key: record for record in written}, read)

    def test_a_payload_of_every_byte_comes_back(self) -> None:
        client = self.client()
        payload = bytes(range(256)) * 20
        written = self.put(client, "a", payload)
        self.assertEqual(payload, client.read([written.key])[written.key].payload)

    def test_a_payload_of_the_declared_size_is_kept(self) -> None:
        client = self.client()
        # Random bytes: what is escaped or compressed on its way must fit as well.
        payload = random.Random(1).randbytes(client.capabilities.max_payload_bytes)
        written = self.put(client, "a", payload)
        self.assertEqual(payload, client.read([written.key])[written.key].payload)

    def test_a_larger_payload_is_refused_before_anything_is_sent(self) -> None:
        client = self.client()
        too_large = bytes(client.capabilities.max_payload_bytes + 1)
        writes = [
            records.Write(contract_case.key("small"), 0, b"x"),
            records.Write(contract_case.key("large"), 0, too_large),
        ]
        with self.assertRaises(errors.PayloadTooLarge) as caught:
            client.write(writes)
        self.assertIn("large", str(caught.exception))
        self.assertEqual({}, contract_case.everything(client))


class Names(contract_case.Case):
    """Keys that an engine might take for one another, or refuse.

    The rule is :mod:`nova_nodb_scheduler.model.records`' for all of them.
    """

    def test_the_same_key_in_two_namespaces_is_two_records(self) -> None:
        client = self.client()
        one = self.put(client, "a", b"one")
        two = self.put(client, "a", b"two", namespace=contract_case.OTHER)
        self.assertEqual({one.key: one, two.key: two}, client.read([one.key, two.key]))

    def test_keys_that_look_alike_are_different_records(self) -> None:
        self._keep_apart(
            ["host", "Host", "host ", "höst", unicodedata.normalize("NFD", "höst"), "h\u043est"]
        )

    def test_keys_of_any_script_and_punctuation_are_kept(self) -> None:
        self._keep_apart(
            ["a b", "a%20b", "a/b", "a:b", "a'b\"c", "ключ", "主机", "🖥", "%", "_", "\\", "*"]
        )

    def test_the_longest_keys_are_kept_apart_by_their_last_character(self) -> None:
        self._keep_apart(["k" * 254 + "a", "k" * 254 + "b", "主" * 254 + "a", "主" * 254 + "b"])

    def test_the_longest_namespace_is_kept(self) -> None:
        client = self.client()
        written = self.put(client, "a", b"x", namespace="n" * 64)
        self.assertEqual({written.key: written}, contract_case.everything(client))
        taken = client.snapshot(["n" * 64])
        self.assertEqual([written], [record for page in taken.pages for record in page])

    def test_names_that_no_record_may_have_are_refused_one_by_one(self) -> None:
        client = self.client()
        bad = [records.RecordKey(namespace, key) for namespace, key in REFUSED_NAMES]
        good = [contract_case.key(f"good-{number}") for number in range(len(bad) + 1)]
        keys = [key for pair in zip(good, bad, strict=False) for key in pair] + good[-1:]
        results = dict(
            zip(keys, client.write([records.Write(key, 0, b"x") for key in keys]), strict=True)
        )
        for key in bad:
            self.assertIs(records.Verdict.REFUSED, results[key].verdict, ascii(key.key)[:40])
            self.assertEqual(key.fault, results[key].reason)
            self.assertIsNone(results[key].record)
        self.assertEqual([records.Verdict.WON] * len(good), [results[key].verdict for key in good])
        self.assertEqual(set(good), set(contract_case.everything(client)))

    def test_names_that_no_record_may_have_are_absent_and_keep_no_other_from_being_read(
        self,
    ) -> None:
        client = self.client()
        standing = self.put(client, "good", b"x")
        bad = [records.RecordKey(namespace, key) for namespace, key in REFUSED_NAMES]
        self.assertEqual({standing.key: standing}, client.read([*bad[:3], standing.key, *bad[3:]]))
        self.assertEqual({}, client.read(bad))

    def test_a_deletion_under_a_refused_name_is_refused_too(self) -> None:
        client = self.client()
        [result] = client.write([records.Write(contract_case.key("a\nb"), 7, deleted=True)])
        self.assertIs(records.Verdict.REFUSED, result.verdict)
        self.assertEqual({}, contract_case.everything(client))

    def _keep_apart(self, names: list[str]) -> None:
        client = self.client()
        start = client.head()
        written = {name: self.put(client, name, name.encode()) for name in names}
        expected = {record.key: record for record in written.values()}
        self.assertEqual(len(names), len(expected))
        self.assertEqual(expected, client.read(list(expected)))
        self.assertEqual(expected, contract_case.everything(client))
        fed = self.changes(client, start).records
        self.assertEqual(expected, {record.key: record for record in fed})
