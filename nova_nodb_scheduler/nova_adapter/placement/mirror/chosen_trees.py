# SPDX-License-Identifier: Apache-2.0
"""Compares the provider trees of chosen hosts with Placement before servers are put there.

A sweep compares all trees, but seldom. POST /allocations judges capacity alone:
a trait that an operator set since the last comparison (a host in maintenance),
or an aggregate, would be passed over. So a decision is carried out only on a
tree that was compared within a bound; one that was not is asked for, one small
request, where its generations tell whether anything changed.

    plan over snapshot P  ->  claims  ->  compared within the bound?  yes: write
        no: GET in_tree  ->  generations are the record's: note it, write
        else: read the tree, publish it, wait for the feed, and
            only who stands there changed: write; else: plan again

A record that changed between P and now is a reason to plan again, too: that it
is current does not help a plan that was made over the one before.

A guarded Placement compares the trees as it writes, in the same transaction:

    not compared within the bound, and not changed since P  ->  write, if it has the
        generations of the record, or all but allocations is the record's  ->  "same": note it
        "differs", or nothing said: GET in_tree as above, behind the write

What the own write moved the generations to no record shows for a moment: a tree that a
call of this process has just shown to be as another of its requests expects it is not
compared for that one again.

A record that nobody here can read leaves the one before it in memory. Whatever that one says,
it does not count as compared: its tree is read anew and published over it; where that is not
done, as a newer release wrote it, the request is Placement's.

How old a comparison is tells the clock of whoever made it: of this process's own
the monotonic one. Records tell of those of others by the back end's time, which is set
back where a database's other member takes over, and then makes an old comparison a
fresh one: no time that lies in the future counts, and once the clock is seen to have
been set back none of a record does until it has passed where it stood, and the bound.
What such a comparison would have spared is a small request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors, tree_conditions
from nova_nodb_scheduler.model import backend_time
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_sweep as sweep_module
from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader, provider_trees
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    tree_publisher as tree_publisher_module,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer.replication import ingest

LOG = logging.getLogger(__name__)

#: What of a record says where servers may go, beside who stands there.
_PARTS = ("inventories", "traits", "aggregates", "broken")

#: Times that a tree is read while schedulers write to it, before that is given up.
_TRIES = 4

#: Providers that Placement lists in the time of one request about one tree, about.
_LISTED_AT_ONCE = 50

#: Most trees of which a worker remembers when it compared them.
_MOST_NOTED = 10_000

#: By less the back end's clock, as this process has it, runs back by itself: its offset is
#: told by answers that take their time. By so much a record's comparison may count longer.
_JITTER_SECONDS = 1.0


class TreeNotCompared(errors.NodbError):
    """Nothing may be decided by what is known of a tree; Placement is asked.

    :param root: of the tree
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.root = root


class KeptChanging(TreeNotCompared):
    """A tree could not be compared, for schedulers wrote to it whenever it was read."""

    def __str__(self) -> str:
        return (
            f"Provider tree {self.root} changed whenever it was compared with Placement; "
            "candidates are asked of Placement"
        )


class TreeUnreadable(TreeNotCompared):
    """What is known of a tree nobody here can read, and it is not to be written over."""

    def __str__(self) -> str:
        return (
            f"The record of provider tree {self.root} cannot be read by this release; "
            "candidates are asked of Placement. Upgrade this scheduler, or see "
            "'nova-nodb-manage status' for what is kept aside"
        )


@attrs.frozen
class _Moment:
    """A moment by both clocks; seconds."""

    backend: float
    monotonic: float


@attrs.define(eq=False)
class _SetBackWatch:
    """Tells whether the back end's clock was set back of late; not safe for threads.

    A process that starts after it was has nothing to tell it by: for such a one records
    of before may count once more, for the bound, as the clock passes their times.
    """

    _offset: float = attrs.field(init=False, default=float("-inf"))
    _doubted_until: float = attrs.field(init=False, default=float("-inf"))

    def doubts(self, now: _Moment, bound_seconds: float) -> bool:
        """Take a look at both clocks; say whether records' times tell nothing now."""
        offset = now.backend - now.monotonic
        back_seconds = self._offset - offset
        if back_seconds > _JITTER_SECONDS:
            self._doubted_until = max(
                self._doubted_until, now.monotonic + back_seconds + bound_seconds
            )
            self._offset = offset
        else:
            self._offset = max(self._offset, offset)
        return now.monotonic < self._doubted_until


