# SPDX-License-Identifier: Apache-2.0
"""What trees the request under way wants compared, and what came of it; nothing of Placement.

Placement's functions hand the request to none that writes, so it is kept beside them, for the
thread that answers it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import tree_conditions

#: As WSGI names the request's headers.
_TREES, _CONTENTS = (
    "HTTP_" + name.upper().replace("-", "_")
    for name in (tree_conditions.REQUEST, tree_conditions.CONTENTS)
)


@attrs.define(eq=False)
class RequestedTrees:
    """The trees of one request.

    :param marks: by root, as the request names them
    :ivar differing: roots of those that are not so, as the last transaction found them; None
        while none has looked
    """

    marks: Mapping[str, tree_conditions.TreeMark]
    differing: frozenset[str] | None = None


_of_request: contextvars.ContextVar[RequestedTrees | None] = contextvars.ContextVar(
    "requested_trees", default=None
)


def of_request() -> RequestedTrees | None:
    """Return what the request under way wants compared, if anything."""
    return _of_request.get()


@contextlib.contextmanager
def of(environ: Mapping[str, Any]) -> Iterator[RequestedTrees]:
    """Keep what a request wants compared while it is answered."""
    asked = RequestedTrees(
        tree_conditions.read_request(environ.get(_TREES), environ.get(_CONTENTS))
    )
    token = _of_request.set(asked if asked.marks else None)
    try:
        yield asked
    finally:
        _of_request.reset(token)
