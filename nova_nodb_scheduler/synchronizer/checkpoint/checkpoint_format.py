# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as bytes: a header, pages and an end, each with its length and checksum.

The last frame holds the checksum of all checksums before it and stands at the end of the
file, so that what was cut short, or written on, is not taken for whole. A checksum tells damage
from content, not friend from foe: that is for the file's owner and mode to tell. What is
read is parsed all the same as if anybody had written it, within the bounds of each part.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.store import key_rows, record_chunks, stored_pages
from nova_nodb_scheduler.synchronizer.checkpoint import checkpoint_contract
from nova_nodb_scheduler.wire import decoded_sizes

#: The last byte is the version of the format.
MAGIC = b"NODBCKP\x03"
HEADER, ROWS, RECORDS, END = 1, 2, 3, 4

#: Kind, length of the body, checksum of both and the body.
_FRAME = struct.Struct("<BI16s")
_LENGTH = struct.Struct("<I")
#: Of a page; a record has some MiB at most, and a page 2,048 of them, mostly of some 100 bytes.
MAX_FRAME_BYTES = 1 << 29
_MAX_HEADER_BYTES = 16 << 20
_DIGEST_BYTES = 32

Page = tuple[str, stored_pages.StoredPage] | list[records.Record]


class Damaged(ValueError):
    """It is not what was written."""


class FrameWriter:
    """Writes frames one behind the other.

    :param write: takes all bytes of a call
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self.size_bytes = 0
        self._all = hashlib.blake2b(MAGIC, digest_size=_DIGEST_BYTES)
        self._put(MAGIC)

    def frame(self, kind: int, body: bytes) -> None:
        """Write a frame.

        :raises OSError: as the writing does
        """
        head = _FRAME.pack(kind, len(body), _checksum(kind, body))
        self._all.update(head)
        self._put(head)
        self._put(body)

    def end(self) -> None:
        """Write the last frame."""
        self.frame(END, self._all.digest())

    def _put(self, data: bytes) -> None:
        self._write(data)
        self.size_bytes += len(data)


def _checksum(kind: int, body: bytes) -> bytes:
    found = hashlib.blake2b(_LENGTH.pack(len(body)), digest_size=16, key=bytes((kind,)))
    found.update(body)
    return found.digest()


def frames(read: Callable[[int, int], bytes], size_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield kinds and bodies of all frames but the last, from the first on.

    That there is a last one is looked at first, so that what was cut short costs nothing.
    It is checked when all others were given: whoever stops before has not checked the whole.

    :param read: returns as many bytes of a place as there are
    :raises Damaged: they are not whole, or other bytes follow them
    :raises OSError: as the reading does
    """
    magic = read(0, len(MAGIC))
    if magic != MAGIC:
        raise Damaged(f"it begins with {magic!r}, not with {MAGIC!r}")
    end_at = size_bytes - _FRAME.size - _DIGEST_BYTES
    if end_at < len(MAGIC) or _head(read, end_at)[:2] != (END, _DIGEST_BYTES):
        raise Damaged("it is cut short")
    everything = hashlib.blake2b(MAGIC, digest_size=_DIGEST_BYTES)
    at = len(MAGIC)
    while at <= end_at:
        kind, length, checksum = _head(read, at)
        everything_before = everything.digest()
        everything.update(_FRAME.pack(kind, length, checksum))
        at += _FRAME.size
        if length > MAX_FRAME_BYTES or at + length > size_bytes:
            raise Damaged("a part of it is longer than the file")
        body = read(at, length)
        if len(body) < length or _checksum(kind, body) != checksum:
            raise Damaged(f"the part at byte {at} is not as it was written")
        at += length
        if kind == END:
            if body != everything_before or at != size_bytes:
                raise Damaged("its end is not that of what stands before it")
            return
        yield kind, body
    raise Damaged("it has no end")


def _head(read: Callable[[int, int], bytes], at: int) -> tuple[int, int, bytes]:
    head = read(at, _FRAME.size)
    if len(head) < _FRAME.size:
        raise Damaged("it is cut short")
    kind, length, checksum = _FRAME.unpack(head)
    return kind, length, checksum


# -- the header -----------------------------------------------------------------


def header_body(header: checkpoint_contract.Header) -> bytes:
    """Return a header as bytes."""
    return orjson.dumps(
        {
            "driver": header.identity.driver,
            "code": header.identity.code,
            "schemas": dict(header.identity.schemas),
            "epoch": header.cursor.epoch,
            "version": header.cursor.version,
            "made_at": header.made_at_seconds,
            "witnesses": [
                [each.key.namespace, each.key.key, each.revision, each.version, each.text_digest]
                for each in header.witnesses
            ],
        }
    )


