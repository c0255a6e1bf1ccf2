# SPDX-License-Identifier: Apache-2.0
"""Keys of the driver, names of records in them, and what an epoch's name tells.

All keys carry the prefix as a hash tag, so that they stand in one slot:

``{prefix}:meta``     hash: format, cloud, epoch, replid, run_id, seq, floor, count,
                      turns
``{prefix}:records``  hash: name -> payload of live records
``{prefix}:order``    sorted set: name -> version of its last write; the feed
``{prefix}:graves``   sorted set: name of a tombstone -> time of death, ms
``{prefix}:wake``     stream of one entry ``began-version``, which wakes readers
``{prefix}:rehearsal``  for a moment, while a client opens

A record's revision is its version above a base that grows from epoch to epoch,
so it grows over deletion and collection, and never matches one of another epoch.
"""

from __future__ import annotations

import re

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory, record_names

#: Of the keys and their values; another one is refused, never read.
FORMAT = "1"

_EPOCH = re.compile(r"(\d{1,16})-([0-9a-f]{16})")
#: Versions are doubles in the server: exact up to here.
MAX_VERSION = 1 << 53


@attrs.frozen
class Epoch:
    """One unbroken order, as its name tells.

    :param name: ``began-chance``
    :param began: when it began by the server's clock, ms; later epochs are
        later, which is what makes their stream entries wake everybody
    :param revision_base: revision of version 0
    """

    name: str
    began: int
    revision_base: int

    @classmethod
    def parse(cls, name: str) -> Epoch | None:
        """Return what a name tells; None for a name this driver never gave."""
        match = _EPOCH.fullmatch(name)
        if match is None:
            return None
        began, chance = int(match[1]), int(match[2], 16)
        # Epochs that begin in the same millisecond, on two servers, differ by chance.
        base = (began << 21) + (chance & ((1 << 20) - 1))
        return cls(name, began, base)

    def rank(self, turns: int) -> epoch_memory.Rank:
        """Return its place among epochs.

        :param turns: as the server keeps them beside its name
        """
        return epoch_memory.Rank(self.began, self.name, turns)

    def version_of(self, revision: int) -> int:
        """Return the version a revision stands for; -1 where it is of another epoch."""
        if revision == 0:
            return 0
        version = revision - self.revision_base
        return version if 0 < version < MAX_VERSION else -1

    def record(self, name: bytes, version: int, payload: bytes | None) -> records.Record:
        """Return a record; a payload of None is a tombstone."""
        return records.Record(
            record_names.decode(name),
            self.revision_base + version,
            version,
            payload or b"",
            deleted=payload is None,
        )


@attrs.frozen
class Keys:
    """The keys of one prefix, in the order in which scripts take them."""

    all: tuple[bytes, ...]

    @classmethod
    def of(cls, prefix: str) -> Keys:
        parts = ("meta", "records", "order", "graves", "wake")
        return cls(tuple(f"{{{prefix}}}:{part}".encode() for part in parts))

    @property
    def meta(self) -> bytes:
        return self.all[0]

    @property
    def rehearsal(self) -> bytes:
        return self.meta.removesuffix(b"meta") + b"rehearsal"

    @property
    def wake(self) -> bytes:
        return self.all[4]
