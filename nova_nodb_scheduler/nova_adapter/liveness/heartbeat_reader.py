# SPDX-License-Identifier: Apache-2.0
"""Reads the heartbeats of compute services beside their rows, and tells when each was heard last.

One small read of the back end for all services of a list; nothing is followed and
nothing is cached that could be old. In mode ``database`` nothing is read at all, but
for services that look dead by their rows: other processes may have gone on to store
heartbeats while this one was not told.

What the back end does not say is never taken for silence; see
:class:`.last_seen.SightMemory`.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import backend_time, records
from nova_nodb_scheduler.nova_adapter.liveness import heartbeat_modes, last_seen
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.migration import migration_fence
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

_Mode = heartbeat_modes.HeartbeatMode


#: As old as what is known of the back end's clock may be to call a service dead.
_SURE_SECONDS = 1.0
#: Services whose counts fell that are remembered; beyond it all are forgotten.
_MOST_GONE_BACK = 200_000


@attrs.frozen
class ReaderOptions:
    """Timing of a reader.

    :param down_seconds: Nova's ``service_down_time``
    :param pause_seconds: behind a failure nobody asks for so long
    :param idle_seconds: the same in mode ``database``, where no heartbeat was met that
        stands in no row
    :param clock_seconds: how long what is known of the back end's clock is used
    """

    down_seconds: float
    pause_seconds: float = 5.0
    idle_seconds: float = 60.0
    clock_seconds: float = 60.0


@attrs.frozen
class ReaderFigures:
    """What operators see of a reader.

    :param blind_seconds: for how long it has not seen the back end; 0 if it sees
    :param blindly_told: services whose age stood still when they were asked for
    """

    blind_seconds: float
    blindly_told: int


@attrs.frozen
class _Sight:
    """What the back end said for a cell.

    :param mode: None where it says none: it is new, or was emptied
    :param heartbeats: by service, ages by the back end's clock
    :param unreadable: services whose records nobody can decode
    :param is_settled: the mode stands there for so long that every living service has
        a record, or a row that is written
    """

    mode: _Mode | None
    heartbeats: Mapping[str, last_seen.LastSeen]
    unreadable: Collection[str]
    is_settled: bool


class HeartbeatReader:
    """Lays heartbeats over services that were read from their rows. Any thread.

    :param make: makes the back end's driver, not opened
    :param configured: this process's mode
    """

    def __init__(
        self,
        make: Callable[[], contract.Synchronizer],
        configured: _Mode,
        options: ReaderOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        utcnow: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._make = make
        self._configured = configured
        self._options = options
        self._clock = clock
        self._utcnow = utcnow
        self._memory = last_seen.SightMemory()
        self._lock = threading.Lock()
        self._synchronizer: contract.Synchronizer | None = None
        self._blind_since: float | None = None
        self._not_before = float("-inf")
        self._blindly_told = 0
        #: The back end's seconds less this process's, and when that was asked for.
        self._offset: tuple[float, float] | None = None
        #: By cell, the mode that was recorded when one last was.
        self._modes: dict[str, _Mode] = {}
        #: Heartbeats were met that stand in no row.
        self._has_met_stored = False
        self._said = False
        #: By service, when its count was first seen to have fallen.
        self._went_back_at: dict[str, float] = {}

    def figures(self) -> ReaderFigures:
        """Return what operators see of this reader."""
        with self._lock:
            since = self._blind_since
            blind = 0.0 if since is None else self._clock() - since
            return ReaderFigures(blind, self._blindly_told)

    def lay_over(self, cell_of: Callable[[], str | None], services: Collection[Any]) -> None:
        """Give services of a cell the count and time of their latest heartbeat.

        Blocks for one read of the back end, within its time-out. Never raises for it.

        :param cell_of: asked only if it matters; None where nobody knows: the mode of the
            cell is not known then
        :param services: Nova's objects as they were read from their rows. Those that
            have no record, and other binaries than nova-compute, stay as they are
        """
        computes = [each for each in services if self._is_concerned(each)]
        if not computes:
            return
        try:
            cell = cell_of()
        except Exception:
            LOG.exception("Cannot tell which cell services are in.")
            cell = None
        sight = self._look(cell, sorted({str(each.uuid) for each in computes}))
        for service in computes:
            self._tell(cell, service, sight)

    def close(self) -> None:
        """Release connections; idempotent."""
        with self._lock:
            synchronizer, self._synchronizer = self._synchronizer, None
        if synchronizer is not None:
            synchronizer.close()

    # -- whether the back end is asked --------------------------------------------------

    def _is_concerned(self, service: Any) -> bool:
        if not _sends_heartbeats(service):
            return False
        if self._configured is not _Mode.DATABASE:
            return True
        return self._row(service).age_seconds > self._options.down_seconds

    @property
    def _may_be_stored(self) -> bool:
        return self._configured is not _Mode.DATABASE or self._has_met_stored

    def _say_once(self, cell: str | None) -> None:
        with self._lock:
            if self._said:
                return
            self._said = True
        LOG.warning(
            "[nodb_scheduler] service_heartbeats is 'database' here, and the conductors of cell "
            "%(cell)s store heartbeats: this process looks them up for each service that looks "
            "dead by its row. Set the option to 'store' here, too.",
            {"cell": cell or "(not known)"},
        )

    # -- what the back end says -----------------------------------------------------------

    def _look(self, cell: str | None, services: Collection[str]) -> _Sight | None:
        """Read the mode of a cell and some services' heartbeats; None if nothing answers."""
        with self._lock:
            if self._clock() < self._not_before:
                return None
        try:
            sight = self._read(cell, services)
        except errors.NodbError as error:
            self._go_blind(error)
            return None
        except Exception as error:
            LOG.exception("Heartbeats cannot be read.")
            self._go_blind(error)
            return None
        self._see_again()
        if cell is not None and sight.mode is not None:
            with self._lock:
                self._modes[cell] = sight.mode
        return sight

    def _read(self, cell: str | None, services: Collection[str]) -> _Sight:
        synchronizer = self._opened()
        mode_keys = [] if cell is None else [heartbeat_modes.mode_key(cell)]
        namespace = known_namespaces.SERVICE_LIVENESS.name
        keys = [records.RecordKey(namespace, service) for service in services]
        found = synchronizer.read([migration_fence.MARKER, *mode_keys, *keys])
        # Who only reads is told by nobody else that the records were moved elsewhere.
        mark = migration_fence.mark_of(found.get(migration_fence.MARKER))
        left = migration_fence.closed(synchronizer, mark)
        if left is not None:
            raise left
        heartbeats, now = self._heartbeats(synchronizer, found, keys, self._options.clock_seconds)
        if any(seen.age_seconds > self._options.down_seconds for seen in heartbeats.values()):
            # The back end's clock may have been set: nobody is dead by an old idea of it.
            heartbeats, now = self._heartbeats(synchronizer, found, keys, _SURE_SECONDS)
        modes = [heartbeat_modes.recorded_mode(found.get(key)) for key in mode_keys]
        recorded = modes[0] if modes else None
        # Just after it was emptied, a back end lacks what conductors are about to write.
        settled = recorded is not None and (
            abs(now - recorded.since_seconds) > self._options.down_seconds
        )
        live = {key.key for key in keys if key in found and not found[key].deleted}
        return _Sight(
            recorded.mode if recorded else None, heartbeats, live - heartbeats.keys(), settled
        )

    def _heartbeats(
        self,
        synchronizer: contract.Synchronizer,
        found: Mapping[records.RecordKey, records.Record],
        keys: Collection[records.RecordKey],
        clock_seconds: float,
    ) -> tuple[dict[str, last_seen.LastSeen], float]:
        """Return the heartbeats among some records, and the back end's time they are judged by."""
        now = self._backend_seconds(synchronizer, clock_seconds)
        heartbeats = {}
        for key in keys:
            seen = self._heartbeat(found.get(key), now)
            if seen is not None:
                heartbeats[key.key] = seen
        return heartbeats, now

    def _opened(self) -> contract.Synchronizer:
        with self._lock:
            known = self._synchronizer
        if known is not None:
            return known
        made = self._make()
        try:
            made.open_existing()
        except BaseException:
            made.close()
            raise
        with self._lock:
            kept = self._synchronizer or made
            self._synchronizer = kept
        if kept is not made:
            made.close()
        return kept

    def _backend_seconds(self, synchronizer: contract.Synchronizer, most_seconds: float) -> float:
        """Return the back end's time, asked for if the last answer is older than that."""
        now = self._clock()
        with self._lock:
            known = self._offset
        if known is None or now - known[1] > most_seconds:
            known = (synchronizer.now_seconds() - now, now)
            with self._lock:
                self._offset = known
        return known[0] + now

    def _heartbeat(self, record: records.Record | None, now: float) -> last_seen.LastSeen | None:
        if record is None or record.deleted:
            return None
        try:
            state = codec.decode(record.payload).state
            count = int(state["report_count"])
            seen_at = state.get("seen_at")
            if seen_at is not None and backend_time.is_believed(float(seen_at), now):
                heard = _bounded(count, max(0.0, now - float(seen_at)))
                return attrs.evolve(heard, is_heard=True)
            seen_up = state.get("last_seen_up")
            if seen_up is None:
                return last_seen.LastSeen(count, last_seen.NEVER)
            written_at = dt.datetime.fromisoformat(str(seen_up))
            return _bounded(count, self._age_seconds(written_at))
        except (errors.UndecodableRecord, KeyError, TypeError, ValueError, OverflowError):
            return None

    def _go_blind(self, error: Exception) -> None:
        with self._lock:
            pause_seconds = self._options.pause_seconds
            if not self._may_be_stored:
                # Who looks dead by its row is dead, as far as was ever heard.
                pause_seconds = max(pause_seconds, self._options.idle_seconds)
            self._not_before = self._clock() + pause_seconds
            began = self._blind_since is None
            if began:
                self._blind_since = self._clock()
        if began:
            LOG.log(
                logging.WARNING if self._may_be_stored else logging.DEBUG,
                "Heartbeats of compute services cannot be read from the back end: where they are "
                "stored, nobody is taken for dead before they can be read again. %(error)s",
                {"error": error},
            )

    def _see_again(self) -> None:
        with self._lock:
            since, self._blind_since = self._blind_since, None
        if since is not None:
            LOG.info(
                "Heartbeats can be read again, behind %(seconds).0f s.",
                {"seconds": self._clock() - since},
            )

    # -- what a service is told ------------------------------------------------------------

    def _tell(self, cell: str | None, service: Any, sight: _Sight | None) -> None:
        row = self._row(service)
        uuid = str(service.uuid)
        stored = sight.heartbeats.get(uuid) if sight is not None else None
        seen = stored if stored is not None and stored.is_later_than(row) else row
        if seen is stored and self._configured is _Mode.DATABASE:
            self._has_met_stored = True
            self._say_once(cell)
        if self._is_up(seen) and stored is not None:
            self._memory.remember(uuid, seen)
            with self._lock:
                self._went_back_at.pop(uuid, None)
        elif (
            self._record_tells(stored, sight) or self._rows_tell(cell, uuid, sight)
        ) and not self._went_back(uuid, seen):
            self._memory.remember(uuid, seen)
        else:
            seen = self._memory.blindly(uuid, row)
            with self._lock:
                self._blindly_told += 1
        if self._is_up(row) and not self._is_up(seen):
            # It counts on from a number that its record has passed already; as in stock
            # Nova, its row alone makes it live.
            seen = row
            self._memory.remember(uuid, row)
        if seen is not row:
            self._lay(service, seen)

    def _went_back(self, uuid: str, seen: last_seen.LastSeen) -> bool:
        """Tell whether a living service's count fell lately: the back end is of yesterday."""
        known = self._memory.known(uuid)
        if known is None or not self._is_up(known) or known.report_count <= seen.report_count:
            return False
        now = self._clock()
        with self._lock:
            if len(self._went_back_at) >= _MOST_GONE_BACK:
                self._went_back_at.clear()
            since = self._went_back_at.setdefault(uuid, now)
        # Its next heartbeat would have come by then.
        return now - since <= self._options.down_seconds

    def _is_up(self, seen: last_seen.LastSeen) -> bool:
        return -last_seen.FUTURE_SECONDS <= seen.age_seconds <= self._options.down_seconds

    def _record_tells(self, stored: last_seen.LastSeen | None, sight: _Sight | None) -> bool:
        """Tell whether a record was not just made of a row that is long out of use."""
        if stored is None or sight is None:
            return False
        return stored.is_heard or sight.mode in (_Mode.DATABASE, _Mode.BOTH)

    def _rows_tell(self, cell: str | None, uuid: str, sight: _Sight | None) -> bool:
        """Tell whether the row of a service that no record speaks for can be trusted."""
        if sight is not None and uuid in sight.unreadable:
            return False
        if not self._may_be_stored:
            return True
        if sight is not None and sight.mode is not None:
            return sight.is_settled
        with self._lock:
            mode = None if cell is None else self._modes.get(cell)
        if mode is _Mode.STORE or self._configured is not _Mode.BOTH:
            return False
        # Nobody recorded a mode yet; or all write rows, as far as was heard.
        return sight is not None or mode is not None

    def _row(self, service: Any) -> last_seen.LastSeen:
        # As Nova's servicegroup driver: from its creation on it has some time.
        heard = service.last_seen_up or service.created_at
        age_seconds = last_seen.NEVER if heard is None else self._age_seconds(heard)
        return last_seen.LastSeen(int(service.report_count), age_seconds)

    def _age_seconds(self, heard: dt.datetime) -> float:
        heard = heard if heard.tzinfo else heard.replace(tzinfo=dt.UTC)
        return (self._utcnow() - heard).total_seconds()

    def _lay(self, service: Any, seen: last_seen.LastSeen) -> None:
        service.report_count = seen.report_count
        if seen.age_seconds != last_seen.NEVER:
            heard = self._utcnow() - dt.timedelta(seconds=seen.age_seconds)
            service.last_seen_up = heard
            service.updated_at = heard
        service.obj_reset_changes(["report_count", "last_seen_up", "updated_at"])


def _bounded(count: int, age_seconds: float) -> last_seen.LastSeen:
    """Return a heartbeat whose time can be told; hostile ones lie before all time."""
    most_seconds = dt.timedelta(days=36_500).total_seconds()
    return last_seen.LastSeen(count, max(-most_seconds, min(age_seconds, most_seconds)))


def _sends_heartbeats(service: Any) -> bool:
    needed = ("uuid", "binary", "report_count", "last_seen_up", "created_at")
    return (
        all(service.obj_attr_is_set(name) for name in needed)
        and service.binary == "nova-compute"
        and not getattr(service, "deleted", False)
    )
