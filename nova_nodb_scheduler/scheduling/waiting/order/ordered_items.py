# SPDX-License-Identifier: Apache-2.0
"""A sorted sequence that is a plain list while it is short.

A million of them, of one item each, stand beside some of a million items: a
:class:`sortedcontainers.SortedList` takes a kilobyte empty, and inserting into a plain
list moves everything behind.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import sortedcontainers

T = TypeVar("T")

#: Items with which a plain list becomes a sorted one.
_LONG = 1000


class OrderedItems(Generic[T]):
    """Items in their own order, each once; O(log n). Not safe for threads."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: Any = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def add(self, item: T) -> None:
        """Put an item in its place."""
        items = self._items
        if type(items) is not list:
            items.add(item)
            return
        bisect.insort(items, item)
        if len(items) > _LONG:
            self._items = sortedcontainers.SortedList(items)

    def remove(self, item: T) -> None:
        """Take an item out.

        :raises ValueError: it is not there
        """
        items = self._items
        if type(items) is not list:
            items.remove(item)
            return
        index = bisect.bisect_left(items, item)
        if index == len(items) or items[index] != item:
            raise ValueError(item)
        del items[index]

    def first(self) -> T | None:
        """Return the first item; None where there is none."""
        return self._items[0] if self._items else None

    def after(self, item: Any) -> Iterator[T]:
        """Return those of the items that are greater, in order; nothing may change meanwhile."""
        items = self._items
        if type(items) is list:
            return itertools.islice(items, bisect.bisect_right(items, item), None)
        return iter(items.islice(items.bisect_right(item)))
