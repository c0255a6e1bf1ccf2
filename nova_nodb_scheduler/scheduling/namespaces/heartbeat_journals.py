# SPDX-License-Identifier: Apache-2.0
"""A slot of a conductor's journal: the heartbeats of one flush, as one record.

A slot can be read by itself. Of each heartbeat it holds the last eight bytes of the
service's uuid, its count and the tenth of a second in which it was heard. They are sorted
by id and count, and each kind of number stands byte by byte, which is what zlib makes
least of. Whoever reads a slot did not write it: its size is looked at before its numbers
are, and what an encoder would not have written is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.namespaces import record_fields

#: Heartbeats in one slot at the most: some 120 kB, and back ends take 1 MB.
MOST_HEARTBEATS: Final = 8192
#: Of these one service's, for a reader takes them one after the other.
MOST_OF_ONE: Final = 64
#: Times are told in ticks.
TICKS_PER_SECOND: Final = 10
#: How much older than the newest a heartbeat may be, in ticks: 6,553 s.
MOST_AGE_TICKS: Final = 2**16 - 1
#: Nova's column is an integer of 32 bits with a sign.
LEAST_COUNT: Final = -(2**31)
GREATEST_COUNT: Final = 2**31 - 1
#: Latest time there is: in the year 5138.
MOST_SECONDS: Final = 10**11
_MOST_TICKS: Final = MOST_SECONDS * TICKS_PER_SECOND
_MOST_FLUSHES: Final = 2**53
#: How far back who begins to read journals looks, in times that a service may be silent before it
#: counts as down.
HORIZON_TIMES: Final = 1.5
#: How long a ring is, in the same: longer than the horizon by what clocks may differ.
RING_TIMES: Final = 2.5

_ID, _COUNT, _AGE = np.dtype("<u8"), np.dtype("<i4"), np.dtype("<u2")
_HEARTBEAT_BYTES = _ID.itemsize + _COUNT.itemsize + _AGE.itemsize
#: Characters of base64 for so many bytes.
_MOST_CHARACTERS = 4 * -(-MOST_HEARTBEATS * _HEARTBEAT_BYTES // 3)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-([0-9a-f]{4})-([0-9a-f]{12})")


def service_id(key: str) -> int | None:
    """Return what stands for a service in a slot; None for a key that is no uuid.

    Two services may have the same: of a milliard clouds with 100,000 services, in one.
    """
    found = _UUID.fullmatch(key)
    return None if found is None else int(found[1] + found[2], 16)


def tick_of(seconds: float) -> int:
    """Return the tick that a time, in seconds since the epoch, lies in."""
    return int(seconds * TICKS_PER_SECOND // 1)


@attrs.frozen(eq=False)
class Slot:
    """Heartbeats of one flush; arrays have the shape (n,) and are read-only.

    :param cell: uuid of the cell that all of the services are in
    :param flush: number of the flush, which grows from slot to slot of a journal
    :param ids: of services, by :func:`service_id`; uint64, ascending
    :param counts: ``report_count``; int64, ascending within an id
    :param ticks: when each was heard, in ticks since the epoch; int64
    """

    cell: str
    flush: int
    ids: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]
    ticks: npt.NDArray[np.int64]

    def __attrs_post_init__(self) -> None:
        for numbers in (self.ids, self.counts, self.ticks):
            numbers.flags.writeable = False

    def __len__(self) -> int:
        return len(self.ids)


def slot_of(
    cell: str,
    flush: int,
    ids: npt.ArrayLike,
    counts: npt.ArrayLike,
    ticks: npt.ArrayLike,
) -> Slot:
    """Return a slot of heartbeats in any order; of those that are alike it keeps the latest.

    :raises ValueError: no slot can hold them
    """
    try:
        of, count = np.array(ids, np.uint64), np.array(counts, np.int64)
        tick = np.array(ticks, np.int64)
    except OverflowError as error:
        raise ValueError(f"a number does not fit 64 bits: {error}") from error
    order = np.lexsort((tick, count, of))
    of, count, tick = of[order], count[order], tick[order]
    is_last = np.ones(len(of), np.bool_)
    is_last[:-1] = (of[1:] != of[:-1]) | (count[1:] != count[:-1])
    slot = Slot(cell, flush, of[is_last], count[is_last], tick[is_last])
    fault = _fault_of(slot)
    if fault is not None:
        raise ValueError(fault)
    return slot


def state_of(slot: Slot) -> dict[str, Any]:
    """Return the state of a record that holds a slot."""
    newest = int(slot.ticks.max())
    counts = slot.counts.astype(_COUNT)
    ages = (newest - slot.ticks).astype(_AGE)
    numbers = slot.ids.astype(_ID).tobytes() + _planes(counts) + _planes(ages)
    return {
        "cell": slot.cell,
        "flush": slot.flush,
        "newest": newest,
        "numbers": base64.b64encode(numbers).decode("ascii"),
    }


def read(key: str, state: Mapping[str, Any]) -> Slot:
    """Return the slot that a record holds.

    :param state: whatever somebody wrote there
    :raises InvalidRecord: no slot that :func:`state_of` made
    """
    fields = record_fields.RecordFields(f"heartbeat_journals/{key}", state)
    cell = _text(fields, "cell")
    flush = _whole(fields, "flush", _MOST_FLUSHES)
    newest = _whole(fields, "newest", _MOST_TICKS)
    numbers = _numbers(fields)
    size = len(numbers) // _HEARTBEAT_BYTES
    first = size * _ID.itemsize
    slot = Slot(
        cell,
        flush,
        np.frombuffer(numbers, _ID, size).astype(np.uint64),
        _from_planes(numbers, _COUNT, size, first),
        newest - _from_planes(numbers, _AGE, size, first + size * _COUNT.itemsize),
    )
    fault = _fault_of(slot)
    if fault is None and slot.ticks.max() != newest:
        fault = "none of the heartbeats is the newest"
    if fault is not None:
        raise fields.wrong("numbers", fault)
    return slot


def _whole(fields: record_fields.RecordFields, name: str, most: int) -> int:
    value = fields.find(name)
    if type(value) is not int or not 0 <= value <= most:
        raise fields.wrong(name, f"it is no whole number from 0 to {most}")
    return value


def _text(fields: record_fields.RecordFields, name: str) -> str:
    value = fields.find(name)
    if type(value) is not str:
        raise fields.wrong(name, "it is no text")
    return value


def _numbers(fields: record_fields.RecordFields) -> bytes:
    text = _text(fields, "numbers")
    if len(text) > _MOST_CHARACTERS:
        raise fields.wrong(
            "numbers", f"it has {len(text)} characters, at most {_MOST_CHARACTERS} are taken"
        )
    try:
        numbers = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise fields.wrong("numbers", f"it is not base64: {error}") from error
    if len(numbers) % _HEARTBEAT_BYTES:
        raise fields.wrong(
            "numbers", f"it has {len(numbers)} bytes, which are no heartbeats: it is cut short"
        )
    return numbers


def _fault_of(slot: Slot) -> str | None:
    """Say why no slot can hold what stands in this one; None if it can."""
    ids, counts, ticks = slot.ids, slot.counts, slot.ticks
    if not slot.cell:
        return "it names no cell"
    if not 0 <= slot.flush <= _MOST_FLUSHES:
        return f"flush {slot.flush} is not from 0 to {_MOST_FLUSHES}"
    if not 1 <= len(ids) <= MOST_HEARTBEATS:
        return f"it has {len(ids)} heartbeats, which must be 1 to {MOST_HEARTBEATS}"
    same = ids[1:] == ids[:-1]
    if np.any((ids[1:] < ids[:-1]) | (same & (counts[1:] <= counts[:-1]))):
        return "its heartbeats are not in the order of ids and counts"
    if most_of_one(ids) > MOST_OF_ONE:
        return f"one service has more than {MOST_OF_ONE} heartbeats in it"
    if counts.min() < LEAST_COUNT or counts.max() > GREATEST_COUNT:
        return "a count does not fit 32 bits with a sign"
    if ticks.min() < 0 or ticks.max() > _MOST_TICKS:
        return "a time is none"
    if ticks.max() - ticks.min() > MOST_AGE_TICKS:
        return f"heartbeats are more than {MOST_AGE_TICKS // TICKS_PER_SECOND} s apart"
    return None


def places_within(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return of each of some sorted ids how many of the same stand before it."""
    places = np.arange(len(ids))
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = ids[1:] != ids[:-1]
    return places - np.maximum.accumulate(np.where(is_first, places, 0))


def most_of_one(ids: npt.NDArray[np.uint64]) -> int:
    """Return how often the most frequent of some sorted ids is there; 0 of none."""
    return int(places_within(ids).max()) + 1 if len(ids) else 0


def _planes(numbers: npt.NDArray[Any]) -> bytes:
    """Return numbers as their first bytes, then their second ones, and so on."""
    return numbers.view("u1").reshape(len(numbers), -1).T.tobytes()


def _from_planes(
    numbers: bytes, kind: np.dtype[Any], size: int, first: int
) -> npt.NDArray[np.int64]:
    planes = np.frombuffer(numbers, "u1", size * kind.itemsize, first)
    by_number = np.ascontiguousarray(planes.reshape(kind.itemsize, size).T)
    return by_number.view(kind).reshape(size).astype(np.int64)
