# SPDX-License-Identifier: Apache-2.0
"""Says for which cells the states in memory are proved to be current.

Freshness is the age of the feed and of the reporters' path, never that of a
record: an idle host is silent for days. Whatever cannot be proved is named,
and its cell takes Nova's own path.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import numpy as np

from nova_nodb_scheduler.model import backend_time
from nova_nodb_scheduler.nova_adapter import reporter as reporter_module
from nova_nodb_scheduler.nova_adapter import reporter_beats
from nova_nodb_scheduler.nova_adapter import scopes as scopes_module
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import quarantine as quarantine_module

LOG = logging.getLogger(__name__)

#: Namespaces without which nothing can be judged.
_TO_JUDGE = (namespaces.REPORTERS.name, namespaces.CELLS.name)

#: Namespaces without which a cell cannot be scheduled.
_OF_A_CELL = (
    namespaces.COMPUTE_NODES.name,
    namespaces.SERVICES.name,
    namespaces.SERVICE_LIVENESS.name,
    namespaces.INSTANCES.name,
)

#: Namespaces of the API database.
_OF_THE_API = (namespaces.AGGREGATES.name, namespaces.HOST_MAPPINGS.name)


class Reason(enum.Enum):
    """Why a scope's states are not proved."""

    FEED = "feed not proved"
    COLD = "never swept in this epoch"
    UNSWEPT = "not swept since its reporters began"
    NO_REPORTER = "no reporter"
    SILENT_REPORTER = "reporter silent"
    BEHIND = "reporter behind"
    UNREPORTED = "heartbeats nobody reported"
    QUARANTINE = "unreadable records"
    #: Found while states are turned into Nova's objects, not by the judge.
    UNKNOWN_VERSION = "unknown object version"
    UNKNOWN_HOST = "candidate not in the store"
    #: Found where no host is: one may be missing in memory.
    UNNAMED = "records with refused names"
    #: A fault of the plugin, with a traceback in the log.
    FAULT = "fault of the plugin"


@attrs.frozen
class Proof:
    """A judgement about a snapshot.

    :param missing: scopes that are not proved, and why; all others are
    :param unnamed: scopes with rows whose names no record may have: what is
        in memory is current, but a host may be missing there, and "no valid
        host" is Nova's to say
    """

    missing: Mapping[str, Reason]
    unnamed: frozenset[str] = frozenset()

    def holds(self, scope: str) -> bool:
        return scope not in self.missing


@attrs.frozen
class ProofOptions:
    """Bounds; see the options of the same names.

    :param unreported_grace_seconds: how long a heartbeat may look unreported,
        because two reporters' batches crossed
    """

    feed_bound_seconds: float
    reporter_bound_seconds: float
    unreported_grace_seconds: float


