# SPDX-License-Identifier: Apache-2.0
"""States as bytes and back, with the version of their schema.

A payload is one format byte and a JSON object ``{"s": "1.0", "d": state}``:
plain below :data:`COMPRESS_ABOVE_BYTES`, zlib level 1 above it. Level 1 turns
5 kB of a compute node into 1.9 kB for 84 us; higher levels gain little.
"""

from __future__ import annotations

import marshal
import operator
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.wire import decoded_sizes

#: First byte of a payload: its format.
PLAIN = 0x01
ZLIB = 0x02
_PLAIN_BYTE = bytes((PLAIN,))

#: JSON text longer than this is compressed.
COMPRESS_ABOVE_BYTES = 2048
#: What is longer is walked through, and not held twice.
_MOST_PLAIN_BYTES = 64 * 1024
#: Without references: objects that occur twice are of no interest.
_MARSHAL_VERSION = 2
_LEAST_INTEGER = -(2**63)
_GREATEST_INTEGER = 2**64 - 1
_SCHEMA = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
#: Schema versions by text: there are a handful, and each payload has one.
_PARSED: dict[str, namespaces.SchemaVersion] = {}
_MOST_PARSED = 64


@attrs.frozen
class Decoded:
    """What a payload held.

    :param schema: version of the schema its writer used
    :param state: the state, fields unknown to this release included
    :param text: JSON text it was read from
    """

    schema: namespaces.SchemaVersion
    state: dict[str, Any]
    text: bytes | None = attrs.field(default=None, eq=False, repr=False)


def encode(
    state: Mapping[str, Any],
    schema: namespaces.SchemaVersion,
    *,
    record: object = "to be encoded",
) -> bytes:
    """Return a state as bytes; equal states in equal order give equal bytes.

    What JSON cannot carry unchanged is refused rather than altered: orjson
    alone would write NaN as null and enumerations as their values. A tuple is
    taken as a list.

    :param record: what is ``namespace/key`` as text, for that of an error
    :raises InvalidRecord: a value is not JSON, not finite, beyond 64 bits, or
        the whole is too large
    """
    return payload_of(encode_text(state, schema, record=record))


def encode_text(
    state: Mapping[str, Any],
    schema: namespaces.SchemaVersion,
    *,
    record: object = "to be encoded",
) -> bytes:
    """Return the JSON text that :func:`encode` makes a payload of.

    :raises InvalidRecord: as :func:`encode`
    """
    text = _text_of_plain(state, schema)
    if text is None:
        _check_value(state, (), str(record))
        try:
            text = orjson.dumps({"s": str(schema), "d": dict(state)})
        except orjson.JSONEncodeError as error:
            raise errors.InvalidRecord(str(record), "(state)", str(error)) from error
    fault = decoded_sizes.present().fault_of(text)
    if fault is not None:
        # Written, it would be kept aside by all who read it.
        raise errors.InvalidRecord(str(record), "(state)", fault)
    return text


def _text_of_plain(state: Mapping[str, Any], schema: namespaces.SchemaVersion) -> bytes | None:
    """Return the text of a state that JSON carries as it is; None where that is to be looked at.

    In a few calls, where a walk takes one for each value; the walk names what is wrong. What
    reads back as it was is what JSON carries, but for an enumeration that is a number or a text
    at the same time: it equals what it is written as. marshal takes exact types alone.
    """
    if type(state) is not dict:
        return None
    try:
        text = orjson.dumps({"s": str(schema), "d": state})
        if len(text) > _MOST_PLAIN_BYTES:
            return None
        read: dict[str, Any] = orjson.loads(text)["d"]
        if read != state or decoded_sizes.is_too_deep(text, read):
            return None
        marshal.dumps(state, _MARSHAL_VERSION)
    except (orjson.JSONEncodeError, ValueError):
        return None
    return text


def payload_of(text: bytes) -> bytes:
    """Return a payload of a text of :func:`encode_text`."""
    if len(text) > COMPRESS_ABOVE_BYTES:
        return bytes((ZLIB,)) + compress(text)
    return bytes((PLAIN,)) + text


def compress(text: bytes) -> bytes:
    """Return JSON text as it stands behind the format byte of a compressed payload."""
    return zlib.compress(text, 1)


def decode(payload: bytes) -> Decoded:
    """Read what :func:`encode` wrote.

    :raises UndecodableRecord: whatever is wrong with the bytes
    """
    if not payload:
        raise errors.UndecodableRecord("it is empty")
    form = payload[0]
    if form == PLAIN:
        text = payload[1:]
    elif form == ZLIB:
        text = _decompress(payload[1:])
    else:
        raise errors.UndecodableRecord(
            f"format {payload[0]:#04x} is unknown to this release (known: 0x01, 0x02)"
        )
    fault = decoded_sizes.present().fault_of(text)
    if fault is not None:
        raise errors.UndecodableRecord(fault)
    try:
        envelope = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise errors.UndecodableRecord(f"it is not JSON: {error}") from error
    if not isinstance(envelope, dict):
        raise errors.UndecodableRecord("its JSON is not an object")
    state = envelope.get("d")
    if not isinstance(state, dict):
        raise errors.UndecodableRecord("its state ('d') is not an object")
    if decoded_sizes.is_too_deep(text, state):
        raise errors.UndecodableRecord(f"it is nested deeper than {decoded_sizes.MAX_DEPTH} levels")
    return Decoded(_parse_schema(envelope.get("s")), state, text)


@attrs.frozen
class DecodedPage:
    """What payloads of one schema held, in their order; see :class:`Decoded`.

    :param weight: of all texts, by :func:`.decoded_sizes.weigh`
    """

    schema: namespaces.SchemaVersion
    states: Sequence[dict[str, Any]]
    texts: Sequence[bytes]
    weight: int


