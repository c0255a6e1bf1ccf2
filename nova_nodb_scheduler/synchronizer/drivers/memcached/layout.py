# SPDX-License-Identifier: Apache-2.0
"""Names and bytes of the items this driver keeps in memcached. No I/O.

=====================  =======================================================
``P:epoch``            name of the epoch, the base of its revisions, the cloud
``P:epochs``           names and bases of all epochs that keys may be of: :mod:`.leftovers`
``P:E:seq``            counter of log slots given out
``P:E:floor``          cursors below this version need a resync
``P:E:settled``        see :class:`StableVersion`
``P:E:l:N``            log slot N: the record that version N was given to
``P:E:r:H``            a record, by the hash of its name
``P:E:p:B``            index page B: names of all records whose hash begins so
``P:E:g:B``            deletion log page B: names of records that were deleted, and when
=====================  =======================================================
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Iterable, Mapping

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer.drivers.support import epoch_memory, record_names

#: Bits of a revision's base below the second its epoch began in.
BASE_BITS = 31

INDEX_PAGES = 256
DELETION_LOG_PAGES = 16

#: A log slot whose writer gave up or was shut out.
VOID = b"\x00"

# format, kind, version, revision, seconds, bytes of the name
_HEADER = struct.Struct("!BBQQdH")
_FORMAT = 1


class Kind(enum.IntEnum):
    """What stands at a record's key."""

    LIVE = 1
    TOMBSTONE = 2
    #: Laid down before a record's first write, so that there is a cas token
    #: to fence a slow creator with. For everybody else: absent.
    PLACEHOLDER = 3
    #: A tombstone that goes: nobody writes it, anybody may remove it.
    COLLECTED = 4


@attrs.frozen
class Item:
    """A record's item.

    :param version: last log slot that was made stable for it, which a reader's
        fence raises without touching the state
    :param revision: given by the write that made the state
    :param since_seconds: the server's time when the kind was made
    """

    key: records.RecordKey
    kind: Kind
    version: int
    revision: int
    since_seconds: float
    payload: bytes = b""

    @property
    def record(self) -> records.Record | None:
        """What callers see: nothing before the first write and after collection."""
        if self.kind in (Kind.PLACEHOLDER, Kind.COLLECTED):
            return None
        return records.Record(
            self.key, self.revision, self.version, self.payload, self.kind is Kind.TOMBSTONE
        )

    def encode(self) -> bytes:
        name = record_names.encode(self.key)
        header = _HEADER.pack(
            _FORMAT, self.kind, self.version, self.revision, self.since_seconds, len(name)
        )
        return header + name + self.payload

    @classmethod
    def decode(cls, value: bytes) -> Item:
        """Read what :meth:`encode` wrote.

        :raises BackendUnavailable: somebody else wrote it
        """
        try:
            _, kind, version, revision, since_seconds, length = _HEADER.unpack_from(value)
            end = _HEADER.size + length
            return cls(
                record_names.decode(value[_HEADER.size : end]),
                Kind(kind),
                version,
                revision,
                since_seconds,
                value[end:],
            )
        except (struct.error, ValueError) as error:
            raise errors.BackendUnavailable(
                "memcached",
                f"an item was not written by this release of the driver ({error}): keep others "
                "from writing below [nodb_memcached] key_prefix, run one release on all "
                "services, or begin anew with 'nova-nodb-manage synchronizer new-epoch'",
            ) from error


def encode_page(names: Iterable[bytes]) -> bytes:
    """Return names as lines, as they are appended to a page."""
    return b"".join(name + b"\n" for name in names)


def decode_page(value: bytes) -> set[bytes]:
    """Return the names on a page; one may have been appended twice."""
    return set(value.split(b"\n")) - {b""}


def encode_epochs(bases: Mapping[str, int]) -> bytes:
    """Return the list of epochs, from their names and the bases of their revisions."""
    return b"".join(b"%s %d\n" % (name.encode(), base) for name, base in bases.items())


def decode_epochs(value: bytes) -> dict[str, int]:
    """Read what :func:`encode_epochs` wrote."""
    pairs = (line.split(b" ") for line in value.splitlines())
    return {name.decode(): int(base) for name, base in pairs}


