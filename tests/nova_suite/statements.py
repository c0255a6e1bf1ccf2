# SPDX-License-Identifier: Apache-2.0
"""Count what a scheduling decision reads from Nova's databases.

Counted are statements of the deciding thread on the cells' and the API
database, and calls by which Nova hands a read to another thread. Placement's
fixture works in the same thread, on a database of its own, and is not counted.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import Any

import fixtures
import sqlalchemy as sa
from nova import context as nova_context
from nova.db.api import api as api_db
from nova.db.main import api as main_db

from nova_nodb_scheduler.nova_adapter.reads import request_views

#: A sub-select in place of a table is told as "(SELECT": Nova's joins with a limit.
_TABLE = re.compile(r"\b(?:FROM|UPDATE|INTO)\s+([\w(]+)", re.IGNORECASE)


class StatementsFixture(fixtures.Fixture):
    """Counts, for one test, the reads of decisions by what they read."""

    def _setUp(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        cells = main_db.get_context_manager.__self__._ctxt_mgrs.values()
        engines = [manager.writer.get_engine() for manager in cells]
        for engine in (*engines, api_db.get_engine()):
            sa.event.listen(engine, "before_cursor_execute", self._execute)
            self.addCleanup(sa.event.remove, engine, "before_cursor_execute", self._execute)
        original = nova_context.scatter_gather_cells

        def scatter_gather_cells(
            context: Any, mappings: Any, timeout: Any, function: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if request_views.current() is not None:
                self._count(f"scatter-gather of {function.__qualname__}")
            return original(context, mappings, timeout, function, *args, **kwargs)

        self.useFixture(
            fixtures.MonkeyPatch("nova.context.scatter_gather_cells", scatter_gather_cells)
        )

    def _execute(self, _connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if request_views.current() is None:
            return
        verb = statement.split(None, 1)[0]
        table = _TABLE.search(statement)
        if table is not None:
            self._count(f"{verb} {table[1]}")
        elif verb not in ("BEGIN", "PRAGMA"):
            self._count(verb)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1
