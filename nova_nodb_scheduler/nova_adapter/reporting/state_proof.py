# SPDX-License-Identifier: Apache-2.0
"""Says for which cells the states in memory are proved to be current.

Freshness is the age of the feed and of the reporters' path, never that of a
record: an idle host is silent for days. Whatever cannot be proved is named, and
its cell takes Nova's own path.

A big cloud has a reporter for each worker of each API and conductor, and every
request asks about every cell. Where all is well that is one comparison a cell;
where it is not, the heartbeats are looked at one by one.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from nova_nodb_scheduler.model import backend_time
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.scheduling.facts import journal_reader
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, reporter_facts
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer.replication import ingest as quarantine_module

LOG = logging.getLogger(__name__)


class ReporterHeartbeats:
    """What the reporters' heartbeats of one moment say, together.

    :ivar states: all of them, as they were written
    :ivar unnamed: scopes of which reporters met rows whose names no record may have
    """

    def __init__(self, states: Sequence[Mapping[str, Any]]) -> None:
        self.states = states
        self.unnamed: set[str] = set()
        self._readable = True
        self._first_beat = float("inf")
        self._last_beat = float("-inf")
        self._most_behind_seconds = 0.0
        self._guarded_since: dict[str, float] = {}
        #: Scopes of which any guard writes heartbeats to a journal.
        self.journaled: set[str] = set()
        #: Scopes whose heartbeats go to journals, and none to records.
        self.journaled_alone: set[str] = set()
        self._recorded: set[str] = set()
        try:
            for each in states:
                self._take(each)
            self.journaled_alone = self.journaled - self._recorded
        except (KeyError, TypeError, ValueError, AttributeError):
            # Written by a release that means something else: whose it is decides.
            self._readable = False

    def _take(self, beat: Mapping[str, Any]) -> None:
        beat_at = float(beat["beat_at"])
        self._first_beat = min(self._first_beat, beat_at)
        self._last_beat = max(self._last_beat, beat_at)
        behind = map(float, reporter_facts.lateness(beat).values())
        self._most_behind_seconds = max(self._most_behind_seconds, *behind, 0.0)
        self.unnamed.update(beat.get("unnamed", ()))
        since = float(beat["since"])
        for scope in beat["guards"]:
            if beat.get("cell") in (scope, change_reporter.EVERY_CELL):
                known = self._guarded_since.get(scope, since)
                self._guarded_since[scope] = min(known, since)
                into = self.journaled if reporter_facts.journals(beat) else self._recorded
                into.add(scope)

    def all_in_time(self, now_seconds: float, bound_seconds: float) -> bool:
        """Tell whether every reporter lives, and none may be behind by more than a bound."""
        if not backend_time.is_believed(self._last_beat, now_seconds):
            return False
        silence = max(now_seconds - self._first_beat, 0.0)
        return self._readable and self._most_behind_seconds + silence <= bound_seconds

    def guarded_since(self, scope: str) -> float | None:
        """Return since when the first of a scope's guards guards it; None where it has none."""
        return self._guarded_since.get(scope)


#: Namespaces without which nothing can be judged.
_TO_JUDGE = (known_namespaces.REPORTERS.name, known_namespaces.CELLS.name)

#: Namespaces without which a cell cannot be scheduled.
_OF_A_CELL = (
    known_namespaces.COMPUTE_NODES.name,
    known_namespaces.SERVICES.name,
    known_namespaces.SERVICE_LIVENESS.name,
    known_namespaces.INSTANCES.name,
    # Until a move ends they alone say that a server of a group is on its way to a host.
    known_namespaces.MIGRATIONS.name,
)

#: Namespaces of the API database.
_OF_THE_API = (known_namespaces.AGGREGATES.name, known_namespaces.HOST_MAPPINGS.name)


@attrs.frozen
class _Unreported:
    """By cell, how many heartbeats nobody reported; see :meth:`.JournalReader.unreported`."""

    in_records: Mapping[str, int]
    in_journals: Mapping[str, int]


class UnprovedReason(enum.Enum):
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
class StateProof:
    """Which scopes a snapshot's states are not proved for, and why.

    :param missing: scopes that are not proved, and why; all others are
    :param unnamed: scopes with rows whose names no record may have: what is
        in memory is current, but a host may be missing there, and "no valid
        host" is Nova's to say
    """

    missing: Mapping[str, UnprovedReason]
    unnamed: frozenset[str] = frozenset()

    def holds(self, scope: str) -> bool:
        return scope not in self.missing


@attrs.frozen
class ProofOptions:
    """Bounds; see the options of the same names.

    :param unreported_grace_seconds: how long a heartbeat may look unreported,
        because two reporters' batches crossed
    :param journal_horizon_seconds: how far back who begins to read journals looks
    """

    feed_bound_seconds: float
    reporter_bound_seconds: float
    unreported_grace_seconds: float
    journal_horizon_seconds: float = 90.0


