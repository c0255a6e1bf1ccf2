# SPDX-License-Identifier: Apache-2.0
"""Has a guarded Placement compare provider trees as it writes, and believes it only as far as told.

A process of Placement that is not guarded, or by an older release, writes without a look at the
condition and says nothing of it. Several processes may answer in turns, behind one address. So
each answer is believed for itself alone: who wrote without saying that all trees were the same has
compared none, and the caller compares them then. That many answers said so before only makes it
worth asking: a condition is sent as long as all answers say that their process knows conditions,
and for a while not any more once one did not.

The moments of a write that is conditional, and what each leaves:

========================================  ========================================================
written, and said to be the same          the trees were compared; nothing is asked
refused, for a tree that differs          nothing is written; compared, then written or planned anew
written, and nothing said                 compared now; taken back where more than room differs
refused for another reason                as without a condition
no answer                                 read back; what is there is compared now, what is not
                                          is sent again without a condition, and compared then
========================================  ========================================================
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs

from nova_nodb_scheduler import tree_conditions

#: After an answer of a process that knows no conditions, or lost one.
_DOUBT_SECONDS = 60.0

#: Marks of trees by their roots.
Marks = Mapping[str, tree_conditions.TreeMark]


class WriteCondition(Protocol):
    """Trees that one request's allocations were chosen for; any thread, no I/O."""

    def marks(self) -> Marks:
        """Return what is to be compared by the call that is made now.

        Of the trees that had to be when the write began, those that no call of this
        process has shown to be the same since: its own write moved their generations.
        """

    def held(self, marks: Marks) -> None:
        """Note that a call wrote, and that these were the same.

        Called before another call may write to one of them.
        """


@attrs.define(eq=False)
class ConditionTrust:
    """Says whether conditions are worth sending; any thread.

    :param clock: monotonic seconds
    """

    _clock: Callable[[], float]
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _is_known: bool = attrs.field(init=False, default=False)
    _doubted_until: float = attrs.field(init=False, default=float("-inf"))

    def holds(self) -> bool:
        return self._is_known and self._clock() >= self._doubted_until

    def note(self, response: Any, *, is_conditional: bool) -> None:
        """Take in an answer of Placement.

        :param is_conditional: a condition was sent with what it answers
        """
        answer = read_answer(response)
        is_lost = is_conditional and response.status_code < 300 and not answer.is_same
        with self._lock:
            self._is_known = answer.is_known
            if not answer.is_known or is_lost:
                self._doubted_until = self._clock() + _DOUBT_SECONDS


def read_answer(response: Any) -> tree_conditions.ConditionAnswer:
    """Return what an answer says of conditions; what stands for one may have no headers."""
    return tree_conditions.read_answer(getattr(response, "headers", None) or {})


def fit_together(one: Marks, other: Marks) -> bool:
    """Say whether requests may share a call: no tree in two states, and not too many trees.

    What only allocations tell apart is one state where contents are judged; where a process
    judges by generations alone it refuses one of the two, which is compared then.
    """
    is_one_state = all(
        other[root].contents == mark.contents != "" or other[root] == mark
        for root, mark in one.items()
        if root in other
    )
    return is_one_state and len(one.keys() | other.keys()) <= tree_conditions.MOST_TREES


def merged(each: Iterable[Marks]) -> dict[str, tree_conditions.TreeMark]:
    """Return the marks of several requests that fit together."""
    found: dict[str, tree_conditions.TreeMark] = {}
    for marks in each:
        found.update(marks)
    return found
