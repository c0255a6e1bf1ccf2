# SPDX-License-Identifier: Apache-2.0
"""Epochs in etcd: who starts one, and how another store is noticed.

Every write compares the revision of the epoch's key, so nothing of an earlier
epoch can be written once a new one has begun. A restored backup holds that key
as well, but is a new cluster: whoever sees that the id in the key is not the
one of the answer begins a new epoch, which is empty. What the backup holds is
not gone on with: claims that were granted since are not in it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

import attrs
from oslo_log import log

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.etcd import connection as connection_module
from nova_nodb_scheduler.synchronizer.drivers.etcd import failures, layout, transactions

LOG = log.getLogger(__name__)

#: More changes of epoch than this during one call are no accident.
ATTEMPTS = 10

#: For so long after an answer its cluster is not asked for again. A cluster
#: that was restored faster than that is noticed by the answer of a write.
PROOF_SECONDS = 1.0


@attrs.frozen
class Meta:
    """What is one for all, as it stood at one revision.

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


class Epochs:
    """The epoch in force; any thread may call."""

    def __init__(
        self,
        keys: layout.Layout,
        connection: connection_module.Connection,
        cloud: str,
        now_seconds: Callable[[], float],
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._cloud = cloud
        self._now_seconds = now_seconds
        self._known: layout.Epoch | None = None

    def read(self) -> Meta:
        """Read what is one for all; begins an epoch where there is none in force."""
        keys = self._keys
        body = transactions.get_range(keys.meta, layout.past(keys.meta))["request_range"]
        for _ in range(ATTEMPTS):
            reply = self._connection.call("/kv/range", body)
            found = {held["key"]: held for held in reply.get("kvs", ())}
            held, head, floor = (
                found.get(layout.encode(key))
                for key in (keys.epoch_key, keys.head_key, keys.floor_key)
            )
            epoch = layout.Epoch.decode(held) if held else None
            cluster = str(reply["header"]["cluster_id"])
            if epoch and head and floor and epoch.cluster == cluster:
                self._known = epoch
                return Meta(
                    epoch,
                    layout.end_of(layout.mod_revision(head)),
                    int(layout.value_of(floor)),
                    layout.mod_revision(floor),
                    found.get(layout.encode(keys.marks_key)),
                    transactions.revision(reply),
                )
            self._replace(epoch, cluster, _cause(epoch, cluster))
        raise self.restless()

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

    def forget(self, epoch: layout.Epoch) -> None:
        """Look again before the next use: an answer contradicts this epoch."""
        if self._known == epoch:
            self._known = None

    def compare(self, epoch: layout.Epoch) -> transactions.Operation:
        """Return the comparison by which a transaction fails after the epoch's end."""
        return transactions.unchanged(self._keys.epoch_key, epoch.revision)

    def begin_anew(self) -> None:
        """Replace whatever epoch is in force, on an operator's word."""
        for _ in range(ATTEMPTS):
            epoch = self.read().epoch
            if self._replace(epoch, epoch.cluster, "an operator asked for it"):
                return
        raise self.restless()

    def restless(self) -> errors.BackendUnavailable:
        """Return what to raise where epochs come and go."""
        return self._connection.unavailable("its epoch changes all the time")

    def _replace(self, old: layout.Epoch | None, cluster: str, cause: str) -> bool:
        """Begin an epoch, unless somebody else has; False where it is not ours for certain."""
        base = old.base if old else 0
        if old is None or old.cluster != cluster:
            # It grows faster than any etcd counts, and two clusters that begin
            # in the same second differ by chance.
            base = (int(self._now_seconds()) << 31) + secrets.randbits(31)
        fresh = layout.Epoch(secrets.token_hex(8), cluster, base, old.cloud if old else self._cloud)
        keys = self._keys
        compare = transactions.unchanged(keys.epoch_key, old.revision if old else 0)
        body = transactions.transaction(
            [compare],
            [
                transactions.put(keys.epoch_key, fresh.encode()),
                transactions.put(keys.floor_key, b"0"),
                transactions.put(keys.head_key, b""),
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


def _cause(epoch: layout.Epoch | None, cluster: str) -> str:
    if epoch is None:
        return "it held none"
    if epoch.cluster != cluster:
        return (
            f"its cluster is {cluster} and was {epoch.cluster}: a restored backup. Records are "
            "published anew"
        )
    return "its head or floor is missing: somebody deletes keys of this driver"


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
