# SPDX-License-Identifier: Apache-2.0
"""From keys to rows, and back: as texts, or as few bytes where there are millions.

The text of a server's key, ``<uuid>@<cell>``, takes 128 bytes, its entry in a persistent
map 40, its place in a chunk 8. Where a namespace says that its keys begin with uuids, a
key is 17 bytes: those of the uuid, and the code of what follows, the *suffix*. A chunk
holds them for each row, and rows are found through buckets of bytes: 21 for each key, in
one object for all keys of a bucket. A text is made when somebody asks for it, which is why
namespaces whose keys are read all at once by each decision keep texts. A key that is
something else, or a uuid written in another way, is kept as the text it is, beside them.

Keys that come packed, a page at a time, as those of another process's store do, are not
entered one by one: they gather until somebody looks, are sorted, and a row is found by
halves. Whoever chooses uuids makes that no slower. Keys that come or go later stand in buckets.

Buckets and sorted keys are immutable, as the maps are: what a snapshot sees, nobody changes.
"""

from __future__ import annotations

import binascii
import bisect
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

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
_IS_DASH = np.isin(np.arange(_UUID_CHARACTERS), (8, 13, 18, 23))
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
        highs = np.sort(_halves(self.uuids)[:, 0])
        if np.any(highs[1:] == highs[:-1]):  # nearly never
            SortedKeys.of(_packed(self.uuids, self.codes), np.arange(count))

    def tobytes(self) -> bytes:
        """Return all uuids, one behind the other, and all codes."""
        return self.uuids.tobytes() + self.codes.tobytes()

    def samples(self) -> list[str]:
        """Return a key with each suffix: if these may be names, all may."""
        return [_uuid_text(bytes(_UUID_BYTES)) + suffix for suffix in self.suffixes]


