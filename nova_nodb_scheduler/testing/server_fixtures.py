# SPDX-License-Identifier: Apache-2.0
"""What fixtures of real servers share: the skip, a server of one's own, one for all.

A server that is dear to start serves a whole test process: it starts at first
use and ends with the process.
"""

from __future__ import annotations

import abc
import atexit
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import fixtures

from nova_nodb_scheduler.testing import server_processes


class _Destroyable(Protocol):
    def destroy(self) -> None: ...


_Shared = TypeVar("_Shared", bound=_Destroyable)
_Server = TypeVar("_Server", bound=server_processes.Server)

_shared: dict[type[Any], Any] = {}
_shared_lock = threading.Lock()


def shared(kind: type[_Shared], start: Callable[[], _Shared]) -> _Shared:
    """Return this process's server of a kind; any thread may ask.

    :param start: makes and starts it, at the first call
    """
    with _shared_lock:
        if kind not in _shared:
            _shared[kind] = start()
        found: _Shared = _shared[kind]
        return found


def started(server: _Server) -> _Server:
    """Start a new server that ends with the process."""
    atexit.register(server.destroy)
    server.initialize()
    server.start()
    return server


class ServerFixture(fixtures.Fixture, abc.ABC):  # type: ignore[misc]  # untyped library
    """Base of the fixtures: the test is skipped where a program is absent."""

    @abc.abstractmethod
    def require_programs(self) -> None:
        """Find what the servers need, see :func:`.server_processes.find_program`."""

    def setUp(self) -> None:
        # Before super(): a skip inside of a fixture's _setUp counts as an error.
        self.require_programs()
        super().setUp()

    def own(self, server: _Server) -> _Server:
        """Start a new server that ends with the test."""
        self.addCleanup(server.destroy)
        server.initialize()
        server.start()
        return server
