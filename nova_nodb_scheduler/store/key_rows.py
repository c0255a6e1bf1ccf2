# SPDX-License-Identifier: Apache-2.0
"""From keys to rows, and back: as texts, or as few bytes where there are millions.

The text of a server's key, ``<uuid>@<cell>``, takes 128 bytes, its entry in a persistent
map 40, its place in a chunk 8. Where a namespace says that its keys begin with uuids, a
key is 17 bytes: those of the uuid, and the code of what follows, the *suffix*. A chunk
holds them for each row, and rows are found through buckets of bytes: 21 for each key, in
one object for all keys of a bucket. A text is made when somebody asks for it, which is why
namespaces whose keys are read all at once by each decision keep texts. A key that is
something else, or a uuid written in another way, is kept as the text it is, beside them.

Buckets are immutable, as the maps are: what a snapshot sees, nobody changes.
"""

from __future__ import annotations

import binascii
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

import attrs
import immutables
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.store import vocabulary

K = TypeVar("K")
V = TypeVar("V")


class Transient(Generic[K, V]):
    """Alternates between a mutation, for the writer, and a Map, for snapshots.

    Both turns cost O(1): a mutation writes in place to the nodes it made
    itself and copies those a frozen map can see.
    """

    __slots__ = ("_map", "_mutation")

    def __init__(self) -> None:
        self._map: immutables.Map[K, V] = immutables.Map()
        self._mutation: immutables.MapMutation[K, V] | None = None

    def open(self) -> immutables.MapMutation[K, V]:
        """Return what may be written to until the next :meth:`freeze`."""
        if self._mutation is None:
            self._mutation = self._map.mutate()
        return self._mutation

    def freeze(self) -> immutables.Map[K, V]:
        """Return the present state, which nothing changes any more."""
        if self._mutation is not None:
            self._map = self._mutation.finish()
            self._mutation = None
        return self._map


_UUID_BYTES = 16
_UUID_CHARACTERS = 36
#: A uuid and the code of a suffix.
_KEY_BYTES = _UUID_BYTES + 1
#: A key and its row.
_ENTRY_BYTES = _KEY_BYTES + 4
#: What stands in a chunk where no packed key does: no suffix has the code 0.
_NONE = bytes(_KEY_BYTES)
#: There are as many suffixes as cells. Further ones are kept as texts with their keys.
_MOST_SUFFIXES = 255
#: At 2,000,000 keys a bucket holds 60 and is copied for each of them; at 200,000 the
#: object and its place in the map cost 20 bytes a key.
_BUCKETS = 2**15
#: More than a page has.
_MOST_RECENT = 2048


def _uuid_text(found: bytes) -> str:
    digits = found.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@attrs.frozen(eq=False)
class UuidKeys(Collection[str]):
    """Keys of some records as another process may take them over: reads as their texts.

    :param uuids: shape (n, 16), uint8
    :param codes: shape (n,), uint8: places in ``suffixes``
    :param suffixes: what follows the uuids, each once
    """

    uuids: npt.NDArray[np.uint8]
    codes: npt.NDArray[np.uint8]
    suffixes: Sequence[str]

    def __len__(self) -> int:
        return len(self.uuids)

    def __getitem__(self, at: int) -> str:
        return _uuid_text(self.uuids[at].tobytes()) + self.suffixes[self.codes.item(at)]

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def __contains__(self, key: object) -> bool:
        return any(each == key for each in self)

    def check(self) -> None:
        """Refuse what are no keys, or not each once.

        :raises ValueError: they are
        """
        count = len(self)
        if self.uuids.shape != (count, _UUID_BYTES) or self.codes.shape != (count,):
            raise ValueError("its keys have other shapes")
        if self.uuids.dtype != np.uint8 or self.codes.dtype != np.uint8:
            raise ValueError("its keys are no bytes")
        if not len(set(self.suffixes)) == len(self.suffixes) <= _MOST_SUFFIXES:
            raise ValueError("a suffix of its keys occurs twice, or they are too many")
        if any(type(each) is not str for each in self.suffixes):
            raise ValueError("a suffix of its keys is no text")
        if count and self.codes.max() >= len(self.suffixes):
            raise ValueError("the suffix of a key is missing")
        if len(set(_entries(self.uuids, self.codes))) < count:
            raise ValueError("a key occurs twice")

    def tobytes(self) -> bytes:
        """Return all uuids, one behind the other, and all codes."""
        return self.uuids.tobytes() + self.codes.tobytes()

    def samples(self) -> list[str]:
        """Return a key with each suffix: if these may be names, all may."""
        return [_uuid_text(bytes(_UUID_BYTES)) + suffix for suffix in self.suffixes]


