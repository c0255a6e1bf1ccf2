# SPDX-License-Identifier: Apache-2.0
"""Tells what won where a compare-and-set on a host's claims was lost.

The record that the loser had in mind is compared with the one that stands:
both passed by here, read, written or brought by the feed.
"""

from __future__ import annotations

import collections
import enum
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
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


class Witness:
    """Remembers claims' records that passed by; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[records.RecordKey, collections.OrderedDict[int, records.Record]] = {}

    def see(self, passing: Iterable[records.Record | None]) -> None:
        """Take in records; those of other namespaces are passed over."""
        for record in passing:
            if record is None or record.key.namespace != namespaces.CLAIM_RECORDS.name:
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
