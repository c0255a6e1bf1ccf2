# SPDX-License-Identifier: Apache-2.0
"""What provider trees consist of but for allocations, for requests that name it.

Read only where generations say that a tree changed: by that it is told whether more than
allocations did.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from placement.db.sqlalchemy import models

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.placement_adapter import locked_providers

_INVENTORIES = models.Inventory.__table__
_CLASSES = models.ResourceClass.__table__
_AGGREGATES = models.PlacementAggregate.__table__
_PROVIDER_AGGREGATES = models.ResourceProviderAggregate.__table__
_TRAITS = models.Trait.__table__
_PROVIDER_TRAITS = models.ResourceProviderTrait.__table__


def read(
    context: Any, members: Mapping[int, locked_providers.MemberRow], roots: Collection[str]
) -> dict[str, str]:
    """Return digests of trees by their root's uuid, by three statements.

    See :func:`tree_conditions.contents`.

    :param members: of these trees, and of others, by id
    """
    wanted = {number: each.uuid for number, each in members.items() if each.uuid in roots}
    ids = [number for number, each in members.items() if each.root in wanted]
    inventories: dict[int, dict[str, Any]] = collections.defaultdict(dict)
    query = (
        sa.select(_CLASSES.c.name, _INVENTORIES)
        .select_from(_INVENTORIES.join(_CLASSES, _INVENTORIES.c.resource_class_id == _CLASSES.c.id))
        .where(_INVENTORIES.c.resource_provider_id.in_(ids))
    )
    for row in context.session.execute(query):
        inventories[row.resource_provider_id][row.name] = row._mapping
    traits = _names(context, ids, _TRAITS.c.name, _PROVIDER_TRAITS.c.trait_id)
    aggregates = _names(context, ids, _AGGREGATES.c.uuid, _PROVIDER_AGGREGATES.c.aggregate_id)
    trees: dict[str, dict[str, tree_conditions.ProviderContents]] = collections.defaultdict(dict)
    for number, each in members.items():
        if each.root is None or each.root not in wanted:
            continue
        above = members.get(each.parent) if each.parent is not None else None
        trees[wanted[each.root]][each.uuid] = tree_conditions.ProviderContents(
            None if above is None else above.uuid,
            inventories[number],
            traits[number],
            aggregates[number],
        )
    return {root: tree_conditions.contents(providers) for root, providers in trees.items()}


def _names(context: Any, ids: Sequence[int], name: Any, link: Any) -> dict[int, list[str]]:
    """Return the names of what providers are linked to, by their ids.

    :param name: a column of what they are linked to
    :param link: the column of the links that has its id
    """
    links, named = link.table, name.table
    query = (
        sa.select(links.c.resource_provider_id, name)
        .select_from(links.join(named, link == named.c.id))
        .where(links.c.resource_provider_id.in_(ids))
    )
    found: dict[int, list[str]] = collections.defaultdict(list)
    for provider, each in context.session.execute(query):
        found[provider].append(each)
    return found
