# SPDX-License-Identifier: Apache-2.0
"""What a write has to know of providers that it has locked, by one statement.

Their inventories with what is used, and the members of provider trees that the request names.
From that follows whether there is room as Placement's own check would find. This only grants:
what it does not, Placement's check judges, in its words.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs
import sqlalchemy as sa
from placement.db.sqlalchemy import models

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.placement_adapter import packed_rows

_PROVIDERS = models.ResourceProvider.__table__
_INVENTORIES = models.Inventory.__table__
_ALLOCATIONS = models.Allocation.__table__

_INVENTORY, _MEMBER = range(2)
_OF_INVENTORY = str(_INVENTORY)


@attrs.frozen
class LockedInventory:
    """What there is of a resource class on a provider; units as in Placement's tables.

    :param used: by allocations of all consumers; None where there are none
    """

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    used: Any


@attrs.frozen
class MemberRow:
    """One provider of a tree; parent and root by their ids."""

    uuid: str
    generation: int
    parent: int | None
    root: int | None


@attrs.frozen
class LockedProviders:
    """Providers as the transaction that has locked them sees them.

    :param inventories: by ids of provider and resource class
    :param members: of the trees that the request names, by id
    """

    inventories: Mapping[tuple[int, int], LockedInventory]
    members: Mapping[int, MemberRow]

    def marks(self, raised: Collection[int]) -> dict[str, str]:
        """Return what tells each tree's state from all others, by root.

        :param raised: ids of providers whose generations this transaction has raised by one
        """
        trees: dict[int | None, list[int]] = collections.defaultdict(list)
        for number, each in self.members.items():
            trees[each.root].append(number)
        return {
            self.members[root].uuid: self._mark(root, numbers, raised)
            for root, numbers in trees.items()
            if root is not None and root in self.members
        }

    def _mark(self, root: int, numbers: Iterable[int], raised: Collection[int]) -> str:
        found = []
        for number in numbers:
            each = self.members[number]
            if number != root:
                above = self.members.get(each.parent) if each.parent is not None else None
                found.append(
                    tree_conditions.TreeMember(
                        each.uuid,
                        above.uuid if above is not None else None,
                        each.generation - (number in raised),
                    )
                )
        return tree_conditions.mark(self.members[root].generation - (root in raised), found)

    def have_room(self, allocations: Iterable[tuple[int, int, int]]) -> bool:
        """Tell whether Placement's own check grants this without a word.

        :param allocations: ids of provider and resource class, and the amount; 0 to remove
        """
        wanted: dict[tuple[int, int], int] = collections.defaultdict(int)
        for provider, class_id, amount in allocations:
            place = (provider, class_id)
            wanted[place] += amount
            if not amount:
                continue
            if type(amount) is not int:
                # 1.0 is an integer to a schema; MySQL's sum of what is used takes none of it.
                return False
            has = self.inventories.get(place)
            if has is None or not has.min_unit <= amount <= has.max_unit or amount % has.step_size:
                return False
        for place, amount in wanted.items():
            has = self.inventories.get(place)
            if has is None:
                # Also for a removal: whether there is any other inventory is for Placement.
                return False
            capacity = (has.total - has.reserved) * has.allocation_ratio
            if amount and capacity < (has.used or 0) + amount:
                return False
        return True


NONE = LockedProviders({}, {})


def read(
    context: Any, providers: Collection[int], classes: Collection[int], roots: Collection[str]
) -> LockedProviders:
    """Return what a write has to know of providers, by one statement; for behind their locks.

    :param providers: ids
    :param classes: ids of resource classes, whose inventories are wanted
    :param roots: uuids of the roots of trees that are to be compared
    """
    named: dict[str, list[Any]] = {"providers": list(providers), "classes": list(classes)}
    query = _INVENTORIES_ALONE
    if roots:
        query = _WITH_TREES
        named["roots"] = list(roots)
    inventories: dict[tuple[int, int], LockedInventory] = {}
    members: dict[int, MemberRow] = {}
    for line, ratio in context.session.connection().execute(query, named):
        if line[0] == _OF_INVENTORY:
            *words, used = packed_rows.unpacked(line, 7)
            provider, class_id, total, reserved, least, most, step = map(int, words)
            inventories[provider, class_id] = LockedInventory(
                total, reserved, least, most, step, ratio, packed_rows.number(used)
            )
        else:
            number, generation, parent, root, uuid = packed_rows.unpacked(line, 4)
            members[int(number)] = MemberRow(
                uuid, int(generation), packed_rows.number(parent), packed_rows.number(root)
            )
    return LockedProviders(inventories, members)


def generations(context: Any, providers: Collection[int]) -> dict[int, int]:
    """Return the generations of providers by id, as this transaction has raised them."""
    query = sa.select(_PROVIDERS.c.id, _PROVIDERS.c.generation).where(
        _PROVIDERS.c.id.in_(providers)
    )
    return {row.id: row.generation for row in context.session.execute(query)}


# -- the statements -------------------------------------------------------------------


def _inventories() -> Any:
    columns = _INVENTORIES.c
    used = (
        sa.select(sa.func.sum(_ALLOCATIONS.c.used))
        .where(
            _ALLOCATIONS.c.resource_provider_id == columns.resource_provider_id,
            _ALLOCATIONS.c.resource_class_id == columns.resource_class_id,
        )
        .scalar_subquery()
    )
    words = (
        columns.resource_provider_id,
        columns.resource_class_id,
        columns.total,
        columns.reserved,
        columns.min_unit,
        columns.max_unit,
        columns.step_size,
    )
    line = packed_rows.packed(_INVENTORY, words, packed_rows.or_nothing(used))
    # Not in the text: the ratio is to be the number that Placement's own check has.
    return sa.select(line.label("line"), columns.allocation_ratio).where(
        columns.resource_provider_id.in_(sa.bindparam("providers", expanding=True)),
        columns.resource_class_id.in_(sa.bindparam("classes", expanding=True)),
    )


def _with_trees() -> Any:
    member, root = _PROVIDERS.alias("member"), _PROVIDERS.alias("root")
    words = (
        member.c.id,
        member.c.generation,
        packed_rows.or_nothing(member.c.parent_provider_id),
        packed_rows.or_nothing(member.c.root_provider_id),
    )
    members = (
        # The ratio's type is that of inventories.
        sa.select(packed_rows.packed(_MEMBER, words, member.c.uuid), sa.null())
        .select_from(member.join(root, member.c.root_provider_id == root.c.id))
        .where(root.c.uuid.in_(sa.bindparam("roots", expanding=True)))
    )
    return sa.union_all(_inventories(), members)


#: Made once: their compiled forms are found by them.
_INVENTORIES_ALONE = _inventories()
_WITH_TREES = _with_trees()
