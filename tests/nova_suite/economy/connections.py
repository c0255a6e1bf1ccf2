# SPDX-License-Identifier: Apache-2.0
"""Nova's databases, and Placement's, keep their connections, as those of a deployment do.

Where Nova's tests run on native threads their databases are SQLite files, to which oslo.db
connects anew for every transaction; each connection reads the schema of a hundred tables. That
was a fifth of what a test cost.
"""

from __future__ import annotations

import threading
import types
from typing import Any
from unittest import mock

from oslo_db.sqlalchemy import enginefacade, engines
from sqlalchemy import pool


class KeptConnections(pool.QueuePool):
    """As many connections as there are transactions at a time; a few are kept."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **({"max_overflow": -1} | options))


def install(native_threads: bool) -> None:
    """Give the engines of Nova and Placement such a pool; the plugin's are made as ever.

    Databases in memory have their one connection as before.

    :param native_threads: a connection that comes back need not let another thread run, as
        it does where threads are green and would not get a turn
    """
    overrides = {"thread_checkin": False} if native_threads else {}
    lock = threading.Lock()
    pools = types.SimpleNamespace(**vars(pool) | {"NullPool": KeptConnections})
    create = engines.create_engine

    def create_engine(*args: Any, **options: Any) -> Any:
        with lock, mock.patch.object(engines, "pool", pools):
            return create(*args, **(options | overrides))

    enginefacade.engines = types.SimpleNamespace(**vars(engines) | {"create_engine": create_engine})
