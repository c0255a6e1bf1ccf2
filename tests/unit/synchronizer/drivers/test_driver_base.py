# SPDX-License-Identifier: Apache-2.0
"""What the base of a driver says of writes where the back end fails between two of them."""

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.support import batches, driver_base

WON, LOST, UNKNOWN, REFUSED = (
    records.Verdict.WON,
    records.Verdict.LOST,
    records.Verdict.UNKNOWN,
    records.Verdict.REFUSED,
)


class ListDriver(driver_base.Driver):
    """Takes two writes at a time, each by itself, and none called ``down`` or ``doubt``."""

    name, GROUP, OPTS = "list", "nodb_list", ()
    WRITES_PER_BATCH = READS_PER_BATCH = 2
    capabilities = contract.Capabilities(
        durable=False, shared=False, feed=contract.Feed.POLL, max_payload_bytes=10
    )

    def __init__(self):
        super().__init__()
        self.sent = []

    def _write_batch(self, writes):
        return batches.one_by_one(writes, self._write_one, in_doubt=TimeoutError)

    def _write_one(self, write):
        if write.key.key.startswith("down"):
            raise errors.BackendUnavailable(self.name, "down")
        self.sent.append(write.key.key)
        if write.key.key.startswith("doubt"):
            raise TimeoutError
        return records.WriteResult(LOST if write.key.key.startswith("lost") else WON)

    def _read_batch(self, keys):
        self.sent.append([key.key for key in keys])
        return {}

    def _unused(self, *arguments):
        raise NotImplementedError

    open = close = head = snapshot = fetch = collect = statistics = reset = _unused
    from_config = classmethod(_unused)


class TestDriverBase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.driver = ListDriver()

    def verdicts(self, names):
        writes = [records.Write(records.RecordKey("n", name), 0) for name in names.split()]
        return [result.verdict for result in self.driver.write(writes)]

    def test_a_batch_that_ends_after_a_write_was_carried_out_is_not_said_to_be_unwritten(self):
        self.assertEqual([WON, UNKNOWN, UNKNOWN], self.verdicts("a down b"))
        self.assertEqual(["a"], self.driver.sent)

    def test_where_no_write_was_carried_out_that_is_said(self):
        self.assertRaises(errors.BackendUnavailable, self.verdicts, "lost down b")

    def test_behind_a_write_in_doubt_nothing_is_sent(self):
        self.assertEqual([WON, WON, UNKNOWN, UNKNOWN, UNKNOWN], self.verdicts("a b doubt c d"))
        self.assertEqual(["a", "b", "doubt"], self.driver.sent)

    def test_a_later_batch_that_is_not_sent_leaves_the_rest_unknown(self):
        self.assertEqual([WON, LOST, UNKNOWN, UNKNOWN], self.verdicts("a lost down b"))

    def test_refused_names_keep_their_places_among_what_came_of_the_others(self):
        writes = [
            records.Write(records.RecordKey("n", name), 0)
            for name in ("a\n", "a", "b\n", "lost", "doubt", "c\n", "c")
        ]
        self.assertEqual(
            [REFUSED, WON, REFUSED, LOST, UNKNOWN, REFUSED, UNKNOWN],
            [result.verdict for result in self.driver.write(writes)],
        )

    def test_a_key_that_is_read_twice_is_asked_for_once(self):
        names = ("a", "b", "a\n", "a", "c")
        self.driver.read([records.RecordKey("n", name) for name in names])
        self.assertEqual([["a", "b"], ["c"]], self.driver.sent)
