# SPDX-License-Identifier: Apache-2.0
"""Whether a conductor journals heartbeats: while everybody who lives can live with it.

It looks behind each of its own beats. Conductors of the cell must be configured for it, and
schedulers must say that they read journals; heartbeats must not be stored in the back end
alone. APIs, nova-manage and Nova's own scheduler read the rows, which are written as ever.

========== ====================================== =========================================
phase      heartbeats go to                       its beats say
========== ====================================== =========================================
undecided  nowhere: they wait                     nothing of it
records    records                                nothing of it
announced  records                                that the cell is behind, to who knows no
                                                  journals; to others what is true
journals   its ring                               the same, and that it journals
========== ====================================== =========================================

Who goes over, in either direction, has the cell swept behind it: of a heartbeat between
two ways of telling nobody could say whether it was told. Who begins in a cell whose
conductors journal joins them.

What it knows is as old as its last look. Behind a pause that is longer than neighbours wait
until they take it for gone, it writes no heartbeat anywhere before it has looked again.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import backend_time, records
from nova_nodb_scheduler.nova_adapter.liveness import heartbeat_modes
from nova_nodb_scheduler.nova_adapter.reporting import journal_writer
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, reporter_facts
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

_REPORTERS = known_namespaces.REPORTERS.name
_SCHEDULERS = known_namespaces.SCHEDULERS.name
_MODES = known_namespaces.HEARTBEAT_MODES.name


class JournalPhase(enum.Enum):
    """Where a conductor stands; see the table above."""

    UNDECIDED = "undecided"
    RECORDS = "records"
    ANNOUNCED = "announced"
    JOURNALS = "journals"


@attrs.frozen
class JournalNeighbours:
    """What others that live say of journals.

    :param against: names of who cannot live with journals; without them the cell journals
    :param conductors: of the cell, others than this one: whether each journals
    """

    against: tuple[str, ...]
    conductors: tuple[bool, ...]


def next_phase(phase: JournalPhase, wanted: bool, neighbours: JournalNeighbours) -> JournalPhase:
    """Return where a conductor stands behind a look."""
    if not wanted or neighbours.against:
        return JournalPhase.RECORDS
    if phase is JournalPhase.UNDECIDED and neighbours.conductors and all(neighbours.conductors):
        return JournalPhase.JOURNALS
    if phase in (JournalPhase.ANNOUNCED, JournalPhase.JOURNALS):
        return JournalPhase.JOURNALS
    return JournalPhase.ANNOUNCED


class JournalKeeper:
    """A conductor's part in whether its cell journals; the reporter's thread.

    :param wanted: whether it is configured for it
    :param lose: has scopes swept, and beats say so until then
    :param trust_seconds: how long a look holds; less than ``alive_seconds``
    :param alive_seconds: silence after which a process counts as gone
    """

    def __init__(
        self,
        writer: journal_writer.JournalWriter,
        wanted: bool,
        lose: Callable[[Collection[str]], None],
        *,
        trust_seconds: float,
        alive_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._wanted = wanted
        self._lose = lose
        self._trust_seconds = trust_seconds
        self._alive_seconds = alive_seconds
        self._clock = clock
        self._said: tuple[str, ...] = ()
        writer.decided_until = float("-inf")
        self.phase = JournalPhase.UNDECIDED

    def keep(self, synchronizer: contract.Synchronizer, own_name: str) -> None:
        """Look at the others and go on by it.

        :param own_name: key of this process's own reporter
        :raises BackendUnavailable: nothing is known; what was known holds for a while
        """
        began = self._clock()
        try:
            neighbours = self._look(synchronizer, own_name)
        except contract.SnapshotInterrupted:
            # Of another epoch, in which it looks again.
            return
        before, self.phase = self.phase, next_phase(self.phase, self._wanted, neighbours)
        self._say(neighbours.against)
        is_on = self.phase is JournalPhase.JOURNALS
        goes_over = before is not JournalPhase.UNDECIDED and is_on != self._writer.is_on
        self._writer.is_on = is_on
        self._writer.is_announced = is_on or self.phase is JournalPhase.ANNOUNCED
        self._writer.keeps_each = self._writer.is_announced
        # From before the question: what was true then holds no longer.
        self._writer.decided_until = began + self._trust_seconds
        if goes_over:
            LOG.warning(
                "Heartbeats that this conductor hears go to %(where)s from now on; cell "
                "%(cell)s is swept.",
                {"where": self.phase.value, "cell": self._writer.cell},
            )
            self._lose([self._writer.cell])

    def facts(self) -> Mapping[str, Any]:
        """Return what each beat says of it."""
        ring = self._writer.ring
        return {
            "heartbeat_journals": self._wanted,
            "journals": self.phase is JournalPhase.JOURNALS,
            **({} if ring is None else {"journal": ring}),
        }

    def _look(self, synchronizer: contract.Synchronizer, own_name: str) -> JournalNeighbours:
        against: list[str] = []
        conductors: list[bool] = []
        now = synchronizer.now_seconds()
        snapshot = synchronizer.snapshot([_REPORTERS, _SCHEDULERS, _MODES])
        for page in snapshot.pages:
            for record in page:
                if record.key.namespace == _MODES:
                    against += self._stored(record)
                elif record.key.key != own_name:
                    state = self._living(record, now)
                    if state is not None:
                        against += self._against(record, state)
                        conductors += self._conductor(record, state)
        return JournalNeighbours(tuple(sorted(against)), tuple(conductors))

    def _stored(self, record: records.Record) -> Iterator[str]:
        """Name a cell's mode where it stores heartbeats, or nobody can tell."""
        if record.key.key == self._writer.cell:
            found = heartbeat_modes.recorded_mode(record)
            if found is None or found.mode is heartbeat_modes.HeartbeatMode.STORE:
                yield "the cell's mode of service_heartbeats"

    def _living(self, record: records.Record, now: float) -> Mapping[str, Any] | None:
        """Return what a process says that lives; nothing of one that nobody can read."""
        try:
            state = codec.decode(record.payload).state
            age = now - backend_time.believed(float(state["beat_at"]), now)
        except (errors.UndecodableRecord, KeyError, TypeError, ValueError, OverflowError):
            return {}
        if age > self._alive_seconds:
            return None
        # One that says something odd may be of this cell.
        return state if reporter_facts.is_readable(state) else {}

    def _against(self, record: records.Record, state: Mapping[str, Any]) -> Iterator[str]:
        if not state:
            # Whoever it is cannot be asked what it can live with.
            yield records.printable_name(str(record.key))
        elif record.key.namespace == _SCHEDULERS:
            if state.get("reads_journals") is not True:
                yield f"scheduler on {state.get('host')} (process {state.get('pid')})"
        elif self._is_of_the_cell(state) and state.get("heartbeat_journals") is not True:
            yield f"{state.get('binary')} on {state.get('host')} (process {state.get('pid')})"

    def _conductor(self, record: records.Record, state: Mapping[str, Any]) -> Iterator[bool]:
        if record.key.namespace == _REPORTERS and self._is_of_the_cell(state):
            yield reporter_facts.journals(state)

    def _is_of_the_cell(self, state: Mapping[str, Any]) -> bool:
        return self._writer.cell in state.get("guards", ())

    def _say(self, against: tuple[str, ...]) -> None:
        if self._wanted and against and against != self._said:
            LOG.warning(
                "Heartbeats of cell %(cell)s go to records as long as these are not configured "
                "for journals, do not know them, or store heartbeats: %(who)s.",
                {"cell": self._writer.cell, "who": ", ".join(against)},
            )
        self._said = against
