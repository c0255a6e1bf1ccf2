# SPDX-License-Identifier: Apache-2.0
"""Where the heartbeats of a cell's compute services stand, and how that changes in steps.

======== ================================== ======================================
mode     a heartbeat is written             a reader looks at
======== ================================== ======================================
database to its row, then to its record     the row
both     to its row, then to its record     the row and the record
store    to its record alone                the row and the record
======== ================================== ======================================

The mode of a cell is a record of its own: what stands there is what readers must
live with, and a conductor leaves a row alone only while the record says ``store``.
It follows the configuration of the cell's conductors one step at a time, so that
no process meets a neighbour two steps away. A step waits for whoever cannot live
with the next mode, and says for whom.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import backend_time, records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)


class HeartbeatMode(enum.Enum):
    """Where heartbeats stand."""

    DATABASE = "database"
    BOTH = "both"
    STORE = "store"


#: Who reads with records, too.
_WITH_RECORDS = frozenset({HeartbeatMode.BOTH, HeartbeatMode.STORE})


@attrs.frozen
class RecordedMode:
    """A cell's mode as its record has it.

    :param since_seconds: when it was recorded, by the back end's clock
    """

    mode: HeartbeatMode
    since_seconds: float


@attrs.frozen
class Neighbour:
    """Another living process that reports.

    :param writes_cell: it is a conductor of the cell
    :param mode: as it is configured; None for a release that knows no modes
    """

    name: str
    writes_cell: bool
    mode: HeartbeatMode | None


@attrs.frozen
class ModeStep:
    """What a conductor does about the record.

    :param mode: what it records; None to leave what stands there
    :param waits_for: names of who cannot live with the next mode
    """

    mode: HeartbeatMode | None = None
    waits_for: tuple[str, ...] = ()


def next_step(
    wanted: HeartbeatMode,
    recorded: HeartbeatMode,
    recorded_for_seconds: float,
    neighbours: Collection[Neighbour],
    renewed_seconds: float,
) -> ModeStep:
    """Return the next step from what is recorded to what a conductor is configured for.

    :param renewed_seconds: every living service writes its row within it
    """
    if wanted is recorded:
        return ModeStep()
    if recorded is HeartbeatMode.DATABASE:
        return ModeStep(HeartbeatMode.BOTH)
    if recorded is HeartbeatMode.STORE:
        # Those beside it that still leave rows alone.
        waits_for = _names(
            each for each in neighbours if each.writes_cell and each.mode is HeartbeatMode.STORE
        )
        return ModeStep(None, waits_for) if waits_for else ModeStep(HeartbeatMode.BOTH)
    if wanted is HeartbeatMode.STORE:
        waits_for = _names(each for each in neighbours if each.mode not in _WITH_RECORDS)
        return ModeStep(None, waits_for) if waits_for else ModeStep(HeartbeatMode.STORE)
    waits_for = _names(
        each for each in neighbours if each.writes_cell and each.mode in _WITH_RECORDS
    )
    if waits_for or recorded_for_seconds < renewed_seconds:
        return ModeStep(None, waits_for)
    return ModeStep(HeartbeatMode.DATABASE)


def _names(processes: Iterator[Neighbour]) -> tuple[str, ...]:
    return tuple(sorted(each.name for each in processes))


def mode_key(cell: str) -> records.RecordKey:
    """Return the name of the record that holds a cell's mode."""
    return records.RecordKey(known_namespaces.HEARTBEAT_MODES.name, cell)


def recorded_mode(record: records.Record | None) -> RecordedMode | None:
    """Read a cell's mode; None where nobody recorded one, or what stands there is not known."""
    if record is None or record.deleted:
        return None
    try:
        return _mode_of(codec.decode(record.payload).state)
    except errors.UndecodableRecord:
        return None


def _mode_of(state: Mapping[str, Any]) -> RecordedMode | None:
    try:
        return RecordedMode(HeartbeatMode(state["mode"]), float(state["since"]))
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def configured_mode(state: Mapping[str, Any]) -> HeartbeatMode | None:
    """Return the mode that a reporter's heartbeat says; None if it says none."""
    try:
        return HeartbeatMode(state["service_heartbeats"])
    except (KeyError, ValueError):
        return None


