# SPDX-License-Identifier: Apache-2.0
"""Compares the mirror with a listing of Placement's generations, and repairs it.

One request lists every provider; only trees whose generations differ from
their records are read. Into an empty back end that is the import. The walk is
cut into steps, so that its thread can renew its lease and follow hints
between them, however many there are.

What no generation shows is looked for beside it: consumers that stand on a
host and are, by all that is known, not there (see :mod:`.feed_hints`), and, at a
slow pace, every tree once more.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from nova_nodb_scheduler.model import backend_time, records
from nova_nodb_scheduler.nova_adapter.placement.mirror import placement_reader, provider_trees
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    tree_publisher as tree_publisher_module,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module

LOG = logging.getLogger(__name__)

#: Key of the mirror's own record.
PLACEMENT = "placement"


@attrs.frozen
class MirrorSweepOptions:
    """How to sweep.

    :param interval_seconds: between the begins of two sweeps
    :param step_trees: trees read between two looks at hints and lease
    :param again_seconds: within which every tree is read again, whatever its
        generation
    :param fresh_seconds: how recently a scheduler's own write excuses a
        generation that the listing does not show
    """

    interval_seconds: float = 60.0
    step_trees: int = 64
    again_seconds: float = 24 * 3600.0
    fresh_seconds: float = 5.0


@attrs.frozen
class ComparedListing:
    """What a listing of Placement's providers says of the mirror's records.

    :param differing: trees to be read entirely, those without a record too
    :param fresh: roots whose generation differs by what schedulers write just now
    :param gone: roots with a record that were not listed
    """

    differing: Sequence[tree_publisher_module.TreeRecords]
    fresh: Sequence[str]
    gone: Sequence[str]


def compare(
    view: store_snapshot.NamespaceView,
    listing: provider_trees.ProviderListing,
    since_seconds: float,
    unread: Container[str] = frozenset(),
) -> ComparedListing:
    """Compare the records of a view with a listing; no I/O.

    Only trees of several providers, and those that differ, are decoded.

    :param since_seconds: own writes after that back-end time excuse a difference
    :param unread: roots whose records cannot be read: what a view has of them is older
    """
    keys = view.row_keys()
    generations = dict(zip(keys, view.column("generation").tolist(), strict=True))
    sizes = dict(zip(keys, view.column("tree_size").tolist(), strict=True))
    differing: list[tree_publisher_module.TreeRecords] = []
    fresh: list[str] = []
    for root, members in listing.trees.items():
        if root in generations and root not in unread:
            alone = len(members) == 1 == sizes[root] and members[0].uuid == root
            if alone and generations[root] == members[0].generation:
                continue
            state = view.state(root)
            if state is not None and not alone and provider_trees.matches(state, root, members):
                continue
            if state is not None and float(state.get("written_at", 0.0)) >= since_seconds:
                fresh.append(root)
                continue
        differing.append((root, members))
    gone = [root for root in generations if root not in listing.trees]
    return ComparedListing(differing, fresh, gone)


@attrs.define(eq=False, slots=False)
class MirrorSweep:
    """One comparison of the whole mirror with Placement, step by step; one thread.

    :param view: of the records, at its begin
    :param epoch: of the records
    :param unread: roots whose records cannot be read, as of before the view
    """

    _synchronizer: contract.Synchronizer
    _publisher: publisher_module.Publisher
    _trees: tree_publisher_module.TreePublisher
    _reader: placement_reader.PlacementReader
    _view: store_snapshot.NamespaceView
    _epoch: str
    _options: MirrorSweepOptions
    _by: str
    _clock: Callable[[], float] = time.monotonic
    _unread: Collection[str] = attrs.field(default=frozenset(), kw_only=True)
    _todo: list[tree_publisher_module.TreeRecords] = attrs.field(init=False, factory=list)
    _waiting: set[str] = attrs.field(init=False, factory=set)
    _providers: int = attrs.field(init=False, default=0)
    _roots: int = attrs.field(init=False, default=0)
    _listed_from: float = attrs.field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        self._began = self._said = self._clock()
        self._requests_before = self._reader.requests
        self._done = dict.fromkeys(("differing", "again", "gone", "changed"), 0)

    def begin(self) -> Sequence[str]:
        """List Placement and note what must be read.

        :returns: roots whose generation will be told by a look at them a little
            later: schedulers write them just now
        :raises PlacementUnanswered: try again later
        :raises BackendUnavailable: the same
        """
        self._listed_from = self._synchronizer.now_seconds()
        listing = self._reader.listing()
        self._providers, self._roots = listing.providers, len(listing.trees)
        # No more of these than a step reads: a release that cannot read what another one writes,
        # and must not write over it, would read all of them with each sweep.
        unread = frozenset(sorted(self._unread)[: self._options.step_trees])
        since = self._listed_from - self._options.fresh_seconds
        found = compare(self._view, listing, since, unread)
        self._todo = list(found.differing)
        differing = {root for root, _members in found.differing}
        oldest = [(root, listing.trees[root]) for root in self._oldest() if root in listing.trees]
        self._todo += [tree for tree in oldest if tree[0] not in differing]
        self._done["differing"] = len(differing)
        self._done["again"] = len(self._todo) - len(differing)
        self._done["gone"] = len(found.gone)
        dropped = self._trees.drop(found.gone, self._listed_from)
        self._done["changed"] += dropped.changed
        self._todo.reverse()
        self._waiting = {root for root, _members in self._todo}
        return [*found.fresh, *sorted(dropped.again)]

    def will_read(self, root: str) -> bool:
        """Tell whether a tree still waits to be read by this sweep."""
        return root in self._waiting

    @property
    def left(self) -> int:
        """Trees still to be read."""
        return len(self._todo)

    def step(self, view: store_snapshot.NamespaceView) -> set[str]:
        """Read and publish the next few trees, but those that were read since the listing.

        :param view: of the records, now: an import may have come in between
        :returns: roots to be looked at again a little later
        :raises PlacementUnanswered: the step may be repeated
        :raises BackendUnavailable: the same
        """
        batch = self._todo[-self._options.step_trees :]
        unread = [tree for tree in batch if not self._is_read(view, *tree)]
        written = self._trees.whole(unread, self._listed_from)
        del self._todo[-self._options.step_trees :]
        self._waiting.difference_update(root for root, _members in batch)
        self._done["changed"] += written.changed
        if self._clock() - self._said > 30.0:
            self._said = self._clock()
            LOG.info(
                "Reading Placement: %(left)d of %(all)d provider trees are left.",
                {"left": self.left, "all": self._roots},
            )
        return written.again

    def _is_read(
        self,
        view: store_snapshot.NamespaceView,
        root: str,
        members: Sequence[provider_trees.ListedProvider],
    ) -> bool:
        state = view.state(root)
        return (
            state is not None
            and float(state.get("whole_at", 0.0)) >= self._listed_from
            and provider_trees.matches(state, root, members)
        )

    def finish(self, view: store_snapshot.NamespaceView) -> Mapping[str, Any]:
        """Say in namespace ``mirrors`` that the mirror was compared; return its record.

        Not over what a sweep says that began later: who stood still for long ends late.

        :param view: of the records, now
        :raises BackendUnavailable: the call may be repeated
        """
        state = {
            "epoch": self._epoch,
            "swept_from": self._listed_from,
            "swept_at": self._synchronizer.now_seconds(),
            "compared_version": max((each.version for each in self._view.newest(1)), default=0),
            "providers": self._providers,
            "roots": self._roots,
            **self._done,
            "broken": _broken(view),
            "requests": self._reader.requests - self._requests_before,
            "seconds": round(self._clock() - self._began, 3),
            "keeper": self._by,
        }
        key = records.RecordKey(known_namespaces.MIRRORS.name, PLACEMENT)
        self._publisher.publish({key: lambda current: _unless_later(current, state)})
        return state

    def _oldest(self) -> list[str]:
        """Return the roots whose turn it is to be read whatever their generation."""
        whole_at = self._view.column("whole_at")
        share = self._options.interval_seconds / self._options.again_seconds
        budget = min(len(whole_at), math.ceil(len(whole_at) * share))
        if not budget:
            return []
        rows = np.argpartition(whole_at, budget - 1)[:budget]
        due = whole_at[rows] < self._listed_from - self._options.again_seconds / 2
        keys = self._view.row_keys()
        return [keys[row] for row in rows[due].tolist()]


def _unless_later(
    current: publisher_module.State | None, state: Mapping[str, Any]
) -> publisher_module.Computed:
    if current is not None:
        swept_from = backend_time.believed(float(current["swept_from"]), state["swept_at"])
        if swept_from > state["swept_from"]:
            return publisher_module.UNCHANGED
    return state


def _broken(view: store_snapshot.NamespaceView) -> dict[str, int]:
    """Count the trees that cannot be used, by reason."""
    codes, counts = np.unique(view.column("broken"), return_counts=True)
    vocabulary = view.vocabulary("broken")
    found = {vocabulary.text(code): int(n) for code, n in zip(codes, counts, strict=True)}
    return {reason: count for reason, count in sorted(found.items()) if reason}
