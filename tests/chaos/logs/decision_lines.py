# SPDX-License-Identifier: Apache-2.0
"""Which way requests took, by the lines that schedulers log of each."""

import collections
import pathlib
import re
from collections.abc import Iterable, Mapping

from tests.chaos.logs import log_tails

_LEFT = re.compile(r"are decided among Placement's candidates: (?P<why>.*)\.$")


class DecisionLines:
    """Reads what was written to some logs since it was made.

    :param logs: of schedulers; one that is not there yet is read from its begin
    """

    def __init__(self, logs: Iterable[pathlib.Path]) -> None:
        self._tails = [log_tails.LogTail(log) for log in logs]

    def left_memory(self) -> Mapping[str, int]:
        """Return how many requests were decided by Nova's own code, by reason."""
        told = map(_LEFT.search, log_tails.lines(self._tails))
        found = collections.Counter(match["why"] for match in told if match)
        return dict(sorted(found.items()))
