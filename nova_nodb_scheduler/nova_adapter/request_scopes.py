# SPDX-License-Identifier: Apache-2.0
"""Which scopes a request's answer rests on: those are judged, and no others.

A server that may not leave its cell is decided by that cell's states, enabled
or not (operators disable a cell to keep new servers out, and move within it);
what other cells lack is none of its concern.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nova_nodb_scheduler.nova_adapter import request_conversion, scopes


def of_request(
    spec: Any, enabled_cells: Collection[str], all_cells: Collection[str]
) -> tuple[str, ...]:
    """Return the scopes that a choice for a RequestSpec looks at.

    :param spec: None where it is not known yet: the request may go anywhere
    :param all_cells: uuids of all cells but cell0
    """
    if spec is None:
        return (*sorted({*enabled_cells, *all_cells}), scopes.API)
    destination = request_conversion.destination(spec)
    cells = set(request_conversion.cells(destination, enabled_cells))
    if destination is not None and destination.cell:
        # Where a server stands that may leave its cell: its claims there stay.
        cells.add(destination.cell)
    return (*sorted(cells), scopes.API)
