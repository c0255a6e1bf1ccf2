# SPDX-License-Identifier: Apache-2.0
"""Payloads as a back end may hold them: damaged, forged, too large, and sound.

Whatever the bytes, they are decoded or refused as undecodable, within the
bounds of the process; what was decoded can be encoded again to the same state;
and a store that is given them goes on.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from typing import Any

import orjson

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces as built_in
from nova_nodb_scheduler.store import declarations, host_state_store
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec, decoded_sizes
from tests.fuzz import target

V1 = namespaces.SchemaVersion(1, 0)

_TEXTS = (
    "",
    "a",
    "é",
    "\U0001f600",
    "\x00",
    "\u2028",
    "x" * 70,
    "host-1",
    '"',
    "\\",
    "[[[[",
    ",,,",
)
_NUMBERS = (0, -1, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e308)
_TOKENS = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\u0000", b"\\ud800", b"1e999", b"-", b"NaN"),
    *(b"null", b"true", b"99999999999999999999", b"\xff", b"\xed\xa0\x80", b"\x00", b'{"":', b"[["),
)
_UNITS = (b"[]", b"{}", b'{"":{}}', b'{"a":0}', b"0", b'"ab"', '"\U0001f6001"'.encode(), b"[[],{}]")
_NAMES = ("row", "cell", "object_version", "host", "uuid", "a", "", "stats", "unreported", "claims")
#: Size of the largest text that is made, some above what is taken.
_LARGEST_BYTES = 2 * decoded_sizes.MIB
_CASES_OF_A_STORE = 500
#: One payload of so many is brought into a store, too.
_STORED_OF = 8


class Decoder:
    """The decoder, and the intake of a store behind it."""

    #: Text, its inflated copy, what orjson takes while it parses, objects, a second encoding.
    case_bytes = 40 * _LARGEST_BYTES + decoded_sizes.DecodingBounds(decoded_sizes.MIB).batch_bytes

    def __init__(self) -> None:
        self._former = decoded_sizes.present()
        # Small, so that what is too large is quickly made.
        decoded_sizes.set_for_process(decoded_sizes.DecodingBounds(decoded_sizes.MIB))
        self._kinds: tuple[tuple[int, Callable[[random.Random], bytes]], ...] = (
            (20, _noise),
            (200, _sound),
            (300, _damaged),
            (300, _odd_text),
            (150, _odd_envelope),
            (10, _deep),
            (1, _heavy),
        )
        self._weights = [weight for weight, _ in self._kinds]
        self._cases = 0
        self._begin_store()

    def _begin_store(self) -> None:
        declared = built_in.BUILT_IN
        self._store = host_state_store.HostStateStore(declared, codec.decode_state)
        self._quarantine = ingest.Quarantine(100)
        self._intake = ingest.Ingester(self._store, declared, self._quarantine)
        self._declared = [each.name for each in declarations.followed(declared)]

    def case(self, dice: random.Random) -> str:
        """See :class:`.target.Target`."""
        [(_, make)] = dice.choices(self._kinds, self._weights)
        payload = make(dice)
        kind = make.__name__.strip("_")
        try:
            decoded = codec.decode(payload)
        except errors.UndecodableRecord as error:
            if not str(error).isprintable() or len(str(error)) > 500:
                raise target.Finding(f"what is said of it: {str(error)[:200]!r}") from error
            end = "refused"
        else:
            self._check(decoded)
            end = "decoded"
        if dice.randrange(_STORED_OF) == 0:
            self._take(dice, payload)
        return f"{kind} {end}"

    def close(self) -> None:
        """See :class:`.target.Target`."""
        decoded_sizes.set_for_process(self._former)

    @staticmethod
    def _check(decoded: codec.Decoded) -> None:
        text = decoded.text or b""
        if len(text) > decoded_sizes.present().text_bytes:
            raise target.Finding(f"a text of {len(text)} bytes was decoded")
        try:
            again = codec.decode(codec.encode(decoded.state, decoded.schema))
        except errors.InvalidRecord as error:
            # A text may spell a state shorter than we do (a number, an escape).
            if "max_record_mib" not in str(error):
                raise target.Finding(f"what was read is not written: {error}") from error
            return
        if not _same(again.state, decoded.state):
            raise target.Finding("a state is another when it is written and read again")

    def _take(self, dice: random.Random, payload: bytes) -> None:
        """Bring the record into a store, as a feed would."""
        self._cases += 1
        if self._cases % _CASES_OF_A_STORE == 0:
            self._begin_store()
        key = records.RecordKey(dice.choice(self._declared), f"k{dice.randrange(40)}")
        record = records.Record(key, self._cases, self._cases, payload)
        for _ in self._intake.take([record]):
            pass
        held = self._store.snapshot().namespace(key.namespace).get(key.key)
        if held is None and self._quarantine.get(key) is None and not self._is_full():
            raise target.Finding(f"{key} is neither in the store nor kept aside")
        if held is not None and held.revision == record.revision:
            assert isinstance(held.state, dict)

    def _is_full(self) -> bool:
        return bool(self._quarantine.admitted > len(self._quarantine))


def _same(one: Any, other: Any) -> bool:
    """Compare states; 1 and 1.0 and True are three."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def _noise(dice: random.Random) -> bytes:
    return dice.randbytes(dice.choice((0, 1, 2, 5, 40, 400)))


