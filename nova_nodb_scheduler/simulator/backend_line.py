# SPDX-License-Identifier: Apache-2.0
"""The line between a process and the back end, which a run can slow down or cut.

It stands before any driver, so faults need no proxy and no server, and SQLite
can be cut off like a server. All processes of a run share the line's state.
"""

from __future__ import annotations

import collections
import enum
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from multiprocessing import context as mp_context
from typing import TypeVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.simulator import conflicts as conflicts_module
from nova_nodb_scheduler.synchronizer import contract

T = TypeVar("T")


class Fault(enum.IntEnum):
    """What is wrong with the line."""

    NONE = 0
    #: Requests vanish, and each call ends with its time-out.
    CUT = 1
    #: Nobody listens: each call fails at once.
    REFUSED = 2


class Line:
    """The state that all processes see; made by the world and handed to each at its start.

    Nothing is locked: each value is written by the world alone.
    """

    def __init__(self, context: mp_context.SpawnContext) -> None:
        self._fault = context.RawValue("i", Fault.NONE)
        self._delay_seconds = context.RawValue("d", 0.0)

    def set(self, fault: Fault = Fault.NONE, delay_seconds: float = 0.0) -> None:
        """Break or heal the line.

        :param delay_seconds: added to each call
        """
        self._delay_seconds.value = delay_seconds
        self._fault.value = int(fault)

    @property
    def fault(self) -> Fault:
        return Fault(self._fault.value)

    @property
    def delay_seconds(self) -> float:
        return float(self._delay_seconds.value)


class LinedSynchronizer(contract.Synchronizer):
    """A driver at the end of a line.

    :param timeout_seconds: after which a call over a cut line ends
    :param witness: of the claims that pass by; its own unless given
    :ivar writes_lost: compare-and-sets on claims that others won, by what won
    :ivar failed_calls: calls that the line made fail
    """

    def __init__(
        self,
        inner: contract.Synchronizer,
        line: Line,
        *,
        timeout_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        witness: conflicts_module.Witness | None = None,
    ) -> None:
        self._inner = inner
        self._line = line
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self.name = inner.name
        self._witness = witness or conflicts_module.Witness()
        self.writes_lost: collections.Counter[str] = collections.Counter()
        self.failed_calls = 0

    def beside(self) -> LinedSynchronizer:
        """Return the same driver at the same line, with counts of its own."""
        return LinedSynchronizer(
            self._inner,
            self._line,
            timeout_seconds=self._timeout_seconds,
            sleep=self._sleep,
            witness=self._witness,
        )

    @property
    def capabilities(self) -> contract.Capabilities:
        return self._inner.capabilities

    def open(self) -> None:
        self._pass()
        self._inner.open()

    def close(self) -> None:
        self._inner.close()

    def head(self) -> records.Cursor:
        self._pass()
        return self._inner.head()

    def snapshot(self, namespaces: Collection[str] | None = None) -> contract.SnapshotPages:
        self._pass()
        found = self._inner.snapshot(namespaces)
        return contract.SnapshotPages(found.cursor, self._paged(found.pages))

    def _paged(
        self, pages: Iterator[Sequence[records.Record]]
    ) -> Iterator[Sequence[records.Record]]:
        for page in pages:
            self._pass()
            self._witness.see(page)
            yield page

    def fetch(
        self, cursor: records.Cursor, limit: int = 1000
    ) -> records.Changes | records.ResyncNeeded:
        self._pass()
        found = self._inner.fetch(cursor, limit)
        if isinstance(found, records.Changes):
            self._witness.see(found.records)
        return found

    def wait(self, cursor: records.Cursor, timeout_seconds: float) -> bool:
        self._pass()
        return self._inner.wait(cursor, timeout_seconds)

    def read(
        self, keys: Collection[records.RecordKey]
    ) -> Mapping[records.RecordKey, records.Record]:
        self._pass()
        found = self._inner.read(keys)
        self._witness.see(found.values())
        return found

    def write(
        self, writes: Sequence[records.Write], *, atomic: bool = False
    ) -> list[records.WriteResult]:
        self._pass()
        results = self._inner.write(writes, atomic=atomic)
        if self._line.fault is not Fault.NONE:
            # It was cut while the request was away: done, and nobody was told.
            return [records.WriteResult(records.Verdict.UNKNOWN) for _ in results]
        for write, result in zip(writes, results, strict=True):
            if (
                result.verdict is records.Verdict.LOST
                and write.key.namespace == namespaces.CLAIM_RECORDS.name
            ):
                self.writes_lost[self._witness.cause(write, result.record).value] += 1
        self._witness.see(result.record for result in results)
        return results

    def now_seconds(self) -> float:
        self._pass()
        return self._inner.now_seconds()

    def collect(self, keep_seconds: float) -> contract.Collected:
        self._pass()
        return self._inner.collect(keep_seconds)

    def statistics(self) -> Mapping[str, int | float | str]:
        self._pass()
        return self._inner.statistics()

    def reset(self) -> None:
        self._pass()
        self._inner.reset()

    def _pass(self) -> None:
        """Go through the line.

        :raises BackendUnavailable: it is broken; nothing was sent
        """
        if self._line.delay_seconds:
            self._sleep(self._line.delay_seconds)
        fault = self._line.fault
        if fault is Fault.NONE:
            return
        self.failed_calls += 1
        if fault is Fault.CUT:
            self._sleep(self._timeout_seconds)
        raise errors.BackendUnavailable(self.name, f"the line is {fault.name.lower()} (simulated)")
