# SPDX-License-Identifier: Apache-2.0
"""Reads Nova's services tables of all cells, for operators' commands."""

from __future__ import annotations

import logging

from nova import objects, servicegroup

from nova_nodb_scheduler.nova_adapter import scopes as scopes_module

LOG = logging.getLogger(__name__)

#: Binary, host, cell, and whether Nova takes it to be up.
Row = tuple[str, str, str, bool]


def read(scopes: scopes_module.Scopes) -> tuple[list[Row], list[str]]:
    """Return the services of all cells, and the cells that could not be read.

    Without an API database, those of the one cell that the configuration names.
    """
    up = servicegroup.API().service_is_up
    cells = scopes.all_cells() if scopes.has_api_database() else [scopes.own_cell()]
    found: list[Row] = []
    unread = []
    for cell in cells:
        try:
            services = objects.ServiceList.get_all(scopes.context_for(cell))
        except Exception as error:  # noqa: BLE001 - whatever a database driver raises
            LOG.warning(
                "Cannot read services of %(cell)s: %(error)s", {"cell": cell, "error": error}
            )
            unread.append(f"cell {cell}")
            continue
        found += [(str(each.binary), str(each.host), cell, bool(up(each))) for each in services]
    return found, unread