def header_of(body: bytes) -> checkpoint_contract.Header:
    """Return the header in some bytes.

    :raises Damaged: there is none
    """
    try:
        if len(body) > _MAX_HEADER_BYTES:
            raise ValueError("it is too long")
        said = orjson.loads(decoded_sizes.page_text(body))
        schemas = {_text(name): _text(schema) for name, schema in said["schemas"].items()}
        identity = checkpoint_contract.CodeIdentity(
            _text(said["driver"]), _text(said["code"]), schemas
        )
        witnesses = [
            checkpoint_contract.WitnessRecord(
                records.RecordKey(_text(namespace), _text(key)),
                _count(revision),
                _count(version),
                _text(digest),
            )
            for namespace, key, revision, version, digest in said["witnesses"]
        ]
        cursor = records.Cursor(_text(said["epoch"]), _count(said["version"]))
        return checkpoint_contract.Header(identity, cursor, float(said["made_at"]), witnesses)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Damaged(f"its header is none: {type(error).__name__}: {error}") from error


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("a text is none")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError("a number is none")
    return value


# -- pages ------------------------------------------------------------------------


class PageWriter:
    """Makes the frames of pages, in their order: a text stands in the first page that has it."""

    def __init__(self) -> None:
        #: By namespace and column: what was told of, and how many texts of it.
        self._told: dict[tuple[str, str], tuple[stored_pages.ToldTexts, int]] = {}

    def frame(
        self, namespace: str, page: stored_pages.StoredPage | Sequence[records.Record]
    ) -> tuple[int, bytes]:
        """Return the kind and the body of a page's frame."""
        if not isinstance(page, stored_pages.StoredPage):
            return RECORDS, _records_body(namespace, page)
        forms = {name: self._form(namespace, name, each) for name, each in page.columns.items()}
        return ROWS, _rows_body(namespace, page, forms)

    def _form(
        self,
        namespace: str,
        name: str,
        column: npt.NDArray[Any] | stored_pages.TextColumn,
    ) -> str | list[Any]:
        """Return what kind of numbers a column has; or how many texts were told, and others."""
        if not isinstance(column, stored_pages.TextColumn):
            return column.dtype.str
        texts, count = self._told.get((namespace, name), (None, 0))
        if texts is not column.texts:
            count = 0
        self._told[namespace, name] = (column.texts, len(column.texts))
        return [count, *column.texts[count:]]


class PageReader:
    """Reads frames as :class:`PageWriter` made them, in their order."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], stored_pages.ToldTexts] = {}

    def page(self, kind: int, body: bytes) -> Page:
        """Return the page in a frame.

        :raises Damaged: there is none
        """
        try:
            if kind == ROWS:
                return _rows_of(body, self._texts)
            if kind == RECORDS:
                return _records_of(body)
            raise ValueError(f"kind {kind} is unknown")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise Damaged(f"a page of it is none: {type(error).__name__}: {error}") from error

    def _texts(self, namespace: str, name: str, form: list[Any]) -> stored_pages.ToldTexts:
        """Return all texts of a column up to a page, of which some are told in it."""
        count = _count(form[0])
        found = self._told.get((namespace, name))
        if not count or found is None:
            found = self._told[namespace, name] = stored_pages.ToldTexts()
        if len(found) != count:
            raise ValueError(f"texts of column {name} are missing")
        found.extend(form[1:])
        return found


def _rows_body(
    namespace: str, page: stored_pages.StoredPage, forms: Mapping[str, str | list[Any]]
) -> bytes:
    meta: dict[str, Any] = {"namespace": namespace, "columns": forms, "absent": list(page.absent)}
    meta |= {"digests": page.digests is not None, "suffixes": None}
    if isinstance(page.keys, key_rows.UuidKeys):
        keys = page.keys.tobytes()
        meta["suffixes"] = list(page.keys.suffixes)
    else:
        keys = _joined(page.keys)
    parts: list[bytes] = [orjson.dumps(meta), keys]
    parts += [_narrow(page.revisions).tobytes(), _narrow(page.versions).tobytes()]
    parts += _many(page.held)
    parts += [_narrow(page.owners).tobytes(), page.places.tobytes(), page.dictionary]
    for column in page.columns.values():
        if isinstance(column, stored_pages.TextColumn):
            column = column.codes
        parts.append((_narrow(column) if column.dtype in _NARROWED else column).tobytes())
    parts += [flags.tobytes() for flags in page.absent.values()]
    digests = page.digests
    if digests is not None:
        parts += [digests.rows.tobytes(), digests.dumped]
    return _packed(parts)


def _rows_of(
    body: bytes, texts_of: Callable[[str, str, list[Any]], stored_pages.ToldTexts]
) -> tuple[str, stored_pages.StoredPage]:
    parts = _Parts(body)
    meta = orjson.loads(decoded_sizes.page_text(parts.next()))
    namespace = _text(meta["namespace"])
    suffixes = meta["suffixes"]
    keys = _split(parts.next()) if suffixes is None else _uuid_keys(parts.next(), suffixes)
    count = len(keys)
    revisions, versions = parts.numbers(np.int64, count), parts.numbers(np.int64, count)
    held = parts.many()
    owners, places = parts.numbers(np.int32, count), parts.array(np.uint8)
    dictionary = parts.next()
    columns: dict[str, npt.NDArray[Any] | stored_pages.TextColumn] = {}
    for name, form in meta["columns"].items():
        if type(form) is list:
            texts = texts_of(namespace, name, form)
            columns[name] = stored_pages.TextColumn(parts.numbers(np.int32, count), texts)
        elif _NUMBERS[form] in _NARROWED:
            columns[name] = parts.numbers(_NUMBERS[form], count)
        else:
            columns[name] = parts.array(_NUMBERS[form])
    absent = {_text(name): parts.array(np.bool_) for name in meta["absent"]}
    digests = None
    if meta["digests"]:
        digests = stored_pages.DumpedDigests(parts.array(np.int32), parts.next())
    parts.end()
    page = stored_pages.StoredPage(
        keys, revisions, versions, held, owners, places, dictionary, columns, absent, digests
    )
    return namespace, page


#: What columns hold, by how NumPy names it on this machine.
_NUMBERS: Mapping[str, Any] = {
    np.dtype(each).str: each for each in (np.int64, np.float64, np.bool_)
}


#: Whole numbers, which stand in as few bytes as those of a page need.
_NARROWED = (np.int64, np.int32)
_WIDTHS = (1, 2, 4, 8)


def _narrow(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return whole numbers in few bytes each."""
    return numbers.astype(f"i{record_chunks.bytes_needed(numbers)}") if len(numbers) else numbers


