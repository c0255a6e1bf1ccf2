# SPDX-License-Identifier: Apache-2.0
"""Which records changed since somebody last asked.

A snapshot tells what there is, and comparing two costs a pass over every chunk
that differs. A subscriber that keeps something derived of each record asks here
instead which keys to look at again.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

#: More keys than this between two calls: reading everything costs no more.
MOST_KEYS = 65_536


class Subscription:
    """The keys that changed in some namespaces; made by the store.

    The store's writer notes, any one thread drains. Memory is bounded by
    ``most_keys``.
    """

    def __init__(self, namespaces: Collection[str], most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._lock = threading.Lock()
        self._touched: dict[str, set[str]] = {name: set() for name in namespaces}
        #: How many more keys fit, counted down per change and not per key: a
        #: key that changes often costs a new count, see :meth:`_overfull`.
        self._left = most_keys
        self._everything = True

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that are watched."""
        return tuple(self._touched)

    def drain(self) -> Mapping[str, Collection[str]] | None:
        """Return the keys touched since the last call, by namespace, and forget them.

        What is touched may be new, changed, gone, or all as it was. A snapshot
        taken afterwards shows each key as it was noted, or newer.

        :returns: None where everything has to be read: at the first call, in a
            new epoch, and where more keys changed than are remembered
        """
        with self._lock:
            touched, self._touched = self._touched, {name: set() for name in self._touched}
            everything, self._everything = self._everything, False
            self._left = self._most_keys
        return None if everything else {name: keys for name, keys in touched.items() if keys}

    def note(self, namespace: str, keys: Collection[str]) -> None:
        """Remember keys. Called by the store for each change, with its lock."""
        with self._lock:
            if self._everything:
                return
            self._touched[namespace].update(keys)
            self._left -= len(keys)
            if self._left <= 0:
                self._overfull()

    def note_all(self) -> None:
        """Say that nothing is as it was."""
        with self._lock:
            self._give_up()

    def _overfull(self) -> None:
        self._left = self._most_keys - sum(map(len, self._touched.values()))
        # A quarter is left free, or the count would be taken for every change.
        if self._left < self._most_keys // 4:
            self._give_up()

    def _give_up(self) -> None:
        self._everything = True
        for keys in self._touched.values():
            keys.clear()
