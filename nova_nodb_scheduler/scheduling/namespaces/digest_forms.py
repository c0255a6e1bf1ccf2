# SPDX-License-Identifier: Apache-2.0
"""Digests as bytes, for a process of the same release that begins with them.

What is loaded was written by this very code, checked by its reader to be whole, and
may still have been written by somebody else: whatever a column or a fact could not be
is refused, so that no reader of a digest meets what it never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from nova_nodb_scheduler.scheduling.frame import frame_columns, host_facts
from nova_nodb_scheduler.scheduling.namespaces import (
    node_facts,
    provider_facts,
    service_facts,
)
from nova_nodb_scheduler.wire import decoded_sizes

#: In front of rows: how long the JSON before them is.
_LENGTH = np.dtype("<u4")
_SERVICES = np.dtype(
    [
        ("has_service", "?"),
        ("disabled", "?"),
        ("forced_down", "?"),
        ("last_seen_seconds", "<f8"),
    ]
)
_FLAGS = ("updated", "whole")
#: Numbers of a provider's row: generation, inventories, traits, aggregates, nested, tree, classes.
_PROVIDER_NUMBERS = 7
_AMOUNT_BYTES = 8


class NodeRows:
    """Rows of :data:`.node_facts.ROW`; codes of texts hold in one process, so these go along."""

    def has(self, digest: Any) -> bool:
        """Return whether it is a row."""
        return type(digest) is bytes

    def dump(self, digests: Sequence[Any]) -> bytes:
        """Return the texts and the rows, with codes that count these texts."""
        rows = np.frombuffer(b"".join(digests), node_facts.ROW).copy()
        codes, places = np.unique(rows["instances"], return_inverse=True)
        texts = [node_facts.text_of_code(code) for code in codes.tolist()]
        rows["instances"] = places.reshape(-1)
        head = orjson.dumps(texts)
        return np.array([len(head)], _LENGTH).tobytes() + head + rows.tobytes()

    def load(self, dumped: bytes, count: int) -> list[Any]:
        """Return rows with this process's codes."""
        (length,) = np.frombuffer(dumped[: _LENGTH.itemsize], _LENGTH).tolist()
        first = _LENGTH.itemsize + length
        texts = _texts_or_none(
            orjson.loads(decoded_sizes.page_text(dumped[_LENGTH.itemsize : first]))
        )
        rows = np.frombuffer(dumped[first:], node_facts.ROW).copy()
        if len(rows) != count:
            raise ValueError(f"{len(rows)} rows of {count}")
        if any(np.any(rows[name].view(np.uint8) > 1) for name in _FLAGS):
            raise ValueError("a flag is neither true nor false")
        for name in frame_columns.RATIOS:
            # Written so that "nan" is refused.
            if not np.all(np.abs(rows[name]) <= 2.0**63):
                raise ValueError(f"a ratio of {name} is none")
        codes = np.array([node_facts.code_of_text(text) for text in texts], np.int32)
        rows["instances"] = codes[_places(rows["instances"], len(codes))]
        packed, size = rows.tobytes(), node_facts.ROW.itemsize
        return [packed[at : at + size] for at in range(0, len(packed), size)]


class Seconds:
    """Times that heartbeats were sent."""

    def has(self, digest: Any) -> bool:
        """Return whether it is a time."""
        return type(digest) is float

    def dump(self, digests: Sequence[Any]) -> bytes:
        """Return them as numbers."""
        return np.array(digests, "<f8").tobytes()

    def load(self, dumped: bytes, count: int) -> list[Any]:
        """Return the numbers."""
        found = np.frombuffer(dumped, "<f8")
        if len(found) != count or np.any(np.isnan(found)):
            raise ValueError("these are no times")
        return list(found.tolist())