@attrs.frozen(eq=False)
class _Swept:
    """What one view of the cells' records says of the last sweeps of some scopes.

    :param unnamed: scopes of which it refused names
    """

    view: snapshot_module.NamespaceView
    scopes: tuple[str, ...]
    states: Mapping[str, Mapping[str, Any] | None]
    unnamed: frozenset[str]


@attrs.define(eq=False, slots=False)
class StateJudge:
    """Judges cells by what the plugin's own namespaces say. Any thread.

    :param feed_alive: whether the feed was proved within some seconds
    :param epoch: the replicator's current epoch
    :param backend_now_seconds: the back end's clock, without I/O
    :param unguarded: scopes without compute services of their own, which may
        have no conductor that says it lives: ``api`` and cell0
    :param journals: of the store; None where nobody journals heartbeats
    """

    _feed_alive: Callable[[float], bool]
    _epoch: Callable[[], str]
    _quarantine: quarantine_module.Quarantine
    _backend_now_seconds: Callable[[], float]
    _options: ProofOptions
    _unguarded: Collection[str] = (scopes_module.API,)
    _journals: journal_reader.JournalReader | None = attrs.field(default=None, kw_only=True)
    _clock: Callable[[], float] = time.monotonic
    _unreported_since: dict[str, float] = attrs.field(init=False, factory=dict)
    # Kept from request to request: of the reporters' beats as long as they are the
    # same, of the heartbeats that nobody reported as long as none comes or goes.
    _beats_seen: tuple[object, ReporterHeartbeats] | None = attrs.field(init=False, default=None)
    _unreported_seen: tuple[object, Mapping[str, int]] | None = attrs.field(
        init=False, default=None
    )
    # Of what sweeps said, as long as no cell is swept again.
    _swept_seen: _Swept | None = attrs.field(init=False, default=None)

    def feed_proved(self) -> bool:
        """Tell whether the feed is proved now: a snapshot taken afterwards is no older."""
        return self._feed_alive(self._options.feed_bound_seconds)

    def unreadable(self) -> quarantine_module.UnreadableRecords:
        """Return which records cannot be read now; see :meth:`judge`."""
        return self._quarantine.at_this_moment()

    def judge(
        self,
        snapshot: snapshot_module.Snapshot,
        scopes: Collection[str],
        unreadable: quarantine_module.UnreadableRecords | None = None,
    ) -> StateProof:
        """Say which of some scopes (cells, ``api``) a snapshot is proof of.

        :param unreadable: those of before the snapshot; None: those of now, among which
            one is not that was repaired since, which the snapshot lacks
        """
        if not self.feed_proved():
            return StateProof(dict.fromkeys(scopes, UnprovedReason.FEED))
        missing = {}
        quarantined = self.unreadable() if unreadable is None else unreadable
        heartbeats = self._heartbeats(snapshot)
        unreported = _Unreported(
            self._unreported(snapshot),
            {} if self._journals is None else self._journals.unreported(snapshot),
        )
        sweeps = self._swept(snapshot, scopes)
        epoch, now = self._epoch(), self._backend_now_seconds()
        for scope in scopes:
            try:
                if (not quarantined.is_empty and _unreadable(snapshot, scope, quarantined)) or (
                    scope in heartbeats.journaled and self._lacks_slots(quarantined)
                ):
                    reason: UnprovedReason | None = UnprovedReason.QUARANTINE
                else:
                    swept = sweeps.states[scope]
                    reason = self._missing(scope, heartbeats, unreported, swept, epoch, now)
            except (KeyError, TypeError, ValueError) as error:
                # Written by a release of the plugin that means something else.
                LOG.error(
                    "What is known of %(scope)s cannot be judged: %(error)r",
                    {"scope": scope, "error": error},
                )
                reason = UnprovedReason.QUARANTINE
            if reason is not None:
                missing[scope] = reason
        # By the last sweep, or by a reporter since.
        return StateProof(missing, sweeps.unnamed | heartbeats.unnamed.intersection(scopes))

    def _swept(self, snapshot: snapshot_module.Snapshot, scopes: Collection[str]) -> _Swept:
        view, asked = snapshot.namespace(known_namespaces.CELLS.name), tuple(scopes)
        seen = self._swept_seen
        if seen is None or seen.view is not view or seen.scopes != asked:
            states = {scope: view.state(scope) for scope in asked}
            unnamed = {scope for scope, swept in states.items() if (swept or {}).get("unnamed")}
            seen = self._swept_seen = _Swept(view, asked, states, frozenset(unnamed))
        return seen

    def _missing(
        self,
        scope: str,
        heartbeats: ReporterHeartbeats,
        unreported: _Unreported,
        swept: Mapping[str, Any] | None,
        epoch: str,
        now: float,
    ) -> UnprovedReason | None:
        if swept is None or swept.get("epoch") != epoch:
            return UnprovedReason.COLD
        if swept.get("unpublishable"):
            return UnprovedReason.QUARANTINE
        reason = self._path(scope, heartbeats, swept, now)
        if reason is not None or scope == scopes_module.API:
            return reason
        in_records = unreported.in_records.get(scope, 0)
        if scope in heartbeats.journaled_alone:
            # Records are not kept up: what they lack of one another says nothing.
            in_records = 0
        lasts = self._lasts(scope, in_records) or bool(
            unreported.in_journals and unreported.in_journals.get(scope)
        )
        return UnprovedReason.UNREPORTED if lasts else None

    def _lacks_slots(self, quarantined: quarantine_module.UnreadableRecords) -> bool:
        """Tell whether journals hold what cannot be read: living services may stand in it."""
        name = known_namespaces.HEARTBEAT_JOURNALS.name
        if quarantined.keys(name) or quarantined.overflowed(name):
            return True
        return self._journals is not None and bool(self._journals.unreadable)

    def _path(
        self, scope: str, heartbeats: ReporterHeartbeats, swept: Mapping[str, Any], now: float
    ) -> UnprovedReason | None:
        """Judge the reporters that write a scope.

        What was written before a reporter began, nobody may have reported: a
        cell's conductors may all have been without the plugin. One reporter
        that was there when the last sweep began covers everything since.
        """
        bound = self._options.reporter_bound_seconds
        swept_from = backend_time.believed(float(swept["swept_from"]), now)
        if heartbeats.all_in_time(now, bound):
            since = heartbeats.guarded_since(scope)
            if scope in self._unguarded or (since is not None and since <= swept_from):
                return None
            return UnprovedReason.NO_REPORTER if since is None else UnprovedReason.UNSWEPT
        proved_at = proved_from(swept, now)
        alive = covering = 0
        for beat in heartbeats.states:
            silence = now - backend_time.believed(float(beat["beat_at"]), now)
            if silence > bound and covers(proved_at, beat, scope, bound):
                continue
            behind = float(reporter_facts.lateness(beat).get(scope, 0.0))
            if behind > 0 and behind + silence > bound:
                return UnprovedReason.BEHIND
            if not reporter_facts.may_write(beat, scope):
                continue
            if silence > bound:
                return UnprovedReason.SILENT_REPORTER
            if scope in beat["guards"]:
                alive += 1
                covering += float(beat["since"]) <= swept_from
        if covering or scope in self._unguarded:
            return None
        return UnprovedReason.UNSWEPT if alive else UnprovedReason.NO_REPORTER

    def _lasts(self, scope: str, unreported: int) -> bool:
        if unreported <= 0:
            self._unreported_since.pop(scope, None)
            return False
        since = self._unreported_since.setdefault(scope, self._clock())
        return self._clock() - since > self._options.unreported_grace_seconds

    def _heartbeats(self, snapshot: snapshot_module.Snapshot) -> ReporterHeartbeats:
        view = snapshot.namespace(known_namespaces.REPORTERS.name)
        seen = self._beats_seen
        if seen is None or seen[0] is not view:
            states = [beat for _name, beat in view.states()]
            seen = self._beats_seen = (view, ReporterHeartbeats(states))
        return seen[1]

    def _unreported(self, snapshot: snapshot_module.Snapshot) -> Mapping[str, int]:
        mark = snapshot.namespace(known_namespaces.SERVICE_LIVENESS.name).steady_mark
        seen = self._unreported_seen
        if seen is None or seen[0] is not mark:
            seen = self._unreported_seen = (mark, unreported_by_cell(snapshot))
        return seen[1]