def _entries(uuids: npt.NDArray[np.uint8], codes: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return keys packed, each by itself."""
    packed = np.concatenate((uuids, codes.reshape(-1, 1)), axis=1).tobytes()
    return [packed[at : at + _KEY_BYTES] for at in range(0, len(packed), _KEY_BYTES)]


class KeyPacking:
    """Makes keys of one table, in one epoch, bytes and texts again.

    One thread writes, any reads. Suffixes only come: a key that had no code for its
    suffix when it was entered entered it, or is kept as text for good.
    """

    __slots__ = ("_codes", "_recent", "_suffixes")

    def __init__(self) -> None:
        #: Whoever takes a page in asks five times for each of its keys. What is packed
        #: stays true: what is not may be packed later.
        self._recent: dict[str, bytes] = {}
        self._codes: dict[str, int] = {}
        self._suffixes: list[str] = [""]

    def enter(self, key: str) -> bytes | None:
        """Return a key packed, with a code for a new suffix; None where it stays a text."""
        found = self.packed(key)
        if found is not None or len(self._codes) >= _MOST_SUFFIXES:
            return found
        suffix = key[_UUID_CHARACTERS:]
        if suffix not in self._codes and _uuid_bytes(key[:_UUID_CHARACTERS]) is not None:
            # The text first: a reader that finds the code finds the text.
            self._suffixes.append(suffix)
            self._codes[suffix] = len(self._suffixes) - 1
        return self.packed(key)

    def packed(self, key: str) -> bytes | None:
        """Return a key packed; None where it is, or would be, kept as text."""
        recent = self._recent.get(key)
        if recent is not None:
            return recent
        code = self._codes.get(key[_UUID_CHARACTERS:])
        found = None if code is None else _uuid_bytes(key[:_UUID_CHARACTERS])
        if code is None or found is None:
            return None
        if len(self._recent) >= _MOST_RECENT:
            self._recent = {}
        recent = self._recent[key] = found + code.to_bytes(1, "little")
        return recent

    def adopt(self, keys: UuidKeys) -> list[bytes] | None:
        """Return another process's keys packed; None where some of them stay texts here.

        :param keys: as :meth:`UuidKeys.check` allows them
        """
        samples = list(map(self.enter, keys.samples()))
        if None in samples:
            return None
        codes = np.array([packed[_UUID_BYTES] for packed in samples if packed], np.uint8)
        return _entries(keys.uuids, codes[keys.codes])

    def given(self, packed: npt.NDArray[np.uint8]) -> UuidKeys:
        """Return packed keys for another process.

        :param packed: shape (n, 17)
        """
        own, codes = np.unique(packed[:, _UUID_BYTES], return_inverse=True)
        suffixes = [self._suffixes[code] for code in own.tolist()]
        return UuidKeys(packed[:, :_UUID_BYTES], codes.reshape(-1).astype(np.uint8), suffixes)

    def text(self, packed: bytes) -> str:
        """Return the key that was packed."""
        return _uuid_text(packed[:_UUID_BYTES]) + self._suffixes[packed[_UUID_BYTES]]


def _uuid_bytes(text: str) -> bytes | None:
    """Return the bytes of a uuid; None where their text would not be the very same."""
    digits = text.replace("-", "")
    if len(text) != _UUID_CHARACTERS or len(digits) != 32 or text[8:24:5] != "----":
        return None
    try:
        found = binascii.unhexlify(digits)
    except ValueError:
        return None
    return found if found.hex() == digits else None


def _bucket_of(key: bytes) -> int:
    # Python's hash of bytes has a secret of the process: nobody can choose uuids so
    # that all of them fall into one bucket.
    return vocabulary.shared_number(hash(key) % _BUCKETS)


def _place(bucket: bytes, key: bytes) -> int:
    """Return where the entry of a key begins; -1 for nowhere."""
    at = bucket.find(key)
    while at >= 0 and at % _ENTRY_BYTES:
        at = bucket.find(key, at + 1)  # the bytes of two neighbours may look like it
    return at


def _row_in(bucket: bytes | None, key: bytes) -> int | None:
    at = -1 if bucket is None else bucket.find(key)
    if bucket is None or at < 0:
        return None  # nearly always, of a key that is new
    if at % _ENTRY_BYTES:
        at = _place(bucket, key)
        if at < 0:
            return None
    return int.from_bytes(bucket[at + _KEY_BYTES : at + _ENTRY_BYTES], "little")


class PackedRows:
    """Rows by key, which nothing changes any more. From any thread."""

    __slots__ = ("_buckets", "_count", "_others", "_packing")

    def __init__(
        self,
        packing: KeyPacking,
        buckets: immutables.Map[int, bytes],
        others: immutables.Map[str, int],
        count: int,
    ) -> None:
        self._packing, self._buckets, self._others = packing, buckets, others
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for bucket in self._buckets.values():
            for at in range(0, len(bucket), _ENTRY_BYTES):
                yield self._packing.text(bucket[at : at + _KEY_BYTES])
        yield from self._others

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def get(self, key: str) -> int | None:
        """Return the row of a key; None where it has none."""
        found = self._packing.packed(key)
        if found is None:
            return self._others.get(key)
        return _row_in(self._buckets.get(hash(found) % _BUCKETS), found)


class PackedRowsMutation:
    """Rows by key, for the writer. Not thread-safe."""

    __slots__ = ("_buckets", "_count", "_others", "packing")

    def __init__(self) -> None:
        self.packing = KeyPacking()
        self._buckets: Transient[int, bytes] = Transient()
        self._others: Transient[str, int] = Transient()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.freeze())

    def get(self, key: str) -> int | None:
        """Return the row of a key; None where it has none."""
        found = self.packing.packed(key)
        if found is None:
            return self._others.open().get(key)
        return _row_in(self._buckets.open().get(hash(found) % _BUCKETS), found)

    def has_any(self, packed: Sequence[bytes]) -> bool:
        """Return whether one of some packed keys has a row."""
        buckets = self._buckets.open()
        for key in packed:
            bucket = buckets.get(hash(key) % _BUCKETS)
            if bucket is not None and key in bucket and _place(bucket, key) >= 0:
                return True
        return False

    def enter(self, packed: Sequence[bytes], rows: Sequence[int]) -> None:
        """Enter packed keys, each once, none of which has a row."""
        buckets = self._buckets.open()
        for key, row in zip(packed, rows, strict=True):
            number = _bucket_of(key)
            buckets[number] = buckets.get(number, b"") + key + row.to_bytes(4, "little")
        self._count += len(packed)

    def __setitem__(self, key: str, row: int) -> None:
        """Enter a key that has no row.

        :raises KeyError: it has one
        """
        found = self.packing.enter(key)
        if found is None:
            is_new = key not in self._others.open()
            if is_new:
                self._others.open()[key] = row
        else:
            buckets, number = self._buckets.open(), _bucket_of(found)
            bucket = buckets.get(number, b"")
            is_new = _place(bucket, found) < 0
            if is_new:
                buckets[number] = bucket + found + row.to_bytes(4, "little")
        if not is_new:
            raise KeyError(f"{key} has a row")
        self._count += 1

    def __delitem__(self, key: str) -> None:
        """Forget the row of a key.

        :raises KeyError: it has none
        """
        found = self.packing.packed(key)
        if found is None:
            del self._others.open()[key]
        else:
            buckets, number = self._buckets.open(), _bucket_of(found)
            bucket = buckets.get(number, b"")
            at = _place(bucket, found)
            if at < 0:
                raise KeyError(key)
            rest = bucket[:at] + bucket[at + _ENTRY_BYTES :]
            if rest:
                buckets[number] = rest
            else:
                del buckets[number]
        self._count -= 1

    def open(self) -> PackedRowsMutation:
        """Return what may be written to: this."""
        return self

    def freeze(self) -> PackedRows:
        """Return the present state, which nothing changes any more."""
        return PackedRows(self.packing, self._buckets.freeze(), self._others.freeze(), self._count)


#: Rows by key, as snapshots see them.
KeyRows: TypeAlias = immutables.Map[str, int] | PackedRows
#: The same for the writer.
KeyRowsMutation: TypeAlias = immutables.MapMutation[str, int] | PackedRowsMutation


class PackedKeys:
    """The keys of a chunk's rows: reads as a list of texts, None where a row is free."""

    __slots__ = ("_others", "_packed", "_packing")

    def __init__(self, rows: int, packing: KeyPacking) -> None:
        self._packing = packing
        self._packed = bytearray(rows * _KEY_BYTES)
        #: By offset: keys that are kept as texts.
        self._others: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._packed) // _KEY_BYTES

    def __getitem__(self, offset: int) -> str | None:
        found = bytes(self._packed[offset * _KEY_BYTES : (offset + 1) * _KEY_BYTES])
        return self._others.get(offset) if found == _NONE else self._packing.text(found)

    def __setitem__(self, offset: int, key: str | bytes | None) -> None:
        """Set a row's key, packed or not; None where it becomes free."""
        found = self._packing.packed(key) if isinstance(key, str) else key
        self._packed[offset * _KEY_BYTES : (offset + 1) * _KEY_BYTES] = found or _NONE
        self._others.pop(offset, None)
        if isinstance(key, str) and found is None:
            self._others[offset] = key

    def packed_at(self, offsets: Sequence[int]) -> npt.NDArray[np.uint8] | None:
        """Return keys as bytes, shape (n, 17); None where one of them is kept as text."""
        if not self._others.keys().isdisjoint(offsets):
            return None
        packed = np.frombuffer(self._packed, np.uint8).reshape(-1, _KEY_BYTES)
        return packed[np.array(offsets, np.intp)]

    def __iter__(self) -> Iterator[str | None]:
        return map(self.__getitem__, range(len(self)))

    @property
    def nbytes(self) -> int:
        """Bytes that a copy moves."""
        return len(self._packed)

    def copy(self) -> PackedKeys:
        """Return an equal one that changes for itself."""
        twin = PackedKeys(0, self._packing)
        twin._packed, twin._others = self._packed[:], self._others.copy()
        return twin

    def differing(self, other: PackedKeys) -> set[int]:
        """Return offsets at which two chunks have not the same key."""
        odd = {
            at
            for at in {*self._others, *other._others}
            if self._others.get(at) != other._others.get(at)
        }
        if self._packed == other._packed:
            return odd
        mine, its = (
            np.frombuffer(each._packed, np.uint8).reshape(-1, _KEY_BYTES) for each in (self, other)
        )
        return odd.union((mine != its).any(axis=1).nonzero()[0].tolist())


def given(
    parts: Sequence[tuple[ChunkKeys, Sequence[int]]],
) -> UuidKeys | list[str]:
    """Return the keys of some rows for another process.

    :param parts: keys of chunks of one namespace, and offsets of rows that are not free
    """
    found, packing = [], None
    for keys, offsets in parts:
        packed = keys.packed_at(offsets) if isinstance(keys, PackedKeys) else None
        if packed is None:
            return [keys[offset] or "" for keys, offsets in parts for offset in offsets]
        found.append(packed)
        packing = keys._packing if isinstance(keys, PackedKeys) else None
    return [] if packing is None else packing.given(np.concatenate(found))


#: The keys of a chunk's rows.
ChunkKeys: TypeAlias = list[str | None] | PackedKeys


def differing(one: ChunkKeys, other: ChunkKeys) -> set[int]:
    """Return offsets at which two chunks of a namespace have not the same key."""
    if isinstance(one, PackedKeys) and isinstance(other, PackedKeys):
        return one.differing(other)
    return {
        at
        for at, (mine, its) in enumerate(zip(one, other, strict=True))
        if mine is not its and mine != its
    }
