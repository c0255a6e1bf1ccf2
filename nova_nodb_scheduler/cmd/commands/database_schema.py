# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage db: the schema of the SQL synchronizer."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import command, reaching
from nova_nodb_scheduler.conf import nodb


class _DatabaseCommand(command.Command):
    @contextlib.contextmanager
    def engine(self, *, makes: bool = False) -> Iterator[Any]:
        """Give an engine on the synchronizer's database.

        :param makes: whether an SQLite file that is not there shall be made
        :raises ConfigurationError: the synchronizer has no schema
        :raises StoreMissing: there is none, and none shall be made
        """
        from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import engines, options

        plugin = self.plugin()
        if plugin.options.synchronizer != "sqlalchemy":
            raise errors.ConfigurationError(
                f"[{nodb.GROUP}] synchronizer",
                plugin.options.synchronizer,
                "only 'sqlalchemy' has a schema to manage",
            )
        settings = options.read(plugin.conf)
        if makes:
            engines.prepare_store(settings)
        else:
            engines.require_store(settings)
        reaching.database(settings)
        engine = engines.create_for_migration(settings)
        try:
            yield engine
        finally:
            engine.dispose()

    def show(self, version: Any, as_json: bool) -> None:
        if as_json:
            self.print_json(dict(version))
        else:
            reached = ", ".join(str(name) for name in dict(version).values() if name)
            self.print_line(f"The schema is at {reached or 'no version'}.")
            self.print_facts("Branches", version)


class Sync(_DatabaseCommand):
    """Migrate the synchronizer's database to this release's schema."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the choice of a branch."""
        parser = super().get_parser(prog_name)
        branch = parser.add_mutually_exclusive_group()
        branch.add_argument(
            "--expand",
            dest="branch",
            action="store_const",
            const="expand",
            help="only what older services bear",
        )
        branch.add_argument(
            "--contract",
            dest="branch",
            action="store_const",
            const="contract",
            help="only what needs every service to be upgraded",
        )
        return parser

    def execute(self, args: argparse.Namespace) -> int:
        """Migrate, and show the version reached."""
        from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import migration

        with self.engine(makes=True) as engine:
            self.show(migration.sync(engine, args.branch), args.json)
        return 0


class Version(_DatabaseCommand):
    """Show the version of the synchronizer's schema."""

    def execute(self, args: argparse.Namespace) -> int:
        """Show the version per branch."""
        from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import migration

        with self.engine() as engine:
            self.show(migration.version(engine), args.json)
        return 0


class Check(_DatabaseCommand):
    """Check the synchronizer's schema; status 1 if something is to be done."""

    def execute(self, args: argparse.Namespace) -> int:
        """List what is to be done."""
        from nova_nodb_scheduler.synchronizer.drivers.sqlalchemy import migration

        with self.engine() as engine:
            found = migration.check(engine)
        if args.json:
            self.print_json({"clean": not found, "findings": found})
        elif found:
            self.print_line("Something is to be done:")
            for finding in found:
                self.print_line(f"* {finding}")
        else:
            self.print_line("The schema is this release's.")
        return 1 if found else 0
