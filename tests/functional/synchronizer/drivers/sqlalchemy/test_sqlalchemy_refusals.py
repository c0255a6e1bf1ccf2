# SPDX-License-Identifier: Apache-2.0
"""What the SQL driver says of a wrong URL: at its start, by the option's name."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any
from unittest import mock

import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import database, engines, migration
from nova_nodb_scheduler.testing import servers
from tests.functional.synchronizer.drivers import certificates

KEY = records.RecordKey("suite", "a")


class _Refusals:
    """A server that asks its user ``nova`` for a password, and speaks TLS."""

    fixture: type[servers.MariaDB | servers.PostgreSQL]
    database: Any
    #: Who needs no password.
    superuser: str

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.database = cls.enterClassContext(cls.fixture(tls_directory=cls.directory))

    def tls(self, authority: str) -> dict[str, str]:
        """Return what a URL says to trust an authority only."""
        raise NotImplementedError

    def set_password(self, password: str) -> None:
        raise NotImplementedError

    def kill_connections(self) -> None:
        raise NotImplementedError

    def test_the_right_password_and_the_right_authority_open(self) -> None:
        client = self._opened(**self.tls(f"{self.directory}/ca.pem"))
        client.write([records.Write(KEY, 0, b"one")])
        self.assertEqual(b"one", client.read([KEY])[KEY].payload)

    def test_wrong_credentials_are_refused_and_shown_to_nobody(self) -> None:
        for username, password in (("nova", "secret"), ("nova", None), ("nobody", "secret")):
            with self.subTest(username=username, password=password):
                text = self._refusal(username=username, password=password)
                self.assertIn("correct user and password", text)
                self.assertIn(username, text)
                self.assertNotIn("secret", text)

    def test_a_database_that_is_not_there_is_refused(self) -> None:
        text = self._refusal(username=self.superuser, password=None, database="nowhere")
        self.assertIn("there is no such database", text)
        self.assertIn("/nowhere", text)

    def test_a_user_without_rights_is_refused(self) -> None:
        self.assertIn("grant it all rights", self._refusal(database=self.foreign_database()))

    def test_tls_that_fails_is_refused(self) -> None:
        right = self.tls(f"{self.directory}/ca.pem")
        for authority in (f"{self.directory}/other.pem", "/nowhere/ca.pem"):
            with self.subTest(authority=authority):
                self.assertIn("TLS failed", self._refusal(**self.tls(authority)))
        with self.subTest("another host's certificate"):
            self.assertIn("TLS failed", self._refusal(host="localhost", **right))
        with self.subTest("a server without TLS"):
            plain = sa.make_url(self.enterContext(self.fixture()).url)
            self.assertIn("TLS failed", self._refusal(port=plain.port, **right))

    def test_the_commands_of_the_schema_refuse_it_as_well(self) -> None:
        engine = engines.create_for_migration(self._options(password="wrong"))
        self.addCleanup(engine.dispose)
        for command in (migration.sync, migration.version, migration.check):
            with self.assertRaises(errors.ConfigurationError) as caught:
                command(engine)
            self.assertIn("[nodb_sqlalchemy] connection", str(caught.exception))

    def test_a_password_that_changes_under_a_running_client_is_waited_for(self) -> None:
        client = self._opened()
        client.write([records.Write(records.RecordKey("suite", "b"), 0, b"one")])
        head = client.head()
        self.addCleanup(self.set_password, "right")
        self.set_password("another")
        self.kill_connections()
        with self.assertRaises(errors.BackendUnavailable) as caught:
            client.head()
        self.assertIn("nova", str(caught.exception))
        self.set_password("right")
        self.assertEqual(head, client.head())

    def test_certificates_that_vanish_under_a_running_client_are_waited_for(self) -> None:
        authority = pathlib.Path(self.directory) / "vanishing.pem"
        shutil.copy(f"{self.directory}/ca.pem", authority)
        client = self._opened(**self.tls(str(authority)))
        head = client.head()
        authority.unlink()
        self.kill_connections()
        with self.assertRaises(errors.BackendUnavailable):
            client.head()
        shutil.copy(f"{self.directory}/ca.pem", authority)
        self.assertEqual(head, client.head())

    def foreign_database(self) -> str:
        """Return a database that ``nova`` may not use."""
        raise NotImplementedError

    def _options(self, **changes: Any) -> driver.SQLOptions:
        url = sa.make_url(self.database.url).set(username="nova", password="right")
        parts = {name: changes.pop(name) for name in list(changes) if name in _PARTS}
        if "password" in parts and parts["password"] is None:
            # URL.set() takes None for "as it is".
            url = url._replace(password=parts.pop("password"))
        url = url.set(**parts).update_query_dict(changes)
        shown = url.render_as_string(hide_password=False)
        return driver.SQLOptions(shown, auto_upgrade=True)

    def _opened(self, **changes: Any) -> driver.SQLAlchemySynchronizer:
        client = driver.SQLAlchemySynchronizer(self._options(**changes))
        client.open()
        self.addCleanup(client.close)
        return client

    def _refusal(self, **changes: Any) -> str:
        with self.assertRaises(errors.ConfigurationError) as caught:
            self._opened(**changes)
        self.assertEqual("[nodb_sqlalchemy] connection", caught.exception.option)
        return str(caught.exception)


_PARTS = ("username", "password", "host", "port", "database")


class TestMariaDB(_Refusals, certificates.WithCertificates):
    fixture = servers.MariaDB
    superuser = "root"

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        name = sa.make_url(cls.database.url).database
        cls.database.server.execute("CREATE USER nova IDENTIFIED BY 'right'")
        cls.database.server.execute(f"GRANT ALL ON {name}.* TO nova")

    def tls(self, authority: str) -> dict[str, str]:
        return {"ssl_ca": authority}

    def set_password(self, password: str) -> None:
        self.database.server.execute(f"ALTER USER nova IDENTIFIED BY '{password}'")

    def kill_connections(self) -> None:
        self.database.server.execute("KILL USER nova")

    def foreign_database(self) -> str:
        return "mysql"

    def test_over_tls_too_what_is_to_be_read_tells_whether_a_connection_lives(self) -> None:
        # A server of TLS says more than answers: its tickets are not taken for an end.
        key = records.RecordKey("suite", "fresh")
        client = self._opened(**self.tls(f"{self.directory}/ca.pem"))
        client.write([records.Write(key, 0, b"one")])
        asked = AssertionError("it was asked")
        with mock.patch.object(database.Database, "connect", autospec=True, side_effect=asked):
            for _ in range(3):
                client.write([records.Write(key, client.read([key])[key].revision, b"next")])
        self.kill_connections()
        [result] = client.write([records.Write(key, client.read([key])[key].revision, b"last")])
        self.assertIs(records.Verdict.WON, result.verdict)


class TestPostgreSQL(_Refusals, certificates.WithCertificates):
    fixture = servers.PostgreSQL
    superuser = "postgres"

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        server = cls.database.server
        name = sa.make_url(cls.database.url).database
        server.execute("CREATE USER nova PASSWORD 'right'")
        server.execute(f"ALTER DATABASE {name} OWNER TO nova")
        server.execute("REVOKE CONNECT ON DATABASE template1 FROM PUBLIC")
        rules = server.directory / "data" / "pg_hba.conf"
        asked = "".join(f"host all {user} all scram-sha-256\n" for user in ("nova", "nobody"))
        rules.write_text(asked + rules.read_text())
        server.restart()

    def tls(self, authority: str) -> dict[str, str]:
        return {"sslmode": "verify-full", "sslrootcert": authority}

    def set_password(self, password: str) -> None:
        self.database.server.execute(f"ALTER USER nova PASSWORD '{password}'")

    def kill_connections(self) -> None:
        self.database.server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'nova'"
        )

    def foreign_database(self) -> str:
        return "template1"
