# SPDX-License-Identifier: Apache-2.0
"""Decides when a conductor sweeps its cell, so that one does it for all.

Schedulers do not trust a cell that was never swept in this epoch, one of
whose reporters is silent, whose reporters all began after the last sweep, or
whose compute services sent heartbeats that no reporter saw. The sweep is what
restores the trust; this duty runs it when there is reason to, and at long
intervals without any. A process that writes any cell and fell silent wants only
what was written since (:mod:`.cell_sweeper`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import backend_time, records
from nova_nodb_scheduler.nova_adapter.reporting import cell_sweeper, journal_watch, state_proof
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter as reporter_module
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, reporter_facts
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import leases
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


@attrs.frozen
class SweepDutyOptions:
    """When to sweep.

    :param interval_seconds: pause between two sweeps without a reason
    :param least_pause_seconds: pause between two sweeps with a reason
    :param reporter_bound_seconds: silence after which a reporter is given up
    :param check_seconds: how often reasons are looked for
    :param resweep_seconds: pause between sweeps after a silent process that
        may write any cell
    :param retire_seconds: silence after which such a process is taken for gone
    :param forget_seconds: silence after which it is forgotten, even if some
        scope could not be swept since
    :param margin_seconds: what a delta sweep goes back further, for clocks
        that differ and transactions that last
    :param ring_seconds: how long a conductor's heartbeat journal is
    """

    interval_seconds: float
    least_pause_seconds: float
    reporter_bound_seconds: float
    check_seconds: float
    resweep_seconds: float = 60.0
    retire_seconds: float = 600.0
    forget_seconds: float = 86_400.0
    margin_seconds: float = 120.0
    ring_seconds: float = 150.0

    @property
    def lease_seconds(self) -> float:
        return max(10.0, 5 * self.check_seconds)


@attrs.frozen
class _Known:
    """What the back end held at a moment, read at once: a turn asks many questions.

    :param swept: last sweep by scope; None where its record cannot be read
    :param heartbeats: by reporter; those that cannot be read are left out
    """

    epoch: str
    now_seconds: float
    swept: Mapping[str, Mapping[str, Any] | None]
    heartbeats: Mapping[str, Mapping[str, Any]]

    def silence_seconds(self, name: str) -> float:
        beat_at = float(self.heartbeats[name]["beat_at"])
        return self.now_seconds - backend_time.believed(beat_at, self.now_seconds)

    def is_from_the_future(self, name: str) -> bool:
        """Tell whether a reporter beat when no clock can have been: its silence never ends."""
        return not backend_time.is_believed(
            float(self.heartbeats[name]["beat_at"]), self.now_seconds
        )


@attrs.define(eq=False, slots=False)
class SweepDuty:
    """One named thread per conductor process; holds the leases of its scopes.

    :param scopes: the scopes this process can read: its cell, and ``api``
        where it has the API database
    :param journals: looks for what no journal tells, in cells whose conductors write them
    """

    _synchronizer: contract.Synchronizer
    _sweeper: cell_sweeper.CellSweeper
    _publisher: publisher_module.Publisher = attrs.field(alias="node_publisher")
    _scopes: Callable[[], Collection[str]]
    _holder: str
    _options: SweepDutyOptions
    _clock: Callable[[], float] = time.monotonic
    _journals: journal_watch.JournalWatch | None = attrs.field(default=None, kw_only=True)
    #: Called in each turn, and between the pages of a sweep, with what writes by this thread's
    #: connection, and the back end's time: says what others of this process cannot.
    on_turn: Callable[[publisher_module.Publisher, Callable[[], float]], None] = attrs.field(
        init=False, default=lambda publisher, now_seconds: None
    )
    #: By scope, where the back end's head was when journals showed last that something is missing.
    _behind: dict[str, records.Cursor] = attrs.field(init=False, factory=dict)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _asked: set[str] = attrs.field(init=False, factory=set)
    _counted_at: dict[str, float] = attrs.field(init=False, factory=dict)
    _leases: dict[str, leases.LeaseKeeper] = attrs.field(init=False, factory=dict)

    def start(self) -> None:
        """Start the thread; once per process."""
        self._thread = threading.Thread(target=self._run, name="nodb-sweep", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End the thread and release the leases; idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            self._thread = None

    def ask(self, scopes: Collection[str]) -> None:
        """Have scopes swept soon: names of changed rows were lost."""
        self._asked.update(scopes)

    def behind(self) -> Collection[str]:
        """Return scopes of which journals showed what no sweep has made good yet. Any thread."""
        return tuple(self._behind)

    def _run(self) -> None:
        complaint: str | None = None
        while not self._stop.wait(self._options.check_seconds):
            try:
                self._synchronizer.open()
                self.turn()
                complaint = None
            except cell_sweeper.SweepStopped:
                break
            except (errors.NodbError, cell_sweeper.SweepIncomplete) as error:
                # Once per trouble: it may last, and each turn meets it again.
                if str(error) != complaint:
                    complaint = str(error)
                    LOG.warning(
                        "A sweep was given up, it is tried again: %(error)s", {"error": error}
                    )
            except Exception:
                LOG.exception("The sweep duty failed; it is tried again.")
        for keeper in self._leases.values():
            try:
                keeper.release()
            except errors.NodbError:
                LOG.debug("A lease could not be released; it ends by itself.")
        self._synchronizer.close()

    def turn(self) -> None:
        """Look for reasons once, and sweep what has one.

        :raises BackendUnavailable: nothing can be said; try again
        """
        self._speak()
        incomplete: Exception | None = None
        known: _Known | None = None
        if self._behind:
            # Whoever sweeps them, this process or another.
            known = self._look()
            for scope, shown in list(self._behind.items()):
                if _made_good(known, scope, shown):
                    del self._behind[scope]
        for scope in sorted(self._scopes()):
            if not isinstance(self._keeper(scope).acquire(), leases.Lease):
                continue
            known = known or self._look()
            reason = self._reason(scope, known)
            try:
                if reason is not None:
                    self._sweep(scope, reason)
                    known = self._look()
                elif (since_seconds := self._delta_since(scope, known)) is not None:
                    self._sweep_delta(scope, since_seconds, known.now_seconds)
                    known = self._look()
            except (errors.BackendUnavailable, cell_sweeper.SweepStopped):
                raise
            except Exception as error:  # noqa: BLE001 - whatever a database driver raises
                # A cell whose database is down: the other scopes go on.
                incomplete = error
            self._forget_dead(scope, known)
        if incomplete is not None:
            raise incomplete

    def _speak(self) -> None:
        self.on_turn(self._publisher, self._synchronizer.now_seconds)

    def _keeper(self, scope: str) -> leases.LeaseKeeper:
        if scope not in self._leases:
            self._leases[scope] = leases.LeaseKeeper(
                self._synchronizer,
                name=f"sweep/{scope}",
                holder_id=self._holder,
                ttl_seconds=self._options.lease_seconds,
            )
        return self._leases[scope]

    def _sweep(self, scope: str, reason: str) -> None:
        LOG.info("Sweeping %(scope)s: %(reason)s.", {"scope": scope, "reason": reason})
        self._asked.discard(scope)
        last_renewal = self._clock()

        def renew(page: cell_sweeper.SweepProgress) -> None:
            nonlocal last_renewal
            if self._clock() - last_renewal > self._options.lease_seconds / 3:
                self._keeper(scope).acquire()
                last_renewal = self._clock()
                self._speak()
            self._watch_journals()

        try:
            swept = self._sweeper.sweep(scope, self._stop, renew, by=self._holder)
        except Exception:
            self._asked.add(scope)
            raise
        LOG.info(
            "Swept %(scope)s in %(seconds).1f s: %(rows)d rows, repaired %(repaired)s.",
            {
                "scope": scope,
                "seconds": swept.seconds,
                "rows": swept.rows,
                "repaired": {name: n for name, n in swept.repaired.items() if n} or "nothing",
            },
        )

    def _sweep_delta(self, scope: str, since_seconds: float, now_seconds: float) -> None:
        swept = self._sweeper.sweep_since(scope, since_seconds, self._stop, by=self._holder)
        LOG.info(
            "A process that writes %(scope)s is silent. Compared in %(seconds).1f s what was "
            "written in the last %(window).0f s: %(rows)d rows, repaired %(repaired)s.",
            {
                "scope": scope,
                "seconds": swept.seconds,
                "window": now_seconds - since_seconds,
                "rows": swept.rows,
                "repaired": {name: n for name, n in swept.repaired.items() if n} or "nothing",
            },
        )

    def _look(self) -> _Known:
        snapshot = self._synchronizer.snapshot(
            [known_namespaces.CELLS.name, known_namespaces.REPORTERS.name]
        )
        swept: dict[str, Mapping[str, Any] | None] = {}
        heartbeats: dict[str, Mapping[str, Any]] = {}
        for page in snapshot.pages:
            for record in page:
                is_sweep = record.key.namespace == known_namespaces.CELLS.name
                try:
                    state = codec.decode(record.payload).state
                except errors.UndecodableRecord:
                    LOG.debug("Record %(key)s cannot be read.", {"key": record.key})
                    if is_sweep:
                        swept[record.key.key] = None
                    continue
                (swept if is_sweep else heartbeats)[record.key.key] = state
        now_seconds = self._synchronizer.now_seconds()
        return _Known(snapshot.cursor.epoch, now_seconds, swept, heartbeats)

    def _reason(self, scope: str, known: _Known) -> str | None:
        """Say why a scope must be swept now, or None."""
        if scope not in known.swept:
            return "it was never swept"
        state = known.swept[scope]
        if state is None:
            return "the record of the last sweep cannot be read"
        if state.get("epoch") != known.epoch:
            return "the back end began a new epoch"
        swept_from = backend_time.believed(float(state["swept_from"]), known.now_seconds)
        age = known.now_seconds - swept_from
        if age > self._options.interval_seconds:
            return "its time has come"
        if age < self._options.least_pause_seconds:
            return None
        if scope in self._asked:
            return "names of changed rows were lost"
        if any(_lost(beat, scope, swept_from) for beat in known.heartbeats.values()):
            return "a reporter forgot names of changed rows"
        if self._dead(known, swept_from, scope):
            return "a reporter is silent"
        if _began(known, swept_from, scope):
            return "a reporter began, and what was written before it may be unknown"
        if self._counts_some(scope, known):
            return "heartbeats arrived that no reporter saw"
        return None

    def _counts_some(self, scope: str, known: _Known) -> bool:
        """Count unreported heartbeats, now and then: it reads every service's liveness."""
        if not self._is_due(scope):
            return False
        if self._journals_show_some(scope, known):
            return True
        guards = _journaling(scope, known)
        if guards and all(guards):
            # Records are not kept up: what they lack of one another says nothing.
            return False
        return self._sweeper.unreported(scope) > 0

    def _is_due(self, scope: str) -> bool:
        """Tell whether a scope's heartbeats are to be counted again, and note that they are."""
        last = self._counted_at.get(scope, float("-inf"))
        if self._clock() < last + self._options.least_pause_seconds:
            return False
        self._counted_at[scope] = self._clock()
        return True

    def _watch_journals(self) -> None:
        """Look into journals in the midst of a sweep, which may last for longer than rings are.

        What they show there is behind the beginning of the sweep, and needs another one.
        """
        due = [scope for scope in self._scopes() if self._is_due(scope)]
        if due and self._journals is not None:
            known = self._look()
            for scope in due:
                self._journals_show_some(scope, known)

    def _journals_show_some(self, scope: str, known: _Known) -> bool:
        """Tell whether journals show heartbeats of a scope that nobody reported; remember it."""
        guards = _journaling(scope, known)
        if self._journals is None or not guards:
            # Nobody hears a heartbeat there: cell0, and the API's tables.
            return False
        if not any(guards) and not self._journals.holds_some():
            return False
        shown = self._journals.unreported(scope)
        self._journals.drop_dead_rings(
            scope,
            [str(beat.get("journal")) for beat in known.heartbeats.values()],
            self._options.ring_seconds,
        )
        if shown is not None:
            self._behind[scope] = shown
        return shown is not None

    def _dead(self, known: _Known, swept_from: float, scope: str) -> list[str]:
        """Name the silent conductors of a cell whose silence no whole sweep has covered."""
        bound = self._options.reporter_bound_seconds
        return [
            name
            for name, beat in known.heartbeats.items()
            if beat.get("cell") == scope
            and known.silence_seconds(name) > bound
            and swept_from < float(beat["beat_at"]) + bound
        ]

    def _delta_since(self, scope: str, known: _Known) -> float | None:
        """Say from when on a scope must be compared for a silent process; None for not now.

        Each process that writes any cell reported all until its last beat, less
        what it was behind then; a sweep that covered its silence found the rest
        until it began. The earliest of them counts, of those that are not (yet)
        silent too: what this sweep proves is read as proved of all. Rows carry
        their writer's clock: how far that is behind, the writer has said.
        """
        state = known.swept[scope]
        assert state is not None  # else there is a reason for a whole sweep
        proved_at = state_proof.proved_from(state, known.now_seconds)
        bound = self._options.reporter_bound_seconds
        is_due = False
        since_seconds = known.now_seconds
        for name, beat in known.heartbeats.items():
            if reporter_facts.is_own(beat, scope) or not reporter_facts.writes_every_cell(beat):
                continue
            silence_seconds = known.silence_seconds(name)
            slow_seconds = max(0.0, -float(beat.get("clock_offset_seconds", 0.0)))
            if state_proof.covers(proved_at, beat, scope, bound):
                since_seconds = min(since_seconds, proved_at - slow_seconds)
                # It may be alive, cut off, and writing: no heartbeat would
                # show that. Look again, until it is taken for gone.
                is_due |= (
                    silence_seconds <= self._options.retire_seconds
                    and known.now_seconds - proved_at > self._options.resweep_seconds
                )
            else:
                behind_seconds = float(reporter_facts.lateness(beat).get(scope, 0.0))
                beat_at = backend_time.believed(float(beat["beat_at"]), known.now_seconds)
                since_seconds = min(since_seconds, beat_at - behind_seconds - slow_seconds)
                is_due |= silence_seconds > bound
        return max(0.0, since_seconds - self._options.margin_seconds) if is_due else None

    def _forget_dead(self, scope: str, known: _Known) -> None:
        """Drop reporters that are silent and whose scopes were swept for it.

        A conductor that is alive and only cut off shows itself by heartbeats
        that nobody reports; it registers again when it is back. Processes
        that write any cell are kept for longer, and swept after meanwhile: of
        a conductor that does, as of one that has no cell of its own any more.
        """
        state = known.swept.get(scope)
        swept_from = 0.0
        if state is not None:
            swept_from = backend_time.believed(float(state["swept_from"]), known.now_seconds)
        for name, beat in known.heartbeats.items():
            if known.silence_seconds(name) <= self._options.reporter_bound_seconds:
                continue
            if reporter_facts.is_own(beat, scope):
                over = swept_from > float(beat["beat_at"]) + self._options.reporter_bound_seconds
            elif reporter_facts.is_own(beat, reporter_module.EVERY_CELL):
                over = self._is_retired(known, name)
            else:
                continue
            left = None
            if known.is_from_the_future(name):
                # Swept it was, and lately: such a beat is a reason for it. Who lives beats again.
                over = over or swept_from > 0.0
            elif reporter_facts.is_own(beat, scope) and reporter_facts.writes_every_cell(beat):
                left = _without_cell(beat)
            if over:
                key = records.RecordKey(known_namespaces.REPORTERS.name, name)
                self._publisher.publish({key: _replace_if(float(beat["beat_at"]), left)})
                LOG.warning(
                    "Reporter %(name)s is silent; its cells were swept, it is forgotten%(but)s.",
                    {"name": name, "but": "" if left is None else ", but what it wrote in others"},
                )

    def _is_retired(self, known: _Known, name: str) -> bool:
        """Tell whether a process that writes any cell is taken for gone, and was swept after."""
        silence_seconds = known.silence_seconds(name)
        return silence_seconds > self._options.forget_seconds or (
            silence_seconds > self._options.retire_seconds
            and self._covered_everywhere(known, known.heartbeats[name])
        )

    def _covered_everywhere(self, known: _Known, beat: Mapping[str, Any]) -> bool:
        """Tell whether each scope was swept since a process that writes any cell fell silent.

        A cell whose database was down all the while must not be taken for proved.
        """
        bound = self._options.reporter_bound_seconds
        return all(
            state is not None
            and state_proof.covers(
                state_proof.proved_from(state, known.now_seconds), beat, scope, bound
            )
            for scope, state in known.swept.items()
        )


