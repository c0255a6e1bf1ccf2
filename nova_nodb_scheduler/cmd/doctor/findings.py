# SPDX-License-Identifier: Apache-2.0
"""What the doctor finds, how bad it is, and what to do about it."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd.framework import bounded, guard


class Severity(enum.Enum):
    """How bad a finding is; in the order in which they are shown."""

    ERROR = "error"
    WARNING = "warning"
    #: Nobody could find out, which is no clean bill.
    UNKNOWN = "unknown"
    OK = "ok"


@attrs.frozen
class DoctorFinding:
    """One thing that was looked at.

    :param area: what was looked at, in a few words
    :param text: what is there, as a sentence
    :param remedy: what to do, as a sentence; empty where nothing is to be done
    """

    severity: Severity
    area: str
    text: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return plain values for JSON."""
        return {
            "severity": self.severity.value,
            "area": self.area,
            "text": self.text,
            "remedy": self.remedy,
        }


def fine(area: str, text: str) -> DoctorFinding:
    """Return what needs no mending."""
    return DoctorFinding(Severity.OK, area, text)


def warning(area: str, text: str, remedy: str) -> DoctorFinding:
    """Return what should be mended."""
    return DoctorFinding(Severity.WARNING, area, text, remedy)


def error(area: str, text: str, remedy: str) -> DoctorFinding:
    """Return what must be mended."""
    return DoctorFinding(Severity.ERROR, area, text, remedy)


def unknown(area: str, cause: str, remedy: str = "") -> DoctorFinding:
    """Return what nobody could find out, with its cause."""
    return DoctorFinding(Severity.UNKNOWN, area, f"Could not find out: {cause}", remedy)


def in_order(found: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """Return the worst first."""
    order = list(Severity)
    return sorted(found, key=lambda each: order.index(each.severity))


def exit_status(found: Iterable[DoctorFinding]) -> int:
    """Return 2 for errors, 1 for warnings and what could not be found out, else 0."""
    severities = {each.severity for each in found}
    if Severity.ERROR in severities:
        return 2
    return 1 if severities & {Severity.WARNING, Severity.UNKNOWN} else 0


#: A check: its area, and what looks.
Check = tuple[str, Callable[[], Sequence[DoctorFinding]]]


def run(checks: Sequence[Check], bound_seconds: float) -> list[DoctorFinding]:
    """Run checks beside one another; who has not ended in time could not find out.

    A database or a server that does not answer holds its own checks up, and is
    left behind in a thread that does not keep the process.

    :param bound_seconds: for all of them together
    """
    questions = [
        (area, bounded.BoundedQuestion(functools.partial(_look, area, check)))
        for area, check in checks
    ]
    deadline = bounded.Deadline(bound_seconds)
    found: list[DoctorFinding] = []
    for area, question in questions:
        try:
            found += question.answer(deadline.left_seconds())
        except errors.NoAnswerInTime:
            found.append(unknown(area, f"no answer within {bound_seconds:.0f} s."))
    return found


def _look(area: str, check: Callable[[], Sequence[DoctorFinding]]) -> Sequence[DoctorFinding]:
    try:
        return check()
    except Exception as failure:  # noqa: BLE001 - whatever it is, the others are shown
        return [unknown(area, _said(failure))]


class NotKnown(Exception):
    """What another check tells of keeps this one from finding out; the text says which."""


#: How a check is told that needs the back end, which another one tells of.
NO_BACKEND = "the back end does not answer."


def _said(failure: Any) -> str:
    if isinstance(failure, errors.BackendUnavailable):
        # Said whole by the check of the back end.
        return NO_BACKEND
    if isinstance(failure, errors.NodbError | NotKnown):
        return guard.masked(str(failure))
    # SQLAlchemy adds its statement in lines of their own.
    text = guard.masked(str(failure).partition("\n")[0])[:300]
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__
