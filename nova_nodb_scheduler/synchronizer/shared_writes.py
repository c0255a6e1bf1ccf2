# SPDX-License-Identifier: Apache-2.0
"""Lets the writes of several threads share one call to the back end.

Nobody waits for company: only what queues up while a call is under way goes
together in the next one. Each write wins or loses by itself in any case; what
is shared is the transaction, or the round trip, around them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records

#: Writes of one call, beyond which the rest goes in the next one.
_MOST = 64


class SharedWrites:
    """One way to the back end for the threads of a process.

    :param write: carries out writes, each by itself; called by one thread at a
        time, whichever's it is
    :param most: writes of one call; a thread with more still has one
    """

    def __init__(
        self,
        write: Callable[[Sequence[records.Write]], list[records.WriteResult]],
        most: int = _MOST,
    ) -> None:
        self._write = write
        self._most = most
        self._changed = threading.Condition()
        self._waiting: list[_Call] = []
        self._busy = False

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        """Carry out writes, perhaps together with others'.

        Returns and raises as :meth:`contract.Synchronizer.write` does.
        """
        call = _Call(writes)
        with self._changed:
            self._waiting.append(call)
        while True:
            with self._changed:
                while self._busy and not call.is_over:
                    self._changed.wait()
                if call.is_over:
                    return call.answer()
                self._busy = True
                calls = self._take()
            try:
                self._carry_out(calls)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _take(self) -> list[_Call]:
        """Take the calls that go next, in their order; no key may occur twice."""
        taken: list[_Call] = []
        left: list[_Call] = []
        keys: set[records.RecordKey] = set()
        count = 0
        for call in self._waiting:
            own = {write.key for write in call.writes}
            count += len(call.writes)
            if taken and (count > self._most or keys & own):
                left.append(call)
            else:
                taken.append(call)
            # Whoever comes later for the same record does not overtake.
            keys |= own
        self._waiting = left
        return taken

    def _carry_out(self, calls: Sequence[_Call]) -> None:
        try:
            results = iter(self._write([write for call in calls for write in call.writes]))
            for call in calls:
                call.results = [next(results) for _ in call.writes]
        except errors.BackendUnavailable as error:
            for call in calls:
                call.error = error
        except (errors.NodbError, ValueError) as error:
            if len(calls) == 1:
                calls[0].error = error
                return
            # One of them has what no driver takes; nothing was sent.
            for call in calls:
                self._carry_out([call])
        finally:
            # The thread dies in here: what became of the others' nobody knows.
            for call in calls:
                call.give_up()


class _Call:
    def __init__(self, writes: Sequence[records.Write]) -> None:
        self.writes = writes
        self.results: list[records.WriteResult] | None = None
        self.error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.results is not None or self.error is not None

    def give_up(self) -> None:
        """Answer that nobody knows, where there is no answer yet."""
        if not self.is_over:
            self.results = [records.WriteResult(records.Verdict.UNKNOWN) for _ in self.writes]

    def answer(self) -> list[records.WriteResult]:
        if self.error is not None:
            raise self.error
        assert self.results is not None
        return self.results