def _packed(uuids: npt.NDArray[np.uint8], codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return keys packed, shape (n, 17)."""
    return np.concatenate((uuids, codes.reshape(-1, 1)), axis=1)


def _halves(uuids: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return uuids, shape (n, 16), as numbers that sort alike, shape (n, 2)."""
    return np.ascontiguousarray(uuids).view(">u8").astype(np.uint64)


class SortedKeys:
    """Packed keys, each once, and their rows, by halves to be found; nothing changes them.

    :param highs: shape (n,), uint64, growing: first halves of the uuids
    :param lows: the same of second halves, growing among equal first ones
    :param codes: shape (n,), uint8, growing among equal uuids
    :param rows: shape (n,), uint32
    """

    __slots__ = ("_codes", "_highs", "_lows", "_rows")

    def __init__(
        self,
        highs: npt.NDArray[np.uint64],
        lows: npt.NDArray[np.uint64],
        codes: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.uint32],
    ) -> None:
        self._highs, self._lows, self._codes, self._rows = highs, lows, codes, rows

    @classmethod
    def of(cls, packed: npt.NDArray[np.uint8], rows: npt.NDArray[Any]) -> SortedKeys:
        """Sort keys, shape (n, 17), with their rows.

        :raises ValueError: one of them occurs twice
        """
        halves = _halves(packed[:, :_UUID_BYTES])
        return cls.in_order(halves[:, 0], halves[:, 1], packed[:, _UUID_BYTES], rows)

    @classmethod
    def in_order(
        cls,
        highs: npt.NDArray[np.uint64],
        lows: npt.NDArray[np.uint64],
        codes: npt.NDArray[np.uint8],
        rows: npt.NDArray[Any],
    ) -> SortedKeys:
        """Sort keys in any order, with their rows; arrays as of the class.

        :raises ValueError: one of them occurs twice
        """
        # Stable: of what is sorted in parts it is a merge.
        order = np.argsort(highs, kind="stable")
        if np.any(highs[order[1:]] == highs[order[:-1]]):
            order = np.lexsort((codes, lows, highs))
        made = cls(highs[order], lows[order], codes[order], rows[order].astype(np.uint32))
        if np.any(
            (made._highs[1:] == made._highs[:-1])
            & (made._lows[1:] == made._lows[:-1])
            & (made._codes[1:] == made._codes[:-1])
        ):
            raise ValueError("a key occurs twice")
        return made

    def __len__(self) -> int:
        return len(self._rows)

    def merged(self, other: SortedKeys) -> SortedKeys:
        """Return the keys of both, which have none in common.

        :raises ValueError: they have
        """
        return self.in_order(
            np.concatenate((self._highs, other._highs)),
            np.concatenate((self._lows, other._lows)),
            np.concatenate((self._codes, other._codes)),
            np.concatenate((self._rows, other._rows)),
        )

    def without(self, gone: Collection[bytes]) -> SortedKeys:
        """Return the other keys.

        :param gone: packed, all of them here
        """
        stays = np.ones(len(self), np.bool_)
        stays[list(map(self._place, gone))] = False
        return SortedKeys(
            self._highs[stays], self._lows[stays], self._codes[stays], self._rows[stays]
        )

    def has_any(self, other: SortedKeys) -> bool:
        """Return whether a key of the other is here, too."""
        if not len(self) or not len(other):
            return False
        if self._highs[-1] < other._highs[0] or other._highs[-1] < self._highs[0]:
            return False  # as where pages come in the order of their keys
        places = np.searchsorted(self._highs, other._highs)
        alike = self._highs[np.minimum(places, len(self) - 1)] == other._highs
        return any(self._place(other.key(at)) >= 0 for at in alike.nonzero()[0].tolist())

    def key(self, at: int) -> bytes:
        """Return the packed key in a place."""
        uuid: int = (self._highs.item(at) << 64) | self._lows.item(at)
        code: int = self._codes.item(at)
        return uuid.to_bytes(_UUID_BYTES, "big") + code.to_bytes(1, "big")

    def row(self, key: bytes) -> int | None:
        """Return the row of a packed key; None where it is not here."""
        at = self._place(key)
        return None if at < 0 else self._rows.item(at)

    def _place(self, key: bytes) -> int:
        """Return where a packed key stands; -1 for nowhere."""
        first, end = 0, len(self)
        values: memoryview
        for values, part in (
            (self._highs.data, key[:8]),
            (self._lows.data, key[8:_UUID_BYTES]),
            (self._codes.data, key[_UUID_BYTES:]),
        ):
            wanted = int.from_bytes(part, "big")
            first = bisect.bisect_left(values, wanted, first, end)
            if first == end or values[first] != wanted:
                return -1
            if first + 1 == end or values[first + 1] != wanted:
                end = first + 1  # nearly always
            else:
                end = bisect.bisect_right(values, wanted, first, end)
        return first


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

    def adopt(self, keys: UuidKeys) -> npt.NDArray[np.uint8] | None:
        """Return another process's keys packed, shape (n, 17).

        :returns: None where some of them stay texts here

        :param keys: as :meth:`UuidKeys.check` allows them
        """
        samples = list(map(self.enter, keys.samples()))
        if None in samples:
            return None
        codes = np.array([packed[_UUID_BYTES] for packed in samples if packed], np.uint8)
        return _packed(keys.uuids, codes[keys.codes])

    def page(self, keys: Sequence[str]) -> npt.NDArray[np.uint8] | None:
        """Return keys packed, shape (n, 17), in a few calls for all.

        :returns: None where some of them stay texts
        """
        uuids = _all_uuid_bytes(keys)
        if uuids is None:
            return None
        found = [key[_UUID_CHARACTERS:] for key in keys]
        suffixes = list(dict.fromkeys(found))
        if len(suffixes) > _MOST_SUFFIXES:
            return None
        places = dict(zip(suffixes, range(len(suffixes)), strict=True))
        codes = np.array(list(map(places.__getitem__, found)), np.uint8)
        return self.adopt(UuidKeys(uuids, codes, suffixes))

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


def _all_uuid_bytes(keys: Sequence[str]) -> npt.NDArray[np.uint8] | None:
    """Return the bytes of the uuids that keys begin with, shape (n, 16).

    :returns: None where :func:`_uuid_bytes` returns it for one of them
    """
    joined = "".join([key[:_UUID_CHARACTERS] for key in keys])
    if len(joined) != len(keys) * _UUID_CHARACTERS or not joined.isascii():
        return None
    texts = np.frombuffer(joined.encode(), np.uint8).reshape(-1, _UUID_CHARACTERS)
    if np.any(texts[:, _IS_DASH] != ord("-")):
        return None
    digits = joined.replace("-", "")
    if len(digits) != len(keys) * 2 * _UUID_BYTES:
        return None
    try:
        found = binascii.unhexlify(digits)
    except ValueError:
        return None
    if found.hex() != digits:
        return None
    return np.frombuffer(found, np.uint8).reshape(-1, _UUID_BYTES)


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