def _made_good(known: _Known, scope: str, shown: records.Cursor) -> bool:
    """Tell whether a sweep began behind what journals showed; or the back end began anew."""
    state = known.swept.get(scope)
    if known.epoch != shown.epoch:
        return True
    if state is None or state.get("epoch") != known.epoch:
        return False
    version = state.get("swept_version")
    return type(version) is int and version >= shown.version


def _journaling(scope: str, known: _Known) -> list[bool]:
    """Return of each of a scope's guards whether it writes heartbeats to a journal."""
    return [
        reporter_facts.journals(beat)
        for beat in known.heartbeats.values()
        if scope in beat["guards"]
    ]


def _began(known: _Known, swept_from: float, scope: str) -> bool:
    """Tell whether a conductor of a cell is younger than the cell's last sweep."""
    return any(
        scope in beat["guards"] and float(beat["since"]) > swept_from
        for beat in known.heartbeats.values()
    )


def _lost(beat: Mapping[str, Any], scope: str, swept_from: float) -> bool:
    """Tell whether a reporter forgot names that no sweep has made good.

    One that lives says so until it saw a sweep; the last beat of one that does
    not stays.
    """
    lost = float(reporter_facts.lateness(beat).get(scope, 0.0)) >= reporter_module.LOST_SECONDS
    return lost and swept_from <= float(beat["beat_at"])


#: Of a silent conductor's beat, what says how far its word on other cells went.
_OF_THE_SILENT = (
    *("binary", "host", "pid", "plugin", "nova", "since", "beat", "beat_at", "unnamed"),
    "clock_offset_seconds",
)


def _without_cell(beat: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what stays of a conductor whose own cell was swept behind its silence."""
    kept = {name: beat[name] for name in _OF_THE_SILENT if name in beat}
    late = dict(reporter_facts.lateness(beat))
    return {**kept, "cell": reporter_module.EVERY_CELL, "guards": [], "behind_seconds": late}


def _replace_if(beat_at: float, left: publisher_module.State | None) -> publisher_module.Compute:
    """Let a reporter's record be that, or be deleted, unless it has sent another beat meanwhile."""

    def update(current: publisher_module.State | None) -> publisher_module.Computed:
        # Another beat may carry a smaller time: the clock may have been set back.
        if current is None or float(current["beat_at"]) != beat_at:
            return publisher_module.UNCHANGED
        return publisher_module.DELETE if left is None else left

    return update
