# SPDX-License-Identifier: Apache-2.0
"""Provider trees as Placement lists them, and the records made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

_CLASS = re.compile(r"[A-Z0-9_]{1,255}")
#: What an inventory must say, and the least that Placement itself takes.
_LEAST = {
    "total": 0,
    "reserved": 0,
    "min_unit": 1,
    "max_unit": 1,
    "step_size": 1,
    "allocation_ratio": 0.0,
}


class BrokenTree(Exception):
    """A tree that does not fit the model, with the reason for operators."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@attrs.frozen
class ListedProvider:
    """One provider as Placement lists it."""

    uuid: str
    name: str
    generation: int
    root: str
    parent: str | None


@attrs.frozen
class ProviderListing:
    """Placement's providers as one answer listed them.

    :param trees: by root uuid, in the order listed. A root that is named by
        its children alone is a key, too, and not among its own members.
    """

    trees: Mapping[str, Sequence[ListedProvider]]
    providers: int

    @classmethod
    def of(cls, answer: Iterable[Mapping[str, Any]]) -> ProviderListing:
        trees: dict[str, list[ListedProvider]] = {}
        providers = 0
        for item in answer:
            providers += 1
            root = item.get("root_provider_uuid") or item["uuid"]
            trees.setdefault(root, []).append(
                ListedProvider(
                    item["uuid"],
                    item["name"],
                    item["generation"],
                    root,
                    item.get("parent_provider_uuid"),
                )
            )
        return cls(trees, providers)

    def in_tree(self, root: str) -> Sequence[ListedProvider]:
        """Return a tree's members, empty where it is not listed."""
        return self.trees.get(root, ())


def check_shape(root: str, members: Sequence[ListedProvider]) -> None:
    """Refuse members that make no tree below the root.

    :raises Broken: a parent is not among them, or parents go round in a circle
    """
    parents = {member.uuid: member.parent for member in members}
    for uuid in parents:
        seen: set[str] = set()
        at: str | None = uuid
        while at is not None and at != root:
            if at in seen:
                raise BrokenTree("parents go round in a circle")
            if at not in parents:
                raise BrokenTree("a parent does not exist")
            seen.add(at)
            at = parents[at]
        if at is None:
            raise BrokenTree("a provider is not below the root it names")


def record(
    root: str,
    members: Sequence[ListedProvider],
    parts: Mapping[str, Mapping[str, Any]],
    allocations: Mapping[str, Mapping[str, int]],
) -> Mapping[str, Any]:
    """Return a tree's record, without ``read_at``.

    :param parts: by provider: generation, inventories, traits, aggregates
    :param allocations: of the root, by consumer
    :raises Broken: a number or a name does not fit the model
    """
    of = {uuid: _checked(part) for uuid, part in parts.items()}
    by_uuid = {member.uuid: member for member in members}
    for amounts in allocations.values():
        for name, amount in amounts.items():
            if not _CLASS.fullmatch(name) or amount < 0:
                raise BrokenTree(f"an allocation of {amount} {name}")
    return {
        "name": by_uuid[root].name,
        **of[root],
        "allocations": {consumer: dict(allocations[consumer]) for consumer in sorted(allocations)},
        "children": {
            uuid: {"parent": by_uuid[uuid].parent, **of[uuid]}
            for uuid in sorted(of)
            if uuid != root
        },
        "tree_size": len(of),
    }


def broken_record(root: str, members: Sequence[ListedProvider], reason: str) -> Mapping[str, Any]:
    """Return the record of a tree that cannot be used, comparable with a listing.

    A root that is missing has generation -1.
    """
    by_uuid = {member.uuid: member for member in members}
    own = by_uuid.get(root)
    return {
        "name": own.name if own else "",
        "generation": own.generation if own else -1,
        "broken": reason,
        "inventories": {},
        "traits": [],
        "aggregates": [],
        "allocations": {},
        "children": {
            uuid: {
                "generation": by_uuid[uuid].generation,
                "parent": by_uuid[uuid].parent,
                "inventories": {},
                "traits": [],
                "aggregates": [],
            }
            for uuid in sorted(by_uuid)
            if uuid != root
        },
        "tree_size": len(by_uuid),
    }


def set_apart(state: Mapping[str, Any], reason: str) -> Mapping[str, Any]:
    """Return a tree's record as one that cannot be used, comparable with a listing."""
    nothing: dict[str, Any] = {"inventories": {}, "traits": [], "aggregates": []}
    children = {uuid: {**child, **nothing} for uuid, child in state["children"].items()}
    return {**state, **nothing, "broken": reason, "allocations": {}, "children": children}


def matches(state: Mapping[str, Any], root: str, members: Sequence[ListedProvider]) -> bool:
    """Tell whether a record is of the generations and the shape that were listed."""
    by_uuid = {member.uuid: member for member in members}
    own = by_uuid.pop(root, None)
    if own is None:
        return state["generation"] == -1 and _children_match(state, by_uuid)
    if state["generation"] != own.generation or state["name"] != own.name:
        return False
    return _children_match(state, by_uuid)


def _children_match(state: Mapping[str, Any], listed: Mapping[str, ListedProvider]) -> bool:
    children = state["children"]
    return children.keys() == listed.keys() and all(
        child["generation"] == listed[uuid].generation and child["parent"] == listed[uuid].parent
        for uuid, child in children.items()
    )


def has_room(state: Mapping[str, Any], resources: Mapping[str, int]) -> bool:
    """Tell whether a record's root has room for all of these, by Placement's rules."""
    for name, amount in resources.items():
        inventory = state["inventories"].get(name)
        if inventory is None:
            return False
        if not inventory["min_unit"] <= amount <= inventory["max_unit"]:
            return False
        if amount % inventory["step_size"]:
            return False
        used = sum(amounts.get(name, 0) for amounts in state["allocations"].values())
        capacity = (inventory["total"] - inventory["reserved"]) * inventory["allocation_ratio"]
        if used + amount > capacity:
            return False
    return True


def _checked(part: Mapping[str, Any]) -> dict[str, Any]:
    inventories = {}
    for name, inventory in part["inventories"].items():
        if not isinstance(name, str) or not _CLASS.fullmatch(name):
            raise BrokenTree(f"a resource class {name!r}")
        for field, least in _LEAST.items():
            value = inventory.get(field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise BrokenTree(f"an inventory of {name} with {field} {value!r}")
        inventories[name] = {field: inventory[field] for field in _LEAST}
    return {
        "generation": part["generation"],
        "inventories": inventories,
        "traits": sorted(part["traits"]),
        "aggregates": sorted(part["aggregates"]),
    }
