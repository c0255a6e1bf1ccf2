# SPDX-License-Identifier: Apache-2.0
"""Which database a record comes from: a cell's, or the API's."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from nova import context as nova_context
from nova import objects
from nova.db.api import api as api_database
from nova.db.main import api as cell_database

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.conf import nodb

#: Scope of aggregates and host mappings, beside the cells' uuids.
API = "api"


class Scopes:
    """Finds the cell of a context, and a context for a cell.

    :param conf: Nova's configuration, with the plugin's options registered
    """

    def __init__(self, conf: Any) -> None:
        self._conf = conf
        self._mappings: dict[str, Any] = {}
        self._own: str | None = conf[nodb.GROUP].cell_uuid
        self._look_again_at = float("-inf")

    def has_api_database(self) -> bool:
        """Tell whether this process may read the API database."""
        return bool(self._conf.api_database.connection)

    def own_cell(self) -> str:
        """Return the uuid of the cell that ``[database] connection`` names.

        Reads the cell mappings once; where they do not tell, once a minute.

        :raises ConfigurationError: neither the option nor the mappings tell
        """
        if self._own is not None:
            return self._own
        if self.has_api_database() and time.monotonic() >= self._look_again_at:
            self._look_again_at = time.monotonic() + _LOOK_AGAIN_SECONDS
            own = database_of(self._conf.database.connection)
            mappings = objects.CellMappingList.get_all(nova_context.get_admin_context())
            found = [m for m in mappings if database_of(m.database_connection) == own]
            if len(found) == 1:
                self._own = str(found[0].uuid)
                return self._own
        raise errors.ConfigurationError(
            f"[{nodb.GROUP}] cell_uuid",
            None,
            "this process cannot tell which cell its database belongs to. Set the "
            "option to the uuid that 'nova-manage cell_v2 list_cells' shows for it",
        )

    def of_context(self, context: Any) -> str:
        """Return the cell whose database Nova uses for a context."""
        targeted = getattr(context, "db_connection", None) is not None
        cell = getattr(context, "cell_uuid", None)
        return str(cell) if targeted and cell else self.own_cell()

    def context_for(self, scope: str) -> Any:
        """Return an admin context for a cell's database or, untargeted, the API's.

        :raises CellMappingNotFound: the cell was deleted
        """
        context = nova_context.get_admin_context()
        if scope == API or scope == self._own:
            return context
        nova_context.set_target_cell(context, self.mapping(scope))
        return context

    def connect(self, scope: str) -> None:
        """Connect to a scope's database and ask it nothing; blocks as long as its driver does.

        Whatever a database driver raises passes through.

        :raises CellMappingNotFound: there is no such cell
        """
        if scope == API:
            engine = api_database.get_engine()
        else:
            engine = cell_database.get_engine(context=self.context_for(scope))
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))

    def mapping(self, cell: str) -> Any:
        """Return Nova's CellMapping of a cell, cached.

        :raises CellMappingNotFound: there is no such cell
        """
        mapping = self._mappings.get(cell)
        if mapping is None:
            mapping = objects.CellMapping.get_by_uuid(nova_context.get_admin_context(), cell)
            self._mappings[cell] = mapping
        return mapping

    def all_cells(self) -> list[str]:
        """Return the uuids of all cells, cell0 included.

        :raises CellMappingNotFound: never; a database error passes through
        """
        mappings = objects.CellMappingList.get_all(nova_context.get_admin_context())
        self._mappings = {str(mapping.uuid): mapping for mapping in mappings}
        return sorted(self._mappings)

    def cell_urls(self) -> list[str]:
        """Return where the databases of all cells are; a database error passes through."""
        self.all_cells()
        return [str(mapping.database_connection) for mapping in self._mappings.values()]

    def cell_names(self) -> dict[str, str]:
        """Return what operators call the cells, by uuid; empty without an API database."""
        if not self.has_api_database():
            return {}
        self.all_cells()
        return {uuid: mapping.name or "" for uuid, mapping in self._mappings.items()}


def database_of(connection: str | None) -> tuple[Any, ...]:
    """Return what names a database in a URL: not the user, nor driver options."""
    url = sa.make_url(connection or "sqlite://")
    backend = url.get_backend_name()
    # A path of SQLite is all of it; a server's default port may be left out.
    port = url.port or _DEFAULT_PORTS.get(backend)
    places = tuple(url.query.get(name) for name in ("unix_socket", "host", "read_default_file"))
    return (backend, url.host, port, url.database, *places)


_LOOK_AGAIN_SECONDS = 60.0

_DEFAULT_PORTS = {"mysql": 3306, "postgresql": 5432}
