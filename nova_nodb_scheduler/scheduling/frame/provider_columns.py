# SPDX-License-Identifier: Apache-2.0
"""The provider trees of all hosts: columns of their roots, and what stands below them."""

from __future__ import annotations

import collections
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler.scheduling.frame import frame_columns, host_facts


class ProviderColumns:
    """What Placement's mirror says of each row's host."""

    def __init__(self) -> None:
        self._rows = 0
        #: Frozensets of traits, and of Placement's aggregates, of the root provider.
        self.traits = frame_columns.CodedColumn(0, frozenset())
        self.aggregates = frame_columns.CodedColumn(0, frozenset())
        #: How many hosts have child providers with a resource class.
        self.nested: collections.Counter[str] = collections.Counter()
        #: Rows whose provider breaks the model.
        self.broken: set[int] = set()
        self._resources: dict[str, frame_columns.ResourceColumns] = {}
        self._providers: list[host_facts.ProviderFacts | None] = []
        self._row_of_child: dict[str, int] = {}

    # -- reading ----------------------------------------------------------------

    def of(self, row: int) -> host_facts.ProviderFacts | None:
        """Return the provider tree of a row's host; None where it is not known."""
        return self._providers[row]

    def row_of_child(self, uuid: str) -> int | None:
        """Return the row in whose tree of several a provider is, or None."""
        return self._row_of_child.get(uuid)

    def resource(self, name: str) -> frame_columns.ResourceColumns | None:
        """Return the columns of a resource class; None if no host has it."""
        return self._resources.get(name)

    # -- writing ----------------------------------------------------------------

    def put(self, row: int, provider: host_facts.ProviderFacts | None) -> bool:
        """Take a row's provider over; say whether a decision can tell the difference.

        The very object that a row has already changes nothing: what was used
        since stands in the columns.
        """
        before = self._providers[row]
        if before is provider:
            return False
        self._providers[row] = provider
        if before is not None and provider is not None and _differ_in_use(before, provider):
            return self._put_used(row, provider)
        inventories = provider.inventories if provider is not None else {}
        changed = False
        for name in inventories:
            if name not in self._resources:
                self._resources[name] = frame_columns.ResourceColumns(self._rows)
        for name, column in self._resources.items():
            inventory = inventories.get(name)
            if inventory is None or provider is None:
                changed |= column.put(row, frame_columns.NO_INVENTORY)
                continue
            changed |= column.put(row, _resource(inventory, provider.used.get(name, 0)))
        changed |= self.traits.put(row, provider.traits if provider else frozenset())
        changed |= self.aggregates.put(row, provider.aggregates if provider else frozenset())
        return self._put_tree(row, before, provider) or changed

    def _put_used(self, row: int, provider: host_facts.ProviderFacts) -> bool:
        """Take over what is used of a row's provider, of which the rest stands as it is."""
        inventories, used = provider.inventories, provider.used
        changed = False
        for name, column in self._resources.items():
            changed |= column.put_used(row, used.get(name, 0) if name in inventories else 0)
        return changed

    def put_all(
        self, rows: Sequence[int], providers: Sequence[host_facts.ProviderFacts | None]
    ) -> list[bool]:
        """Take many rows' providers over; say of each what :meth:`put` says."""
        new = [
            at
            for at, (row, its) in enumerate(zip(rows, providers, strict=True))
            if self._providers[row] is None and its is not None
        ]
        if not new:
            return list(map(self.put, rows, providers))
        self._fill([rows[at] for at in new], [providers[at] for at in new])
        filled = frozenset(new)
        return [
            at in filled or self.put(row, its)
            for at, (row, its) in enumerate(zip(rows, providers, strict=True))
        ]

    def _fill(
        self, rows: Sequence[int], providers: Sequence[host_facts.ProviderFacts | None]
    ) -> None:
        """Take over the providers of many rows that had none."""
        values: dict[str, tuple[list[int], list[tuple[int, int, int, int, int]]]] = {}
        # Hosts of a kind share their inventories.
        kinds: dict[int, list[tuple[str, tuple[int, int, int, int, int]]]] = {}
        for row, provider in zip(rows, providers, strict=True):
            self._providers[row] = provider
            if provider is None:
                continue
            if _shape(provider) != _PLAIN_SHAPE:
                self._put_tree(row, None, provider)
            kind = kinds.get(id(provider.inventories))
            if kind is None:
                kind = kinds[id(provider.inventories)] = [
                    (name, _resource(inventory, 0))
                    for name, inventory in provider.inventories.items()
                ]
            used = provider.used.get
            for name, (capacity, _none, least, greatest, step) in kind:
                its_rows, its_values = values.setdefault(name, ([], []))
                its_rows.append(row)
                its_values.append((capacity, used(name, 0), least, greatest, step))
        for name, (its_rows, its_values) in values.items():
            if name not in self._resources:
                self._resources[name] = frame_columns.ResourceColumns(self._rows)
            self._resources[name].put_all(its_rows, its_values)
        nothing: frozenset[str] = frozenset()
        self.traits.put_all(rows, [each.traits if each else nothing for each in providers])
        self.aggregates.put_all(rows, [each.aggregates if each else nothing for each in providers])

    def use(self, row: int, resources: Mapping[str, int]) -> None:
        """Add to what a row's provider has in use; negative amounts give back."""
        for name, amount in resources.items():
            found = self._resources.get(name)
            if found is not None:
                found.used[row] += amount

    def recount(self, row: int) -> None:
        """Let the next :meth:`put` of a row count what is used anew, even from the same record."""
        provider = self._providers[row]
        if provider is not None:
            self._providers[row] = attrs.evolve(provider)

    def grow(self, rows: int) -> None:
        """Have so many rows."""
        self._rows = rows
        self.traits.grow(rows)
        self.aggregates.grow(rows)
        for resource in self._resources.values():
            resource.grow(rows)
        self._providers.extend([None] * (rows - len(self._providers)))

    def fork(self) -> ProviderColumns:
        """Return columns that share all with these but what is used."""
        forked = copy.copy(self)
        forked.traits, forked.aggregates = copy.copy(self.traits), copy.copy(self.aggregates)
        forked._resources = {}
        for name, shared in self._resources.items():
            own = copy.copy(shared)
            own.used = shared.used.copy()
            forked._resources[name] = own
        return forked

    def _put_tree(
        self,
        row: int,
        before: host_facts.ProviderFacts | None,
        provider: host_facts.ProviderFacts | None,
    ) -> bool:
        shape = _shape(provider)
        if before is not None and shape == _shape(before):
            return False
        if before is not None:
            self.nested.subtract(before.nested)
            for uuid in before.tree:
                # Another row's, where it moved there and that was told first.
                if self._row_of_child.get(uuid) == row:
                    del self._row_of_child[uuid]
        self.broken.discard(row)
        if provider is None:
            return True
        self.nested.update(provider.nested)
        if provider.tree:
            self._row_of_child.update(dict.fromkeys(provider.tree, row))
        if provider.broken is not None:
            self.broken.add(row)
        return True


def _resource(inventory: host_facts.Inventory, used: int) -> tuple[int, int, int, int, int]:
    """Return a row of a resource class, see :meth:`.frame_columns.ResourceColumns.row`."""
    return (
        inventory.capacity,
        used,
        inventory.min_unit,
        inventory.max_unit,
        inventory.step_size,
    )


def _differ_in_use(before: host_facts.ProviderFacts, provider: host_facts.ProviderFacts) -> bool:
    """Say whether two differ in what is used, and the generation, at most.

    Most that change do: inventories, traits and aggregates are the same objects then.
    """
    return (
        provider.inventories is before.inventories
        and provider.traits is before.traits
        and provider.aggregates is before.aggregates
        and _shape(provider) == _shape(before)
    )


def _shape(provider: host_facts.ProviderFacts | None) -> tuple[Any, ...] | None:
    if provider is None:
        return None
    return provider.nested, provider.tree, provider.broken


#: A root that stands alone and is sound.
_PLAIN_SHAPE: tuple[Any, ...] = (frozenset(), frozenset(), None)
