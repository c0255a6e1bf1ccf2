# SPDX-License-Identifier: Apache-2.0
"""The response headers by which a guarded Placement is known; imports nothing of Placement.

That it knows conditions has a header of its own: plugins of before compare the other's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.placement_adapter import requested_trees

NAME = "X-Nodb-Placement-Guard"

#: What is guarded: allocations are written under locks of their providers.
VALUE = "allocations"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def added_to(application: Application) -> Application:
    """Return the WSGI application with the headers on every answer, errors included."""

    def with_header(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with requested_trees.of(environ) as asked:

            def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
                own = [(NAME, VALUE), (tree_conditions.ANSWER, _compared(asked, status))]
                return start_response(status, [*headers, *own], *exc_info)

            return application(environ, start)

    return with_header


def _compared(asked: requested_trees.RequestedTrees, status: str) -> str:
    """Say what came of conditions; of a refusal for other reasons, nothing.

    A transaction that had found all trees the same may have come to nothing since.
    """
    is_written = status.startswith("2")
    return tree_conditions.answered(asked.differing if is_written or asked.differing else None)


def is_in(headers: Mapping[str, str]) -> bool:
    """Tell whether the headers of an answer are a guarded Placement's."""
    return headers.get(NAME) == VALUE


def knows_conditions(headers: Mapping[str, str]) -> bool:
    """Tell whether who answered compares provider trees as it writes."""
    return tree_conditions.read_answer(headers).is_known
