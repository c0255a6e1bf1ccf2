# SPDX-License-Identifier: Apache-2.0
"""An SQL client whose connections lead to another database than before: one that lags, or another.

``NODB_PROPERTY_EXAMPLES`` has so many histories drawn of each kind, of MariaDB a fourth;
``NODB_HISTORY_SEED`` is the first one's seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import schema
from nova_nodb_scheduler.testing import servers
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "12"))
FIRST = int(os.environ.get("NODB_HISTORY_SEED", "0"))
STEPS = 60

KEY, OTHER = (records.RecordKey("suite", name) for name in "ab")
KEYS = [records.RecordKey("suite", name) for name in "abcd"]


class _Route:
    """Leads each connection that an engine lends to a database.

    :param choose: returns the URL of the next one's
    """

    def __init__(self, engine: sa.Engine, choose: Callable[[], str]) -> None:
        self._dialect = engine.dialect
        self._choose = choose
        self._wanted = ""
        sa.event.listen(engine, "do_connect", self._connect)
        sa.event.listen(engine, "checkout", self._check_out)

    def _connect(self, _dialect: Any, record: Any, args: list[Any], named: dict[str, Any]) -> None:
        self._wanted = self._wanted or self._choose()
        own_args, own_named = self._dialect.create_connect_args(sa.make_url(self._wanted))
        args[:] = own_args
        named.update(own_named)
        record.info["leads to"] = self._wanted

    def _check_out(self, _connection: Any, record: Any, _proxy: Any) -> None:
        self._wanted = self._wanted or self._choose()
        if record.info.get("leads to") != self._wanted:
            raise sa.exc.DisconnectionError
        self._wanted = ""


class RoutesSQLiteTest(sql_databases.SQLiteCase):
    migrated = True
    examples = EXAMPLES

    def setUp(self) -> None:
        super().setUp()
        self.other_url = self.make_other()

    def make_other(self) -> str:
        """Return the URL of another database, with the schema."""
        url = f"sqlite:///{self.enterContext(tempfile.TemporaryDirectory())}/other.sqlite"
        sql_databases.migrate(url)
        return url

    def client(self, url: str = "") -> driver.SQLAlchemySynchronizer:
        options = attrs.evolve(self.sql_options(), connection=url or self.url)
        client = driver.SQLAlchemySynchronizer(options)
        client.open()
        self.addCleanup(client.close)
        return client

    def routed(self, choose: Callable[[], str], writers_too: bool = False) -> Any:
        """Return a client whose readers' connections are led, or all are."""
        client = self.client()
        for engine in client.engines if writers_too else client.engines[1:]:
            _Route(engine, choose)
        return client

    def catch_up(self) -> None:
        """Make the other database what this one is."""
        engines = [sa.create_engine(url) for url in (self.url, self.other_url)]
        with engines[0].connect() as source, engines[1].begin() as target:
            for table in (schema.record, schema.sequence):
                rows = [dict(row._mapping) for row in source.execute(table.select())]
                target.execute(table.delete())
                if rows:
                    target.execute(table.insert(), rows)
        for engine in engines:
            engine.dispose()

    def put(
        self, client: driver.SQLAlchemySynchronizer, payload: bytes, key: records.RecordKey = KEY
    ) -> records.Record:
        standing = client.read([key]).get(key)
        [result] = client.write([records.Write(key, standing.revision if standing else 0, payload)])
        self.assertIs(records.Verdict.WON, result.verdict)
        assert result.record is not None
        return result.record

    # --- one by one ---

    def test_a_replica_that_lags_does_not_take_a_record_back(self) -> None:
        writer = self.client()
        self.put(writer, b"old")
        self.catch_up()
        new = self.put(writer, b"new")
        seen = {
            "it wrote it": lambda client: self.put(client, b"new"),
            "it read it": lambda client: client.read([KEY])[KEY],
            "it was fed another behind it": lambda client: self.fed(client)[KEY],
        }
        for how, see in seen.items():
            with self.subTest(how):
                urls = [self.url]
                client = self.routed(lambda urls=urls: urls.pop() if len(urls) > 1 else urls[0])
                new = see(client)
                urls.append(self.other_url)
                self.assertEqual({KEY: new}, client.read([KEY]))

    @staticmethod
    def fed(client: driver.SQLAlchemySynchronizer) -> dict[records.RecordKey, records.Record]:
        reader = contract_case.FeedReader(client)
        reader.catch_up()
        return reader.held

    def test_nor_does_one_that_stays_behind(self) -> None:
        writer = self.client()
        self.put(writer, b"old")
        self.catch_up()
        self.put(writer, b"new")
        urls = [self.url]
        client = self.routed(lambda: urls[-1])
        client.read([KEY])
        urls.append(self.other_url)
        with self.assertRaises(errors.BackendUnavailable):
            client.read([KEY])

    def test_what_a_database_of_before_was_fed_is_not_handed_out(self) -> None:
        """It went on by itself, from where this one's epoch was."""
        self.put(self.client(), b"of both")
        self.catch_up()
        self.put(self.client(self.other_url), b"of the other", OTHER)
        urls = [self.url]
        client = self.routed(lambda: urls.pop() if len(urls) > 1 else urls[0])
        cursor = client.head()
        for number in range(3):
            last = self.put(client, b"%d" % number)
        urls.append(self.other_url)
        fed = client.fetch(cursor)
        assert isinstance(fed, records.Changes)
        self.assertEqual((last,), fed.records)

    # --- drawn ---

    def test_through_any_history_a_client_of_a_replica_that_lags_never_goes_back(self) -> None:
        for seed in range(FIRST, FIRST + self.examples):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                self.empty(self.url)
                self.catch_up()
                client = self.routed(
                    lambda rng=rng: self.other_url if rng.random() < 0.3 else self.url
                )
                history = _History(self, rng, client, self.client())
                history.run((self.catch_up,))
                self.assertEqual(1, len(history.epochs))

    def test_through_any_history_of_two_databases_no_epoch_comes_back(self) -> None:
        for seed in range(FIRST, FIRST + self.examples):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                for url in (self.url, self.other_url):
                    self.empty(url)
                place = [self.url]
                client = self.routed(lambda place=place: place[0], writers_too=True)

                def move(place: list[str] = place) -> None:
                    place[0] = self.other_url if place[0] == self.url else self.url

                _History(self, rng, client, self.client()).run((move,))

    @staticmethod
    def empty(url: str) -> None:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            for table in (schema.record, schema.sequence):
                connection.execute(table.delete())
        engine.dispose()


