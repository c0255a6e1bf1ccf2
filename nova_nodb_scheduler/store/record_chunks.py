# SPDX-License-Identifier: Apache-2.0
"""Rows in chunks of columns, the unit of copy-on-write, and how their payloads are kept.

A chunk belongs to the generation in which it was made. The table writes in
place only to chunks of its present generation; a snapshot ends a generation,
so whatever a snapshot can see is copied before it is written. Reference counts
would tell the same only as long as nobody else looks at a chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.store import column_layout, key_rows

#: A payload by itself, packed or not, or (bundle of several, place in it). A
#: place is below 256.
Kept = bytes | tuple[Any, int]


class PayloadPacking(Protocol):
    """Makes the payloads of one namespace, in one epoch, smaller.

    :cvar least_bytes: smaller ones stay as they are, and need not be given
    """

    least_bytes: ClassVar[int]

    def pack(self, payload: bytes, text: bytes | None = None) -> bytes:
        """Return a payload packed; one thread at a time.

        :param text: what it holds, where that is at hand
        """

    def pack_many(self, payloads: Sequence[bytes], texts: Sequence[bytes]) -> Sequence[Kept]:
        """Return payloads packed, by themselves or in bundles; one thread at a time.

        :param texts: what they hold
        """

    def readable(self, kept: Kept) -> bytes:
        """Return a payload of the same state; kept may be packed or not."""

    def unpack(self, kept: Kept) -> bytes:
        """Return a payload of the same text; kept may be packed or not.

        It is the very payload where that was compressed by an equal library.
        """

    def holds(self, kept: Kept, payload: bytes) -> bool:
        """Return whether kept was made of a payload of the same text."""

    @property
    def dictionary(self) -> bytes:
        """What unpacking needs beside what was packed; empty while nothing was."""

    def adopt(self, dictionary: bytes) -> None:
        """Go by the dictionary of another process, whose packed payloads are to be held.

        :raises ValueError: something was packed by another one
        """

    def dump(self, held: Any) -> bytes:
        """Return what was kept, a whole bundle at once, as bytes for another process."""

    def load(self, dumped: bytes) -> Any:
        """Return what :meth:`dump` was given.

        :raises ValueError: it was given nothing of the kind
        """

    def places(self, held: Any) -> int:
        """Return how many records can have their payloads in what is held."""


class AsTheyAre:
    """Keeps payloads as they came."""

    least_bytes: ClassVar[int] = sys.maxsize

    def pack(self, payload: bytes, text: bytes | None = None) -> bytes:
        """Return the payload."""
        return payload

    def pack_many(self, payloads: Sequence[bytes], texts: Sequence[bytes]) -> Sequence[Kept]:
        """Return the payloads."""
        return payloads

    def readable(self, kept: Kept) -> bytes:
        """Return the payload."""
        return _alone(kept)

    def unpack(self, kept: Kept) -> bytes:
        """Return the payload."""
        return _alone(kept)

    def holds(self, kept: Kept, payload: bytes) -> bool:
        """Return whether they are equal."""
        return kept == payload

    dictionary: ClassVar[bytes] = b""

    def adopt(self, dictionary: bytes) -> None:
        """Take no dictionary.

        :raises ValueError: there is one
        """
        if dictionary:
            raise ValueError("its payloads are packed, and none are here")

    def dump(self, held: Any) -> bytes:
        """Return the payload."""
        return _alone(held)

    def load(self, dumped: bytes) -> bytes:
        """Return the payload."""
        return dumped

    def places(self, held: Any) -> int:
        """Return 1."""
        return 1


def _alone(kept: Kept) -> bytes:
    assert isinstance(kept, bytes)
    return kept


#: Small enough that one changed row copies little (some 30 kB with 18
#: columns), large enough that NumPy's cost per call disappears.
CHUNK_ROWS = 256

#: What readers get.
DTYPES: dict[namespaces.Kind, npt.DTypeLike] = {
    namespaces.Kind.INT: np.int64,
    namespaces.Kind.FLOAT: np.float64,
    namespaces.Kind.BOOL: np.bool_,
    namespaces.Kind.CATEGORY: np.int32,
    namespaces.Kind.BITS: np.uint64,
}

#: What chunks begin with, and keep until a greater number comes.
_NARROW = {namespaces.Kind.INT, namespaces.Kind.CATEGORY}

Numbers = npt.NDArray[np.signedinteger[Any]]

_POINTER_BYTES = 8


def bytes_needed(numbers: Numbers) -> int:
    """Return how many bytes each of some numbers takes, in two's complement: 1, 2, 4 or 8.

    :param numbers: shape (n,), n > 0
    """
    least = most = numbers.item(0)
    if len(numbers) > 1:
        least, most = numbers.min().item(), numbers.max().item()
    # -128 takes no more bits than 127.
    bits = max(most, ~least).bit_length()
    return 1 if bits < 8 else 2 if bits < 16 else 4 if bits < 32 else 8


def _wide(numbers: Numbers, width: int) -> Numbers:
    """Return numbers in so many bytes each at least; the same array where they are."""
    return numbers if numbers.itemsize >= width else numbers.astype(f"i{width}")


class Chunk:
    """:data:`CHUNK_ROWS` rows; free rows have no key and are False in ``live``.

    ``arrays`` stand in the order of the declared columns: shape
    ``(CHUNK_ROWS,)``, for BITS ``(CHUNK_ROWS, words)``; empty of columns that are read
    from digests. Whole numbers and codes, revisions and versions stand in as few bytes as
    those of this chunk have needed: who reads several chunks widens them to
    :data:`DTYPES`. ``absent`` says by
    position of a column which rows hold its default because their state lacks
    it; kept of those columns alone where it makes a difference. ``digests`` and
    ``index_values`` are empty where the namespace needs none.
    """

    __slots__ = (
        "absent",
        "arrays",
        "digests",
        "generation",
        "index_values",
        "keys",
        "live",
        "live_count",
        "payloads",
        "places",
        "revisions",
        "size_bytes",
        "versions",
    )

    def __init__(
        self,
        columns: tuple[namespaces.Column, ...],
        generation: int,
        *,
        with_digests: bool = False,
        with_index_values: bool = False,
        marked: Iterable[int] = (),
        without: Container[int] = (),
        key_packing: key_rows.KeyPacking | None = None,
    ) -> None:
        self.generation = generation
        self.live_count = 0
        self.live: npt.NDArray[np.bool_] = np.zeros(CHUNK_ROWS, np.bool_)
        self.revisions: Numbers = np.zeros(CHUNK_ROWS, np.int8)
        self.versions: Numbers = np.zeros(CHUNK_ROWS, np.int8)
        self.keys: key_rows.ChunkKeys = (
            [None] * CHUNK_ROWS
            if key_packing is None
            else key_rows.PackedKeys(CHUNK_ROWS, key_packing)
        )
        #: As the packing keeps them; of a bundle the place stands in ``places``.
        self.payloads: list[Any] = [b""] * CHUNK_ROWS
        self.places: npt.NDArray[np.uint8] = np.zeros(CHUNK_ROWS, np.uint8)
        self.index_values: list[tuple[column_layout.IndexValues, ...]] = (
            [()] * CHUNK_ROWS if with_index_values else []
        )
        self.absent = {position: np.zeros(CHUNK_ROWS, np.bool_) for position in marked}
        self.digests: list[Any] = [None] * CHUNK_ROWS if with_digests else []
        self.arrays: list[npt.NDArray[Any]] = [
            np.zeros(
                (CHUNK_ROWS, 1)
                if column.kind is namespaces.Kind.BITS
                else 0
                if position in without
                else CHUNK_ROWS,
                np.int8 if column.kind in _NARROW else DTYPES[column.kind],
            )
            for position, column in enumerate(columns)
        ]
        #: Bytes that a copy moves: arrays and pointers, not what these point to.
        self.size_bytes = self._measured()

    def copy(self, generation: int) -> Chunk:
        """Return an equal chunk that the given generation may write to."""
        twin = Chunk.__new__(Chunk)
        twin.generation = generation
        twin.live_count = self.live_count
        twin.live = self.live.copy()
        twin.revisions = self.revisions.copy()
        twin.versions = self.versions.copy()
        twin.keys = self.keys.copy()
        twin.payloads = self.payloads.copy()
        twin.places = self.places.copy()
        twin.index_values = self.index_values.copy()
        twin.absent = {position: flags.copy() for position, flags in self.absent.items()}
        twin.digests = self.digests.copy()
        twin.arrays = [array.copy() for array in self.arrays]
        twin.size_bytes = self.size_bytes
        return twin

    def _measured(self) -> int:
        return (
            self.live.nbytes
            + self.revisions.nbytes
            + self.versions.nbytes
            + self.places.nbytes
            + (
                self.keys.nbytes
                if isinstance(self.keys, key_rows.PackedKeys)
                else len(self.keys) * _POINTER_BYTES
            )
            + (CHUNK_ROWS + len(self.digests) + len(self.index_values)) * _POINTER_BYTES
            + sum(flags.nbytes for flags in self.absent.values())
            + sum(array.nbytes for array in self.arrays)
        )

    def kept(self, offset: int) -> Kept:
        """Return a row's payload as the packing keeps it."""
        payload = self.payloads[offset]
        if isinstance(payload, bytes):
            return payload
        return payload, self.places.item(offset)

    def enter(self, offsets: Sequence[int], keys: Sequence[str], kept: Sequence[Kept]) -> None:
        """Set rows' keys and payloads; a row that has a key keeps its text."""
        own, payloads, is_live = self.keys, self.payloads, self.live.item
        for offset, key, each in zip(offsets, keys, kept, strict=True):
            if not is_live(offset):
                own[offset] = key
                self.live_count += 1
            if type(each) is bytes:
                payloads[offset] = each
            else:
                payloads[offset], self.places[offset] = each
        self.live[offsets] = True

    def enter_run(
        self,
        first: int,
        keys: Sequence[str] | npt.NDArray[np.uint8],
        payloads: Sequence[Any],
        places: npt.NDArray[np.uint8],
    ) -> None:
        """Set keys and payloads of free rows one behind the other.

        :param keys: texts, or packed, shape (n, 17), where this chunk's are
        :param places: shape (n,): in the bundle, where a payload is in one
        """
        here = slice(first, first + len(payloads))
        if isinstance(keys, np.ndarray):
            assert isinstance(self.keys, key_rows.PackedKeys)
            self.keys.set_packed(first, keys)
        elif isinstance(self.keys, list):
            self.keys[here] = keys
        else:
            for offset, key in enumerate(keys, first):
                self.keys[offset] = key
        self.payloads[here] = payloads
        self.places[here] = places
        self.live[here] = True
        self.live_count += len(payloads)

    def clear(self, offset: int) -> None:
        """Free a row; what its columns hold counts no more."""
        self.live[offset] = False
        self.live_count -= 1
        self.keys[offset] = None
        self.payloads[offset] = b""
        if self.digests:
            self.digests[offset] = None

    def write_numbers(self, position: int, here: Any, numbers: Any, width: int) -> None:
        """Write whole numbers or codes into a column, wider from now on where they need it.

        :param here: offsets of rows, as an index
        :param width: as :func:`bytes_needed` of the numbers says
        """
        former = self.arrays[position]
        self.arrays[position] = array = _wide(former, width)
        array[here] = numbers
        self.size_bytes += array.nbytes - former.nbytes

    def write_age(self, here: Any, revisions: Any, versions: Any, widths: tuple[int, int]) -> None:
        """Write the revisions and versions of rows, as :meth:`write_numbers` writes numbers."""
        before = self.revisions.nbytes + self.versions.nbytes
        self.revisions = _wide(self.revisions, widths[0])
        self.versions = _wide(self.versions, widths[1])
        self.revisions[here] = revisions
        self.versions[here] = versions
        self.size_bytes += self.revisions.nbytes + self.versions.nbytes - before

    def write_bits(self, position: int, offset: int, bits: int, words: int) -> int:
        """Write a set of codes, given as one number, into a BITS column.

        :param words: width that the vocabulary asks for now
        :returns: bytes moved to widen the column, mostly 0
        """
        array = self.arrays[position]
        moved = 0
        if array.shape[1] < words:
            wider = np.zeros((CHUNK_ROWS, words), np.uint64)
            wider[:, : array.shape[1]] = array
            moved = array.nbytes
            self.arrays[position] = array = wider
            self.size_bytes = self._measured()
        array[offset] = np.frombuffer(bits.to_bytes(array.shape[1] * 8, "little"), "<u8")
        return moved


