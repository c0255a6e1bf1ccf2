# SPDX-License-Identifier: Apache-2.0
"""Cells that Nova's own reads of hosts leave out because they fail, and the error that says so.

Nova's scheduler warns of such a cell and goes on without its hosts; in the end it may say
that there is no valid host, though nobody looked at these. Where records answer for compute
nodes a back end that is away, or that lost them, is such a failure of all cells at once. So
it is noted which cells were left out, and why. A host of another cell is still an answer;
"no valid host" is none.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import oslo_messaging as messaging
from nova import context as nova_context
from nova.scheduler.client import query

from nova_nodb_scheduler import errors

_scatter = nova_context.scatter_gather_cells
_select_destinations = query.SchedulerQueryClient.select_destinations

_noting = threading.local()


class HostsNotRead(errors.NodbError, messaging.RemoteError, ValueError):  # type: ignore[misc]
    """No host was found, and some cells' hosts could not be looked at.

    Nova's conductor takes a refusal that is not NoValidHost in two ways alone without doing
    harm to the server: a live migration leaves it as it is upon a RemoteError, and an
    evacuation or a rebuild is ended, and may be asked for again, upon a ValueError. Any other
    error puts a running server into ERROR, or leaves an evacuated one in REBUILDING.

    :param missing: cells and why they could not be read, as text
    """

    def __init__(self, missing: str) -> None:
        # RemoteError's own makes a text of what it is given.
        Exception.__init__(self, missing)
        self.missing = missing
        self.exc_type, self.value, self.traceback = type(self).__name__, missing, None

    def __str__(self) -> str:
        return (
            "Whether there is a valid host is not known: the compute nodes and services of some "
            f"cells could not be read, and none of the others has room. {self.missing}"
        )


def missing(unread: Mapping[str, str]) -> str:
    """Return cells and reasons as a text; cells of one reason share a sentence."""
    cells: dict[str, list[str]] = {}
    for cell, reason in sorted(unread.items()):
        cells.setdefault(reason, []).append(cell)
    return " ".join(
        f"{'Cell' if len(names) == 1 else 'Cells'} {', '.join(names)}: {reason}"
        for reason, names in cells.items()
    )


@contextlib.contextmanager
def noted() -> Iterator[Mapping[str, str]]:
    """Give what this thread's reads of cells leave out inside, by cell: why."""
    found: dict[str, str] = {}
    before = getattr(_noting, "found", None)
    _noting.found = found
    try:
        yield found
    finally:
        _noting.found = before


@functools.wraps(_scatter)
def scatter_gather_cells(
    context: Any, cell_mappings: Any, timeout: float, fn: Any, *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """Read cells as Nova does, and note which did not answer."""
    results: dict[str, Any] = _scatter(context, cell_mappings, timeout, fn, *args, **kwargs)
    found = getattr(_noting, "found", None)
    if found is not None:
        for cell, result in results.items():
            if nova_context.is_cell_failure_sentinel(result):
                found[str(cell)] = _reason(result, timeout)
    return results


def _reason(result: Any, timeout: float) -> str:
    if result is nova_context.did_not_respond_sentinel:
        return f"no answer in {timeout:.0f} s."
    # Behind the first line SQLAlchemy tells the statement and its parameters.
    text = next(iter(str(result).splitlines()), "") or type(result).__name__
    return text if text.endswith(".") else f"{text}."


@functools.wraps(_select_destinations)
def select_destinations(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Ask a scheduler, and raise its :class:`HostsNotRead` as what it is.

    A conductor's transport was made before the plugin is there, and builds no error of ours.
    """
    try:
        return _select_destinations(self, *args, **kwargs)
    except messaging.RemoteError as error:
        if error.exc_type != HostsNotRead.__name__:
            raise
        raise HostsNotRead(_told(str(error.value))) from error


def _told(text: str) -> str:
    """Return what is missing of the text of an error; it may have come without its parts."""
    opening = str(HostsNotRead("")).strip()
    return text.removeprefix(opening).strip()


def install_in_scheduler() -> None:
    """Have reads of cells noted; idempotent. What somebody else replaced is left alone."""
    if nova_context.scatter_gather_cells is _scatter:
        nova_context.scatter_gather_cells = scatter_gather_cells


def install_in_conductor() -> None:
    """Have a scheduler's error known; idempotent. What somebody else replaced is left alone."""
    if query.SchedulerQueryClient.select_destinations is _select_destinations:
        query.SchedulerQueryClient.select_destinations = select_destinations