class Services:
    """Facts of services."""

    def has(self, digest: Any) -> bool:
        """Return whether they are a service's facts."""
        return type(digest) is service_facts.ServiceFacts

    def dump(self, digests: Sequence[Any]) -> bytes:
        """Return them as rows."""
        return np.array(list(map(tuple, digests)), _SERVICES).tobytes()

    def load(self, dumped: bytes, count: int) -> list[Any]:
        """Return the facts."""
        rows = np.frombuffer(dumped, _SERVICES)
        if len(rows) != count or np.any(np.isnan(rows["last_seen_seconds"])):
            raise ValueError("these are no services")
        return [service_facts.same(service_facts.ServiceFacts(*row)) for row in rows.tolist()]


class Providers:
    """Facts of provider trees; what hosts of a kind share is told once."""

    def has(self, digest: Any) -> bool:
        """Return whether they are facts of a tree that is not broken, with whole numbers."""
        return (
            type(digest) is host_facts.ProviderFacts
            and digest.broken is None
            and type(digest.used) is provider_facts.Amounts
        )

    def dump(self, digests: Sequence[Any]) -> bytes:
        """Return what is shared, and numbers that lead there."""
        inventories: dict[int, int] = {}
        kinds: list[Any] = []
        sets: dict[frozenset[str], int] = {}
        classes: dict[tuple[str, ...], int] = {}
        numbers: list[int] = []
        amounts: list[int] = []
        for each in digests:
            # Of equal ones there is one object, mostly; it lives as long as its facts.
            kind = inventories.get(id(each.inventories))
            if kind is None:
                kind = inventories[id(each.inventories)] = len(kinds)
                kinds.append(provider_facts.named_inventories(each.inventories))
            numbers += (
                each.generation,
                kind,
                sets.setdefault(each.traits, len(sets)),
                sets.setdefault(each.aggregates, len(sets)),
                sets.setdefault(each.nested, len(sets)),
                sets.setdefault(each.tree, len(sets)),
                classes.setdefault(tuple(each.used), len(classes)),
            )
            amounts += each.used.values()
        texts = [sorted(each) for each in sets]
        for each in (*texts, *classes):
            "".join(each)  # a TypeError of what is no text
        return orjson.dumps([kinds, texts, list(classes), numbers, amounts])

    def load(self, dumped: bytes, count: int) -> list[Any]:
        """Return the facts."""
        kinds, sets, classes, numbers, amounts = orjson.loads(decoded_sizes.page_text(dumped))
        inventories = [provider_facts.inventories_of(kind) for kind in kinds]
        texts = [provider_facts.texts_of(_texts(each)) for each in sets]
        named = [_texts(each) for each in classes]
        if any(len(set(each)) != len(each) for each in named):
            raise ValueError("a class of resources occurs twice")
        rows = np.array(numbers, np.int64).reshape(-1, _PROVIDER_NUMBERS)
        if len(rows) != count or np.any(rows[:, 1:] < 0):
            raise ValueError("these are no providers")
        used = np.array(amounts, "<i8").tobytes()
        found, at = [], 0
        for generation, kind, traits, aggregates, nested, tree, names in rows.tolist():
            end = at + _AMOUNT_BYTES * len(named[names])
            found.append(
                host_facts.ProviderFacts(
                    generation,
                    inventories[kind],
                    provider_facts.amounts_of(named[names], used[at:end]),
                    texts[traits],
                    texts[aggregates],
                    texts[nested],
                    texts[tree],
                )
            )
            at = end
        if at != len(used):
            raise ValueError("amounts are left over, or missing")
        return found


def _places(numbers: Any, count: int) -> Any:
    """Return numbers that are places of something counted.

    :raises ValueError: one is none
    """
    if np.any(numbers < 0) or np.any(numbers >= count):
        raise ValueError("a number leads nowhere")
    return numbers


def _texts(values: Any) -> tuple[str, ...]:
    if type(values) is not list or any(type(each) is not str for each in values):
        raise ValueError("these are no texts")
    return tuple(values)


def _texts_or_none(values: Any) -> list[str | None]:
    if type(values) is not list or any(
        each is not None and type(each) is not str for each in values
    ):
        raise ValueError("these are no texts")
    return values