def _row_of(
    key: bytes,
    buckets: immutables.Map[int, bytes] | immutables.MapMutation[int, bytes],
    pages: Sequence[SortedKeys],
    gone: immutables.Map[bytes, None] | immutables.MapMutation[bytes, None],
) -> int | None:
    """Return the row of a packed key; None where it has none."""
    row = _row_in(buckets.get(hash(key) % _BUCKETS), key)
    if row is not None or not pages or key in gone:
        return row
    # Asked for each claim of a host: no generator for it.
    for page in pages:
        row = page.row(key)
        if row is not None:
            return row
    return None


class PackedRows:
    """Rows by key, which nothing changes any more. From any thread.

    :param pages: sorted keys, none of which stands in two, or in a bucket and is not gone
    :param gone: keys that stand there, and count no more
    """

    __slots__ = ("_buckets", "_count", "_gone", "_others", "_packing", "_pages")

    def __init__(
        self,
        packing: KeyPacking,
        buckets: immutables.Map[int, bytes],
        others: immutables.Map[str, int],
        pages: tuple[SortedKeys, ...],
        gone: immutables.Map[bytes, None],
        count: int,
    ) -> None:
        self._packing, self._buckets, self._others = packing, buckets, others
        self._pages, self._gone = pages, gone
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for bucket in self._buckets.values():
            for at in range(0, len(bucket), _ENTRY_BYTES):
                yield self._packing.text(bucket[at : at + _KEY_BYTES])
        for page in self._pages:
            for key in map(page.key, range(len(page))):
                if key not in self._gone:
                    yield self._packing.text(key)
        yield from self._others

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def get(self, key: str) -> int | None:
        """Return the row of a key; None where it has none."""
        found = self._packing.packed(key)
        if found is None:
            return self._others.get(key)
        return _row_of(found, self._buckets, self._pages, self._gone)


#: A packed key as numbers that sort alike, and its row.
_GATHERED = np.dtype([("high", "u8"), ("low", "u8"), ("code", "u1"), ("row", "u4")])
_LEAST_ROOM = 4096


class _Gathered:
    """Packed keys and rows of pages, before these are sorted together.

    In one array, which grows by doubling: arrays of a page each, freed in the end among payloads
    that stay, left their places in memory to nobody.
    """

    def __init__(self) -> None:
        self._room = np.empty(0, _GATHERED)
        self._count = 0
        self._least = self._most = 0

    def __len__(self) -> int:
        return self._count

    def add(self, packed: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp]) -> None:
        """Add keys, shape (n, 17), and their rows."""
        first, self._count = self._count, self._count + len(packed)
        if self._count > len(self._room):
            room = np.empty(max(_LEAST_ROOM, 2 * len(self._room), self._count), _GATHERED)
            room[:first] = self._room[:first]
            self._room = room
        here, halves = self._room[first : self._count], _halves(packed[:, :_UUID_BYTES])
        highs = here["high"] = halves[:, 0]
        here["low"], here["code"], here["row"] = halves[:, 1], packed[:, _UUID_BYTES], rows
        least, most = highs.min().item(), highs.max().item()
        self._least = min(least, self._least) if first else least
        self._most = max(most, self._most) if first else most

    def is_apart(self, packed: npt.NDArray[np.uint8]) -> bool:
        """Return whether none of some keys can be here, by the least and the greatest uuids."""
        highs = _halves(packed[:, :_UUID_BYTES])[:, 0]
        return not self._count or bool(highs.max() < self._least or self._most < highs.min())

    def sort(self) -> SortedKeys:
        """Return all of them, and gather anew.

        :raises ValueError: one of them occurs twice
        """
        found = self._room[: self._count]
        self._room, self._count = np.empty(0, _GATHERED), 0
        return SortedKeys.in_order(*(found[name] for name in ("high", "low", "code", "row")))


