# SPDX-License-Identifier: Apache-2.0
"""Remembers records as this process last saw or wrote them, to try without a read."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from nova_nodb_scheduler.model import records

#: Records that are remembered, the last used ones.
_MOST = 4096


class LatestRecords:
    """The newest known state of some records of one epoch; any thread.

    What is remembered may be out of date, and nobody may believe it without a
    compare-and-set on its revision.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._records: dict[records.RecordKey, records.Record] = {}
        self._epoch = ""

    def see(self, epoch: str, seen: Iterable[records.Record]) -> None:
        """Take in what the feed of an epoch brought."""
        with self._lock:
            if epoch != self._epoch:
                # Revisions of two epochs do not compare.
                self._records.clear()
                self._epoch = epoch
            for record in seen:
                self._keep(record)

    @property
    def epoch(self) -> str:
        """The epoch of what is remembered; empty before the first."""
        with self._lock:
            return self._epoch

    def note(self, record: records.Record | None, epoch: str) -> None:
        """Take in what was just read or written; None is no news.

        :param epoch: that it was written in, or :attr:`epoch` as it was before it
            was read or written. Of another than the present one it is not taken:
            where the new epoch's revisions are lower, it would stand in their
            way for ever.
        """
        if record is not None:
            with self._lock:
                if epoch == self._epoch:
                    self._keep(record)

    def known(self, keys: Iterable[records.RecordKey]) -> dict[records.RecordKey, records.Record]:
        """Return what is remembered of some keys."""
        with self._lock:
            return {key: self._records[key] for key in keys if key in self._records}

    def _keep(self, record: records.Record) -> None:
        former = self._records.pop(record.key, None)
        if former is not None and former.revision > record.revision:
            record = former
        self._records[record.key] = record
        if len(self._records) > self._most:
            del self._records[next(iter(self._records))]
