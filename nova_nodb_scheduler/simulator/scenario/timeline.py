# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a run, and when: read from options or from a file.

One fault a line, ``SECONDS KIND [NUMBER] [for SECONDS]``::

    30 rack-lost 3 for 120
    45 scheduler-killed 1
    60 backend-slow 0.2 for 10
"""

from __future__ import annotations

import enum
import math
import pathlib
import re
from collections.abc import Iterable, Sequence

import attrs

from nova_nodb_scheduler.simulator.scenario import workload


class FaultKind(enum.Enum):
    """What may go wrong."""

    RACK_LOST = "rack-lost"
    SCHEDULER_KILLED = "scheduler-killed"
    SCHEDULER_PAUSED = "scheduler-paused"
    #: Schedulers are killed one after the other, each drawn at random.
    SCHEDULERS_KILLED = "schedulers-killed-every"
    REPORTER_LOST = "reporter-lost"
    BACKEND_KILLED = "backend-killed"
    BACKEND_CUT = "backend-cut"
    BACKEND_SLOW = "backend-slow"


@attrs.frozen
class _Shape:
    """What a kind's line holds.

    :param number: what its number means; None where there is none
    :param lasts: whether ``for`` must, may or must not be there
    """

    number: str | None
    lasts: bool | None
    whole: bool = True


_SHAPES = {
    FaultKind.RACK_LOST: _Shape("rack", None),
    FaultKind.SCHEDULER_KILLED: _Shape("scheduler", None),
    FaultKind.SCHEDULER_PAUSED: _Shape("scheduler", True),
    FaultKind.SCHEDULERS_KILLED: _Shape("seconds between two kills", True, whole=False),
    FaultKind.REPORTER_LOST: _Shape(None, True),
    FaultKind.BACKEND_KILLED: _Shape(None, True),
    FaultKind.BACKEND_CUT: _Shape(None, True),
    FaultKind.BACKEND_SLOW: _Shape("seconds added to each call", True, whole=False),
}


@attrs.frozen
class PlannedFault:
    """One thing that goes wrong.

    :param at_seconds: simulated, from the run's beginning
    :param number: rack or scheduler, from 0; the pause of the back end or
        between kills, seconds
    :param for_seconds: how long; None: for good, and a scheduler that is killed
        is started again at once
    """

    at_seconds: float
    kind: FaultKind
    number: float = 0.0
    for_seconds: float | None = None

    @property
    def ends_at_seconds(self) -> float:
        return self.at_seconds + (self.for_seconds or 0.0)


@attrs.frozen
class FaultBounds:
    """What faults may name."""

    racks: int
    schedulers: int


def read(path: pathlib.Path) -> list[tuple[str, str]]:
    """Return a timeline's lines with their places; what is behind a ``#`` is left out.

    :raises InvalidFile: it cannot be read
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise workload.InvalidFile(f"{path}:1:1", f"it cannot be read: {error}") from error
    lines = ((n, line.partition("#")[0]) for n, line in enumerate(text.splitlines(), start=1))
    return [(f"{path}:{n}", line) for n, line in lines if line.strip()]


def parse(lines: Iterable[tuple[str, str]], bounds: FaultBounds) -> tuple[PlannedFault, ...]:
    """Return the faults of some lines, in the order of their times.

    :param lines: (place, text): ``file:line``, or an option's name
    :raises InvalidFile: the first that is wrong, with the column
    """
    faults = [_Line(place, text, bounds).fault() for place, text in lines]
    return tuple(sorted(faults, key=lambda fault: fault.at_seconds))


class _Line:
    """One line, read word by word."""

    def __init__(self, place: str, text: str, bounds: FaultBounds) -> None:
        self._place = place
        self._words = [(found.group(), found.start() + 1) for found in re.finditer(r"\S+", text)]
        self._end = len(text.rstrip()) + 1
        self._bounds = bounds

    def fault(self) -> PlannedFault:
        at_seconds = self._number("the time in seconds", 0.0)
        word, column = self._next(f"what goes wrong: {', '.join(k.value for k in FaultKind)}")
        try:
            kind = FaultKind(word)
        except ValueError as error:
            choices = ", ".join(each.value for each in FaultKind)
            raise self._wrong(column, f"{word!r} is none of {choices}") from error
        shape = _SHAPES[kind]
        number = 0.0
        if shape.number is not None:
            column = self._column
            number = self._number(shape.number, 0.0)
            self._check(kind, shape, number, column)
        for_seconds = None
        if self._words or shape.lasts:
            word, column = self._next("'for SECONDS'")
            if word != "for":
                raise self._wrong(column, f"{word!r} where 'for SECONDS' was expected")
            for_seconds = self._number("how many seconds", 0.001)
        if self._words:
            word, column = self._words[0]
            raise self._wrong(column, f"{word!r} is too much")
        return PlannedFault(at_seconds, kind, number, for_seconds)

    def _check(self, kind: FaultKind, shape: _Shape, number: float, column: int) -> None:
        if shape.whole and number != int(number):
            raise self._wrong(column, f"a {shape.number} has a whole number")
        if kind is FaultKind.SCHEDULERS_KILLED and number <= 0:
            raise self._wrong(column, "kills need some time between them")
        known = {
            FaultKind.RACK_LOST: self._bounds.racks,
            FaultKind.SCHEDULER_KILLED: self._bounds.schedulers,
            FaultKind.SCHEDULER_PAUSED: self._bounds.schedulers,
        }.get(kind)
        if known is not None and number >= known:
            raise self._wrong(
                column, f"there is no {shape.number} {number:g}: they are 0 to {known - 1}"
            )

    @property
    def _column(self) -> int:
        return self._words[0][1] if self._words else self._end

    def _next(self, wanted: str) -> tuple[str, int]:
        if not self._words:
            raise self._wrong(self._end, f"{wanted} is missing")
        return self._words.pop(0)

    def _number(self, wanted: str, least: float) -> float:
        word, column = self._next(wanted)
        try:
            value = float(word)
        except ValueError as error:
            raise self._wrong(column, f"{word!r} is no number: {wanted}") from error
        if not math.isfinite(value) or value < least:
            raise self._wrong(column, f"{word} is out of bounds: {wanted}")
        return value

    def _wrong(self, column: int, reason: str) -> workload.InvalidFile:
        return workload.InvalidFile(f"{self._place}:{column}", reason)


def end_seconds(faults: Sequence[PlannedFault]) -> float:
    """Return when the last of some faults is over."""
    return max((fault.ends_at_seconds for fault in faults), default=0.0)
