# SPDX-License-Identifier: Apache-2.0
"""Slots of heartbeat journals as whoever reaches the back end may write them.

Whatever the state, it is a slot that the encoder could have written, or refused with a
reason; and whatever slots a reader takes in, in any order, it goes on.
"""

from __future__ import annotations

import base64
import random
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.facts import heard_services
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals
from tests.fuzz import target

_CELLS = ("a", "b")
_KEYS = [str(uuid.UUID(int=each)) for each in (1, 2, 3, 2**63, 2**64 - 1)]
_BEGAN_SECONDS = 1_790_000_000.0
_NEWEST = heartbeat_journals.tick_of(_BEGAN_SECONDS)
_ODD: tuple[Any, ...] = (None, True, "", "a", -1, 0, 1.5, 2**53 + 1, 2**70, [], {}, "A" * 200_000)
_COUNTS = (-(2**31), -1, 0, 1, 100, 163, 164, 165, 166, 2**31 - 1)


class Journals:
    """The decoder of slots, and a reader's arrays behind it."""

    #: Text and bytes of the largest slot, its arrays, and an odd text.
    case_bytes = 4 << 20

    def __init__(self) -> None:
        self._kinds: tuple[Callable[[random.Random], dict[str, Any]], ...] = (
            _sound,
            _odd_field,
            _odd_numbers,
            _noise,
        )
        self._cases = 0
        self._heard = heard_services.HeardServices(3.0)

    def case(self, dice: random.Random) -> str:
        """See :class:`.target.Target`."""
        self._cases += 1
        if dice.randrange(100) == 0:
            self._know(dice)
        if dice.randrange(50) == 0:
            self._heard.begin_anew(_BEGAN_SECONDS - dice.choice((0, 500, 1e9)))
        make = dice.choice(self._kinds)
        state = make(dice)
        kind = make.__name__.strip("_")
        try:
            slot = heartbeat_journals.read("fuzzed.0", state)
        except errors.InvalidRecord as error:
            if not str(error).isprintable() or len(str(error)) > 500:
                raise target.Finding(f"what is said of it: {str(error)[:200]!r}") from error
            return f"{kind} refused"
        again = heartbeat_journals.slot_of(slot.cell, slot.flush, slot.ids, slot.counts, slot.ticks)
        if heartbeat_journals.state_of(again) != {name: state[name] for name in _FIELDS}:
            raise target.Finding("a slot is another when it is written again")
        self._take(dice, slot)
        return f"{kind} read"

    def close(self) -> None:
        """See :class:`.target.Target`."""

    def _know(self, dice: random.Random) -> None:
        keys = dice.sample([*_KEYS, "no-uuid"], dice.randrange(7))
        self._heard.know(
            heard_services.KnownServices(
                keys,
                [dice.choice(_CELLS) for _ in keys],
                np.array([dice.choice(_COUNTS) for _ in keys], np.int64),
                np.array([dice.choice((np.nan, _BEGAN_SECONDS)) for _ in keys], np.float64),
            )
        )

    def _take(self, dice: random.Random, slot: heartbeat_journals.Slot) -> None:
        version = max(self._cases - dice.choice((0, 0, 0, 5)), 1)
        taken = self._heard.take(slot, version, float(self._cases))
        if not 0 <= taken.unknown <= len(slot):
            raise target.Finding(f"of {len(slot)} heartbeats {taken.unknown} are unknown")
        self._heard.take(slot, version, float(self._cases))
        before = self._heard.unreported(1e9)
        cell = dice.choice(_CELLS)
        if dice.randrange(4) == 0:
            self._heard.settle(cell, self._cases)
            before.pop(cell, None)
        if self._heard.unreported(1e9) != before:
            raise target.Finding("a sweep behind all slots did not settle its cell, and it alone")


_FIELDS = ("cell", "flush", "newest", "numbers")


def _sound(dice: random.Random) -> dict[str, Any]:
    size = dice.choice((1, 2, 5, 70))
    first, ticks = dice.choice(_COUNTS), range(_NEWEST - 9000, _NEWEST + 9000)
    ids = [heartbeat_journals.service_id(dice.choice(_KEYS)) for _ in range(size)]
    counts = [min(first + dice.randrange(70), 2**31 - 1) for _ in range(size)]
    heard = [dice.choice(ticks) for _ in range(size)]
    slot = heartbeat_journals.slot_of(dice.choice(_CELLS), dice.randrange(9), ids, counts, heard)
    return heartbeat_journals.state_of(slot)


def _odd_field(dice: random.Random) -> dict[str, Any]:
    state = _sound(dice)
    for _ in range(dice.randrange(1, 3)):
        name = dice.choice(_FIELDS)
        if dice.random() < 0.2:
            state.pop(name, None)
        else:
            state[name] = dice.choice(_ODD)
    return state


def _odd_numbers(dice: random.Random) -> dict[str, Any]:
    state = _sound(dice)
    numbers = bytearray(base64.b64decode(state["numbers"]))
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(numbers) + 1)
        match dice.randrange(3):
            case 0:
                numbers[at : at + 1] = dice.randbytes(1)
            case 1:
                del numbers[at : at + dice.choice((1, 8, 14))]
            case _:
                numbers[at:at] = numbers[: dice.choice((1, 14, 28))]
    state["numbers"] = base64.b64encode(numbers).decode()
    return state


def _noise(dice: random.Random) -> dict[str, Any]:
    numbers = dice.randbytes(14 * dice.choice((0, 1, 1, 2, 3)))
    newest = dice.choice((0, 65_535, _NEWEST, 10**12))
    text = base64.b64encode(numbers).decode()
    return {"cell": dice.choice(_CELLS), "flush": 1, "newest": newest, "numbers": text}
