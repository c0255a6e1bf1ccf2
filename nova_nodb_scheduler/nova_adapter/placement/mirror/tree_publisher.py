# SPDX-License-Identifier: Apache-2.0
"""Puts what was read of Placement into the records, beside schedulers that write, too.

A scheduler adds what it allocated to a record at once. What the keeper reads may
be older than that, or newer, and generations alone do not tell: those of a
provider that was deleted and made again begin anew. So every reading carries the
back end's times of its begin (before the tree was listed) and of its end. A record that
a scheduler wrote since then, with consumers that the reading lacks, stays as it is and is
read again. So does one of a reading that had not ended when this one began: who began
first may have looked last, and the other may stand still for long before it publishes.

A process that follows no feed and keeps no mirror, a conductor that claims, has
one provider read again before somebody is refused by its record: what
nova-compute changed a moment ago (its inventories, what it let go) no record
shows until the mirror's keeper has looked.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import backend_time, records
from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader, provider_trees
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module

LOG = logging.getLogger(__name__)

TreeRecords = tuple[str, Sequence[provider_trees.ListedProvider]]
#: Why a tree is set apart whose record is too large; the publisher's log says how much.
UNWRITABLE = "its record cannot be written"
#: Asks the back end for its time.
NowSeconds = Callable[[], float]


@attrs.define
class PublishedTrees:
    """What became of provider trees that were read and published.

    :param changed: records written or deleted
    :param version: highest version written, 0 if nothing was
    :param again: roots to be read again: a scheduler wrote meanwhile
    :param whole: roots of which more than the allocations must be read
    :param rejected: roots whose records cannot be written as they are
    :param seen: what stands on each root that was read, by consumer
    """

    read: int = 0
    changed: int = 0
    version: int = 0
    broken: int = 0
    again: set[str] = attrs.field(factory=set)
    whole: set[str] = attrs.field(factory=set)
    rejected: set[str] = attrs.field(factory=set)
    seen: dict[str, Mapping[str, Any]] = attrs.field(factory=dict)


@attrs.frozen
class ReadingTimes:
    """When a reading of Placement began and when it was over; back-end seconds."""

    began: float
    ended: float


@attrs.define(eq=False, slots=False)
class TreePublisher:
    """Reads trees and publishes them; one thread calls it, several may read for it.

    :param publisher: of owner ``placement``
    :param readers: threads that ask Placement at once; None: the caller's own
    """

    _synchronizer: contract.Synchronizer
    _publisher: publisher_module.Publisher
    _reader: placement_reader.PlacementReader
    _readers: futures.Executor | None = None

    def now_seconds(self) -> float:
        """Return the back end's time: when a reading begins.

        :raises BackendUnavailable: it is not known
        """
        return self._synchronizer.now_seconds()

    def whole(self, wanted: Sequence[TreeRecords], began_at: float) -> PublishedTrees:
        """Read trees entirely and publish them; a tree without its root is dropped.

        One whose record cannot be written, for its size, is set apart: what stands there of
        before would be taken for what was read.

        :param began_at: back-end seconds before the trees were listed: a provider that
            comes, or moves, below them changes nothing of what is read of the others
        :raises PlacementUnanswered: nothing of this call was published
        :raises BackendUnavailable: some may have been published
        """
        found = self._each(lambda tree: self._reader.record(*tree), wanted)
        times = ReadingTimes(began_at, self.now_seconds())
        written = PublishedTrees(read=len(wanted))
        states: dict[str, Mapping[str, Any]] = {}
        updates: dict[str, publisher_module.Compute] = {}
        for (root, _members), state in zip(wanted, found, strict=True):
            if state is None:
                updates[root] = _dropped(times, root, written, self.now_seconds)
                continue
            written.broken += "broken" in state
            written.seen[root] = state["allocations"]
            states[root] = state
            updates[root] = replaced(state, times, root, written, self.now_seconds)
        written = self._publish(updates, written)
        apart = {
            root: provider_trees.set_apart(states[root], UNWRITABLE)
            for root in sorted(written.rejected & states.keys())
        }
        if not apart:
            return written
        written.broken += len(apart)
        return self._publish(
            {
                root: replaced(state, times, root, written, self.now_seconds)
                for root, state in apart.items()
            },
            written,
        )

    def allocations(self, roots: Sequence[str]) -> PublishedTrees:
        """Read what stands on the roots; their records must exist for it to matter.

        One request each, where the generation is the record's.

        :raises PlacementUnanswered: nothing of this call was published
        :raises BackendUnavailable: some may have been published
        """
        began_at = self.now_seconds()
        found = self._each(self._reader.allocations, roots)
        times = ReadingTimes(began_at, self.now_seconds())
        written = PublishedTrees(read=len(roots))
        updates: dict[str, publisher_module.Compute] = {}
        for root, answer in zip(roots, found, strict=True):
            if answer is None:
                written.whole.add(root)
            else:
                written.seen[root] = answer.by_consumer
                updates[root] = _allocated(answer, times, root, written, self.now_seconds)
        written = self._publish(updates, written)
        written.whole |= written.rejected
        return written

    def drop(self, roots: Sequence[str], listed_from: float) -> PublishedTrees:
        """Delete the records of trees that a listing begun at that time did not hold."""
        written = PublishedTrees()
        times = ReadingTimes(listed_from, self.now_seconds())
        return self._publish(
            {root: _dropped(times, root, written, self.now_seconds) for root in roots}, written
        )

    def _each(self, read: Callable[[Any], Any], wanted: Sequence[Any]) -> list[Any]:
        if self._readers is None or len(wanted) < 2:
            return [read(each) for each in wanted]
        return list(self._readers.map(read, wanted))

    def _publish(
        self, updates: Mapping[str, publisher_module.Compute], written: PublishedTrees
    ) -> PublishedTrees:
        if updates:
            report = self._publisher.publish(
                {
                    records.RecordKey(known_namespaces.PROVIDERS.name, root): compute
                    for root, compute in updates.items()
                }
            )
            written.changed += report.published + report.deleted
            written.version = max(written.version, report.version)
            written.again |= {key.key for key in report.failed}
            written.rejected = {key.key for key in report.rejected}
        return written


def _time(current: Mapping[str, Any], name: str, began_at: float, now_seconds: NowSeconds) -> float:
    """Return a time of a record; one in the future is not believed, or it would stay for ever.

    The back end is asked for its time only where a record looks like that: against
    the begin of a reading that was paused, a newer one would look so, too.
    """
    at = float(current.get(name, 0.0))
    if backend_time.is_believed(at, began_at):
        return at
    return backend_time.believed(at, now_seconds())


def _written_since(current: Mapping[str, Any], began_at: float, now_seconds: NowSeconds) -> bool:
    return _time(current, "written_at", began_at, now_seconds) >= began_at


def _undoes(
    stands: Mapping[str, Any],
    current: Mapping[str, Any],
    began_at: float,
    now_seconds: NowSeconds,
) -> bool:
    """Tell whether a reading lacks what a scheduler may have written since it began.

    Generations would not tell: the own write may have been added to a record
    that was behind by a foreign one, and then has the reading's generation.
    """
    if stands.keys() >= current["allocations"].keys():
        return False
    return _written_since(current, began_at, now_seconds)


def _overlaps(current: Mapping[str, Any], began_at: float, now_seconds: NowSeconds) -> bool:
    """Tell whether a record is of a reading that was not over when another began."""
    return any(
        _time(current, name, began_at, now_seconds) > began_at for name in ("read_at", "read_until")
    )


def _stamp(current: Mapping[str, Any] | None, began_at: float) -> float:
    """Return when a reading began, but not just when the one before it did.

    By it own writes tell readings apart, and the back end's clock may stand still.
    """
    if current is not None and current.get("read_at") == began_at:
        return math.nextafter(began_at, math.inf)
    return began_at


def replaced(
    state: Mapping[str, Any],
    times: ReadingTimes,
    root: str,
    written: PublishedTrees,
    now_seconds: NowSeconds,
) -> publisher_module.Compute:
    """Return what puts a whole tree in its record's place, unless that is newer.

    :param state: of the record, without its times
    :param written: told in ``again`` where that is not known, and of a scheduler's write
        since the reading began
    :param now_seconds: asks the back end for its time
    """
    began_at = times.began

    def compute(current: publisher_module.State | None) -> publisher_module.Computed:
        if current is not None:
            if _undoes(state["allocations"], current, began_at, now_seconds):
                written.again.add(root)
                return publisher_module.UNCHANGED
            if _time(current, "whole_at", began_at, now_seconds) > began_at:
                # Another keeper, who came after us, has read it since.
                return publisher_module.UNCHANGED
            if _overlaps(current, began_at, now_seconds):
                written.again.add(root)
                return publisher_module.UNCHANGED
        stamp = _stamp(current, began_at)
        return {**state, "read_at": stamp, "whole_at": stamp, "read_until": times.ended}

    return compute


def _allocated(
    answer: placement_reader.ProviderAllocations,
    times: ReadingTimes,
    root: str,
    written: PublishedTrees,
    now_seconds: NowSeconds,
) -> publisher_module.Compute:
    began_at = times.began
    stands = {consumer: answer.by_consumer[consumer] for consumer in sorted(answer.by_consumer)}

    def compute(current: publisher_module.State | None) -> publisher_module.Computed:
        if current is None or "broken" in current:
            written.whole.add(root)
            return publisher_module.UNCHANGED
        if _undoes(stands, current, began_at, now_seconds):
            written.again.add(root)
            return publisher_module.UNCHANGED
        if current["generation"] != answer.generation:
            written.whole.add(root)
            return publisher_module.UNCHANGED
        read_at = _time(current, "read_at", began_at, now_seconds)
        if current["allocations"] == stands or read_at > began_at:
            return publisher_module.UNCHANGED
        if _overlaps(current, began_at, now_seconds):
            written.again.add(root)
            return publisher_module.UNCHANGED
        return {
            **current,
            "allocations": stands,
            "read_at": _stamp(current, began_at),
            "read_until": times.ended,
        }

    return compute


def _dropped(
    times: ReadingTimes, root: str, written: PublishedTrees, now_seconds: NowSeconds
) -> publisher_module.Compute:
    def compute(current: publisher_module.State | None) -> publisher_module.Computed:
        if current is not None and (
            _written_since(current, times.began, now_seconds)
            or _overlaps(current, times.began, now_seconds)
        ):
            written.again.add(root)
            return publisher_module.UNCHANGED
        return publisher_module.DELETE

    return compute


class ProviderReread:
    """Reads one provider again and publishes it. Any thread; blocks for Placement and the back end.

    :param publisher: of owner ``placement``
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        publisher: publisher_module.Publisher,
        get: placement_reader.Get = placement_reader.get_from_placement,
    ) -> None:
        self._reader = placement_reader.PlacementReader(get)
        self._trees = TreePublisher(synchronizer, publisher, self._reader)

    def read(self, root: str) -> bool:
        """Read a provider's tree; True if its record was not what Placement has."""
        try:
            began_at = self._trees.now_seconds()
            return self._trees.whole([(root, self._reader.tree(root))], began_at).changed > 0
        except errors.NodbError as error:
            # It is refused by what is known, as if nobody had looked.
            LOG.warning(
                "Provider %(root)s is not read again: %(error)s", {"root": root, "error": error}
            )
            return False
