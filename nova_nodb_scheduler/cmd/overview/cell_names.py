# SPDX-License-Identifier: Apache-2.0
"""Cells by the names that operators gave them, in the place of their uuids."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.cmd.framework import bounded

LOG = logging.getLogger(__name__)

#: Names are a comfort: nobody waits longer for the API database because of them.
BOUND_SECONDS = 3.0

CELL0 = "00000000-0000-0000-0000-000000000000"
_SHOWN_OF_A_UUID = 8


@attrs.frozen
class CellNames:
    """What cells are called.

    :param by_uuid: as the cell mappings say; empty where they could not be read
    """

    by_uuid: Mapping[str, str] = attrs.field(factory=dict)

    def name(self, cell: str | None) -> str | None:
        """Return the name of a cell, or None where nobody knows it."""
        if cell == "*":
            return "every cell"
        if cell == CELL0:
            return self.by_uuid.get(cell) or "cell0"
        return cell if cell == "api" else self.by_uuid.get(str(cell)) or None

    def shown(self, cell: str | None) -> str | None:
        """Return what a table shows: the name, or the begin of the uuid."""
        if cell is None:
            return None
        known = self.name(cell)
        if known is not None or len(cell) <= _SHOWN_OF_A_UUID:
            return known or cell
        return f"{cell[:_SHOWN_OF_A_UUID]}…"

    def in_text(self, text: str) -> str:
        """Return a sentence with names in the place of uuids."""
        for uuid, name in {CELL0: "cell0", **self.by_uuid}.items():
            text = text.replace(uuid, name or uuid)
        return text


def of_configuration(conf: Any) -> CellNames:
    """Read as :func:`read` does, where the plugin is not loaded.

    :param conf: Nova's configuration, with the plugin's options registered
    """
    from nova_nodb_scheduler.nova_adapter.reporting import scopes

    return _read(scopes.Scopes(conf))


def read(plugin: Any) -> CellNames:
    """Read the cell mappings; without names where that fails, or takes too long.

    :param plugin: :class:`..nova_adapter.assembly.Plugin`
    """
    return _read(plugin.scopes)


def _read(scopes: Any) -> CellNames:
    try:
        return CellNames(bounded.ask(BOUND_SECONDS, scopes.cell_names))
    except Exception as error:  # noqa: BLE001 - whatever it is, only names are missing
        LOG.debug("Cells are shown by their uuids: %(error)s", {"error": error})
        return CellNames()
