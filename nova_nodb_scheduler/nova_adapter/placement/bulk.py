# SPDX-License-Identifier: Apache-2.0
"""Placement's own database, read a page of provider trees at a time.

Over HTTP a tree costs four requests. Here a page of trees costs
:data:`.bulk_rows.STATEMENTS_A_PAGE`, whatever its size, in one transaction
that sees one moment.
"""

from __future__ import annotations

import sqlalchemy as sa

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.placement import bulk_rows


class PlacementDatabaseError(errors.NodbError):
    """Placement's database cannot be read.

    :param database: its URL, without the password
    :param reason: what was found, or what the driver said
    """

    def __init__(self, database: str, reason: str) -> None:
        super().__init__(database, reason)
        self.database, self.reason = database, reason

    def __str__(self) -> str:
        return (
            f"Placement's database {self.database} cannot be read: {self.reason}. Give the URL "
            "of [placement_database] connection in placement.conf, or one for a read-only account"
        )


class Database:
    """Placement's tables, read only; one thread.

    :param engine: of Placement's database
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.name = engine.url.render_as_string(hide_password=True)

    @classmethod
    def at(cls, url: str) -> Database:
        """Return the database of a URL; no I/O yet.

        :raises PlacementDatabaseError: the URL or its driver is none
        """
        try:
            parsed = sa.engine.make_url(url)
        except (sa.exc.ArgumentError, ValueError) as error:
            # Its text may hold the password.
            raise PlacementDatabaseError(
                "(URL not shown)", "this is no database URL such as mysql+pymysql://user:pw@host/db"
            ) from error
        try:
            return cls(sa.create_engine(parsed))
        except (sa.exc.SQLAlchemyError, ImportError) as error:
            name = parsed.render_as_string(hide_password=True)
            reason = f"the driver {parsed.drivername!r} is not installed ({error})"
            raise PlacementDatabaseError(name, reason) from error

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def connect(self) -> None:
        """Connect, and ask nothing; blocks as long as the driver does.

        :raises PlacementDatabaseError: it is down
        """
        try:
            with self._engine.connect():
                pass
        except sa.exc.SQLAlchemyError as error:
            raise self._error(error) from error

    def count(self) -> int:
        """Return how many trees there are.

        :raises PlacementDatabaseError: it is down, or not Placement's
        """
        try:
            with self._engine.connect() as connection:
                there = set(sa.inspect(connection).get_table_names())
                missing = sorted({table.name for table in bulk_rows.TABLES} - there)
                if missing:
                    reason = f"it has no table {', '.join(missing)}: is it Placement's?"
                    raise PlacementDatabaseError(self.name, reason)
                roots = sa.func.count(sa.distinct(bulk_rows.PROVIDERS.c.root_provider_id))
                return int(connection.execute(sa.select(roots)).scalar_one())
        except sa.exc.SQLAlchemyError as error:
            raise self._error(error) from error

    def page(self, after: int, trees_a_page: int) -> bulk_rows.Page | None:
        """Read the next trees; None after the last one.

        :param after: :attr:`.bulk_rows.Page.last` of the page before, 0 for the first
        :raises PlacementDatabaseError: it is down, or of a release unknown here
        """
        try:
            with self._engine.connect() as connection:
                bulk_rows.begin(connection)
                try:
                    return bulk_rows.read(connection, after, trees_a_page)
                finally:
                    connection.rollback()
        except sa.exc.SQLAlchemyError as error:
            raise self._error(error) from error

    def _error(self, error: sa.exc.SQLAlchemyError) -> PlacementDatabaseError:
        said = getattr(error, "orig", None) or error
        return PlacementDatabaseError(self.name, f"{type(said).__name__}: {said}")
