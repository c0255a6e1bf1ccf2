# SPDX-License-Identifier: Apache-2.0
"""Reads Nova's services tables of all cells, for operators' commands."""

from __future__ import annotations

from nova import objects, servicegroup

from nova_nodb_scheduler.nova_adapter import scopes as scopes_module

#: Binary, host, cell, and whether Nova takes it to be up.
Row = tuple[str, str, str, bool]


def cells(scopes: scopes_module.Scopes) -> list[str]:
    """Return all cells; without an API database the one that the configuration names.

    Whatever a database driver raises passes through.
    """
    return scopes.all_cells() if scopes.has_api_database() else [scopes.own_cell()]


def read(scopes: scopes_module.Scopes, cell: str) -> list[Row]:
    """Return the services of a cell; whatever a database driver raises passes through."""
    up = servicegroup.API().service_is_up
    services = objects.ServiceList.get_all(scopes.context_for(cell))
    return [(str(each.binary), str(each.host), cell, bool(up(each))) for each in services]