def encode_deletion(name: bytes, seconds: float) -> bytes:
    """Return the line of the deletion log that says when a deletion was begun."""
    return b"%s\x1e%d\n" % (name, int(seconds))


def decode_deletions(value: bytes) -> dict[bytes, int]:
    """Return the names on a deletion log page with the last second each was put there."""
    found: dict[bytes, int] = {}
    for line in value.split(b"\n"):
        name, _, seconds = line.partition(b"\x1e")
        if name:
            found[name] = max(int(seconds), found.get(name, 0))
    return found


@attrs.frozen
class StableVersion:
    """How far the log is stable, published for those who come later.

    No write with a version up to ``version`` can succeed any more, and every
    version above it was given out after ``since_seconds`` of the server's
    time, when the server had evicted ``evictions`` items.
    """

    version: int
    since_seconds: float
    evictions: int

    def encode(self) -> bytes:
        return b"%d %r %d" % (self.version, self.since_seconds, self.evictions)

    @classmethod
    def decode(cls, value: bytes) -> StableVersion:
        version, since_seconds, evictions = value.split()
        return cls(int(version), float(since_seconds), int(evictions))


@attrs.frozen
class Epoch:
    """An epoch and the keys in it.

    :param name: chance, and behind a dash :attr:`turns` where there are any
    :param revision_base: revisions are this plus a version, and bases grow
        from epoch to epoch, so that a writer that slept through a change of
        epoch does not find the revision it remembers on another state, and
        epochs have an order. The upper bits are the server's seconds.
    :param cloud: whose it is, see the option ``cloud_name``
    """

    prefix: bytes
    name: str
    revision_base: int
    cloud: str = ""

    @property
    def rank(self) -> epoch_memory.Rank:
        turns = self.name.partition("-")[2]
        return epoch_memory.Rank(self.revision_base, self.name, int(turns or 0))

    def encode(self) -> bytes:
        return b"%s %d %s" % (self.name.encode(), self.revision_base, self.cloud.encode())

    @classmethod
    def decode(cls, prefix: bytes, value: bytes) -> Epoch:
        name, base, cloud = value.split(b" ", 2)
        return cls(prefix, name.decode(), int(base), cloud.decode(errors="backslashreplace"))

    @property
    def sequence_key(self) -> bytes:
        return self._key(b"seq")

    @property
    def floor_key(self) -> bytes:
        return self._key(b"floor")

    @property
    def stable_key(self) -> bytes:
        return self._key(b"settled")

    def slot_key(self, version: int) -> bytes:
        return self._key(b"l:%d" % version)

    def record_key(self, name: bytes) -> bytes:
        return self._key(b"r:" + _digest(name).hexdigest().encode())

    def index_key(self, name: bytes) -> bytes:
        return self.index_page(_digest(name).digest()[0] % INDEX_PAGES)

    def deletion_log_key(self, name: bytes) -> bytes:
        return self.deletion_log_page(_digest(name).digest()[1] % DELETION_LOG_PAGES)

    def index_page(self, number: int) -> bytes:
        return self._key(b"p:%d" % number)

    def deletion_log_page(self, number: int) -> bytes:
        return self._key(b"g:%d" % number)

    @property
    def index_pages(self) -> list[bytes]:
        return [self.index_page(number) for number in range(INDEX_PAGES)]

    @property
    def deletion_log_pages(self) -> list[bytes]:
        return [self.deletion_log_page(number) for number in range(DELETION_LOG_PAGES)]

    def _key(self, rest: bytes) -> bytes:
        return b"%s:%s:%s" % (self.prefix, self.name.encode(), rest)


def epoch_key(prefix: bytes) -> bytes:
    return prefix + b":epoch"


def epoch_list_key(prefix: bytes) -> bytes:
    return prefix + b":epochs"


def _digest(name: bytes) -> hashlib.blake2b:
    # 160 bits: names that collide do not happen; keys of any length and script
    # fit memcached's 250 bytes without spaces.
    return hashlib.blake2b(name, digest_size=20)