class Judge:
    """Judges cells by what the plugin's own namespaces say. Any thread.

    :param feed_alive: whether the feed was proved within some seconds
    :param epoch: the replicator's current epoch
    :param backend_now_seconds: the back end's clock, without I/O
    :param unguarded: scopes without compute services of their own, which may
        have no conductor that says it lives: ``api`` and cell0
    """

    def __init__(
        self,
        feed_alive: Callable[[float], bool],
        epoch: Callable[[], str],
        quarantine: quarantine_module.Quarantine,
        backend_now_seconds: Callable[[], float],
        options: ProofOptions,
        unguarded: Collection[str] = (scopes_module.API,),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unguarded = frozenset(unguarded)
        self._feed_alive = feed_alive
        self._epoch = epoch
        self._quarantine = quarantine
        self._backend_now_seconds = backend_now_seconds
        self._options = options
        self._clock = clock
        self._unreported_since: dict[str, float] = {}
        # Kept from request to request: of the reporters' beats as long as they are the
        # same, of the heartbeats that nobody reported as long as none comes or goes.
        self._beats_seen: tuple[object, reporter_beats.ReporterBeats] | None = None
        self._unreported_seen: tuple[object, Mapping[str, int]] | None = None

    def judge(self, snapshot: snapshot_module.Snapshot, scopes: Collection[str]) -> Proof:
        """Say which of some scopes (cells, ``api``) a snapshot is proof of."""
        if not self._feed_alive(self._options.feed_bound_seconds):
            return Proof(dict.fromkeys(scopes, Reason.FEED))
        missing = {}
        beats = self._beats(snapshot)
        unreported = self._unreported(snapshot)
        for scope in scopes:
            try:
                reason = self._missing(snapshot, scope, beats, unreported)
            except (KeyError, TypeError, ValueError) as error:
                # Written by a release of the plugin that means something else.
                LOG.error(
                    "What is known of %(scope)s cannot be judged: %(error)r",
                    {"scope": scope, "error": error},
                )
                reason = Reason.QUARANTINE
            if reason is not None:
                missing[scope] = reason
        return Proof(missing, self._unnamed(snapshot, scopes, beats))

    def _unnamed(
        self,
        snapshot: snapshot_module.Snapshot,
        scopes: Collection[str],
        beats: reporter_beats.ReporterBeats,
    ) -> frozenset[str]:
        """Return the scopes of which the last sweep, or a reporter since, refused names."""
        cells = snapshot.namespace(namespaces.CELLS.name)
        found = set(beats.unnamed)
        for scope in scopes:
            swept = cells.get(scope)
            if swept is not None and swept.state.get("unnamed"):
                found.add(scope)
        return frozenset(found.intersection(scopes))

    def _missing(
        self,
        snapshot: snapshot_module.Snapshot,
        scope: str,
        beats: reporter_beats.ReporterBeats,
        unreported: Mapping[str, int],
    ) -> Reason | None:
        if self._unreadable(snapshot, scope):
            return Reason.QUARANTINE
        swept = snapshot.namespace(namespaces.CELLS.name).get(scope)
        if swept is None or swept.state.get("epoch") != self._epoch():
            return Reason.COLD
        if swept.state.get("unpublishable"):
            return Reason.QUARANTINE
        reason = self._path(scope, beats, swept.state)
        if reason is not None or scope == scopes_module.API:
            return reason
        return Reason.UNREPORTED if self._lasts(scope, unreported.get(scope, 0)) else None

    def _path(
        self, scope: str, beats: reporter_beats.ReporterBeats, swept: Mapping[str, Any]
    ) -> Reason | None:
        """Judge the reporters that write a scope.

        What was written before a reporter began, nobody may have reported: a
        cell's conductors may all have been without the plugin. One reporter
        that was there when the last sweep began covers everything since.
        """
        now = self._backend_now_seconds()
        bound = self._options.reporter_bound_seconds
        swept_from = backend_time.believed(float(swept["swept_from"]), now)
        proved_at = proved_from(swept, now)
        if beats.all_in_time(now, bound):
            since = beats.guarded_since(scope)
            if scope in self._unguarded or (since is not None and since <= swept_from):
                return None
            return Reason.NO_REPORTER if since is None else Reason.UNSWEPT
        alive = covering = 0
        for beat in beats.states:
            silence = now - backend_time.believed(float(beat["beat_at"]), now)
            if silence > bound and covers(proved_at, beat, bound):
                continue
            behind = float(beat["behind_seconds"].get(scope, 0.0))
            if behind > 0 and behind + silence > bound:
                return Reason.BEHIND
            if beat.get("cell") not in (scope, reporter_module.EVERY_CELL):
                continue
            if silence > bound:
                return Reason.SILENT_REPORTER
            if scope in beat["guards"]:
                alive += 1
                covering += float(beat["since"]) <= swept_from
        if covering or scope in self._unguarded:
            return None
        return Reason.UNSWEPT if alive else Reason.NO_REPORTER

    def _lasts(self, scope: str, unreported: int) -> bool:
        if unreported <= 0:
            self._unreported_since.pop(scope, None)
            return False
        since = self._unreported_since.setdefault(scope, self._clock())
        return self._clock() - since > self._options.unreported_grace_seconds

    def _unreadable(self, snapshot: snapshot_module.Snapshot, scope: str) -> bool:
        of_api = scope == scopes_module.API
        for name in _TO_JUDGE + (_OF_THE_API if of_api else _OF_A_CELL):
            if self._quarantine.overflowed(name):
                return True
            view = snapshot.namespace(name)
            for key in self._quarantine.keys(name):
                known = view.get(key)
                # Whose it is, only its last readable state tells.
                if of_api or known is None or known.state.get("cell") in (scope, None):
                    return True
        return False

    def _beats(self, snapshot: snapshot_module.Snapshot) -> reporter_beats.ReporterBeats:
        view = snapshot.namespace(namespaces.REPORTERS.name)
        seen = self._beats_seen
        if seen is None or seen[0] is not view:
            found = (view.get(key) for key in view.keys())  # noqa: SIM118 - a view is no mapping
            states = [record.state for record in found if record is not None]
            seen = self._beats_seen = (view, reporter_beats.ReporterBeats(states))
        return seen[1]

    def _unreported(self, snapshot: snapshot_module.Snapshot) -> Mapping[str, int]:
        mark = snapshot.namespace(namespaces.SERVICE_LIVENESS.name).steady_mark
        seen = self._unreported_seen
        if seen is None or seen[0] is not mark:
            seen = self._unreported_seen = (mark, unreported_by_cell(snapshot))
        return seen[1]


def proved_from(swept: Mapping[str, Any], now_seconds: float) -> float:
    """Return when the last sweep of a scope began that found what any API left unreported.

    :param swept: the scope's record of namespace ``cells``
    :param now_seconds: by the back end's clock: what lies in the future is not believed
    """
    return max(
        backend_time.believed(float(swept[name]), now_seconds)
        for name in ("swept_from", "delta_from")
        if name == "swept_from" or name in swept
    )


def covers(proved_at: float, beat: Mapping[str, Any], bound_seconds: float) -> bool:
    """Tell whether a sweep made good what a silent process may have left unreported.

    Only for processes that may write any cell: of a cell's own conductor that
    is cut off, but alive, more is to come, and its silence is judged until it
    is forgotten.
    """
    if beat.get("cell") != reporter_module.EVERY_CELL:
        return False
    return proved_at > float(beat["beat_at"]) + bound_seconds


def unreported_by_cell(snapshot: snapshot_module.Snapshot) -> dict[str, int]:
    """Sum the unreported heartbeats of each cell over its services."""
    view = snapshot.namespace(namespaces.SERVICE_LIVENESS.name)
    if not len(view):
        return {}
    codes = view.column("cell")
    missed = np.maximum(view.column("unreported"), 0)
    sums = np.bincount(codes, weights=missed, minlength=int(codes.max()) + 1)
    vocabulary = view.vocabulary("cell")
    return {vocabulary.text(code): int(total) for code, total in enumerate(sums) if total}
