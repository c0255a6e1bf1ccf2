# SPDX-License-Identifier: Apache-2.0
"""What the base of a driver says of writes where the back end fails between two of them."""

import testtools
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers.support import batches, driver_base, epoch_memory

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
    capabilities = contract.Capabilities(durable=False, shared=False, max_payload_bytes=10)

    def __init__(self, settings=None):
        super().__init__("list")
        self.settings = settings
        self.sent = []
        self.epochs = ["first"]
        self.pages = []
        #: Called with the keys of each batch before it is read.
        self.before_batch = lambda keys: None

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
        self.before_batch(keys)
        self.sent.append([key.key for key in keys])
        return [records.Record(key, 1, 1, self.epochs[-1].encode()) for key in keys]

    def _head(self):
        return records.Cursor(self.epochs[-1], 7)

    def _pages(self, cursor, namespaces):
        yield from self.pages

    def _unused(self, *arguments):
        raise NotImplementedError

    _fetch = _collect = _statistics = _reset = _unused


class TestDriverBase(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.driver = ListDriver()
        self.driver.open()

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

    def test_records_that_are_read_in_several_batches_are_of_one_epoch(self):
        keys = [records.RecordKey("n", name) for name in "abcde"]

        def begin_another(batch):
            if batch[0].key == "c" and len(self.driver.epochs) == 1:
                self.driver.epochs.append("second")

        self.driver.before_batch = begin_another
        found = self.driver.read(keys)
        self.assertEqual([b"second"] * 5, [found[key].payload for key in keys])

    def test_records_whose_epoch_changes_with_each_look_are_not_read(self):
        keys = [records.RecordKey("n", name) for name in "abc"]
        self.driver.before_batch = lambda _: self.driver.epochs.append(f"{len(self.driver.epochs)}")
        self.assertRaises(errors.BackendUnavailable, self.driver.read, keys)

    def test_a_driver_is_made_of_its_options_by_their_names(self):
        class Configured(ListDriver):
            OPTS = (cfg.StrOpt("path", default="/somewhere"), cfg.IntOpt("own-size", default=3))

        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        Configured.register_opts(conf)
        settings = Configured.from_config(conf).settings
        self.assertEqual(("/somewhere", 3), (settings.path, settings.own_size))


class TestSnapshots(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.driver = ListDriver()
        self.driver.open()
        kept, other = records.RecordKey("n", "kept"), records.RecordKey("other", "kept")
        self.kept, self.other = (records.Record(key, 1, 1, b"x") for key in (kept, other))
        dead = records.Record(records.RecordKey("n", "dead"), 2, 2, b"", deleted=True)
        self.driver.pages = [[self.kept, dead], [dead], [self.other]]

    def test_a_snapshot_holds_no_tombstones_and_no_empty_pages(self):
        snapshot = self.driver.snapshot()
        self.assertEqual(self.driver.head(), snapshot.cursor)
        self.assertEqual([[self.kept], [self.other]], list(snapshot.pages))

    def test_a_snapshot_holds_the_namespaces_that_were_asked_for(self):
        self.assertEqual([[self.other]], list(self.driver.snapshot(["other"]).pages))
        self.assertEqual([], list(self.driver.snapshot([]).pages))

    def test_a_snapshot_is_interrupted_where_the_epoch_changed_while_it_was_read(self):
        pages = self.driver.snapshot().pages
        next(pages)
        self.driver.epochs.append("second")
        self.assertRaises(contract.SnapshotInterrupted, list, pages)

    def test_a_snapshot_is_interrupted_where_a_page_finds_the_epoch_ended(self):
        def pages():
            yield [self.kept]
            raise epoch_memory.EpochEnded

        self.driver.pages = pages()
        self.assertRaises(contract.SnapshotInterrupted, list, self.driver.snapshot().pages)