class PackedRowsMutation:
    """Rows by key, for the writer. Not thread-safe.

    Keys of pages gather until one is looked for, and are sorted once: by page, and merged as
    often as pages double, they took a third of a start from a checkpoint.
    """

    __slots__ = (
        "_buckets",
        "_count",
        "_gathered",
        "_gone",
        "_others",
        "_pages",
        "_twice",
        "packing",
    )

    def __init__(self) -> None:
        self.packing = KeyPacking()
        self._pages: tuple[SortedKeys, ...] = ()
        self._gathered = _Gathered()
        #: Whether a key that was entered unseen was here already.
        self._twice = False
        #: Keys of the pages that count no more.
        self._gone: Transient[bytes, None] = Transient()
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
        return self._row(found)

    def _row(self, key: bytes) -> int | None:
        return _row_of(key, self._buckets.open(), self._sorted(), self._gone.open())

    def has_any(self, packed: npt.NDArray[np.uint8], *, gathered: bool = True) -> bool:
        """Return whether one of some packed keys, shape (n, 17), has a row, or had one.

        :param gathered: False where those that gather need not be looked at: whoever enters
            some of them asks :meth:`check` in the end
        """
        buckets, pages = self._buckets.open(), self._pages
        if gathered and self._gathered and not self._gathered.is_apart(packed):
            pages = self._sorted()
        if not pages and not len(buckets):
            return False
        page = SortedKeys.of(packed, np.arange(len(packed)))
        if any(each.has_any(page) for each in pages):
            return True
        return bool(len(buckets)) and any(
            _row_in(buckets.get(hash(key) % _BUCKETS), key) is not None
            for key in map(page.key, range(len(page)))
        )

    def enter_page(self, packed: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp]) -> None:
        """Enter packed keys, shape (n, 17), each once, none of which has or had a row."""
        self._gathered.add(packed, rows)
        self._count += len(packed)

    def check(self) -> None:
        """Refuse keys that were entered twice since this was made.

        :raises ValueError: there are some; which row they lead to, if any, is not said
        """
        self._sorted()
        if self._twice:
            raise ValueError("a key occurs twice")

    def _sorted(self) -> tuple[SortedKeys, ...]:
        """Return sorted keys, none in two, with those that gathered."""
        if self._gathered:
            try:
                made, pages = self._gathered.sort(), list(self._pages)
                # Each is at least twice as long as the next, so they are few, and each key is
                # merged as often as they are.
                while pages and len(pages[-1]) < 2 * len(made):
                    made = pages.pop().merged(made)
                self._twice = self._twice or any(each.has_any(made) for each in pages)
                self._pages = (*pages, made)
            except ValueError:
                self._twice = True
        return self._pages

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
            is_new = self._row(found) is None
            if is_new:
                buckets, number = self._buckets.open(), _bucket_of(found)
                buckets[number] = buckets.get(number, b"") + found + row.to_bytes(4, "little")
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
                if self._row(found) is None:
                    raise KeyError(key)
                self._lose(found)
            elif len(bucket) > _ENTRY_BYTES:
                buckets[number] = bucket[:at] + bucket[at + _ENTRY_BYTES :]
            else:
                del buckets[number]
        self._count -= 1

    def _lose(self, key: bytes) -> None:
        """Let a key of the pages count no more."""
        self._gone.open()[key] = None
        gone, count = self._gone.freeze(), sum(map(len, self._sorted()))
        if len(gone) * 4 > count:
            whole = functools.reduce(SortedKeys.merged, self._pages).without(gone)
            self._pages = (whole,) if len(whole) else ()
            self._gone = Transient()

    def open(self) -> PackedRowsMutation:
        """Return what may be written to: this."""
        return self

    def freeze(self) -> PackedRows:
        """Return the present state, which nothing changes any more."""
        return PackedRows(
            self.packing,
            self._buckets.freeze(),
            self._others.freeze(),
            self._sorted(),
            self._gone.freeze(),
            self._count,
        )


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

    def __setitem__(self, offset: int, key: str | None) -> None:
        """Set a row's key; None where it becomes free."""
        found = None if key is None else self._packing.packed(key)
        self._packed[offset * _KEY_BYTES : (offset + 1) * _KEY_BYTES] = found or _NONE
        self._others.pop(offset, None)
        if key is not None and found is None:
            self._others[offset] = key

    def set_packed(self, first: int, packed: npt.NDArray[np.uint8]) -> None:
        """Set packed keys, shape (n, 17), of free rows one behind the other."""
        self._packed[first * _KEY_BYTES : (first + len(packed)) * _KEY_BYTES] = packed.tobytes()

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
