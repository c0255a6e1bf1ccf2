# SPDX-License-Identifier: Apache-2.0
"""Epochs in etcd: who starts one, and how another store, or an older state of it, is noticed.

Every write compares the revision of the epoch's key, so nothing of an earlier
epoch can be written once a new one has begun. A restored backup holds that key
as well, but is a new cluster, or has another history than was seen of it:
whoever sees that begins a new epoch, which is empty. What the backup holds is
not gone on with: claims that were granted since are not in it. Nor is an epoch
adopted that is older than one that was seen. Each epoch has a greater base than
all before it, for the revisions of a restored store come a second time.

A backup that is restored with the names and the token of its cluster has the
cluster's id, and the epoch of the time it was taken. Where its revisions have
passed those that a client saw, before that looks again, nothing in the numbers
tells that others are counted: the client would miss changes, and what was
granted since the backup would be granted again. Two things tell:

*The token of the head.* Each transaction of writes puts a random one into the
head's key. A client remembers the last that it saw, and has each look, each read of
records and each write read the key *as it stood at the revision at which it saw it*: in the same
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

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures, layout, transactions
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory

LOG = log.getLogger(__name__)

#: Revision and index are not read at one moment, and entries may wait to be
#: applied; a smaller jump says nothing.
LEAD_MARGIN = 1000
TOKEN_BYTES = 8


@attrs.frozen
class Witness:
    """The head of the records in etcd, as one client saw it.

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


#: For so long after an answer its cluster is not asked for again. A cluster
#: that was restored faster than that is noticed by the answer of a write.
PROOF_SECONDS = 1.0

#: Revisions that an epoch may give before the base of one that begins a second
#: later.
_CHANCE_BITS = 31


@attrs.frozen
class Meta:
    """Epoch, head and floor of the records in etcd, as they stood at one revision.

    :param head: version behind the last accepted write
    :param floor: cursors below it need a resync
    :param marks: see :mod:`.housekeeping`
    :param floor_revision: mod_revision of the floor's key
    :param store_revision: of the whole etcd, when this was read
    """

    epoch: layout.Epoch
    head: int
    floor: int
    floor_revision: int
    marks: layout.KeyValue | None
    store_revision: int

    @property
    def cursor(self) -> records.Cursor:
        return records.Cursor(self.epoch.cursor_name, self.head)


