# SPDX-License-Identifier: Apache-2.0
"""A psycopg connection on which no exchange outlives a time-out.

PyMySQL sets time-outs on its socket; libpq has none. A PostgreSQL server that
is stopped, or a path that went dark after the request, would hang a thread
for hours: statement_timeout is the server's, and TCP still acknowledges.
"""

from __future__ import annotations

import selectors
import time
from typing import Any

import psycopg
import psycopg.waiting


class DeadlineConnection(psycopg.Connection[Any]):  # type: ignore[misc]
    """Gives every exchange ``io_timeout_seconds``, then closes itself."""

    io_timeout_seconds: float = 5.0

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Drive one of psycopg's generators to its end, or fail in time."""
        deadline = time.monotonic() + self.io_timeout_seconds
        try:
            wanted = next(gen)
            with selectors.DefaultSelector() as selector:
                while True:
                    selector.register(self.pgconn.socket, int(wanted))
                    ready = selector.select(max(0.0, deadline - time.monotonic()))
                    selector.unregister(self.pgconn.socket)
                    if not ready:
                        # Nothing more is sent on it, and SQLAlchemy sees that
                        # it is closed and drops it from the pool.
                        self.pgconn.finish()
                        raise psycopg.OperationalError(
                            f"no answer within {self.io_timeout_seconds:g} seconds"
                        )
                    wanted = gen.send(psycopg.waiting.Ready(ready[0][1]))
        except StopIteration as end:
            return end.value


def connect(io_timeout_seconds: float, *args: Any, **parameters: Any) -> DeadlineConnection:
    """Connect as psycopg does, with a time-out on everything that follows."""
    connection: DeadlineConnection = DeadlineConnection.connect(*args, **parameters)
    connection.io_timeout_seconds = io_timeout_seconds
    return connection
