# SPDX-License-Identifier: Apache-2.0
"""What can be fuzzed: the protocol, and how a run goes."""

from __future__ import annotations

import random
import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import attrs

#: One case of so many is traced, for the memory that it takes by itself.
_TRACED_OF = 997


class Finding(AssertionError):
    """Something that must not be; any other exception of a case is a finding as well."""


class Target(Protocol):
    """One thing to be fuzzed; made once a run, used by one thread."""

    #: Most bytes that one case may take beside what it keeps, by tracemalloc.
    case_bytes: int

    def case(self, dice: random.Random) -> str:
        """Do one case, drawn by the dice alone; return what kind of end it took.

        :raises Finding: it must not have ended so
        """

    def close(self) -> None:
        """Release what was started."""


@attrs.frozen
class Found:
    """A case that failed; ``--seed S --first N --cases 1`` runs it again."""

    number: int
    error: str


@attrs.frozen
class Figures:
    """What a run came to.

    :param ends: how many cases took which end
    :param peak_rss_bytes: of the process, from its beginning
    :param peak_case_bytes: of the cases that were traced, tracemalloc
    """

    target: str
    seed: int
    cases: int
    seconds: float
    ends: dict[str, int]
    findings: tuple[Found, ...]
    peak_rss_bytes: int
    peak_case_bytes: int


def dice_of(seed: int, number: int) -> random.Random:
    """Return the dice of one case: each can be run again alone."""
    return random.Random(f"{seed}/{number}")


def run(
    name: str,
    make: Callable[[], Target],
    *,
    seed: int,
    cases: int,
    first: int = 0,
    most_findings: int = 20,
    progress: Callable[[int], None] = lambda done: None,
) -> Figures:
    """Run cases until all are done, or too many failed."""
    target = make()
    ends: Counter[str] = Counter()
    findings: list[Found] = []
    peak_case_bytes = 0
    started = time.monotonic()
    number = first
    try:
        for number in range(first, first + cases):
            traced = number % _TRACED_OF == 0
            if traced:
                tracemalloc.start()
            try:
                ends[target.case(dice_of(seed, number))] += 1
                if traced:
                    peak = tracemalloc.get_traced_memory()[1]
                    peak_case_bytes = max(peak_case_bytes, peak)
                    if peak > target.case_bytes:
                        raise Finding(f"it took {peak} bytes, at most {target.case_bytes}")
            except Exception as error:
                findings.append(Found(number, f"{type(error).__name__}: {error}"[:300]))
                if len(findings) >= most_findings:
                    break
            finally:
                if traced:
                    tracemalloc.stop()
            if number % 10_000 == 0:
                progress(number - first)
    finally:
        target.close()
    return Figures(
        name,
        seed,
        number - first + 1,
        time.monotonic() - started,
        dict(sorted(ends.items())),
        tuple(findings),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux counts in KiB
        peak_case_bytes,
    )
