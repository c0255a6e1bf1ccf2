# SPDX-License-Identifier: Apache-2.0
"""The response header by which a guarded Placement is known; imports nothing of Placement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

NAME = "X-Nodb-Placement-Guard"

#: What is guarded: allocations are written under locks of their providers.
VALUE = "allocations"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def added_to(application: Application) -> Application:
    """Return the WSGI application with the header on every answer, errors included."""

    def with_header(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            return start_response(status, [*headers, (NAME, VALUE)], *exc_info)

        return application(environ, start)

    return with_header


def is_in(headers: Mapping[str, str]) -> bool:
    """Tell whether the headers of an answer are a guarded Placement's."""
    return headers.get(NAME) == VALUE