def parted(kept: Sequence[Kept]) -> tuple[list[Any], npt.NDArray[np.uint8]]:
    """Return what holds each payload, and where in it, shape (n,), as a chunk keeps them."""
    held = [each if type(each) is bytes else each[0] for each in kept]
    places = [0 if type(each) is bytes else each[1] for each in kept]
    return held, np.array(places, np.uint8)


#: So many changes of one namespace at once come of a snapshot, or of a storm.
ENOUGH_TOGETHER = 64


class Payloads:
    """What a table keeps of its records' payloads. Not thread-safe."""

    def __init__(self, packing: PayloadPacking) -> None:
        self.packing = packing
        #: Numbers of chunks that hold payloads as they came.
        self._unpacked: set[int] = set()

    def kept(self, changes: Sequence[records.Change], numbers: Sequence[int]) -> Sequence[Kept]:
        """Return payloads as they are to be kept.

        :param numbers: of the chunks that they will stand in
        """
        return self.together(changes) or list(map(self._alone, changes, numbers))

    def together(self, changes: Sequence[records.Change]) -> Sequence[Kept]:
        """Return payloads packed together; nothing where they are too few.

        A bundle stays until its last record is replaced. Records of a snapshot
        are replaced one by one, and records of a feed, too, which would leave
        many bundles with few records each.
        """
        if len(changes) < ENOUGH_TOGETHER:
            return ()
        payloads = [change.record.payload for change in changes]
        return self.columns_together(payloads, [change.text for change in changes])

    def columns_together(
        self, payloads: Sequence[bytes], texts: Sequence[bytes | None]
    ) -> Sequence[Kept]:
        """Do what :meth:`together` does, with the payloads and the texts of changes."""
        if len(payloads) < ENOUGH_TOGETHER:
            return ()
        known = [text for text in texts if text is not None]
        return self.packing.pack_many(payloads, known) if len(known) == len(payloads) else ()

    def _alone(self, change: records.Change, number: int) -> bytes:
        """Return a payload packed where that costs no decompression."""
        payload = change.record.payload
        if len(payload) < self.packing.least_bytes:
            return payload
        if change.text is not None:
            return self.packing.pack(payload, change.text)
        self._unpacked.add(number)
        return payload

    def pack(self, most_records: int, chunk_of: Callable[[int], Chunk | None]) -> int:
        """Pack chunks until so many records were looked at; return how many were.

        :param chunk_of: chunks by number; None for one that is gone
        """
        looked_at = 0
        while self._unpacked and looked_at < most_records:
            chunk = chunk_of(self._unpacked.pop())
            if chunk is None:
                continue
            # Not copied before, though snapshots may see it: to them the
            # payload is the same before and after.
            for offset in chunk.live.nonzero()[0]:
                kept = chunk.payloads[offset]
                if isinstance(kept, bytes):
                    chunk.payloads[offset] = self.packing.pack(kept)
            looked_at += chunk.live_count
        return looked_at