def decode_page(payloads: Sequence[bytes]) -> DecodedPage | None:
    """Read what :func:`encode` wrote, of many records in a few calls for all.

    By each bound of :func:`decode`. Nothing is joined: one text cannot change how another
    is read.

    :returns: None where one of them is compressed, long, of another schema, or not to be
        decoded: each is to be given to :func:`decode` then, which tells them apart
    """
    if {payload[:1] for payload in payloads} != {_PLAIN_BYTE}:
        return None
    texts = [payload[1:] for payload in payloads]
    try:
        weight = decoded_sizes.present().weigh_short(texts)
        if weight is None:
            return None
        envelopes = list(map(orjson.loads, texts))
        if set(map(type, envelopes)) != {dict}:
            return None
        states = list(map(operator.methodcaller("get", "d"), envelopes))
        schemas = set(map(operator.methodcaller("get", "s"), envelopes))
        if set(map(type, states)) != {dict} or len(schemas) != 1:
            return None
        schema = _parse_schema(schemas.pop())
    except (errors.UndecodableRecord, orjson.JSONDecodeError, TypeError):
        return None  # TypeError: of a schema that is a list, say
    if not decoded_sizes.are_shallow(texts):
        if any(map(decoded_sizes.is_too_deep, texts, states)):
            return None
    return DecodedPage(schema, states, texts, weight)


def text_of(payload: bytes) -> bytes:
    """Return the JSON text in a payload that :func:`decode` took.

    :raises UndecodableRecord: it did not
    """
    return payload[1:] if payload[0] == PLAIN else _decompress(payload[1:])


def decode_state(payload: bytes) -> Mapping[str, Any]:
    """Return the state alone, for a store that decodes lazily.

    :raises UndecodableRecord: as :func:`decode`
    """
    return decode(payload).state


def check_readable(schema: namespaces.SchemaVersion, namespace: namespaces.Namespace) -> None:
    """Refuse a state of another major version; a newer minor only adds fields.

    :raises UndecodableRecord: naming both versions
    """
    if schema.major != namespace.schema.major:
        raise errors.UndecodableRecord(
            f"its schema is {schema}, this release reads {namespace.schema.major}.x of "
            f"namespace {namespace.name} (it writes {namespace.schema}): run releases that "
            "share a major version"
        )


def _decompress(data: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    most_bytes = decoded_sizes.present().text_bytes
    try:
        text = decompressor.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise errors.UndecodableRecord(f"it cannot be decompressed: {error}") from error
    if len(text) > most_bytes:
        raise errors.UndecodableRecord(
            f"it unpacks to more than {most_bytes} bytes ([nodb_scheduler] max_record_mib)"
        )
    if not decompressor.eof:
        raise errors.UndecodableRecord("it is cut short")
    if decompressor.unused_data:
        raise errors.UndecodableRecord("bytes follow its end")
    return text


def _parse_schema(text: object) -> namespaces.SchemaVersion:
    known = _PARSED.get(text) if type(text) is str else None
    if known is not None:
        return known
    if not isinstance(text, str) or not _SCHEMA.fullmatch(text):
        raise errors.UndecodableRecord("its schema version ('s') is not of the form '1.0'")
    parsed = namespaces.SchemaVersion.parse(text)
    if len(_PARSED) < _MOST_PARSED:
        _PARSED[text] = parsed
    return parsed


def _check_value(value: object, path: tuple[str, ...], record: str) -> None:
    """Refuse what JSON does not carry as it is, naming the field."""
    if value is None or value is True or value is False:
        return
    reason = None
    if type(value) is str:
        reason = None if value.isascii() else _text_fault(value)
    elif type(value) is int:
        if not _LEAST_INTEGER <= value <= _GREATEST_INTEGER:
            reason = "an integer beyond 64 bits; carry it as text"
    elif type(value) is float:
        if value - value != 0.0:  # NaN and infinities: cheaper than two calls
            reason = f"{value} has no form in JSON; use None"
    elif isinstance(value, (dict, list)) or type(value) is tuple or _is_root(value, path):
        if len(path) >= decoded_sizes.MAX_DEPTH:
            reason = f"nested deeper than {decoded_sizes.MAX_DEPTH} levels"
        else:
            _check_members(value, path, record)
    else:
        reason = f"{type(value).__name__} is no JSON value"
    if reason is not None:
        raise errors.InvalidRecord(record, ".".join(path[:8]) or "(state)", reason)


def _is_root(value: object, path: tuple[str, ...]) -> bool:
    return not path and isinstance(value, Mapping)


def _is_sound(value: object) -> bool:
    """Tell quickly of most values that JSON carries them as they are."""
    kind = type(value)
    if kind is str:
        return value.isascii()  # type: ignore[attr-defined, no-any-return]
    if kind is int:
        return _LEAST_INTEGER <= value <= _GREATEST_INTEGER  # type: ignore[operator]
    return value is None or kind is bool


def _check_members(value: Any, path: tuple[str, ...], record: str) -> None:
    if isinstance(value, Mapping):
        for name, member in value.items():
            if type(name) is not str or not (name.isascii() or _text_fault(name) is None):
                raise errors.InvalidRecord(
                    record, ".".join((*path, repr(name))), "a name must be text in UTF-8"
                )
            if not _is_sound(member):
                _check_value(member, (*path, name), record)
    else:
        for place, member in enumerate(value):
            if not _is_sound(member):
                _check_value(member, (*path, str(place)), record)


def _text_fault(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text with a lone surrogate, which UTF-8 cannot carry"
    return None
