# SPDX-License-Identifier: Apache-2.0
"""What Placement was asked, by its own request log."""

import collections
import pathlib
import re

#: 127.0.0.1 "GET /allocation_candidates?limit=1000..." status: 200 len: 42 microversion: 1.36
_REQUEST = re.compile(r'"(GET|PUT|POST|DELETE) (?:/placement)?/([a-z_]*)[^"]*" status: \d+')


class PlacementRequests:
    """Requests by method and first part of the path, from when it was made."""

    def __init__(self, log: pathlib.Path) -> None:
        self._log = log
        self._begin = log.stat().st_size if log.exists() else 0

    def counts(self) -> collections.Counter[str]:
        """Return for instance ``{"GET allocation_candidates": 20}``."""
        found: collections.Counter[str] = collections.Counter()
        if not self._log.exists():
            return found
        with self._log.open(errors="replace") as log:
            log.seek(self._begin)
            for line in log:
                request = _REQUEST.search(line)
                if request is not None:
                    found[f"{request[1]} {request[2]}"] += 1
        return found
