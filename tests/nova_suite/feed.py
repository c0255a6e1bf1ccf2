# SPDX-License-Identifier: Apache-2.0
"""Wait between two API calls until a scheduler's feed has caught up, and count it."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterable

#: Far beyond what the feed needs (poll interval 25 to 100 ms): a wait that reaches it
#: is a failure, and counted as one.
WAIT_SECONDS = 10.0


class FeedWaits:
    """The waits of one test, and what else its scheduler has to account for."""

    def __init__(self, test_id: str) -> None:
        self._test_id = test_id
        self._durations_seconds: list[float] = []
        self._failed = 0
        self.fallbacks: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()
        self.candidates: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.claims: Counter[str] = Counter()
        #: What conductors allocated by themselves: under a claim or not, or were refused.
        self.outside: Counter[str] = Counter()
        self._differences: list[str] = []

    def add_differences(self, differences: Iterable[object]) -> None:
        """Note records that differ from Nova's tables after everything was published."""
        self._differences.extend(str(difference) for difference in differences)

    def wait(self, caught_up: Callable[[], bool]) -> None:
        """Call something that blocks until the feed caught up.

        :param caught_up: returns False if it did not
        """
        began = time.monotonic()
        if not caught_up():
            self._failed += 1
        self._durations_seconds.append(time.monotonic() - began)

    def file(self, results: pathlib.Path) -> None:
        """Append one line for the report, to a file of this process."""
        line = {
            "test": self._test_id,
            "waits": len(self._durations_seconds),
            "seconds": round(sum(self._durations_seconds), 4),
            "longest_seconds": round(max(self._durations_seconds, default=0.0), 4),
            "failed": self._failed,
            "fallbacks": dict(self.fallbacks),
            "decisions": dict(self.decisions),
            "candidates": dict(self.candidates),
            "reads": dict(self.reads),
            "claims": dict(self.claims),
            "outside": dict(self.outside),
            "differences": self._differences,
        }
        with (results / f"feed.{os.getpid()}.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")
