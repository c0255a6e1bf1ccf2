# SPDX-License-Identifier: Apache-2.0
"""What is read out of Placement's database is what its API says, and harms nothing newer."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import sqlite3
import tempfile
import uuid
from collections.abc import Mapping
from typing import Any

from placement import db_api as placement_db
from sqlalchemy import event

from nova_nodb_scheduler.cmd import application
from nova_nodb_scheduler.cmd.commands import import_commands
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement.mirror import bulk_import, mirror_sweep, own_writes
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.records import publisher
from tests.functional.nova_adapter import cloud, mirror_cloud

TIMES = ("read_at", "read_until", "whole_at", "written_at")
#: Of the mirror's own record.
FOUND = ("differing", "providers", "roots")


def without_size(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "tree_size"}


class BulkCase(mirror_cloud.MirrorCase):
    def setUp(self) -> None:
        super().setUp()
        engine = placement_db.get_placement_engine()
        self.database = bulk_import.PlacementDatabase(engine)
        #: Nobody else's: another test's thread may be at its end.
        self.own = [str(engine.url)]
        directory = tempfile.TemporaryDirectory(prefix="nodb-bulk-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def fill(self, page: int = 100, database: Any = None) -> bulk_import.BulkImportResult:
        return bulk_import.fill(
            database or self.database,
            self.synchronizer,
            self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT),
            page,
        )

    def records(self) -> dict[str, Any]:
        """Return the mirror's records with all but their times."""
        return {
            key: {name: value for name, value in state.items() if name not in TIMES}
            for key, state in self.states(known_namespaces.PROVIDERS).items()
        }

    def copy(self) -> str:
        """Return the URL of a file that holds what Placement's database holds."""
        path = self.directory / "placement.sqlite"
        with (
            placement_db.get_placement_engine().connect() as connection,
            contextlib.closing(sqlite3.connect(path)) as file,
        ):
            connection.connection.dbapi_connection.backup(file)
        return f"sqlite:///{path}"

    def forget(self) -> None:
        """Delete the mirror's records."""
        self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT).publish(
            {
                records.RecordKey(known_namespaces.PROVIDERS.name, key): lambda current: (
                    publisher.DELETE
                )
                for key in self.records()
            }
        )

    def populate(self) -> list[str]:
        """Make trees, sharing providers, aggregates, traits, consumers, and an empty provider."""
        roots = [self.provider() for _ in range(5)]
        child = self.provider(roots[0])
        self.provider(child)
        self.provider(roots[3])
        self.traits(child, "HW_CPU_X86_AVX2")
        self.traits(roots[1], "HW_CPU_X86_AVX2", "COMPUTE_NODE")
        zone = str(uuid.uuid4())
        self.aggregates(roots[2], zone, str(uuid.uuid4()))
        storage = str(uuid.uuid4())
        self.ask("post", "/resource_providers", {"name": "storage", "uuid": storage})
        body = {
            "resource_provider_generation": 0,
            "inventories": {
                "DISK_GB": {
                    "total": 5000,
                    "reserved": 10,
                    "min_unit": 2,
                    "max_unit": 800,
                    "step_size": 2,
                    "allocation_ratio": 1.3,
                }
            },
        }
        self.ask("put", f"/resource_providers/{storage}/inventories", body)
        self.traits(storage, "MISC_SHARES_VIA_AGGREGATE")
        self.aggregates(storage, zone)
        self.ask("post", "/resource_providers", {"name": "empty", "uuid": str(uuid.uuid4())})
        for key in (roots[0], roots[0], roots[2]):
            self.allocate(key)
        several = self.new_consumers({str(uuid.uuid4()): roots[0]})
        (body_of,) = several.values()
        body_of["allocations"] = {
            roots[0]: {"resources": {"VCPU": 2, "MEMORY_MB": 64}},
            child: {"resources": {"VGPU": 1}},
            storage: {"resources": {"DISK_GB": 20}},
        }
        self.ask("post", "/allocations", several)
        return roots


