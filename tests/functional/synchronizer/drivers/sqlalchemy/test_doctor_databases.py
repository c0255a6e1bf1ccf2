# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of a database's user and its connections, against real servers."""

from __future__ import annotations

import types
import unittest
import uuid
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg

from nova_nodb_scheduler.cmd.doctor import findings, sql_server
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, migration
from nova_nodb_scheduler.testing import servers

Severity = findings.Severity
OPTIONS = types.SimpleNamespace(synchronizer="sqlalchemy")
DATA = "SELECT, INSERT, UPDATE, DELETE"


def conf_of(url: str) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    driver.SQLAlchemySynchronizer.register_opts(conf)
    conf.set_override("connection", url, group="nodb_sqlalchemy")
    return conf


def migrate(url: str) -> None:
    engine = engines.create_for_migration(driver.SQLOptions(url))
    migration.sync(engine)
    engine.dispose()


class MariaDBTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.database = self.enterContext(servers.MariaDB())
        self.schema = str(sa.make_url(self.database.url).database)
        migrate(self.database.url)

    def user(self, *grants: str) -> cfg.ConfigOpts:
        """Make a user, and return a configuration that names it."""
        name = f"u{uuid.uuid4().hex[:10]}"
        execute = self.database.server.execute
        execute(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'secret'")
        self.addCleanup(execute, f"DROP USER {name}@'127.0.0.1'")
        for grant in grants:
            execute(f"GRANT {grant} TO {name}@'127.0.0.1'")
        url = sa.make_url(self.database.url).set(username=name, password="secret")
        return conf_of(url.render_as_string(hide_password=False))

    def rights(self, *grants: str) -> list[findings.DoctorFinding]:
        return sql_server.rights(self.user(*grants), OPTIONS)

    def one(self, *grants: str) -> findings.DoctorFinding:
        [found] = self.rights(*grants)
        return found

    def test_a_user_with_all_rights_on_its_schema_alone_is_well(self) -> None:
        escaped = self.schema.replace("_", r"\_")
        for grants in (
            [f"ALL ON {self.schema}.*"],
            [f"ALL ON `{escaped}`.*"],
            [f"{DATA}, CREATE, ALTER, DROP, INDEX ON {self.schema}.*", "SELECT ON *.*"],
        ):
            with self.subTest(grants=grants):
                found = self.one(*grants)
                self.assertIs(Severity.OK, found.severity, found)
                self.assertIn(f"on {self.schema} alone", found.text)

    def test_a_right_that_is_missing_is_an_error_that_names_it_and_the_statement(self) -> None:
        found = self.one(f"SELECT, INSERT, UPDATE ON {self.schema}.*")

        self.assertIs(Severity.ERROR, found.severity)
        self.assertIn("DELETE", found.text)
        self.assertIn(f"GRANT ALL ON `{self.schema}`.* TO 'u", found.remedy)

    def test_the_statement_that_is_named_mends_it(self) -> None:
        conf = self.user(f"SELECT ON {self.schema}.*")
        [found] = sql_server.rights(conf, OPTIONS)
        self.database.server.execute(found.remedy)
        [found] = sql_server.rights(conf, OPTIONS)
        self.assertIs(Severity.OK, found.severity, found)

    def test_a_user_that_cannot_migrate_is_well_and_told_so(self) -> None:
        found = self.one(f"{DATA} ON {self.schema}.*")

        self.assertIs(Severity.OK, found.severity)
        self.assertIn("db sync' needs another user: no CREATE", found.text)

    def test_a_user_that_may_write_other_schemas_is_warned_of_by_their_names(self) -> None:
        for grant, named in (
            ("ALL ON *.*", "all schemas"),
            ("INSERT ON nova.*", "nova,"),
            ("UPDATE ON `nodb%`.*", "nodb%"),
            ("DELETE ON `no\\_db`.instances", "no"),
        ):
            with self.subTest(grant=grant):
                if "instances" in grant:
                    self.database.server.execute("CREATE DATABASE no_db")
                    self.addCleanup(self.database.server.execute, "DROP DATABASE no_db")
                    self.database.server.execute("CREATE TABLE no_db.instances (i INT)")
                    grant = grant.replace("\\_", "_")
                found = self.one(f"ALL ON {self.schema}.*", grant)
                self.assertIs(Severity.WARNING, found.severity)
                self.assertIn(named, found.text)
                self.assertIn("CREATE USER", found.remedy)

    def test_rights_of_a_role_count(self) -> None:
        role = f"r{uuid.uuid4().hex[:8]}"
        execute = self.database.server.execute
        execute(f"CREATE ROLE {role}")
        self.addCleanup(execute, f"DROP ROLE {role}")
        execute(f"GRANT ALL ON {self.schema}.* TO {role}")
        conf = self.user(role)
        user = sa.make_url(conf.nodb_sqlalchemy.connection).username
        execute(f"SET DEFAULT ROLE {role} FOR {user}@'127.0.0.1'")

        [found] = sql_server.rights(conf, OPTIONS)

        self.assertIs(Severity.OK, found.severity, found)

    def test_tables_of_another_in_the_same_schema_are_warned_of(self) -> None:
        self.database.server.execute(f"CREATE TABLE {self.schema}.compute_nodes (i INT)")

        found = self.one(f"ALL ON {self.schema}.*")

        self.assertIs(Severity.WARNING, found.severity)
        self.assertIn("1 tables that are not the plugin's (compute_nodes)", found.text)

    def test_a_password_that_is_refused_could_not_be_found_out_and_is_not_shown(self) -> None:
        url = sa.make_url(self.database.url).set(username="nobody", password="hidden-word")
        conf = conf_of(url.render_as_string(hide_password=False))

        [found] = findings.run([("Rights", lambda: sql_server.rights(conf, OPTIONS))], 20.0)

        self.assertIs(Severity.UNKNOWN, found.severity)
        self.assertIn("the server refuses its user", found.text)
        self.assertNotIn("hidden-word", found.text)

    def connections(self, conf: Any, processes: dict[str, int]) -> findings.DoctorFinding:
        [found] = sql_server.connections(conf, OPTIONS, processes)
        return found

    def test_connections_are_counted_and_what_processes_keep_is_stated(self) -> None:
        conf = self.user(f"ALL ON {self.schema}.*")

        found = self.connections(conf, {"scheduler": 2, "conductor": 1})

        self.assertIs(Severity.OK, found.severity, found)
        self.assertIn("of 500 are in use, 0 of them by this user", found.text)
        self.assertIn("2 scheduler processes with up to 9 each", found.text)

    def test_more_processes_than_the_server_has_connections_for_are_an_error(self) -> None:
        conf = self.user(f"ALL ON {self.schema}.*")

        self.assertIs(Severity.ERROR, self.connections(conf, {"scheduler": 60}).severity)
        found = self.connections(conf, {"scheduler": 46})
        self.assertIs(Severity.WARNING, found.severity, found)
        self.assertIn("max_connections", found.remedy)

    def test_a_bound_of_the_user_s_own_counts(self) -> None:
        conf = self.user(f"ALL ON {self.schema}.*", "USAGE ON *.*")
        name = sa.make_url(conf.nodb_sqlalchemy.connection).username
        self.database.server.execute(f"ALTER USER {name}@'127.0.0.1' WITH MAX_USER_CONNECTIONS 7")

        found = self.connections(conf, {"scheduler": 1})

        self.assertIs(Severity.ERROR, found.severity, found)
        self.assertIn("of 7", found.text)


class PostgreSQLTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.database = self.enterContext(servers.PostgreSQL())
        self.schema = str(sa.make_url(self.database.url).database)
        self.name = f"u{uuid.uuid4().hex[:10]}"
        self.execute(f"CREATE ROLE {self.name} LOGIN")
        self.addCleanup(self.execute, f"DROP ROLE {self.name}")
        self.url = (
            sa.make_url(self.database.url)
            .set(username=self.name)
            .render_as_string(hide_password=False)
        )

    def execute(self, statement: str) -> None:
        self.database.server.execute(statement)

    def own(self) -> None:
        """Make the user the owner, and let it make its tables."""
        self.execute(f"ALTER DATABASE {self.schema} OWNER TO {self.name}")
        # Before its role goes: the database goes with the fixture, later.
        self.addCleanup(self.execute, f"ALTER DATABASE {self.schema} OWNER TO postgres")
        migrate(self.url)
        self.addCleanup(self.disown)

    def disown(self) -> None:
        engine = sa.create_engine(self.database.url)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {self.name}")
        engine.dispose()

    def rights(self, url: str | None = None) -> list[findings.DoctorFinding]:
        return sql_server.rights(conf_of(url or self.url), OPTIONS)

    def test_an_owner_of_this_database_alone_is_well(self) -> None:
        self.own()

        [found] = self.rights()

        self.assertIs(Severity.OK, found.severity, found)

    def test_a_right_that_is_missing_is_an_error_that_names_it(self) -> None:
        migrate(self.database.url)
        engine = sa.create_engine(self.database.url)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {self.name}"
            )
        engine.dispose()
        self.addCleanup(self.disown)

        [found] = self.rights()

        self.assertIs(Severity.ERROR, found.severity)
        self.assertIn("No DELETE on tables", found.text)

    def test_who_may_make_no_tables_where_there_are_none_is_told(self) -> None:
        [found] = self.rights()

        self.assertIs(Severity.ERROR, found.severity, found)
        self.assertIn("may make none", found.text)

    def test_a_superuser_is_warned_of(self) -> None:
        migrate(self.database.url)

        [found] = self.rights(self.database.url)

        self.assertIs(Severity.WARNING, found.severity)
        self.assertIn("a superuser", found.text)

    def test_an_owner_of_other_databases_is_warned_of(self) -> None:
        self.own()
        other = f"nova_{uuid.uuid4().hex[:8]}"
        self.execute(f"CREATE DATABASE {other} OWNER {self.name}")
        self.addCleanup(self.execute, f"DROP DATABASE {other}")

        [found] = self.rights()

        self.assertIs(Severity.WARNING, found.severity)
        self.assertIn(f"owner of {other}", found.text)

    def test_connections_are_counted_and_a_bound_of_the_role_s_own_counts(self) -> None:
        conf = conf_of(self.url)

        [found] = sql_server.connections(conf, OPTIONS, {"scheduler": 1})
        self.assertIs(Severity.OK, found.severity, found)
        self.assertIn("of 197 are in use, 0 of them by this user", found.text)
        self.execute(f"ALTER ROLE {self.name} CONNECTION LIMIT 5")
        [found] = sql_server.connections(conf, OPTIONS, {"scheduler": 1})
        self.assertIs(Severity.ERROR, found.severity, found)


class SQLiteTest(unittest.TestCase):
    def test_a_file_has_neither_users_nor_connections(self) -> None:
        conf = conf_of("sqlite:////nowhere/nodb.sqlite")

        self.assertEqual([], sql_server.rights(conf, OPTIONS))
        self.assertEqual([], sql_server.connections(conf, OPTIONS, {"scheduler": 1}))
