# SPDX-License-Identifier: Apache-2.0
"""A provider tree's record as facts, in as little memory as they need.

A tree that breaks the model (negative totals, a child without a parent) makes
facts that say so: its host is known, and its candidates are Placement's to tell.
Amounts are kept by the hundred thousand, and of a handful of combinations of
resource classes.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.namespaces import record_fields


class Amounts(Mapping[str, int]):
    """A mapping that does not change; see :func:`packed_amounts`."""

    __slots__ = ("_names", "_numbers")

    def __init__(self, names: Mapping[str, int], numbers: bytes) -> None:
        self._names, self._numbers = names, numbers

    def __getitem__(self, name: str) -> int:
        (amount,) = struct.unpack_from("<q", self._numbers, self._names[name])
        return int(amount)

    def get(self, name: str, default: Any = None) -> Any:
        """See Mapping; without an exception for each name that is not there."""
        return self[name] if name in self._names else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))


_NOTHING: Mapping[str, int] = Amounts({}, b"")


def packed_amounts(amounts: Mapping[str, int]) -> Mapping[str, int]:
    """Return equal amounts that take little memory; those given where they do not fit."""
    if not amounts:
        return _NOTHING
    names = tuple(amounts)
    try:
        numbers = struct.pack(f"<{len(names)}q", *amounts.values())
    except struct.error:
        return amounts  # beyond 64 bits, or no whole number
    return Amounts(_places(names), numbers)


def amounts_of(names: tuple[str, ...], numbers: bytes) -> Mapping[str, int]:
    """Return the same as :func:`packed_amounts`, of numbers that are packed already.

    :param names: each once
    :param numbers: 64 bits of each, little-endian
    """
    return Amounts(_places(names), numbers) if names else _NOTHING


@functools.lru_cache(maxsize=4096)
def _places(names: tuple[str, ...]) -> Mapping[str, int]:
    """Return where each number stands; one and the same for equal names."""
    return {name: 8 * place for place, name in enumerate(names)}


#: By it a provider offers its resources to others of its aggregates.
SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"

_CLASS = re.compile(r"[A-Z0-9_]+")
_NONE: frozenset[str] = frozenset()
#: Columns hold 64 bits; half of them leave room to add a request's amounts.
_GREATEST = 2**62


def digest(key: str, state: Mapping[str, Any]) -> host_facts.ProviderFacts:
    """Return the facts of a provider tree.

    :param key: uuid of the root
    """
    broken = state.get("broken")
    if not broken:
        try:
            return _read(record_fields.RecordFields(f"providers/{key}", state), key)
        except errors.InvalidRecord as error:
            broken = str(error)
    return host_facts.ProviderFacts(generation=-1, broken=str(broken))


def _read(whole: record_fields.RecordFields, uuid: str) -> host_facts.ProviderFacts:
    children: Mapping[str, Any] = whole.get("children")
    nested = tree = _NONE
    if children:
        found: set[str] = set()
        below = whole.mapping("children")
        for child in children:
            its = below.mapping(child)
            parent = its.text("parent")
            if parent != uuid and parent not in children:
                raise whole.wrong(f"children.{child}.parent", "no provider of the tree")
            found.update(_inventories(its))
        nested = frozenset(found)
        tree = frozenset([uuid, *children])
    return host_facts.ProviderFacts(
        generation=whole.integer("generation"),
        inventories=_inventories(whole),
        used=_used(whole),
        traits=_texts(whole, "traits"),
        aggregates=_texts(whole, "aggregates"),
        nested=nested,
        tree=tree,
    )


def sharing(facts: host_facts.ProviderFacts) -> frozenset[str]:
    """Return the resource classes a root provider shares; empty if it does not."""
    return frozenset(facts.inventories) if SHARING_TRAIT in facts.traits else _NONE


def _texts(whole: record_fields.RecordFields, name: str) -> frozenset[str]:
    try:
        return texts_of(tuple(whole.get(name)))
    except TypeError as error:
        raise whole.wrong(name, "it is no list of texts") from error


@functools.lru_cache(maxsize=8192)
def texts_of(texts: tuple[str, ...]) -> frozenset[str]:
    """Return one and the same set for equal texts: hosts of a kind are many."""
    return frozenset(texts)


def _used(whole: record_fields.RecordFields) -> Mapping[str, int]:
    used: dict[str, int] = {}
    allocations = whole.get("allocations")
    try:
        for resources in allocations.values():
            for name, amount in resources.items():
                used[name] = used.get(name, 0) + amount
        beyond = [name for name, amount in used.items() if abs(amount) > _GREATEST]
    except (AttributeError, TypeError) as error:
        raise whole.wrong("allocations", f"{type(error).__name__}: {error}") from error
    if beyond:
        raise whole.wrong("allocations", f"the sum of {beyond[0]} is beyond 2^62")
    return packed_amounts(used)


def _inventories(whole: record_fields.RecordFields) -> Mapping[str, host_facts.Inventory]:
    stored = whole.get("inventories")
    try:
        named = tuple(
            (
                name,
                (
                    one["total"],
                    one["reserved"],
                    one["min_unit"],
                    one["max_unit"],
                    one["step_size"],
                    float(one["allocation_ratio"]),
                ),
            )
            for name, one in stored.items()
        )
        return _interned_inventories(named)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise whole.wrong("inventories", reason) from error


def named_inventories(inventories: Mapping[str, host_facts.Inventory]) -> list[Any]:
    """Return inventories as :func:`inventories_of` takes them: names, and numbers in order."""
    return [[name, *attrs.astuple(each)] for name, each in inventories.items()]


def inventories_of(named: Any) -> Mapping[str, host_facts.Inventory]:
    """Return inventories that are one and the same for equal ones.

    :raises TypeError, ValueError: a name or a number is none
    """
    return _interned_inventories(
        tuple(
            (name, (total, reserved, least, most, step, float(ratio)))
            for name, total, reserved, least, most, step, ratio in named
        )
    )


@functools.lru_cache(maxsize=8192)
def _interned_inventories(
    named: tuple[tuple[str, tuple[int, int, int, int, int, float]], ...],
) -> Mapping[str, host_facts.Inventory]:
    made = {}
    for name, numbers in named:
        if not _CLASS.fullmatch(name):
            raise ValueError(f"{name!r} is no resource class")
        if any(type(number) is not int for number in numbers[:-1]):
            raise ValueError(f"a number of {name} is no whole number")
        inventory = host_facts.Inventory(*numbers)
        if inventory.total < 0 or inventory.reserved < 0 or inventory.step_size < 1:
            raise ValueError(f"a number of {name} is negative")
        if not math.isfinite(inventory.allocation_ratio):
            raise ValueError(f"the allocation ratio of {name} is no number")
        if max(map(abs, (*numbers[:-1], inventory.capacity))) > _GREATEST:
            raise ValueError(f"a number of {name} is beyond 2^62")
        made[name] = inventory
    return made