class BulkReadingTest(BulkCase):
    def test_records_are_those_that_are_made_of_the_api_s_answers(self) -> None:
        self.populate()
        result = self.fill()
        self.assertEqual((7, 10), (result.trees, result.providers))
        self.assertEqual(7, result.written)
        found = self.records()
        self.assert_mirrored()
        self.forget()
        kept = self.keeper()
        self.turns(kept)
        self.assertEqual(self.records(), found)

    def test_broken_trees_are_broken_for_the_same_reason(self) -> None:
        roots = self.populate()
        child = self.provider(roots[4])
        self.sql("PRAGMA foreign_keys = OFF")
        self.sql(f"UPDATE resource_providers SET parent_provider_id = 9999 WHERE uuid = '{child}'")
        self.sql(
            "UPDATE inventories SET total = -1 WHERE resource_provider_id = "
            f"(SELECT id FROM resource_providers WHERE uuid = '{roots[1]}')"
        )
        # A root that is gone: Placement lists none of its tree.
        self.provider(roots[3])
        self.sql(f"DELETE FROM resource_providers WHERE uuid = '{roots[3]}'")
        # A consumer without its row: Placement does not show what it has.
        orphan = self.allocate(roots[2])
        self.sql(f"DELETE FROM consumers WHERE uuid = '{orphan}'")
        result = self.fill()
        found = self.records()
        self.assertEqual(2, result.broken)
        self.assertIn("total -1", found[roots[1]]["broken"])
        self.assertIn("not below the root", found[roots[4]]["broken"])
        self.assertNotIn(roots[3], found)
        self.assertNotIn(orphan, found[roots[2]]["allocations"])
        self.forget()
        self.turns(self.keeper())
        self.assertEqual(self.records(), found)

    def test_pages_of_any_size_hold_the_same_at_six_selects_each(self) -> None:
        self.populate()
        whole = self.database.page(0, 100)
        assert whole is not None
        for size in (1, 2, 3):
            found: dict[str, Any] = {}
            after, pages = 0, 0
            with cloud.Statements(self.own) as statements:
                while (page := self.database.page(after, size)) is not None:
                    self.assertLessEqual(len(page.states), size)
                    found |= page.states
                    after = page.last
                    pages += 1
            self.assertEqual(whole.states, found)
            selects = [each for each in statements.seen if each.startswith("SELECT")]
            # One more finds that there is none.
            self.assertEqual(pages * bulk_import.STATEMENTS_A_PAGE + 1, len(selects))
            self.assertEqual(-(-7 // size), pages)

    def test_a_page_is_as_many_selects_for_forty_trees_as_for_two(self) -> None:
        for _ in range(40):
            self.allocate(self.provider())
        counts = []
        for size in (2, 40):
            with cloud.Statements(self.own) as statements:
                self.database.page(0, size)
            counts.append(len([each for each in statements.seen if each.startswith("SELECT")]))
        self.assertEqual([bulk_import.STATEMENTS_A_PAGE] * 2, counts)

    def test_a_page_is_of_one_moment(self) -> None:
        roots = self.populate()
        url = self.copy()
        path = self.directory / "placement.sqlite"
        selects = 0

        def write_meanwhile(_c: Any, _cursor: Any, statement: str, *_args: Any) -> None:
            nonlocal selects
            selects += statement.startswith("SELECT")
            if selects == 3:
                selects += 1
                with contextlib.closing(sqlite3.connect(path)) as other:
                    other.execute("UPDATE resource_providers SET generation = generation + 7")
                    other.execute("DELETE FROM allocations")
                    other.commit()

        with contextlib.closing(sqlite3.connect(path)) as file:
            # Readers see their moment while another connection writes.
            file.execute("PRAGMA journal_mode = WAL")
        database = bulk_import.PlacementDatabase.at(url)
        self.addCleanup(database.close)
        event.listen(database._engine, "before_cursor_execute", write_meanwhile)
        page = database.page(0, 100)
        later = database.page(0, 100)
        assert page is not None and later is not None
        self.assertEqual(self.real(), {k: without_size(v) for k, v in page.states.items()})
        self.assertEqual({}, later.states[roots[0]]["allocations"])


class BesideKeepersTest(BulkCase):
    def test_a_keeper_after_it_needs_one_request_and_finds_nothing_different(self) -> None:
        self.populate()
        self.fill()
        self.assertEqual({}, self.states(known_namespaces.MIRRORS))
        kept = self.keeper()
        self.calls.clear()
        self.turns(kept)
        self.assertEqual({"list": 1}, dict(self.calls))
        mirror_record = self.states(known_namespaces.MIRRORS)["placement"]
        self.assertEqual((0, 10, 7), tuple(mirror_record[n] for n in FOUND))
        self.assert_mirrored()

    def test_what_changed_in_between_is_found_by_the_keeper(self) -> None:
        roots = self.populate()
        self.fill()
        self.allocate(roots[1])
        self.traits(roots[2], "HW_CPU_X86_AVX2")
        new = self.provider()
        self.ask("delete", f"/resource_providers/{roots[4]}")
        kept = self.keeper()
        self.turns(kept)
        self.assertEqual(3, self.states(known_namespaces.MIRRORS)["placement"]["differing"])
        self.assertIn(new, self.mirrored())
        self.assertNotIn(roots[4], self.mirrored())
        self.assert_mirrored()

    def test_a_second_import_writes_nothing(self) -> None:
        self.populate()
        self.fill()
        before = self.states(known_namespaces.PROVIDERS)
        result = self.fill(page=2)
        self.assertEqual((0, 7, 0), (result.written, result.unchanged, result.newer))
        self.assertEqual(before, self.states(known_namespaces.PROVIDERS))

    def test_a_replica_that_lags_puts_nothing_back(self) -> None:
        roots = self.populate()
        behind = Paused(self.database)
        # Placement and the mirror go on, the database that is read does not.
        consumer = self.allocate(roots[1])
        self.turns(self.keeper())
        self.clock.now += 5
        result = self.fill(database=behind)
        self.assertEqual((1, 6), (result.newer, result.unchanged))
        self.assertIn(consumer, self.mirrored()[roots[1]]["allocations"])
        self.assert_mirrored()

    def test_a_schedulers_own_write_meanwhile_stays(self) -> None:
        roots = self.populate()
        self.fill()
        page = Paused(self.database)
        own = own_writes.OwnWrites(
            self.synchronizer,
            self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT),
            self.store_.snapshot,
            lambda names: None,
        )
        self.follow()
        before = own.before()
        consumer = self.allocate(roots[1])
        own.wrote({roots[1]: {consumer: {"VCPU": 1}}}, before)
        own.flush()
        result = self.fill(database=page)
        self.assertEqual(1, result.newer)
        self.assertIn(consumer, self.mirrored()[roots[1]]["allocations"])

    def test_an_import_in_the_midst_of_a_keepers_first_sweep_leaves_a_right_mirror(self) -> None:
        roots = self.populate()
        kept = self.keeper(sweep=mirror_sweep.MirrorSweepOptions(step_trees=2))
        self.follow()
        self.assertTrue(kept.turn())
        behind = Paused(self.database)
        self.allocate(roots[0])
        self.fill(database=behind)
        self.turns(kept)
        self.turns(kept, 60)
        self.assert_mirrored()

    def test_a_first_sweep_asks_no_more_for_trees_that_were_imported_meanwhile(self) -> None:
        self.populate()
        kept = self.keeper(sweep=mirror_sweep.MirrorSweepOptions(step_trees=2))
        self.follow()
        self.assertTrue(kept.turn())
        self.clock.now += 1
        self.fill()
        self.calls.clear()
        self.turns(kept)
        self.assertEqual({}, dict(self.calls))
        self.assertEqual("one", self.states(known_namespaces.MIRRORS)["placement"]["keeper"])
        self.assert_mirrored()


class Paused:
    """Pages as they were when it was made."""

    def __init__(self, database: bulk_import.PlacementDatabase) -> None:
        self._page = database.page(0, 100)

    def page(self, after: int, _trees: int) -> bulk_import.TreePage | None:
        return None if after else self._page


class CommandTest(BulkCase):
    def run_command(self, *arguments: str) -> tuple[int, str, str]:
        command = import_commands.MirrorImport(
            application.ManageApp(),
            argparse.Namespace(config_file=[], config_dir=[]),
            "mirror import",
        )
        # What reads nova.conf; this process has it.
        command.plugin = lambda: self.plugin
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command.take_action(command.get_parser("mirror").parse_args(arguments))
        told = [line for line in err.getvalue().splitlines() if line.startswith("mirror import:")]
        return status, out.getvalue(), "\n".join(told)

    def setUp(self) -> None:
        super().setUp()
        saved = os.environ.pop(import_commands.CONNECTION, None)
        if saved is not None:
            self.addCleanup(os.environ.__setitem__, import_commands.CONNECTION, saved)

    def test_it_fills_the_mirror_and_says_what_it_did(self) -> None:
        self.populate()
        status, out, err = self.run_command("--placement-connection", self.copy(), "--json")
        self.assertEqual((0, ""), (status, err))
        said = json.loads(out)
        self.assertEqual((7, 10, 7), (said["trees"], said["providers"], said["written"]))
        self.assert_mirrored()

    def test_the_url_may_stand_in_the_environment(self) -> None:
        self.populate()
        os.environ[import_commands.CONNECTION] = self.copy()
        self.addCleanup(os.environ.pop, import_commands.CONNECTION)
        status, out, _err = self.run_command("--page", "3")
        self.assertEqual(0, status)
        self.assertIn("provider trees", out)
        self.assert_mirrored()

    def test_without_a_url_both_ways_to_give_it_are_named(self) -> None:
        status, _out, err = self.run_command()
        self.assertEqual(3, status)
        self.assertIn("--placement-connection", err)
        self.assertIn(import_commands.CONNECTION, err)

    def test_another_database_is_refused_and_what_it_lacks_is_named(self) -> None:
        status, _out, err = self.run_command("--placement-connection", self.urls["api"])
        self.assertEqual(3, status)
        self.assertIn("resource_provider_traits", err)

    def test_an_unreachable_one_an_unknown_driver_and_no_url_are_told_apart(self) -> None:
        for url, expected in (
            ("mysql+pymysql://p:hidden@127.0.0.1:9/placement", "p:***@127.0.0.1:9"),
            ("marble://p:hidden@127.0.0.1/placement", "'marble' is not installed"),
            ("p:hidden", "no database URL"),
        ):
            with self.subTest(url):
                status, _out, err = self.run_command("--placement-connection", url)
                self.assertEqual(3, status)
                self.assertIn(expected, err)
                self.assertNotIn("hidden", err)