@attrs.define(eq=False, slots=False)
class ChosenTrees:
    """Says of chosen hosts whether they are still what the plan took them for. Any thread.

    :param snapshot: of this worker's store
    :param now_seconds: the back end's time, without I/O
    :param wait_for: blocks until a version is in the store
    :param bound_seconds: age of a comparison beyond which a tree is asked for
    :param own_seconds: how recently before a listing a scheduler's own write
        leaves open what the listing said of a tree
    :param unreadable: records that cannot be read now
    :param clock: monotonic seconds
    """

    _snapshot: Callable[[], snapshot_module.Snapshot]
    _now_seconds: Callable[[], float]
    _reader: placement_reader.PlacementReader
    _trees: tree_publisher_module.TreePublisher
    _wait_for: Callable[[int], None]
    _bound_seconds: float
    _own_seconds: float = sweep_module.MirrorSweepOptions().fresh_seconds
    _sleep: Callable[[float], None] = time.sleep
    _clock: Callable[[], float] = time.monotonic
    _unreadable: Callable[[], ingest.UnreadableRecords] = attrs.field(
        default=ingest.all_readable, kw_only=True
    )
    #: Of what is noted: never held while anybody is asked, for every decision takes it.
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    #: One thread at a time reads trees and publishes them.
    _reading: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _watch: _SetBackWatch = attrs.field(init=False, factory=_SetBackWatch)
    #: Monotonic seconds at which this worker compared a tree itself.
    _noted: dict[str, float] = attrs.field(init=False, factory=dict)
    #: Of those that Placement compared as it wrote: what they were found to be, and when.
    _shown: dict[str, tuple[tree_conditions.TreeMark, float]] = attrs.field(
        init=False, factory=dict
    )
    #: Trees that were asked for, and those of them that had changed.
    asked: int = attrs.field(init=False, default=0)
    changed: int = attrs.field(init=False, default=0)
    #: Trees that Placement compared as it wrote, and that were the same.
    shown: int = attrs.field(init=False, default=0)
    #: Trees that were read because their records cannot be.
    read_anew: int = attrs.field(init=False, default=0)

    def condition(
        self, roots: Iterable[str], planned_on: snapshot_module.Snapshot
    ) -> TreeCondition | None:
        """Return on what a write depends, of trees that are to be compared as it is written.

        Those that :meth:`behind` would ask Placement for, but for those of which it is
        known that they changed, or that no generations tell of. No I/O.

        :param planned_on: see :meth:`behind`
        :return: None where there is none, or too many to be named in one request
        """
        unreadable = self._unreadable()
        snapshot = self._snapshot()
        now = self._now()
        marks = {}
        for root in roots:
            if _is_unreadable(root, unreadable):
                continue
            if self._is_compared(root, snapshot, now, anew=False):
                continue
            state = _state(snapshot, root)
            if state is None or "broken" in state or _differs(root, planned_on, snapshot):
                continue
            marks[root] = _mark(root, state)
        if not 0 < len(marks) <= tree_conditions.MOST_TREES:
            return None
        return TreeCondition(self, marks, now.monotonic)

    def unshown(
        self, marks: Mapping[str, tree_conditions.TreeMark]
    ) -> Mapping[str, tree_conditions.TreeMark]:
        """Return those that no write of this process has shown to be so, within the bound."""
        oldest = self._clock() - self._bound_seconds
        with self._lock:
            return {
                root: mark
                for root, mark in marks.items()
                if (shown := self._shown.get(root)) is None
                or shown[0].contents != mark.contents
                or shown[1] < oldest
            }

    def show(self, marks: Mapping[str, tree_conditions.TreeMark], at: float) -> None:
        """Note that trees were these as Placement wrote; monotonic seconds, from before."""
        with self._lock:
            self.shown += len(marks)
            if len(self._shown) + len(marks) > _MOST_NOTED:
                self._shown.clear()
            self._shown.update((root, (mark, at)) for root, mark in marks.items())
        for root in marks:
            self._note(root, at)

    def behind(
        self,
        roots: Collection[str],
        planned_on: snapshot_module.Snapshot,
        *,
        anew: bool = False,
    ) -> frozenset[str]:
        """Return the trees that are not what a plan took them for; the store has them now.

        No I/O where all were compared within the bound. Else one request for
        each that was not, or one for all where that is cheaper, and about five
        more for each that changed, and the feed's delay.

        :param planned_on: taken before the plan was made
        :param anew: ask, however short ago they were compared
        :raises PlacementUnanswered: nothing is known
        :raises BackendUnavailable: the same
        :raises KeptChanging: the same
        :raises TreeUnreadable: the same
        """
        wanted = set(roots)
        asked = self._now()
        for attempt in range(_TRIES):
            # First these: one that is let go meanwhile is in the snapshot.
            unreadable = self._unreadable()
            snapshot = self._snapshot()
            unread = {root for root in wanted if _is_unreadable(root, unreadable)}
            due = [
                root
                for root in sorted(wanted)
                if root in unread or not self._is_compared(root, snapshot, asked, anew)
            ]
            if not due:
                return frozenset(r for r in wanted if _differs(r, planned_on, snapshot))
            if attempt:
                self._sleep(0.05 * attempt)
            self._compare(due, snapshot, unread)
        raise KeptChanging(due[0])

    def _now(self) -> _Moment:
        return _Moment(self._now_seconds(), self._clock())

    def _is_compared(
        self, root: str, snapshot: snapshot_module.Snapshot, asked: _Moment, anew: bool
    ) -> bool:
        """Tell whether a tree was compared since it was asked for, or within the bound."""
        now = self._now()
        own_at = self._noted.get(root, backend_time.NEVER)
        if self._counts(own_at, asked.monotonic, now.monotonic, anew):
            return True
        with self._lock:
            if self._watch.doubts(now, self._bound_seconds):
                return False
        at = _compared_at(root, snapshot, self._own_seconds, now.backend)
        return at <= now.backend and self._counts(at, asked.backend, now.backend, anew)

    def _counts(self, at: float, asked_at: float, now: float, anew: bool) -> bool:
        return at >= asked_at or (not anew and now - at <= self._bound_seconds)

    def _compare(
        self,
        roots: Collection[str],
        snapshot: snapshot_module.Snapshot,
        unread: Collection[str] = (),
    ) -> None:
        """Ask for trees; note those that did not change, publish the others.

        :param unread: those of them whose records cannot be read: they are published
        :raises TreeUnreadable: one of those is not to be written over
        """
        self.asked += len(roots)
        if unread:
            self.read_anew += len(unread)
            LOG.warning(
                "The records of %(count)d chosen hosts' provider trees cannot be read; they are "
                "read from Placement before anything is written there. For example %(example)s.",
                {"count": len(unread), "example": min(unread)},
            )
        began_at, listed_from = self._clock(), self._trees.now_seconds()
        changed: list[tree_publisher_module.TreeRecords] = []
        for root, members in self._listed(roots, snapshot):
            state = _state(snapshot, root)
            if (
                state is not None
                and root not in unread
                and "broken" not in state
                and provider_trees.matches(state, root, members)
            ):
                self._note(root, began_at)
            elif state is not None or members or root in unread:
                changed.append((root, members))
            else:
                # Neither here nor there.
                self._note(root, began_at)
        if not changed:
            return
        self.changed += len(changed)
        with self._reading:
            written = self._trees.whole(changed, listed_from)
        for root in sorted(written.rejected.intersection(unread)):
            raise TreeUnreadable(root)
        # Not noted: another may have published what is newer, and its record be
        # on its way. What is in the store then tells, or is asked once more.
        self._wait_for(written.version)

    def _listed(
        self, roots: Collection[str], snapshot: snapshot_module.Snapshot
    ) -> Iterable[tree_publisher_module.TreeRecords]:
        view = snapshot.namespace(known_namespaces.PROVIDERS.name)
        if len(roots) > 1 and len(roots) * _LISTED_AT_ONCE >= len(view):
            listing = self._reader.listing()
            return [(root, listing.in_tree(root)) for root in roots]
        return [(root, self._reader.tree(root)) for root in roots]

    def _note(self, root: str, at: float) -> None:
        with self._lock:
            if len(self._noted) >= _MOST_NOTED:
                oldest = at - self._bound_seconds
                self._noted = {r: when for r, when in self._noted.items() if when > oldest}
                if len(self._noted) >= _MOST_NOTED:
                    self._noted.clear()
            self._noted[root] = max(at, self._noted.get(root, at))


