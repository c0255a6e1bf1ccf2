# SPDX-License-Identifier: Apache-2.0
"""Counts SQL statements that name ``compute_nodes`` and are not the plugin's own.

Where records answer for compute nodes there should be none: each is a reader or a writer
that was missed, such as another plugin, or a function that a new release of Nova brought.
It is counted, and the first of each kind is logged with whoever sent it.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

LOG = logging.getLogger(__name__)

#: The table itself, not the one of archived rows.
_NAMED = re.compile(r"\bcompute_nodes\b")
#: Kinds of statements that are logged; frames of the sender that are shown.
_MOST_SAID = 20
_FRAMES = 12

_own = threading.local()


@contextlib.contextmanager
def own_statements() -> Iterator[None]:
    """Let statements of this thread pass: they are the plugin's."""
    depth = _depth()
    _own.depth = depth + 1
    try:
        yield
    finally:
        _own.depth = depth


def _depth() -> int:
    depth: int = getattr(_own, "depth", 0)
    return depth


class TableTripwire:
    """Sees the statements of all of SQLAlchemy's engines in this process.

    Setting it and taking it away are for one thread; statements come from any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        self._said: set[str] = set()

    def set(self) -> None:
        """Begin to count; idempotent."""
        if not event.contains(sa.Engine, "before_cursor_execute", self._look):
            event.listen(sa.Engine, "before_cursor_execute", self._look)

    def unset(self) -> None:
        """Count no more; idempotent."""
        if event.contains(sa.Engine, "before_cursor_execute", self._look):
            event.remove(sa.Engine, "before_cursor_execute", self._look)

    def counts(self) -> Mapping[str, int]:
        """Return how many statements there were by their verb, in lower case."""
        with self._lock:
            return dict(self._counts)

    def _look(self, _connection: Any, _cursor: Any, statement: str, *_arguments: Any) -> None:
        if _NAMED.search(statement) is None or _depth():
            return
        verb = statement.split(None, 1)[0].lower()
        with self._lock:
            self._counts[verb] += 1
            if statement in self._said or len(self._said) >= _MOST_SAID:
                return
            self._said.add(statement)
        LOG.warning(
            "A statement named compute_nodes although records answer for it (said once): "
            "%(statement)s\n%(sender)s",
            {
                "statement": " ".join(statement.split())[:300],
                "sender": "".join(traceback.format_stack(limit=_FRAMES + 8)[:_FRAMES]),
            },
        )
