# SPDX-License-Identifier: Apache-2.0
"""Whether the store still has the history that was seen of it.

A backup that is restored with the names and the token of its cluster has the
cluster's id, and the epoch of the time it was taken. Where its revisions have
passed those that a client saw, before that looks again, nothing in the numbers
tells that others are counted: the client would miss changes, and what was
granted since the backup would be granted again. Two things tell:

*The token of the head.* Each transaction of writes puts a random one into the
head's key. A client remembers the last that it saw, and has each look and each
write read the key *as it stood at the revision at which it saw it*: in the same
transaction, so that it costs nothing, and leaves no time between the look and
what stands on it. In another history it has another token there, or another
mod_revision, or that revision is to come yet.

*The lead of the revisions.* Each revision is an entry of the log that the
members agree on, so within a life of a cluster (revision - index of the log)
never grows. A restored backup begins its log anew and keeps the revision. The
epoch's key tells the lead when the epoch began, so a process that remembers
nothing sees at its start that the store was restored since.

What neither shows is in the administrator's guide: a disk rolled back while
all services stood still, or a history that was compacted before anybody looked.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.synchronizer.drivers.etcd import layout, transactions

#: Revision and index are not read at one moment, and entries may wait to be
#: applied; a smaller jump says nothing.
LEAD_MARGIN = 1000
TOKEN_BYTES = 8


@attrs.frozen
class Witness:
    """The head as it was seen.

    :param seen_at: the store's revision
    :param revision: the head's mod_revision
    :param token: its value; empty where a former release wrote it
    """

    cluster: str
    seen_at: int
    revision: int
    token: bytes

    def operation(self, keys: layout.Layout) -> transactions.Operation:
        """Return how a transaction shows what stands there now, for :meth:`is_contradicted`."""
        return transactions.get_at(keys.head_key, self.seen_at)

    def is_contradicted(self, held: layout.KeyValue | None) -> bool:
        """Say whether what stood at that revision is not what was seen."""
        return (
            held is None
            or layout.mod_revision(held) != self.revision
            or layout.value_of(held) != self.token
        )


class History:
    """What one client has seen of the store; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._witness: Witness | None = None
        self._newest: layout.Epoch | None = None

    @property
    def witness(self) -> Witness | None:
        """The last head that was seen; None where there is none to compare with."""
        return self._witness

    @property
    def newest(self) -> layout.Epoch | None:
        """The newest epoch that was seen, in whatever cluster."""
        return self._newest

    def note(self, epoch: layout.Epoch, witness: Witness) -> None:
        """Remember what was seen, unless something later was."""
        with self._lock:
            if self._newest is not None and epoch.order < self._newest.order:
                return
            if epoch != self._newest:
                self._newest, self._witness = epoch, witness
            elif self._witness is None or witness.seen_at > self._witness.seen_at:
                self._witness = witness

    def forget(self, witness: Witness) -> None:
        """Compare with it no more: its revision was compacted."""
        with self._lock:
            if self._witness == witness:
                self._witness = None

    def objection(self, epoch: layout.Epoch, *, contradicted: bool) -> str | None:
        """Return why an epoch that stands in the store must not be gone on with.

        :param contradicted: whether the witness that was taken before is
        """
        newest = self._newest
        if newest is None or epoch.order > newest.order:
            return None
        if epoch != newest:
            return (
                f"epoch {epoch.cursor_name} is older than {newest.cursor_name}, which was seen "
                "already: a restored backup, or an address that went back to another store"
            )
        if contradicted:
            return "its history is another than was seen of it: a restored backup"
        return None


def lead_of(status: Mapping[str, Any]) -> int | None:
    """Return how many revisions a member counts beyond its log; None where it does not tell.

    :param status: the member's answer to /maintenance/status
    """
    index = status.get("raftAppliedIndex", status.get("raftIndex"))
    if index is None:
        return None
    return int(status["header"].get("revision", 0)) - int(index)


def was_restored(epoch: layout.Epoch, lead: int | None) -> bool:
    """Say whether a store with this lead was restored since an epoch began in it."""
    return lead is not None and epoch.lead is not None and lead - epoch.lead > LEAD_MARGIN