def _value(dice: random.Random, depth: int) -> Any:
    kind = dice.randrange(8 if depth else 5)
    if kind == 0:
        return dice.choice((None, True, False))
    if kind <= 2:
        return dice.choice(_NUMBERS)
    if kind <= 4:
        return dice.choice(_TEXTS)
    if kind == 5:
        return [_value(dice, depth - 1) for _ in range(dice.randrange(5))]
    return {dice.choice(_NAMES): _value(dice, depth - 1) for _ in range(dice.randrange(6))}


def _state(dice: random.Random) -> dict[str, Any]:
    return {dice.choice(_NAMES): _value(dice, dice.randrange(6)) for _ in range(dice.randrange(8))}


def _sound(dice: random.Random) -> bytes:
    state = _state(dice)
    payload = codec.encode(state, V1)
    if not _same(codec.decode(payload).state, state):
        raise target.Finding("a state is another when it was written and read")
    return payload


def _damaged(dice: random.Random) -> bytes:
    payload = bytearray(_sound(dice) if dice.random() < 0.7 else _packed(_text(dice)))
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(payload) + 1)
        match dice.randrange(4):
            case 0:
                payload[at:at] = dice.choice(_TOKENS)
            case 1:
                del payload[at : at + dice.randrange(1, 9)]
            case 2:
                payload[at : at + 1] = dice.randbytes(1)
            case _:
                payload[at:at] = payload[dice.randrange(len(payload) + 1) :][:20]
    return bytes(payload)


def _packed(text: bytes) -> bytes:
    return b"\x02" + zlib.compress(text, 1)


def _text(dice: random.Random) -> bytes:
    return codec.encode_text(_state(dice), V1)


def _odd_text(dice: random.Random) -> bytes:
    text = bytearray(_text(dice))
    for _ in range(dice.randrange(1, 6)):
        at = dice.randrange(len(text) + 1)
        text[at : at + dice.randrange(3)] = dice.choice(_TOKENS)
    return _packed(bytes(text)) if dice.random() < 0.5 else b"\x01" + bytes(text)


def _odd_envelope(dice: random.Random) -> bytes:
    schema: Any = dice.choice(
        ("1.0", "1.9", "2.0", "1", "", "\u0661.\u0660", "1.0\n", "9" * 5000, 1, None, [])
    )
    state: Any = dice.choice((_state(dice), [], None, "x", 1))
    envelope = {"s": schema, "d": state, dice.choice(("s", "d", "more")): _value(dice, 3)}
    text = orjson.dumps(envelope if dice.random() < 0.9 else [envelope])
    return _packed(text) if dice.random() < 0.5 else b"\x01" + text


def _deep(dice: random.Random) -> bytes:
    depth = dice.choice((1, 50, 62, 63, 64, 65, 66, 200, 254, 255, 1000, 1023, 1024, 5000))
    opening, closing = dice.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[[],{"":', b"}]")))
    inner = dice.choice((b"1", b"[]", b'"]]]]"'))
    closed = closing * (depth if dice.random() < 0.9 else depth - 1)
    return _packed(b'{"s":"1.0","d":{"a":' + opening * depth + inner + closed + b"}}")


def _heavy(dice: random.Random) -> bytes:
    unit = dice.choice(_UNITS)
    size_bytes = int(math.exp(dice.uniform(math.log(1000), math.log(_LARGEST_BYTES))))
    members = b",".join([unit] * max(1, size_bytes // (len(unit) + 1)))
    if dice.random() < 0.2:
        # JSON within JSON, as Nova's rows have it.
        members = orjson.dumps("[" + members.decode() + "]")
    return _packed(b'{"s":"1.0","d":{"row":{"stats":[' + members + b"]}}}")