class ModeKeeper:
    """A conductor's part in its cell's mode: it steps towards its own, and says when it may store.

    :meth:`keep` runs in the reporter's thread, once per beat; :meth:`may_store` in any.

    :param cell: asked in the reporter's thread
    :param make_publisher: of the plugin's own records, given the reporter's synchronizer
    :param trust_seconds: how long what was read of the record holds. Neighbours take a
        silent process for gone after as long, and may step on
    :param alive_seconds: silence after which a reporter counts as gone
    :param renewed_seconds: see :func:`next_step`
    :param idle_seconds: how often the record is looked at where neither it nor this
        conductor stores anything
    """

    def __init__(
        self,
        wanted: HeartbeatMode,
        cell: Callable[[], str],
        make_publisher: Callable[[contract.Synchronizer], publisher_module.Publisher],
        *,
        trust_seconds: float,
        alive_seconds: float,
        renewed_seconds: float,
        idle_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wanted = wanted
        self._cell = cell
        self._make_publisher = make_publisher
        self._trust_seconds = trust_seconds
        self._alive_seconds = alive_seconds
        self._renewed_seconds = renewed_seconds
        self._idle_seconds = idle_seconds
        self._idle_until = float("-inf")
        self._clock = clock
        self._lock = threading.Lock()
        self._store_until = float("-inf")
        self._said: tuple[str, ...] = ()
        #: What the record said last; None before it was read, or where it says nothing.
        self.recorded: HeartbeatMode | None = None

    def may_store(self, cell: str) -> bool:
        """Tell whether a heartbeat of a cell may leave its row alone."""
        with self._lock:
            until = self._store_until
        return self._clock() < until and cell == self._cell()

    def forbid(self) -> None:
        """Have rows written until the record is read again: the back end did not answer."""
        with self._lock:
            self._store_until = float("-inf")

    def keep(self, synchronizer: contract.Synchronizer, own_name: str) -> None:
        """Read the record and take a step where one is due.

        :param own_name: key of this process's own reporter
        :raises BackendUnavailable: nothing is known; what was read before holds for a while
        """
        began = self._clock()
        if began < self._idle_until:
            return
        key = mode_key(self._cell())
        found = recorded_mode(synchronizer.read([key]).get(key))
        mode = found.mode if found is not None else HeartbeatMode.DATABASE
        self._take(mode if found is not None else None, began)
        if mode is self.wanted:
            self._say(())
            if mode is HeartbeatMode.DATABASE:
                self._idle_until = began + self._idle_seconds
            return
        now = synchronizer.now_seconds()
        since = found.since_seconds if found is not None else now
        try:
            neighbours = list(self._neighbours(synchronizer, own_name, now))
        except contract.SnapshotInterrupted:
            # Of another epoch, in which the record stands no more either.
            return
        step = next_step(self.wanted, mode, abs(now - since), neighbours, self._renewed_seconds)
        self._say(step.waits_for)
        if step.mode is not None:
            self._record(synchronizer, found, step.mode, now, own_name)

    def _take(self, recorded: HeartbeatMode | None, began: float) -> None:
        may = recorded is HeartbeatMode.STORE and self.wanted is HeartbeatMode.STORE
        with self._lock:
            self.recorded = recorded
            # From before the question: what was true then holds no longer.
            self._store_until = began + self._trust_seconds if may else float("-inf")

    def _record(
        self,
        synchronizer: contract.Synchronizer,
        found: RecordedMode | None,
        mode: HeartbeatMode,
        now: float,
        own_name: str,
    ) -> None:
        key = mode_key(self._cell())
        state = {"cell": key.key, "mode": mode.value, "since": now, "by": own_name}

        def stepped(current: publisher_module.State | None) -> publisher_module.Computed:
            # Whoever was faster decided by what stands there now.
            stands = None if current is None else _mode_of(current)
            return state if stands == found else publisher_module.UNCHANGED

        report = self._make_publisher(synchronizer).publish({key: stepped})
        if report.published:
            LOG.warning(
                "Heartbeats of the compute services of cell %(cell)s: the mode is now "
                "'%(mode)s' (it was '%(before)s').",
                {
                    "cell": key.key,
                    "mode": mode.value,
                    "before": (found.mode if found else HeartbeatMode.DATABASE).value,
                },
            )

    def _neighbours(
        self, synchronizer: contract.Synchronizer, own_name: str, now: float
    ) -> Iterator[Neighbour]:
        for page in synchronizer.snapshot([known_namespaces.REPORTERS.name]).pages:
            for record in page:
                if record.key.key != own_name:
                    yield from self._neighbour(record, now)

    def _neighbour(self, record: records.Record, now: float) -> Iterator[Neighbour]:
        cell = self._cell()
        try:
            state = codec.decode(record.payload).state
            age = now - backend_time.believed(float(state["beat_at"]), now)
            writes_cell = cell in state.get("guards", ())
        except (errors.UndecodableRecord, KeyError, TypeError, ValueError, OverflowError):
            # Whoever it is cannot be asked what it can live with.
            yield Neighbour(str(record.key.key), False, None)
            return
        if age <= self._alive_seconds and (writes_cell or state.get("cell") in (cell, "*")):
            name = f"{state.get('binary')} on {state.get('host')} (process {state.get('pid')})"
            yield Neighbour(name, writes_cell, configured_mode(state))

    def _say(self, waits_for: tuple[str, ...]) -> None:
        if waits_for and waits_for != self._said:
            LOG.warning(
                "[nodb_scheduler] service_heartbeats is '%(wanted)s' here, and cell %(cell)s "
                "stays '%(recorded)s' as long as these are not configured for it or do not know "
                "it: %(who)s. Heartbeats are written to the database meanwhile.",
                {
                    "wanted": self.wanted.value,
                    "cell": self._cell(),
                    "recorded": (self.recorded or HeartbeatMode.DATABASE).value,
                    "who": ", ".join(waits_for),
                },
            )
        self._said = waits_for
