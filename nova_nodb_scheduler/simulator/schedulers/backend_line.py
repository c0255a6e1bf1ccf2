# SPDX-License-Identifier: Apache-2.0
"""The line between a process and the back end: it can be slowed or cut, and sees who wins writes.

It stands before any driver, so faults need no proxy and no server, and SQLite
can be cut off like a server. All processes of a run share the line's state.
Where a compare-and-set on claims is lost, the record that the loser had in mind
is compared with the one that stands: both passed by here.
"""

from __future__ import annotations

import collections
import enum
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from multiprocessing import context as mp_context
from typing import Any, TypeVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

#: Revisions of a record that are remembered.
_KEPT = 8


class Cause(enum.Enum):
    """What was written in between; of several the first that applies."""

    TAKEN = "another claim was taken"
    CONFIRMED = "another claim was confirmed"
    SETTLED = "claims were settled"
    RELEASED = "a claim was released"
    OTHER = "other"


class SeenClaims:
    """Remembers claims' records that passed by; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[records.RecordKey, collections.OrderedDict[int, records.Record]] = {}

    def see(self, passing: Iterable[records.Record | None]) -> None:
        """Take in records; those of other namespaces are passed over."""
        for record in passing:
            if record is None or record.key.namespace != known_namespaces.CLAIM_RECORDS.name:
                continue
            with self._lock:
                kept = self._seen.setdefault(record.key, collections.OrderedDict())
                kept[record.revision] = record
                if len(kept) > _KEPT:
                    kept.popitem(last=False)

    def cause(self, lost: records.Write, standing: records.Record | None) -> Cause:
        """Say what a lost write lost to."""
        with self._lock:
            kept = self._seen.get(lost.key)
            believed = None if kept is None else kept.get(lost.expected_revision)
        if believed is None and lost.expected_revision:
            return Cause.OTHER
        try:
            return _difference(_state(believed), _state(standing))
        except errors.UndecodableRecord:
            return Cause.OTHER


def _state(record: records.Record | None) -> Mapping[str, Any]:
    if record is None or record.deleted:
        return {}
    return codec.decode_state(record.payload)


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Cause:
    old, new = before.get("claims", {}), after.get("claims", {})
    states = {name: held["state"] for name, held in old.items()}
    if any(
        name not in old or old[name]["claim_id"] != held["claim_id"] for name, held in new.items()
    ):
        return Cause.TAKEN
    if any(states[name] != held["state"] for name, held in new.items()):
        return Cause.CONFIRMED
    if before.get("settled") != after.get("settled"):
        return Cause.SETTLED
    return Cause.RELEASED if old.keys() - new.keys() else Cause.OTHER


T = TypeVar("T")


class LineFault(enum.IntEnum):
    """What is wrong with the line."""

    NONE = 0
    #: Requests vanish, and each call ends with its time-out.
    CUT = 1
    #: Nobody listens: each call fails at once.
    REFUSED = 2


class BackendLine:
    """The state that all processes see; made by the world and handed to each at its start.

    Nothing is locked: each value is written by the world alone.
    """

    def __init__(self, context: mp_context.BaseContext) -> None:
        self._fault = context.RawValue("i", LineFault.NONE)
        self._delay_seconds = context.RawValue("d", 0.0)

    def set(self, fault: LineFault = LineFault.NONE, delay_seconds: float = 0.0) -> None:
        """Break or heal the line.

        :param delay_seconds: added to each call
        """
        self._delay_seconds.value = delay_seconds
        self._fault.value = int(fault)

    @property
    def fault(self) -> LineFault:
        return LineFault(self._fault.value)

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
        line: BackendLine,
        *,
        timeout_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
        witness: SeenClaims | None = None,
    ) -> None:
        self._inner = inner
        self._line = line
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self.name = inner.name
        self._witness = witness or SeenClaims()
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

    def write(self, writes: Sequence[records.Write]) -> list[records.WriteResult]:
        self._pass()
        results = self._inner.write(writes)
        if self._line.fault is not LineFault.NONE:
            # It was cut while the request was away: done, and nobody was told.
            return [records.WriteResult(records.Verdict.UNKNOWN) for _ in results]
        for write, result in zip(writes, results, strict=True):
            if (
                result.verdict is records.Verdict.LOST
                and write.key.namespace == known_namespaces.CLAIM_RECORDS.name
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
        if fault is LineFault.NONE:
            return
        self.failed_calls += 1
        if fault is LineFault.CUT:
            self._sleep(self._timeout_seconds)
        raise errors.BackendUnavailable(self.name, f"the line is {fault.name.lower()} (simulated)")