def _unreadable(
    snapshot: snapshot_module.Snapshot,
    scope: str,
    quarantined: quarantine_module.UnreadableRecords,
) -> bool:
    of_api = scope == scopes_module.API
    for name in _TO_JUDGE + (_OF_THE_API if of_api else _OF_A_CELL):
        if quarantined.overflowed(name):
            return True
        view = snapshot.namespace(name)
        for key in quarantined.keys(name):
            known = view.get(key)
            # Whose it is, only its last readable state tells.
            if of_api or known is None or known.state.get("cell") in (scope, None):
                return True
    return False


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


def covers(proved_at: float, beat: Mapping[str, Any], scope: str, bound_seconds: float) -> bool:
    """Tell whether a scope's sweep made good what a silent process may have left unreported.

    Only for processes that may write any cell: of a cell's own conductor that
    is cut off, but alive, more is to come, and its silence is judged until it
    is forgotten.
    """
    if reporter_facts.is_own(beat, scope) or not reporter_facts.writes_every_cell(beat):
        return False
    return proved_at > float(beat["beat_at"]) + bound_seconds


def unreported_by_cell(snapshot: snapshot_module.Snapshot) -> dict[str, int]:
    """Sum the unreported heartbeats of each cell over its services."""
    view = snapshot.namespace(known_namespaces.SERVICE_LIVENESS.name)
    if not len(view):
        return {}
    codes = view.column("cell")
    missed = np.maximum(view.column("unreported"), 0)
    sums = np.bincount(codes, weights=missed, minlength=int(codes.max()) + 1)
    vocabulary = view.vocabulary("cell")
    return {vocabulary.text(code): int(total) for code, total in enumerate(sums) if total}
