# SPDX-License-Identifier: Apache-2.0
"""The SQL driver's configuration: what is read, what is refused and how it is told."""

from __future__ import annotations

import pathlib
import tempfile
import unittest
from unittest import mock

import stevedore
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines


class TestConnections(unittest.TestCase):
    def refusal(self, connection: str) -> str:
        with self.assertRaises(errors.ConfigurationError) as caught:
            driver.SQLAlchemySynchronizer(driver.SQLOptions(connection))
        self.assertIn("[nodb_sqlalchemy] connection", str(caught.exception))
        self.assertNotIn("secret", str(caught.exception))
        return str(caught.exception)

    def test_the_three_databases_are_accepted_without_connecting(self) -> None:
        for url in (
            "sqlite:////nowhere/at/all.sqlite",
            "mysql+pymysql://nova:secret@nowhere.invalid/nodb?charset=utf8mb4",
            "postgresql+psycopg://nova:secret@nowhere.invalid/nodb",
        ):
            synchronizer = driver.SQLAlchemySynchronizer(driver.SQLOptions(url))
            self.assertTrue(synchronizer.capabilities.durable)

    def test_another_database_is_refused_with_the_choices(self) -> None:
        text = self.refusal("oracle://nova:secret@host/nodb")
        for choice in ("sqlite:///", "mysql+pymysql://", "postgresql+psycopg://"):
            self.assertIn(choice, text)

    def test_another_client_library_is_refused_with_the_choices(self) -> None:
        self.assertIn("mysql+pymysql://", self.refusal("mysql://nova:secret@host/nodb"))
        self.assertIn("postgresql+psycopg://", self.refusal("postgresql+psycopg2://host/nodb"))

    def test_what_is_no_url_is_refused_without_repeating_it(self) -> None:
        self.refusal("nova:secret@host")
        self.refusal("")

    def test_a_server_without_a_database_name_is_refused(self) -> None:
        self.assertIn("name of the database", self.refusal("mysql+pymysql://nova:secret@host"))

    def test_sqlite_in_memory_is_refused_with_the_remedy(self) -> None:
        for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"):
            self.assertIn("name a file", self.refusal(url))
        self.assertIn("name a file", self.refusal("sqlite:///file:x?mode=memory&uri=true"))

    def test_a_missing_client_library_is_refused_with_the_remedy(self) -> None:
        with mock.patch.dict("sys.modules", {"pymysql": None}):
            text = self.refusal("mysql+pymysql://nova:secret@host/nodb")
        self.assertIn("pip install 'nova-nodb-scheduler[mysql]'", text)

    def test_an_sqlite_file_in_a_missing_directory_is_named(self) -> None:
        synchronizer = driver.SQLAlchemySynchronizer(driver.SQLOptions("sqlite:////no/such/x.db"))
        with self.assertRaisesRegex(errors.BackendUnavailable, "/no/such/x.db"):
            synchronizer.open()

    def test_a_synchronizer_that_was_not_opened_says_so(self) -> None:
        synchronizer = driver.SQLAlchemySynchronizer(driver.SQLOptions("sqlite:////no/such/x.db"))
        with self.assertRaisesRegex(errors.BackendUnavailable, "the client is not open"):
            synchronizer.head()


class TestOptions(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.conf = cfg.ConfigOpts()
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def configure(self, text: str) -> None:
        path = self.directory / "nova.conf"
        path.write_text(text)
        self.conf(["--config-file", str(path)])

    def test_the_entry_point_loads_the_driver(self) -> None:
        loaded = stevedore.DriverManager("nova_nodb_scheduler.synchronizer", "sqlalchemy")
        self.assertIs(driver.SQLAlchemySynchronizer, loaded.driver)

    def test_the_default_is_a_file_below_novas_state_path(self) -> None:
        self.conf.register_opt(cfg.StrOpt("state_path", default="/var/lib/nova"))
        self.configure("")
        made = driver.SQLAlchemySynchronizer.from_config(self.conf)
        self.assertEqual("sqlite:////var/lib/nova/nodb.sqlite", made.options.connection)
        self.assertFalse(made.options.auto_upgrade)

    def test_without_a_state_path_the_remedy_is_named(self) -> None:
        self.configure("")
        with self.assertRaisesRegex(errors.ConfigurationError, "name the file in full"):
            driver.SQLAlchemySynchronizer.from_config(self.conf)

    def test_values_of_the_group_reach_the_driver(self) -> None:
        self.configure(
            "[nodb_sqlalchemy]\nconnection = mysql+pymysql://host/nodb\ntimeout_seconds = 3\n"
            "poll_interval_seconds = 0.5\nmax_payload_bytes = 100000\nauto_upgrade = true\n"
            "max_pool_size = 7\nconnection_parameters = ssl_ca=/ca.pem\n"
        )
        driver.SQLAlchemySynchronizer.register_opts(self.conf)
        made = driver.SQLAlchemySynchronizer.from_config(self.conf).options
        self.assertEqual((3.0, 0.5), (made.timeout_seconds, made.poll_interval_seconds))
        self.assertEqual((100_000, True), (made.max_payload_bytes, made.auto_upgrade))
        engine = engines.create(made)
        self.addCleanup(engine.dispose)
        self.assertEqual(7, engine.pool.size())
        self.assertEqual("/ca.pem", engine.url.query["ssl_ca"])

    def test_values_out_of_bounds_are_refused(self) -> None:
        self.configure("[nodb_sqlalchemy]\npoll_interval_seconds = 0\n")
        driver.SQLAlchemySynchronizer.register_opts(self.conf)
        with self.assertRaises(ValueError):
            _ = self.conf.nodb_sqlalchemy.poll_interval_seconds

    def test_every_registered_option_has_help(self) -> None:
        for option in driver.OPTS:
            self.assertGreater(len(option.help or ""), 20, option.name)


class TestDecisions(unittest.TestCase):
    """Who wins, as a table."""

    def test_a_write_wins_exactly_where_its_revision_stands(self) -> None:
        key = records.RecordKey("n", "k")
        alive = records.Record(key, 7, 7, b"x")
        tombstone = records.Record(key, 7, 7, b"", deleted=True)
        table = [
            (0, None, True),
            (0, alive, False),
            (0, tombstone, True),
            (7, None, False),
            (7, alive, True),
            (7, tombstone, True),
            (6, alive, False),
            (6, tombstone, False),
        ]
        for expected, standing, wins in table:
            with self.subTest(expected=expected, standing=standing):
                write = records.Write(key, expected, b"y")
                self.assertIs(wins, write.wins(standing))
