# SPDX-License-Identifier: Apache-2.0
"""Reads hinted providers when their time has come, and publishes what is seen.

Each is read a few times, until what was hinted at is there. One request tells of
a known host whether its generation is its record's, and who stands on it; only
what differs is read entirely.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    feed_hints,
    placement_reader,
    tree_publisher,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module


@attrs.define
class _Waiting:
    due: float
    attempt: int
    hints: set[feed_hints.ProviderHint]


@attrs.define(eq=False, slots=False)
class HintQueue:
    """Hints that wait, by provider; one thread. Those of one provider are followed together.

    nova-compute frees an allocation after the server's row is gone: a look at
    once would see it still there.

    :param delays_seconds: before the first look, and before each further one
    :param limit: most providers that wait; the oldest are forgotten beyond it,
        and the sweep finds them
    """

    _clock: Callable[[], float]
    _delays: tuple[float, ...] = attrs.field(default=(1.0, 5.0, 20.0), alias="delays_seconds")
    _limit: int = 50_000
    _waiting: dict[str, _Waiting] = attrs.field(init=False, factory=dict)
    _heap: list[tuple[float, str]] = attrs.field(init=False, factory=list)
    #: Hints forgotten for want of room.
    forgotten: int = attrs.field(init=False, default=0)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, provider: object) -> bool:
        return provider in self._waiting

    def add(self, hints: Iterable[feed_hints.ProviderHint]) -> None:
        """Have providers looked at after the first delay."""
        for hint in hints:
            waiting = self._waiting.get(hint.provider)
            if waiting is not None:
                waiting.hints.add(hint)
                if waiting.attempt:
                    # A first look serves those that wait for a later one, too.
                    self._put(hint.provider, 0, waiting.hints)
            elif len(self._waiting) >= self._limit:
                self.forgotten += 1
            else:
                self._put(hint.provider, 0, {hint})

    def due(self, limit: int) -> dict[str, tuple[int, set[feed_hints.ProviderHint]]]:
        """Take providers whose time has come: attempt and hints of each."""
        taken: dict[str, tuple[int, set[feed_hints.ProviderHint]]] = {}
        now = self._clock()
        while self._heap and len(taken) < limit and self._heap[0][0] <= now:
            due, provider = heapq.heappop(self._heap)
            waiting = self._waiting.get(provider)
            if waiting is None or waiting.due != due:
                # Put again since, for another time.
                continue
            del self._waiting[provider]
            taken[provider] = (waiting.attempt, waiting.hints)
        return taken

    def looked(
        self,
        provider: str,
        attempt: int,
        hints: set[feed_hints.ProviderHint],
        allocations: Mapping[str, Any] | None,
    ) -> None:
        """Keep those hints of a look that saw nothing of them, for a later look."""
        left = {hint for hint in hints if not _seen(hint, attempt, allocations)}
        if not left or attempt + 1 >= len(self._delays):
            return
        waiting = self._waiting.get(provider)
        if waiting is None:
            self._put(provider, attempt + 1, left)
        else:
            waiting.hints |= left

    def put_back(self, provider: str, attempt: int, hints: set[feed_hints.ProviderHint]) -> None:
        """Return what could not be looked at."""
        if provider in self._waiting:
            self._waiting[provider].hints |= hints
        else:
            self._put(provider, attempt, hints)

    def _put(self, provider: str, attempt: int, hints: set[feed_hints.ProviderHint]) -> None:
        due = self._clock() + self._delays[attempt]
        self._waiting[provider] = _Waiting(due, attempt, hints)
        heapq.heappush(self._heap, (due, provider))


#: Of these no look tells whether the change has come.
_LOOKED_AT_TWICE = (feed_hints.ExpectedChange.UNKNOWN, feed_hints.ExpectedChange.REPLACED)


def _seen(
    hint: feed_hints.ProviderHint, attempt: int, allocations: Mapping[str, Any] | None
) -> bool:
    if hint.expect in _LOOKED_AT_TWICE:
        # It may have come before the change did: looked at twice.
        return attempt >= 1
    if hint.expect is feed_hints.ExpectedChange.MIRRORED:
        return allocations is not None
    present = allocations is not None and hint.consumer in allocations
    return present is (hint.expect is feed_hints.ExpectedChange.PRESENT)


class HintedReads:
    """Reads the providers hinted at when they are due, for one keeper; one thread.

    :param snapshot: at the begin: hints that another keeper left are taken from it
    :param hint_publisher: of owner ``nodb``, who owns the records of hints
    """

    def __init__(
        self,
        snapshot: store_snapshot.Snapshot,
        trees: tree_publisher.TreePublisher,
        reader: placement_reader.PlacementReader,
        hint_publisher: publisher_module.Publisher,
        clock: Callable[[], float],
    ) -> None:
        self._trees = trees
        self._reader = reader
        self._hint_publisher = hint_publisher
        self._feed = feed_hints.FeedHints(snapshot)
        self._queue = HintQueue(clock)
        for key, mark in _marks(snapshot).items():
            self._queue.add(self._feed.of_mark(key, mark))

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def forgotten(self) -> int:
        """Hints dropped for want of room."""
        return self._queue.forgotten

    def add(self, hints: Iterable[feed_hints.ProviderHint]) -> None:
        """Have providers looked at after the usual delays."""
        self._queue.add(hints)

    def once(self, roots: Iterable[str]) -> None:
        """Have trees looked at that changed already: one look tells."""
        self._queue.add(
            feed_hints.ProviderHint(root, feed_hints.ExpectedChange.MIRRORED) for root in roots
        )

    def follow(self, snapshot: store_snapshot.Snapshot, will_read: Callable[[str], bool]) -> None:
        """Take the hints of the feed since the snapshot before.

        Left out is what the records show already, or a sweep will read: most
        servers that came were our own writes; and while a back end is filled,
        every host and server is news.

        :param will_read: whether a sweep under way will still read a tree
        """
        view = snapshot.namespace(known_namespaces.PROVIDERS.name)
        self._queue.add(
            hint
            for hint in self._feed.follow(snapshot)
            if not will_read(hint.provider) and _is_news(hint, view)
        )

    def look(self, snapshot: store_snapshot.Snapshot, limit: int) -> int:
        """Look at providers whose time has come; return at how many.

        :raises PlacementUnanswered: they are looked at later
        :raises BackendUnavailable: the same
        """
        taken = self._queue.due(limit)
        if not taken:
            return 0
        try:
            replaced = {
                hint.provider
                for _attempt, hints in taken.values()
                for hint in hints
                if hint.expect is feed_hints.ExpectedChange.REPLACED
            }
            seen = self._looked_at(snapshot, list(taken), replaced)
        except errors.NodbError:
            for provider, (attempt, hints) in taken.items():
                self._queue.put_back(provider, attempt, hints)
            raise
        for provider, (attempt, hints) in taken.items():
            self._queue.looked(provider, attempt, hints, seen.get(provider))
        self.forget_marks(snapshot)
        return len(taken)

    def forget_marks(self, snapshot: store_snapshot.Snapshot) -> None:
        """Delete the records of hints that were followed, unless they were made anew.

        :raises BackendUnavailable: they stay until the next call
        """
        updates = {
            records.RecordKey(known_namespaces.PROVIDER_HINTS.name, key): _unless_newer(mark)
            for key, mark in _marks(snapshot).items()
            if not any(hint.provider in self._queue for hint in self._feed.of_mark(key, mark))
        }
        if updates:
            self._hint_publisher.publish(updates)

    def _looked_at(
        self,
        snapshot: store_snapshot.Snapshot,
        providers: Collection[str],
        replaced: Collection[str],
    ) -> dict[str, Mapping[str, Any]]:
        """Read providers and publish what is seen.

        :param replaced: those of which a generation tells nothing: they are read entirely
        """
        view = snapshot.namespace(known_namespaces.PROVIDERS.name)
        known = [
            provider for provider in providers if provider in view and provider not in replaced
        ]
        written = self._trees.allocations(known)
        seen: dict[str, Mapping[str, Any]] = dict(written.seen)
        again = set(written.again)
        whole: list[tree_publisher.TreeRecords] = []
        began_at = self._trees.now_seconds()
        for provider in {*providers} - {*known} | written.whole:
            listed = self._reader.listing(f"in_tree={provider}")
            whole += listed.trees.items()
            if not listed.trees and provider in view:
                whole.append((provider, ()))
        if whole:
            read = self._trees.whole(whole, began_at)
            seen |= read.seen
            again |= read.again
        self.once(again)
        return seen


def _is_news(hint: feed_hints.ProviderHint, view: store_snapshot.NamespaceView) -> bool:
    """Tell whether a provider's record does not show yet what is hinted at."""
    # Decoded only where its state is asked for: a start hints at every node at once.
    if hint.expect is feed_hints.ExpectedChange.MIRRORED:
        return hint.provider not in view
    if hint.expect in _LOOKED_AT_TWICE:
        return True
    state = view.state(hint.provider)
    if state is None:
        return False
    present = hint.consumer in state["allocations"]
    return present is not (hint.expect is feed_hints.ExpectedChange.PRESENT)


def _marks(snapshot: store_snapshot.Snapshot) -> dict[str, Mapping[str, Any]]:
    return dict(snapshot.namespace(known_namespaces.PROVIDER_HINTS.name).states())


def _unless_newer(followed: publisher_module.State) -> publisher_module.Compute:
    def compute(current: publisher_module.State | None) -> publisher_module.Computed:
        return publisher_module.DELETE if current == followed else publisher_module.UNCHANGED

    return compute
