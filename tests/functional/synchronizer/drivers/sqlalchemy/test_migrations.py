# SPDX-License-Identifier: Apache-2.0
"""Migrations of the SQL driver, walked on the three databases."""

from __future__ import annotations

import threading
from unittest import mock

import sqlalchemy as sa
from alembic import autogenerate, command
from alembic.runtime import migration as alembic_migration

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, migration, schema
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

HEADS = {"expand": "expand_0003", "contract": "contract_0001"}
NOTHING = {"expand": None, "contract": None}


class TestMigrationsSQLite(sql_databases.SQLiteCase):
    def setUp(self) -> None:
        super().setUp()
        self.engine = self.make_engine()

    def make_engine(self) -> sa.Engine:
        engine = engines.create_for_migration(self.sql_options())
        self.addCleanup(engine.dispose)
        return engine

    def synchronizer(self, *, auto_upgrade: bool = False) -> driver.SQLAlchemySynchronizer:
        synchronizer = driver.SQLAlchemySynchronizer(self.sql_options(auto_upgrade=auto_upgrade))
        self.addCleanup(synchronizer.close)
        return synchronizer

    def pretend(self, branch: str, revision: str) -> None:
        """Make the database say that it is at another revision of a branch."""
        self.execute(
            f"UPDATE {schema.VERSION_TABLE} SET version_num = '{revision}' "
            f"WHERE version_num = '{HEADS[branch]}'"
        )

    def test_every_branch_has_one_head(self) -> None:
        self.assertEqual(HEADS, migration.heads())

    def test_branches_can_be_walked_one_by_one(self) -> None:
        self.assertEqual(NOTHING, migration.version(self.engine))
        self.assertEqual(["expand", "contract"], migration.pending(self.engine))
        reached = migration.sync(self.engine, "expand")
        self.assertEqual(NOTHING | {"expand": HEADS["expand"]}, reached)
        self.assertEqual(["contract"], migration.pending(self.engine))
        self.assertEqual(HEADS, migration.sync(self.engine, "contract"))
        self.assertEqual([], migration.pending(self.engine))

    def test_a_sync_without_a_branch_goes_all_the_way_and_may_be_repeated(self) -> None:
        self.assertEqual(HEADS, migration.sync(self.engine))
        self.assertEqual(HEADS, migration.sync(self.engine))
        self.assertEqual(HEADS, migration.version(self.engine))

    def test_contract_before_expand_is_refused(self) -> None:
        with self.assertRaisesRegex(errors.SchemaMismatch, "expand_0003 before contracting"):
            migration.sync(self.engine, "contract")
        self.assertEqual(NOTHING, migration.version(self.engine))

    def test_an_unknown_branch_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "expand, contract"):
            migration.sync(self.engine, "sideways")

    def test_the_migrated_schema_is_the_models_schema(self) -> None:
        migration.sync(self.engine)
        with self.engine.connect() as connection:
            context = alembic_migration.MigrationContext.configure(
                connection,
                opts={"version_table": schema.VERSION_TABLE, "compare_type": True},
            )
            self.assertEqual([], autogenerate.compare_metadata(context, schema.metadata))

    def test_the_comparison_with_the_model_sees_a_difference(self) -> None:
        migration.sync(self.engine)
        self.execute("CREATE INDEX nodb_extra ON nodb_record (version, deleted_at)")
        with self.engine.connect() as connection:
            context = alembic_migration.MigrationContext.configure(
                connection, opts={"version_table": schema.VERSION_TABLE}
            )
            self.assertNotEqual([], autogenerate.compare_metadata(context, schema.metadata))

    def test_check_names_what_is_pending_and_the_remedy(self) -> None:
        findings = migration.check(self.engine)
        self.assertEqual(2, len(findings))
        self.assertRegex(findings[0], "expand: at none, expand_0003 is pending: .*db sync")
        migration.sync(self.engine, "expand")
        self.assertEqual(1, len(migration.check(self.engine)))
        migration.sync(self.engine)
        self.assertEqual([], migration.check(self.engine))

    def test_check_tells_of_a_newer_release(self) -> None:
        migration.sync(self.engine)
        self.pretend("expand", "expand_9999")
        self.assertRegex(migration.check(self.engine)[0], "expand_9999 is of a newer release")

    def test_a_newer_expansion_is_worked_with_and_a_newer_contraction_refused(self) -> None:
        migration.sync(self.engine)
        self.pretend("expand", "expand_9999")
        self.synchronizer(auto_upgrade=True).open()
        self.pretend("contract", "contract_9999")
        with self.assertRaisesRegex(errors.SchemaMismatch, "contract_9999"):
            self.synchronizer(auto_upgrade=True).open()

    def test_a_pending_contraction_is_no_reason_not_to_start(self) -> None:
        migration.sync(self.engine, "expand")
        self.synchronizer().open()

    def test_records_outlive_a_second_sync(self) -> None:
        synchronizer = self.synchronizer(auto_upgrade=True)
        synchronizer.open()
        key = records.RecordKey("suite", "a")
        synchronizer.write([records.Write(key, 0, b"one")])
        migration.sync(self.engine)
        self.assertEqual(b"one", synchronizer.read([key])[key].payload)

    def test_an_expansion_can_be_taken_back_and_made_again(self) -> None:
        synchronizer = self.synchronizer(auto_upgrade=True)
        synchronizer.open()
        key = records.RecordKey("suite", "a")
        synchronizer.write([records.Write(key, 0, b"one")])
        with self.engine.connect() as connection, engines.as_writer(connection).begin():
            settings = migration._config()
            settings.attributes["connection"] = connection
            command.downgrade(settings, "expand@expand_0002")

        self.assertEqual("expand_0002", migration.version(self.engine)["expand"])
        self.assertNotIn("nodb_cloud", sa.inspect(self.engine).get_table_names())
        migration.sync(self.engine)
        self.assertEqual(b"one", synchronizer.read([key])[key].payload)

    def test_several_syncs_at_once_end_well(self) -> None:
        results: list[object] = []

        def sync() -> None:
            try:
                results.append(dict(migration.sync(self.make_engine())))
            except Exception as error:
                results.append(error)

        threads = [threading.Thread(target=sync) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual([HEADS] * 4, results)

    def test_a_service_on_an_empty_database_starts_only_where_it_may_migrate(self) -> None:
        # The file is ours alone; a server's schema is the operator's.
        self.synchronizer().open()
        self.assertEqual(HEADS, migration.version(self.engine))

    def test_a_migration_that_fails_is_told_in_one_line(self) -> None:
        failing = mock.Mock(side_effect=sa.exc.OperationalError("CREATE", {}, Exception("full")))
        with (
            mock.patch.object(migration.command, "upgrade", failing),
            self.assertRaisesRegex(errors.BackendUnavailable, "Exception: full"),
        ):
            migration.sync(self.engine)
        self.assertEqual(HEADS, migration.sync(self.engine))


class _Servers:
    """What differs where a server holds the schema."""

    def test_a_service_on_an_empty_database_starts_only_where_it_may_migrate(self) -> None:
        with self.assertRaisesRegex(errors.SchemaMismatch, "nova-nodb-manage db sync"):
            self.synchronizer().open()
        self.synchronizer(auto_upgrade=True).open()
        self.synchronizer().open()

    def test_a_service_that_came_before_the_sync_names_the_command_and_goes_on_after_it(
        self,
    ) -> None:
        migration.sync(self.engine)
        with self.engine.connect() as connection, engines.as_writer(connection).begin():
            settings = migration._config()
            settings.attributes["connection"] = connection
            command.downgrade(settings, "expand@expand_0002")
        service = self.synchronizer()
        for _attempt in range(2):
            with self.assertRaisesRegex(errors.SchemaMismatch, "nova-nodb-manage db sync"):
                service.open()
        migration.sync(self.engine, "expand")
        service.open()
        key = records.RecordKey("suite", "a")
        self.assertTrue(service.write([records.Write(key, 0, b"one")])[0].won)


class TestMigrationsMariaDB(_Servers, TestMigrationsSQLite):
    dialect = "mysql"
    execute = sql_databases.SQLiteCase.execute

    def setUp(self) -> None:
        sql_databases.MariaDBCase.setUp(self)
        self.engine = self.make_engine()


class TestMigrationsPostgreSQL(_Servers, TestMigrationsSQLite):
    dialect = "postgresql"

    def setUp(self) -> None:
        sql_databases.PostgreSQLCase.setUp(self)
        self.engine = self.make_engine()

    def test_a_database_that_does_not_hold_every_name_is_refused(self) -> None:
        """One host of such a name would keep all from being written that go with it."""
        name = sa.make_url(self.url).database
        for encoding in ("LATIN1", "SQL_ASCII"):
            with self.subTest(encoding):
                other = f"{name}_{encoding.lower()}"
                server = self.database.server
                server.execute(
                    f"CREATE DATABASE {other} TEMPLATE template0 ENCODING '{encoding}' "
                    "LC_COLLATE 'C' LC_CTYPE 'C'"
                )
                self.addCleanup(server.execute, f"DROP DATABASE {other} WITH (FORCE)")
                engine = engines.create_for_migration(driver.SQLOptions(server.url(other)))
                self.addCleanup(engine.dispose)
                with self.assertRaisesRegex(errors.ConfigurationError, f"{encoding}.*UTF8"):
                    migration.sync(engine)
                with engine.connect() as connection:
                    self.assertEqual([], sa.inspect(connection).get_table_names())