def _records_body(namespace: str, page: Sequence[records.Record]) -> bytes:
    return _packed(
        [
            namespace.encode(),
            _joined([record.key.key for record in page]),
            np.array([record.revision for record in page], np.int64).tobytes(),
            np.array([record.version for record in page], np.int64).tobytes(),
            *_many([record.payload for record in page]),
        ]
    )


def _records_of(body: bytes) -> list[records.Record]:
    parts = _Parts(body)
    namespace = parts.next().decode()
    keys = _split(parts.next())
    revisions, versions = parts.array(np.int64).tolist(), parts.array(np.int64).tolist()
    payloads = parts.many()
    parts.end()
    found = []
    for key, revision, version, payload in zip(keys, revisions, versions, payloads, strict=True):
        fault = records.name_fault(namespace, key)
        if fault is not None or revision < 1 or version < 0:
            raise ValueError(fault or "a revision or a version is none")
        found.append(records.Record(records.RecordKey(namespace, key), revision, version, payload))
    return found


#: Stands in no key.
_BETWEEN = "\n"


def _joined(keys: Sequence[str]) -> bytes:
    return _BETWEEN.join(keys).encode()


def _split(joined: bytes) -> list[str]:
    # Looked at before they are made: of a byte each they take eight times as much.
    if joined.count(_BETWEEN.encode()) >= stored_pages.MOST_ROWS:
        raise ValueError(f"a page of more than {stored_pages.MOST_ROWS} keys")
    return joined.decode().split(_BETWEEN)


_UUID_BYTES = 16


def _uuid_keys(body: bytes, suffixes: Any) -> key_rows.UuidKeys:
    count, rest = divmod(len(body), _UUID_BYTES + 1)
    if rest or type(suffixes) is not list:
        raise ValueError("its keys are none")
    found = np.frombuffer(body, np.uint8)
    uuids = found[: count * _UUID_BYTES].reshape(count, _UUID_BYTES)
    return key_rows.UuidKeys(uuids, found[count * _UUID_BYTES :], suffixes)


def _many(values: Sequence[bytes]) -> list[bytes]:
    """Return values as two parts: their lengths, and all of them."""
    return [np.array(list(map(len, values)), np.uint32).tobytes(), b"".join(values)]


def _packed(parts: Sequence[bytes]) -> bytes:
    return b"".join(each for part in parts for each in (_LENGTH.pack(len(part)), part))


class _Parts:
    """The parts of a body, one after the other; raises ValueError where there is none."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def next(self) -> bytes:
        first = self._at + _LENGTH.size
        if first > len(self._body):
            raise ValueError("it is cut short")
        (length,) = _LENGTH.unpack_from(self._body, self._at)
        self._at = first + length
        if self._at > len(self._body):
            raise ValueError("it is cut short")
        return self._body[first : self._at]

    def array(self, dtype: Any) -> npt.NDArray[Any]:
        part = self.next()
        return np.frombuffer(part, dtype) if part else np.empty(0, dtype)

    def numbers(self, dtype: Any, count: int) -> npt.NDArray[Any]:
        """Return so many whole numbers, which :func:`_narrow` made narrow."""
        part = self.next()
        width, rest = divmod(len(part), count) if count else (0, len(part))
        if rest or (count and (width not in _WIDTHS or width > np.dtype(dtype).itemsize)):
            raise ValueError(f"{len(part)} bytes of {count} numbers")
        return np.frombuffer(part, f"i{width}").astype(dtype) if count else np.empty(0, dtype)

    def many(self) -> list[bytes]:
        counts, joined = self.array(np.uint32), self.next()
        if len(counts) > stored_pages.MOST_ROWS:
            raise ValueError(f"a page of {len(counts)} payloads")
        lengths = counts.tolist()
        if sum(lengths) != len(joined):
            raise ValueError("lengths do not add up")
        found, at = [], 0
        for length in lengths:
            found.append(joined[at : at + length])
            at += length
        return found

    def end(self) -> None:
        if self._at != len(self._body):
            raise ValueError("bytes follow its end")