@attrs.frozen(eq=False)
class TreeCondition:
    """The trees that one request's write depends on; any thread, no I/O.

    See ``conditional_writes.WriteCondition``.

    :param wanted: by root, what the request was planned for
    :param at: monotonic seconds, before the write
    """

    _trees: ChosenTrees
    wanted: Mapping[str, tree_conditions.TreeMark]
    _at: float

    def marks(self) -> Mapping[str, tree_conditions.TreeMark]:
        """Return what is still to be compared."""
        return self._trees.unshown(self.wanted)

    def held(self, marks: Mapping[str, tree_conditions.TreeMark]) -> None:
        """Note that trees were the same."""
        self._trees.show(marks, self._at)


def _is_unreadable(root: str, unreadable: ingest.UnreadableRecords) -> bool:
    name = known_namespaces.PROVIDERS.name
    return root in unreadable.keys(name) or unreadable.overflowed(name)


def _state(snapshot: snapshot_module.Snapshot, root: str) -> Mapping[str, Any] | None:
    return snapshot.namespace(known_namespaces.PROVIDERS.name).state(root)


def _compared_at(
    root: str, snapshot: snapshot_module.Snapshot, own_seconds: float, now_seconds: float
) -> float:
    """Return when a record was compared at the latest, for all that records tell.

    A sweep compared the records that it knew, but those that schedulers wrote to about
    then: of these, it may have left the difference to be looked at later. What was written
    since, somebody may have read before.
    """
    record = snapshot.namespace(known_namespaces.PROVIDERS.name).get(root)
    if record is None:
        return backend_time.NEVER
    state = record.state
    at = backend_time.believed(float(state.get("whole_at", 0.0)), now_seconds)
    swept = snapshot.namespace(known_namespaces.MIRRORS.name).state(sweep_module.PLACEMENT)
    if swept is not None and record.version <= int(swept.get("compared_version", 0)):
        swept_from = backend_time.believed(float(swept["swept_from"]), now_seconds)
        if float(state.get("written_at", 0.0)) < swept_from - own_seconds:
            at = max(at, swept_from)
    return at