class Epochs(epoch_memory.EpochKeeper):
    """The epoch in force; any thread may call."""

    def __init__(
        self,
        keys: layout.Layout,
        connection: connection_module.Connection,
        cloud: str,
        now_seconds: Callable[[], float],
    ) -> None:
        super().__init__(connection.unavailable)
        self._keys = keys
        self._connection = connection
        self._cloud = cloud
        self._now_seconds = now_seconds
        self._known: layout.Epoch | None = None
        self.history = History()

    def read(self) -> Meta:
        """Read what is one for all; begins an epoch where there is none in force."""
        return self.across(self._read)

    def _read(self) -> Meta:
        keys = self._keys
        reply, kvs, contradicted = self._look()
        found = {held["key"]: held for held in kvs}
        held, head, floor = (
            found.get(layout.encode(key)) for key in (keys.epoch_key, keys.head_key, keys.floor_key)
        )
        epoch = layout.Epoch.decode(held) if held else None
        cluster = str(reply["header"]["cluster_id"])
        cause = _cause(epoch, cluster)
        if cause is None and epoch is not None:
            cause = self.history.objection(epoch, contradicted=contradicted)
        if not (epoch and head and floor) or cause is not None:
            self._replace(epoch, cluster, cause or _KEYS_ARE_MISSING)
            raise epoch_memory.EpochEnded
        self._known = epoch
        revision, at = layout.mod_revision(head), transactions.revision(reply)
        self.history.note(epoch, Witness(cluster, at, revision, layout.value_of(head)))
        return Meta(
            epoch,
            layout.end_of(revision),
            int(layout.value_of(floor)),
            layout.mod_revision(floor),
            found.get(layout.encode(keys.marks_key)),
            at,
        )

    def _look(self) -> tuple[connection_module.Reply, Sequence[layout.KeyValue], bool]:
        """Read what is one for all; and whether it contradicts what was seen before."""
        look = transactions.get_range(self._keys.meta, layout.past(self._keys.meta))
        witness, contradicted = self.history.witness, False
        if witness is not None and witness.cluster == self._connection.cluster:
            looks = [look, witness.operation(self._keys)]
            try:
                reply = self._connection.call("/kv/txn", transactions.transaction([], looks))
            except failures.Failure as failure:
                self.question(witness, failure)
                contradicted = failure.kind is failures.Kind.AHEAD
            else:
                contradicted = transactions.revision(reply) < witness.seen_at
                if not contradicted:
                    held = transactions.first(reply, 1)
                    return reply, transactions.held(reply, 0), witness.is_contradicted(held)
        reply = self._connection.call("/kv/range", look["request_range"])
        return reply, reply.get("kvs", ()), contradicted

    def question(self, witness: Witness, failure: failures.Failure) -> None:
        """Take in that a transaction with a witness was refused for the sake of its revision.

        :raises Failure: that was not why
        """
        if failure.kind not in failures.OF_REVISION:
            raise failure
        if failure.kind is failures.Kind.COMPACTED:
            self.history.forget(witness)
        self._known = None

    def current(self) -> layout.Epoch:
        """Return the epoch in force; without I/O where an answer proved it just now."""
        known = self._known
        proved_at = self._connection.answered_at
        if (
            known is not None
            and known.cluster == self._connection.cluster
            and time.monotonic() - proved_at < PROOF_SECONDS
        ):
            return known
        return self.read().epoch

    @property
    def witness(self) -> Witness | None:
        """The last head that was seen; None where there is none to compare with."""
        return self.history.witness

    def note_written(self, epoch: layout.Epoch, revision: int, token: bytes) -> None:
        """Remember the head that a write of this client put."""
        self.history.note(epoch, Witness(epoch.cluster, revision, revision, token))

    def forget(self, epoch: layout.Epoch) -> None:
        """Look again before the next use: an answer contradicts this epoch."""
        if self._known == epoch:
            self._known = None

    def compare(self, epoch: layout.Epoch) -> transactions.Operation:
        """Return the comparison by which a transaction fails after the epoch's end."""
        return transactions.unchanged(self._keys.epoch_key, epoch.revision)

    def begin_anew(self) -> None:
        """Replace whatever epoch is in force, on an operator's word."""
        self.across(self._begin_anew)

    def _begin_anew(self) -> None:
        epoch = self.read().epoch
        if not self._replace(epoch, epoch.cluster, "an operator asked for it"):
            raise epoch_memory.EpochEnded

    def require_one_life(self) -> None:
        """Replace the epoch if the store was restored since it began, whoever saw it."""
        epoch = self.current()
        if was_restored(epoch, self._lead()):
            self._replace(
                epoch,
                epoch.cluster,
                "its revisions are further before its log than when the epoch began: a restored "
                "backup. Records are published anew",
            )

    def _base_above(self, old: layout.Epoch | None) -> int:
        """Return a base that is greater than those of all epochs before."""
        former = [epoch.base for epoch in (old, self.history.newest) if epoch is not None]
        # It grows faster than any etcd counts, and two clusters that begin in
        # the same second differ by chance.
        chance = secrets.randbits(_CHANCE_BITS)
        base = (int(self._now_seconds()) << _CHANCE_BITS) + chance
        return max([base, *(each + (1 << _CHANCE_BITS) for each in former)])

    def _lead(self) -> int | None:
        try:
            return lead_of(self._connection.call("/maintenance/status", {}))
        except errors.BackendUnavailable:
            # Who may not ask for it goes without.
            return None

    def _replace(self, old: layout.Epoch | None, cluster: str, cause: str) -> bool:
        """Begin an epoch, unless somebody else has; False where it is not ours for certain."""
        fresh = layout.Epoch(
            secrets.token_hex(8),
            cluster,
            self._base_above(old),
            old.cloud if old else self._cloud,
            self._lead(),
        )
        keys = self._keys
        compare = transactions.unchanged(keys.epoch_key, old.revision if old else 0)
        body = transactions.transaction(
            [compare],
            [
                transactions.put(keys.epoch_key, fresh.encode()),
                transactions.put(keys.floor_key, b"0"),
                transactions.put(keys.head_key, secrets.token_bytes(TOKEN_BYTES)),
            ],
        )
        self._known = None
        try:
            reply = self._connection.write(body)
        except failures.Failure as failure:
            raise self._connection.translate(failure) from failure
        if not transactions.succeeded(reply):
            return False
        LOG.log(
            logging.WARNING if old else logging.INFO,
            "Began epoch %(new)s in %(label)s: %(cause)s",
            {"new": fresh.cursor_name, "label": self._connection.label, "cause": cause},
        )
        return True


_KEYS_ARE_MISSING = "its head or floor is missing: somebody deletes keys of this driver"


def _cause(epoch: layout.Epoch | None, cluster: str) -> str | None:
    """Return why what stands in the store is no epoch of it."""
    if epoch is None:
        return "it held none"
    if epoch.cluster != cluster:
        return (
            f"its cluster is {cluster} and was {epoch.cluster}: a restored backup. Records are "
            "published anew"
        )
    return None


def check_cloud(epoch: layout.Epoch, cloud: str, prefix: str) -> None:
    """Refuse a prefix that another cloud uses.

    :raises ConfigurationError: the epoch was begun under another name
    """
    if epoch.cloud != cloud:
        raise errors.ConfigurationError(
            "[nodb_etcd] key_prefix",
            prefix,
            f"cloud {epoch.cloud!r} uses it, and [nodb_etcd] cloud_name is {cloud!r} here. Give "
            "each cloud a prefix of its own; or, if it is the same cloud, all its services the "
            "same cloud_name (after a change: stop them, and delete the keys with 'etcdctl del "
            f"--prefix {prefix}/').",
        )
