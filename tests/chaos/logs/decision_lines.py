# SPDX-License-Identifier: Apache-2.0
"""Which way requests took, by the lines that schedulers log of each."""

import collections
import pathlib
import re
from collections.abc import Iterable, Mapping

_LEFT = re.compile(r"are decided among Placement's candidates: (?P<why>.*)\.$")


class DecisionLines:
    """Reads what was written to some logs since it was made.

    :param logs: of schedulers; one that is not there yet is read from its begin
    """

    def __init__(self, logs: Iterable[pathlib.Path]) -> None:
        self._offsets = {log: log.stat().st_size if log.exists() else 0 for log in logs}

    def left_memory(self) -> Mapping[str, int]:
        """Return how many requests were decided by Nova's own code, by reason."""
        found: collections.Counter[str] = collections.Counter()
        for log, offset in self._offsets.items():
            if not log.exists():
                continue
            with log.open("rb") as file:
                file.seek(offset)
                text = file.read().decode(errors="replace")
            found.update(
                match["why"] for line in text.splitlines() if (match := _LEFT.search(line))
            )
        return dict(sorted(found.items()))
