# SPDX-License-Identifier: Apache-2.0
"""Looks at hinted providers when their time has come, and publishes what is seen.

One request tells of a known host whether its generation is its record's, and
who stands on it; only what differs is read entirely.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement import (
    feed_hints,
    hint_queue,
    reading,
    tree_publishing,
)
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import namespace_view
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import publisher as publisher_module


class Looks:
    """The hints of one keeper, from its begin; one thread.

    :param snapshot: at the begin: hints that another keeper left are taken from it
    :param hint_publisher: of owner ``nodb``, who owns the records of hints
    """

    def __init__(
        self,
        snapshot: snapshot_module.Snapshot,
        trees: tree_publishing.TreePublisher,
        reader: reading.Reader,
        hint_publisher: publisher_module.Publisher,
        clock: Callable[[], float],
    ) -> None:
        self._trees = trees
        self._reader = reader
        self._hint_publisher = hint_publisher
        self._feed = feed_hints.FeedHints(snapshot)
        self._queue = hint_queue.HintQueue(clock)
        for key, mark in _marks(snapshot).items():
            self._queue.add(self._feed.of_mark(key, mark))

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def forgotten(self) -> int:
        """Hints dropped for want of room."""
        return self._queue.forgotten

    def add(self, hints: Iterable[feed_hints.Hint]) -> None:
        """Have providers looked at after the usual delays."""
        self._queue.add(hints)

    def once(self, roots: Iterable[str]) -> None:
        """Have trees looked at that changed already: one look tells."""
        self._queue.add(feed_hints.Hint(root, feed_hints.Expect.MIRRORED) for root in roots)

    def follow(self, snapshot: snapshot_module.Snapshot, will_read: Callable[[str], bool]) -> None:
        """Take the hints of the feed since the snapshot before.

        Left out is what the records show already, or a sweep will read: most
        servers that came were our own writes; and while a back end is filled,
        every host and server is news.

        :param will_read: whether a sweep under way will still read a tree
        """
        view = snapshot.namespace(namespaces.PROVIDERS.name)
        self._queue.add(
            hint
            for hint in self._feed.follow(snapshot)
            if not will_read(hint.provider) and _is_news(hint, view)
        )

    def look(self, snapshot: snapshot_module.Snapshot, limit: int) -> int:
        """Look at providers whose time has come; return at how many.

        :raises PlacementUnanswered: they are looked at later
        :raises BackendUnavailable: the same
        """
        taken = self._queue.due(limit)
        if not taken:
            return 0
        try:
            seen = self._looked_at(snapshot, list(taken))
        except errors.NodbError:
            for provider, (attempt, hints) in taken.items():
                self._queue.put_back(provider, attempt, hints)
            raise
        for provider, (attempt, hints) in taken.items():
            self._queue.looked(provider, attempt, hints, seen.get(provider))
        self.forget_marks(snapshot)
        return len(taken)

    def forget_marks(self, snapshot: snapshot_module.Snapshot) -> None:
        """Delete the records of hints that were followed, unless they were made anew.

        :raises BackendUnavailable: they stay until the next call
        """
        updates = {
            records.RecordKey(namespaces.PROVIDER_HINTS.name, key): _unless_newer(mark)
            for key, mark in _marks(snapshot).items()
            if not any(hint.provider in self._queue for hint in self._feed.of_mark(key, mark))
        }
        if updates:
            self._hint_publisher.publish(updates)

    def _looked_at(
        self, snapshot: snapshot_module.Snapshot, providers: Collection[str]
    ) -> dict[str, Mapping[str, Any]]:
        view = snapshot.namespace(namespaces.PROVIDERS.name)
        known = [provider for provider in providers if provider in view]
        written = self._trees.allocations(known)
        seen: dict[str, Mapping[str, Any]] = dict(written.seen)
        again = set(written.again)
        whole: list[tree_publishing.Tree] = []
        for provider in {*providers} - {*known} | written.whole:
            listed = self._reader.listing(f"in_tree={provider}")
            whole += listed.trees.items()
            if not listed.trees and provider in view:
                whole.append((provider, ()))
        if whole:
            read = self._trees.whole(whole)
            seen |= read.seen
            again |= read.again
        self.once(again)
        return seen


def _is_news(hint: feed_hints.Hint, view: namespace_view.NamespaceView) -> bool:
    """Tell whether a provider's record does not show yet what is hinted at."""
    record = view.get(hint.provider)
    if hint.expect is feed_hints.Expect.MIRRORED:
        return record is None
    if hint.expect is feed_hints.Expect.UNKNOWN:
        return True
    if record is None:
        return False
    present = hint.consumer in record.state["allocations"]
    return present is not (hint.expect is feed_hints.Expect.PRESENT)


def _marks(snapshot: snapshot_module.Snapshot) -> dict[str, Mapping[str, Any]]:
    view = snapshot.namespace(namespaces.PROVIDER_HINTS.name)
    found = {}
    for key in view.keys():  # noqa: SIM118 - a view is no mapping
        record = view.get(key)
        if record is not None:
            found[key] = record.state
    return found


def _unless_newer(followed: publisher_module.State) -> publisher_module.Compute:
    def compute(
        current: publisher_module.State | None,
    ) -> publisher_module.State | publisher_module.Outcome:
        return publisher_module.DELETE if current == followed else publisher_module.UNCHANGED

    return compute