def _differs(
    root: str, planned_on: snapshot_module.Snapshot, present: snapshot_module.Snapshot
) -> bool:
    """Tell whether more than allocations changed between two snapshots."""
    name = known_namespaces.PROVIDERS.name
    if planned_on.namespace(name) is present.namespace(name):
        return False
    before, now = _state(planned_on, root), _state(present, root)
    if before is None or now is None:
        return before is not now
    return _fixed(before) != _fixed(now)


def _mark(root: str, state: Mapping[str, Any]) -> tree_conditions.TreeMark:
    """Return what a guarded Placement is to find of a record's tree."""
    children = state["children"]
    return tree_conditions.TreeMark(
        tree_conditions.mark(
            state["generation"],
            (
                tree_conditions.TreeMember(uuid, child["parent"], child["generation"])
                for uuid, child in children.items()
            ),
        ),
        tree_conditions.contents(
            {
                uuid: tree_conditions.ProviderContents(
                    each.get("parent"), each["inventories"], each["traits"], each["aggregates"]
                )
                for uuid, each in {**children, root: state}.items()
            }
        ),
    )


def _fixed(state: Mapping[str, Any]) -> tuple[Any, ...]:
    children = {
        uuid: {name: value for name, value in child.items() if name != "generation"}
        for uuid, child in state.get("children", {}).items()
    }
    return (*(state.get(part) for part in _PARTS), children)