class _History:
    """Draws what a client and another one do, and checks what the client is told.

    :param other: of the first database alone
    """

    def __init__(self, case: RoutesSQLiteTest, rng: random.Random, client: Any, other: Any) -> None:
        self._case, self._rng = case, rng
        self._client, self._other = client, other
        #: Of each record the highest version that the client was told of in its epoch.
        self._seen: dict[records.RecordKey, int] = {}
        self._epoch = ""
        self._cursor = client.head()
        #: Those that the client knew, in their order.
        self.epochs: list[str] = []

    def run(self, more: Iterable[Callable[[], None]]) -> None:
        """Take steps, and then see that the feed brings all that is there."""
        steps = (self._read, self._read, self._write, self._fetch, self._write_beside, *more)
        for _ in range(STEPS):
            with contextlib.suppress(errors.BackendUnavailable):
                self._rng.choice(steps)()

    def _look_at_epoch(self) -> None:
        epoch = self._client._epochs.known().epoch
        if epoch == self._epoch:
            return
        self._case.assertNotIn(epoch, self.epochs)
        self.epochs.append(epoch)
        self._epoch, self._seen = epoch, {}

    def _see(self, found: Iterable[records.Record]) -> None:
        for record in found:
            self._case.assertNotEqual(schema.UNNUMBERED, record.version)
            self._case.assertGreaterEqual(record.version, self._seen.get(record.key, 0))
            self._seen[record.key] = record.version

    def _read(self) -> None:
        keys = self._rng.sample(KEYS, self._rng.choice((1, 2, 4)))
        found = self._client.read(keys)
        self._look_at_epoch()
        self._case.assertLessEqual(self._seen.keys() & set(keys), found.keys())
        self._see(found.values())

    def _write(self) -> None:
        key = self._rng.choice(KEYS)
        standing = self._client.read([key]).get(key)
        self._look_at_epoch()
        [result] = self._client.write([self._drawn(key, standing)])
        self._look_at_epoch()
        if result.won:
            self._see([result.record])

    def _drawn(self, key: records.RecordKey, standing: records.Record | None) -> records.Write:
        revision = standing.revision if standing and not standing.deleted else 0
        deleted = bool(revision) and self._rng.random() < 0.2
        payload = b"" if deleted else b"%d" % self._rng.randrange(1000)
        return records.Write(key, revision, payload, deleted)

    def _fetch(self) -> None:
        fed = self._client.fetch(self._cursor, self._rng.choice((1, 3, 1000)))
        self._look_at_epoch()
        if isinstance(fed, records.ResyncNeeded):
            self._cursor = self._client.head()
            self._look_at_epoch()
            return
        self._case.assertGreaterEqual(fed.cursor.version, self._cursor.version)
        self._cursor = fed.cursor
        for record in fed.records:
            # The feed may be behind what was read.
            self._seen[record.key] = max(record.version, self._seen.get(record.key, 0))

    def _write_beside(self) -> None:
        key = self._rng.choice(KEYS)
        standing = self._other.read([key]).get(key)
        self._other.write([self._drawn(key, standing)])


