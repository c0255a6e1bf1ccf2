# SPDX-License-Identifier: Apache-2.0
"""Names and values of the keys in etcd, and how records are read out of them.

Below the prefix::

    m/epoch  m/floor  m/head  m/marks      what is one for all
    r/<epoch>/<namespace>\\x1f<key>         records, tombstones included
    g/<epoch>/<namespace>\\x1f<key>         when it was deleted, beside each tombstone

A transaction of writes puts ``m/head`` last, whose revision is so the last
accepted one, and whose event says that the revision is complete; its value is a
random token, by which a client knows the history it has seen (:mod:`.epochs`). All records
of a transaction have one revision, so each value begins with its place in the
transaction, and a version is both: revision * 256 + place.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.support import record_names

#: Bits of a version for the place within a transaction.
PLACE_BITS = 8
LAST_PLACE = (1 << PLACE_BITS) - 1
#: No key ever has this revision: to compare with where a comparison must fail.
NO_REVISION = 1 << 62

#: A record's value begins with one of these and the place.
_TOMBSTONE, _LIVE = 0, 1
_HEAD_BYTES = 2

#: A key or value as the gateway gives it.
KeyValue = Mapping[str, Any]


def encode(text: bytes) -> str:
    """Return bytes as the gateway wants them."""
    return base64.b64encode(text).decode()


def mod_revision(held: KeyValue | None) -> int:
    """Return the revision of a key's last change; 0 where there is no key."""
    return int(held["mod_revision"]) if held else 0


def key_of(held: KeyValue) -> bytes:
    """Return the name of a key."""
    return base64.b64decode(held["key"])


def value_of(held: KeyValue) -> bytes:
    """Return a key's value; the gateway leaves an empty one out."""
    return base64.b64decode(held.get("value", ""))


def end_of(revision: int) -> int:
    """Return the version behind all writes of a revision."""
    return revision << PLACE_BITS | LAST_PLACE


def past(prefix: bytes) -> bytes:
    """Return the end of the range of keys with a prefix, which ends in no 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def encode_value(write: records.Write, place: int) -> bytes:
    """Return the value of a record's key."""
    if write.deleted:
        return bytes((_TOMBSTONE, place))
    return bytes((_LIVE, place)) + write.payload


@attrs.frozen
class Epoch:
    """What the key of the epoch holds.

    :param name: 16 hexadecimal digits, by chance
    :param cluster: id of the cluster in which it began: a restored backup has
        another, and so has another cluster behind the same address
    :param base: added to etcd's revisions: in a new cluster they begin anew,
        and a remembered one must not match another state
    :param cloud: see the option ``cloud_name``
    :param lead: how many revisions etcd counted beyond its log when the epoch
        began, see :mod:`.epochs`; None: not known
    :param revision: mod_revision of the key, which every write compares
    """

    name: str
    cluster: str
    base: int
    cloud: str
    lead: int | None = None
    revision: int = 0

    @property
    def cursor_name(self) -> str:
        return f"{self.cluster}-{self.name}"

    @property
    def order(self) -> tuple[int, int]:
        """What of two epochs' is greater where one began later, in whatever cluster."""
        return self.base, self.revision

    def encode(self) -> bytes:
        held = attrs.asdict(self, filter=lambda attribute, _: attribute.name != "revision")
        return json.dumps(held).encode()

    @classmethod
    def decode(cls, held: KeyValue) -> Epoch:
        """Read the key of the epoch.

        :raises BackendUnavailable: somebody else wrote it
        """
        try:
            value = json.loads(value_of(held))
            return cls(
                value["name"],
                value["cluster"],
                value["base"],
                value["cloud"],
                # Former releases tell none.
                value.get("lead"),
                mod_revision(held),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _foreign(key_of(held)) from error


class Layout:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{prefix}/".encode()
        self.meta = self.prefix + b"m/"
        self.epoch_key = self.meta + b"epoch"
        self.floor_key = self.meta + b"floor"
        self.head_key = self.meta + b"head"
        self.marks_key = self.meta + b"marks"
        self.records = self.prefix + b"r/"
        self.deletions = self.prefix + b"g/"

    def records_of(self, epoch: str) -> bytes:
        return self.records + epoch.encode() + b"/"

    def deletions_of(self, epoch: str) -> bytes:
        return self.deletions + epoch.encode() + b"/"

    def record_key(self, epoch: str, key: records.RecordKey) -> bytes:
        return self.records_of(epoch) + record_names.encode(key)

    def deletion_key(self, epoch: str, key: records.RecordKey) -> bytes:
        return self.deletions_of(epoch) + record_names.encode(key)

    def namespace_range(self, epoch: str, namespace: str) -> tuple[bytes, bytes]:
        """Return begin and end of the range of a namespace's records."""
        begin = self.records_of(epoch) + namespace.encode() + record_names.SEPARATOR
        return begin, past(begin)

    def decode_record(self, epoch: Epoch, held: KeyValue) -> records.Record:
        """Return the record that a key of an epoch holds.

        :raises BackendUnavailable: somebody else wrote it
        """
        key = record_names.decode(key_of(held)[len(self.records_of(epoch.name)) :])
        value = value_of(held)
        if not (key.namespace and key.key) or len(value) < _HEAD_BYTES:
            raise _foreign(key_of(held))
        revision = mod_revision(held)
        return records.Record(
            key,
            epoch.base + revision,
            revision << PLACE_BITS | value[1],
            value[_HEAD_BYTES:],
            deleted=value[0] == _TOMBSTONE,
        )


def _foreign(key: bytes) -> errors.BackendUnavailable:
    return errors.BackendUnavailable(
        "etcd",
        f"key {key.decode(errors='backslashreplace')!r} was not written by this driver; delete it "
        "('etcdctl del'), and keep others from writing below the prefix",
    )
