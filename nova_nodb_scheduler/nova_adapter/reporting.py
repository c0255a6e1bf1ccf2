# SPDX-License-Identifier: Apache-2.0
"""Where Nova's objects hand over their changes: the process's reporter, if any.

Objects are classes of a registry and cannot be handed a reporter; this module
holds the one of this process. It is installed once by the assembly.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import reporter as reporter_module
from nova_nodb_scheduler.nova_adapter import scopes as scopes_module

LOG = logging.getLogger(__name__)

_reporter: reporter_module.Reporter | None = None
_make: Callable[[], reporter_module.Reporter] | None = None
_scopes: scopes_module.Scopes | None = None
_complained = False
_pid = os.getpid()


def install(
    reporter: reporter_module.Reporter | None,
    scopes: scopes_module.Scopes | None,
    make: Callable[[], reporter_module.Reporter] | None = None,
) -> None:
    """Make a reporter the process's own; None takes it away.

    :param make: makes the reporter of a child, should this process fork
    """
    global _reporter, _scopes, _make, _complained, _pid
    _reporter, _scopes, _make, _complained = reporter, scopes, make, False
    _pid = os.getpid()


def _after_fork() -> None:
    """Give a child a reporter of its own; no I/O.

    The parent's may have been copied with a lock held, which nobody in the
    child would release; its connections and its name are the parent's.
    """
    global _reporter, _pid
    _pid = os.getpid()
    if _reporter is not None:
        _reporter = _make() if _make is not None else None


os.register_at_fork(after_in_child=_after_fork)


def _own() -> reporter_module.Reporter | None:
    """Return this process's reporter; servers that fork in C run no hooks of Python."""
    if _pid != os.getpid():
        _after_fork()
    return _reporter


def cell_of(context: Any) -> str | None:
    """Return the cell a context's rows belong to; None where nothing is reported."""
    global _complained
    if _scopes is None:
        return None
    try:
        return _scopes.of_context(context)
    except errors.ConfigurationError as error:
        if not _complained:
            _complained = True
            LOG.error("Changes of this process are not reported: %(error)s", {"error": error})
        return None


def mark(context: Any, namespace: str, keys: Collection[str]) -> None:
    """Note that rows of a cell's database were written."""
    cell = cell_of(context)
    if cell is not None:
        mark_in(cell, namespace, keys)


def mark_in(cell: str, namespace: str, keys: Collection[str]) -> None:
    """Note that rows of a known cell's database were written."""
    reporter = _own()
    if reporter is not None:
        reporter.mark(cell, namespace, keys)


def mark_api(namespace: str, keys: Collection[str]) -> None:
    """Note that rows of the API database were written."""
    reporter = _own()
    if reporter is not None:
        reporter.mark(scopes_module.API, namespace, keys)


def heartbeat(
    context: Any,
    service: str,
    report_count: int,
    last_seen_up: str | None,
    *,
    silent_seconds: float = 0.0,
) -> None:
    """Note a heartbeat of a compute service.

    :param silent_seconds: since the one before
    """
    cell = cell_of(context)
    reporter = _own()
    if cell is not None and reporter is not None:
        reporter.heartbeat(cell, service, report_count, last_seen_up, silent_seconds=silent_seconds)