class SequencerRoutesSQLiteTest(RoutesSQLiteTest):
    """Rows that wait for their versions are read again."""

    ordering = "sequencer"

    def wait_for_its_version(self, key: records.RecordKey) -> None:
        """Have a record that nobody has numbered."""
        self.execute(f"UPDATE nodb_record SET version = 0 WHERE record_key = '{key.key}'")

    def meanwhile(self, action: Callable[[], object]) -> Any:
        """Return a client that has something done before its second connection is lent."""
        lent: list[str] = []

        def choose() -> str:
            lent.append(self.url)
            if len(lent) == 2:
                action()
            return self.url

        return self.routed(choose)

    def test_a_record_that_waited_and_is_gone_is_not_shown(self) -> None:
        other = self.client()
        for key in (KEY, OTHER):
            self.put(other, b"one", key)
        self.wait_for_its_version(KEY)
        client = self.meanwhile(
            lambda: self.execute("DELETE FROM nodb_record WHERE record_key = 'a'")
        )
        self.assertEqual({OTHER}, set(client.read([KEY, OTHER])))

    def test_what_was_read_in_an_epoch_is_not_shown_with_what_came_in_the_next(self) -> None:
        other = self.client()
        for key in (KEY, OTHER):
            self.put(other, b"one", key)
        self.wait_for_its_version(KEY)
        client = self.meanwhile(other.reset)
        self.assertEqual({}, client.read([KEY, OTHER]))


class RoutesMariaDBTest(sql_databases.MariaDBCase, RoutesSQLiteTest):
    examples = max(1, EXAMPLES // 4)

    def setUp(self) -> None:
        sql_databases.MariaDBCase.setUp(self)
        self.other_url = self.make_other()

    def make_other(self) -> str:
        return self.enterContext(servers.MariaDB(prepare=sql_databases.migrate)).url


class SequencerRoutesMariaDBTest(RoutesMariaDBTest, SequencerRoutesSQLiteTest):
    pass
