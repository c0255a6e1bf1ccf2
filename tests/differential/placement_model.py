# SPDX-License-Identifier: Apache-2.0
"""Placement's rule for one unsuffixed group on trees of one provider, in plain Python.

A share of the cases proves it against a real Placement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import os_resource_classes
import os_traits

from tests.differential import cases
from tests.differential.drawn import words

AllocationRequest = Mapping[str, Any]


def canonical(found: Iterable[AllocationRequest] | None) -> list[str] | None:
    """Return allocation requests in a form that compares: their order says nothing."""
    return None if found is None else sorted(json.dumps(each, sort_keys=True) for each in found)


class Unmodelled(Exception):
    """The query is one for a real Placement."""


def known_traits(cluster: cases.Cluster) -> set[str]:
    """Return all traits that Placement knows: the standard ones, and those in use."""
    return {*os_traits.get_traits(), *words.TRAITS}.union(
        *(provider.traits for provider in cluster.providers)
    )


def known_classes() -> set[str]:
    """Return the resource classes Placement knows."""
    return {*os_resource_classes.STANDARDS, words.CUSTOM_CLASS}


def candidates(cluster: cases.Cluster, query: Any) -> list[AllocationRequest] | None:
    """Answer a ResourceRequest of Nova; None where Placement refuses it (400).

    :raises Unmodelled: groups with suffixes, nested or shared resources
    """
    groups = query._rg_by_id
    if set(groups) - {None} or query._same_subtree or not cluster.plain_trees:
        raise Unmodelled
    group = query.get_request_group(None)
    named = (
        group.required_traits
        | group.forbidden_traits
        | query._root_required
        | query._root_forbidden
    )
    if named - known_traits(cluster) or set(group.resources) - known_classes():
        return None
    if not group.resources or group.required_traits & group.forbidden_traits:
        return None
    if query._root_required & query._root_forbidden:
        return None
    return [
        {
            "allocations": {provider.uuid: {"resources": dict(group.resources)}},
            "mappings": {"": [provider.uuid]},
        }
        for provider in cluster.providers
        if _fits(provider, group) and _allowed(provider, group, query)
    ]


def _fits(provider: cases.Provider, group: Any) -> bool:
    for name, amount in group.resources.items():
        held = provider.inventories.get(name)
        if held is None:
            return False
        used = sum(each.get(name, 0) for each in provider.allocations.values())
        if amount < held.min_unit or amount > held.max_unit or amount % held.step_size:
            return False
        if used + amount > (held.total - held.reserved) * held.allocation_ratio:
            return False
    return True


def _allowed(provider: cases.Provider, group: Any, query: Any) -> bool:
    required = group.required_traits | query._root_required
    forbidden = group.forbidden_traits | query._root_forbidden
    if required - provider.traits or forbidden & provider.traits:
        return False
    if group.in_tree is not None and group.in_tree != provider.uuid:
        return False
    if any(not provider.aggregates & set(wanted) for wanted in group.aggregates or ()):
        return False
    return not provider.aggregates & set(group.forbidden_aggregates)
