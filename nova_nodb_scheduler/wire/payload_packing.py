# SPDX-License-Identifier: Apache-2.0
"""Payloads packed for keeping: compressed against one of their own kind.

Records of a namespace are much alike: field names, CPU flags and traits stand
in each of them. Deflate with another record as its dictionary turns 5 kB of a
compute node into 0.4 kB (1.8 kB without) in some 20 us, and back in 5 us.
Small records take less space still where several stand in one stream; to read
one of them is to unpack all.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.wire import codec, decoded_sizes

#: First byte of what is packed here; payloads on the wire begin otherwise.
_PLAIN_MARK = b"\xa1"
_ZLIB_MARK = b"\xa2"


#: Records that share a stream, and the longest text that does: to unpack these
#: takes some 30 us. Longer ones gain nothing by company.
_MOST_TOGETHER = 16
_LONGEST_TOGETHER = 4096
_TOGETHER_BYTES = 16 * 1024


_END = struct.Struct("<I")
_SPAN = struct.Struct("<II")


class Bundle:
    """The texts of several records in one stream.

    :param packed: all texts, one behind the other
    :param ends: where in the unpacked stream each text ends, as 32 bits each: as numbers they
        took more than half of what the texts take
    :param formats: first byte of each payload
    """

    __slots__ = ("ends", "formats", "packed")

    def __init__(self, packed: bytes, ends: bytes, formats: bytes) -> None:
        self.packed, self.ends, self.formats = packed, ends, formats

    def __len__(self) -> int:
        return len(self.formats)

    def span(self, place: int) -> tuple[int, int]:
        """Return where a text begins and ends in the unpacked stream."""
        if not place:
            return 0, int(_END.unpack_from(self.ends)[0])
        begin, end = _SPAN.unpack_from(self.ends, (place - 1) * _END.size)
        return int(begin), int(end)


#: First byte of what is dumped, and the longest stream and number of records that
#: a bundle is believed to have.
_ALONE, _BUNDLED = 0, 1
_LONGEST_STREAM = 1 << 20
_MOST_BELIEVED = 256

#: A payload by itself, packed or not, or a place in a bundle.
Kept = bytes | tuple[Bundle, int]


class DictionaryPacking:
    """Packs the payloads of one namespace; any thread may unpack."""

    #: Smaller payloads change often (heartbeats), and there is little to gain.
    least_bytes: ClassVar[int] = 256

    def __init__(self) -> None:
        self._dictionary = b""
        #: Has taken the dictionary in; copied for each stream, which costs half.
        self._primed: Any = None

    def pack(self, payload: bytes, text: bytes | None = None) -> bytes:
        """Return a payload packed, or as it is where that saves nothing.

        The first one of some size becomes the dictionary. One thread at a time.

        :param text: what it holds, where that is at hand
        """
        if len(payload) < self.least_bytes or payload[0] not in (codec.PLAIN, codec.ZLIB):
            return payload
        if text is None:
            text = codec.text_of(payload)
        if not self._dictionary:
            self._dictionary = text
        packed = self._packed(text)
        if len(packed) + 1 >= len(payload):
            return payload
        return (_ZLIB_MARK if payload[0] == codec.ZLIB else _PLAIN_MARK) + packed

    def pack_many(self, payloads: Sequence[bytes], texts: Sequence[bytes]) -> list[Kept]:
        """Return payloads packed, as far as possible together.

        :param texts: what they hold
        """
        kept: list[Kept] = []
        first = size = 0
        for at, text in enumerate(texts):
            if at - first == _MOST_TOGETHER or (at > first and size >= _TOGETHER_BYTES):
                kept += self._together(payloads[first:at], texts[first:at])
                first, size = at, 0
            size += len(text)
        return kept + self._together(payloads[first:], texts[first:])

    def _together(self, payloads: Sequence[bytes], texts: Sequence[bytes]) -> list[Kept]:
        formats = bytes([payload[0] if payload else 0 for payload in payloads])
        if len(payloads) < 2 or formats.strip(_KNOWN_FORMATS) or _is_long(texts):
            return [self.pack(payload, text) for payload, text in zip(payloads, texts, strict=True)]
        if not self._dictionary:
            self._dictionary = texts[0]
        packed = self._packed(b"".join(texts))
        ends = struct.pack(f"<{len(texts)}I", *itertools.accumulate(map(len, texts)))
        bundle = Bundle(packed, ends, formats)
        return [(bundle, place) for place in range(len(texts))]

    def _packed(self, text: bytes) -> bytes:
        if self._primed is None:
            self._primed = zlib.compressobj(
                1, wbits=-zlib.MAX_WBITS, memLevel=7, zdict=self._dictionary
            )
        packer = self._primed.copy()
        packed: bytes = packer.compress(text) + packer.flush()
        return packed

    @property
    def dictionary(self) -> bytes:
        """What unpacking needs beside what was packed; empty while nothing was."""
        return self._dictionary

    def adopt(self, dictionary: bytes) -> None:
        """Go by the dictionary of another process, whose packed payloads are to be held.

        :raises ValueError: something was packed by another one
        """
        if not dictionary:
            return
        if self._dictionary not in (b"", dictionary):
            raise ValueError("its payloads are packed by another dictionary")
        self._dictionary = dictionary

    @staticmethod
    def dump(held: bytes | Bundle) -> bytes:
        """Return what was kept, a whole bundle at once, as bytes for another process."""
        if isinstance(held, bytes):
            return bytes((_ALONE,)) + held
        return struct.pack("<BH", _BUNDLED, len(held)) + held.ends + held.formats + held.packed

    @staticmethod
    def load(dumped: bytes) -> bytes | Bundle:
        """Return what :meth:`dump` was given.

        :raises ValueError: it was given nothing of the kind
        """
        if dumped[:1] == bytes((_ALONE,)):
            return dumped[1:]
        try:
            kind, count = struct.unpack_from("<BH", dumped)
            ends = struct.unpack_from(f"<{count}I", dumped, 3)
        except struct.error as error:
            raise ValueError(f"it is no bundle: {error}") from error
        first = 3 + 4 * count
        formats, packed = dumped[first : first + count], dumped[first + count :]
        if (
            kind != _BUNDLED
            or not 0 < count <= _MOST_BELIEVED
            or len(formats) < count
            # No text is empty, and to unpack up to 0 bytes is to unpack without a bound.
            or ends[0] < 1
            or list(ends) != sorted(ends)
            or ends[-1] > _LONGEST_STREAM
            or formats.strip(_KNOWN_FORMATS)
        ):
            raise ValueError("it is no bundle")
        return Bundle(packed, dumped[3:first], formats)

    @staticmethod
    def places(held: bytes | Bundle) -> int:
        """Return how many records can have their payloads in what is held."""
        return len(held) if isinstance(held, Bundle) else 1

    def readable(self, kept: Kept) -> bytes:
        """Return a payload of the same state as what was kept, quick to decode."""
        if isinstance(kept, bytes) and not _is_packed(kept):
            return kept
        return bytes((codec.PLAIN,)) + self._text(kept)

    def unpack(self, kept: Kept) -> bytes:
        """Return a payload of the text that was given to :meth:`pack`.

        It is the very payload unless a zlib of another make compressed that.
        """
        if _was_zlib(kept):
            return bytes((codec.ZLIB,)) + codec.compress(self._text(kept))
        return self.readable(kept)

    def holds(self, kept: Kept, payload: bytes) -> bool:
        """Return whether kept was made of a payload of the same text."""
        if not _is_packed(kept):
            return kept == payload
        if not payload or payload[0] != (codec.ZLIB if _was_zlib(kept) else codec.PLAIN):
            return False
        try:
            return self._text(kept) == codec.text_of(payload)
        except errors.UndecodableRecord:
            return False

    def _text(self, kept: Kept) -> bytes:
        """Return the text that was packed.

        :raises UndecodableRecord: it is damaged, as what came from a file may be
        """
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS, self._dictionary)
        try:
            if isinstance(kept, bytes):
                # One byte more than is taken: it is refused for its length then.
                return unpacker.decompress(kept[1:], decoded_sizes.present().text_bytes + 1)
            bundle, place = kept
            begin, end = bundle.span(place)
            return unpacker.decompress(bundle.packed, end)[begin:]
        except zlib.error as error:
            raise errors.UndecodableRecord(f"it cannot be unpacked: {error}") from error


#: First bytes of payloads whose text is known.
_KNOWN_FORMATS = bytes((codec.PLAIN, codec.ZLIB))


def _is_long(texts: Sequence[bytes]) -> bool:
    return max(map(len, texts)) > _LONGEST_TOGETHER


def _is_packed(kept: Kept) -> bool:
    return not isinstance(kept, bytes) or kept[:1] in (_PLAIN_MARK, _ZLIB_MARK)


def _was_zlib(kept: Kept) -> bool:
    if isinstance(kept, bytes):
        return kept[:1] == _ZLIB_MARK
    bundle, place = kept
    return bundle.formats[place] == codec.ZLIB
