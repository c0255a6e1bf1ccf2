# SPDX-License-Identifier: Apache-2.0
"""Reports what a process writes into Nova's databases to the synchronizer.

One per process, with one thread that starts with the first mark in the process
that made it (a WSGI server may load the application before it forks). Nova's
threads only add names to a set under a lock that is never held during I/O, and an
error here never reaches them. They do not wait for the back end, with one
exception: where records answer for compute nodes, a write that decides where a
server is returns when schedulers can hear of it, or after a bound. While the back
end is slower than that, or away, nobody waits.

Nova's objects are classes of a registry and cannot be handed a reporter: this
module holds the one of this process, which the assembly installs once, and its
functions mark records there. Its metrics are served as long as it runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
import prometheus_client

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.liveness import service_heartbeats, standstill_watch
from nova_nodb_scheduler.nova_adapter.reporting import dirty_records as dirty_module
from nova_nodb_scheduler.nova_adapter.reporting import journal_writer, row_publisher
from nova_nodb_scheduler.nova_adapter.reporting import scopes as scopes_module
from nova_nodb_scheduler.observe import exporter, metric_labels, reporter_metrics
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, reporter_facts
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.wire import codec

LOG = logging.getLogger(__name__)

#: Scope of a reporter that writes into every cell: nova-api, nova-manage.
EVERY_CELL = reporter_facts.EVERY_CELL

#: Age of changes whose names were forgotten: of a scope that must be swept.
LOST_SECONDS = 1e9
#: Age of what is made good by a sweep that is known to be due without this beat.
UNSETTLED_SECONDS = LOST_SECONDS / 2


#: How often one that leaves looks whether more was marked meanwhile.
_LAST_LOOKS = 4


@attrs.frozen
class ReporterOptions:
    """Timing and bounds; the meaning is that of the options of the same names."""

    flush_interval_seconds: float
    heartbeat_flush_interval_seconds: float
    beat_interval_seconds: float
    exit_flush_seconds: float
    max_dirty_records: int
    service_down_time_seconds: float
    batch_records: int = 500
    #: How long one of Nova's threads waits for its record; 0: never.
    place_bound_seconds: float = 0.0
    #: How long its process may stand still and still speak for what was written meanwhile.
    reporter_bound_seconds: float = float("inf")


@attrs.frozen
class ReporterIdentity:
    """Who a reporter is, for operators and for the schedulers' proofs.

    :param cell: uuid of the one cell it writes, or ``*``
    :param guards: cells whose compute services write through it: conductors
        have their own cell here, the others nothing
    :param role: ``conductor``, ``api``, ``manage`` or ``scheduler``
    :param claiming: whether it claims the hosts that it chooses; None where it
        chooses none
    :param writes_every_cell: whether it may write other cells, too: a conductor with
        the API database begins moves in whichever cell the server is
    """

    reporter_id: str
    role: str
    host: str
    pid: int
    cell: str
    guards: tuple[str, ...]
    plugin_version: str
    nova_version: str
    claiming: bool | None = None
    writes_every_cell: bool = False


@attrs.frozen
class ChangeReporterStatus:
    """A reporter at a moment, for status and metrics."""

    queued: int
    oldest_seconds: float
    published: int
    failed_flushes: int
    version: int
    last_error: str | None
    running: bool
    late_places: int
    journal: journal_writer.JournalFigures | None = None


@attrs.define(eq=False, slots=False)
class ChangeReporter:
    """Gathers dirty names and publishes them in batches.

    :param synchronizer: opened by the flushing thread, in the process that flushes
    :param identify: builds the identity, once, in the flushing thread
    :param heartbeats: False for short-lived processes, which only flush at exit
    """

    _synchronizer: contract.Synchronizer
    _rows: row_publisher.RowPublisher
    _beat_publisher: publisher_module.Publisher
    _identify: Callable[[], ReporterIdentity]
    _options: ReporterOptions
    _heartbeats: bool = attrs.field(default=True, kw_only=True)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, kw_only=True)
    _wall_clock: Callable[[], float] = attrs.field(default=time.time, kw_only=True)
    #: Who this reporter is; None before its thread ran.
    identity: ReporterIdentity | None = attrs.field(init=False, default=None)
    #: Called with scopes whose tables must be compared with the store.
    on_lost: Callable[[Collection[str]], None] = attrs.field(
        init=False, default=lambda scopes: None
    )
    #: Called behind each of this reporter's beats, in its thread, with its synchronizer
    #: and its name.
    on_beat: Callable[[contract.Synchronizer, str], None] = attrs.field(
        init=False, default=lambda synchronizer, name: None
    )
    #: What its beats say beside what it reports.
    more_facts: Callable[[], Mapping[str, Any]] = attrs.field(init=False, default=dict)
    #: Scopes that must not be trusted before a sweep that somebody else asks for.
    unsettled: Callable[[], Collection[str]] = attrs.field(init=False, default=tuple)
    #: What writes heartbeats to a journal; None where all go to their services' records.
    journal: journal_writer.JournalWriter | None = attrs.field(init=False, default=None)
    #: Tells standstills of a process that hears heartbeats; None where none comes.
    standstills: standstill_watch.StandstillWatch | None = attrs.field(init=False, default=None)
    #: Makes what runs in the process as long as the flushing thread; None for nothing.
    make_company: Callable[[], ReporterExport] | None = attrs.field(init=False, default=None)
    _company: ReporterExport | None = attrs.field(init=False, default=None)
    _start_lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _flush_lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _stop: threading.Event = attrs.field(init=False, factory=threading.Event)
    #: Set while one of Nova's threads waits for its record.
    _hurry: threading.Event = attrs.field(init=False, factory=threading.Event)
    #: Whether a thread waited in vain, or records took longer to publish than one may
    #: wait; until some took less.
    _is_slow: bool = attrs.field(init=False, default=False)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _pid: int | None = attrs.field(init=False, default=None)
    _since: float | None = attrs.field(init=False, default=None)
    _opened: bool = attrs.field(init=False, default=False)
    #: Whether the end published all there was, and no beat tells of what is marked since.
    _has_left: bool = attrs.field(init=False, default=False)
    _last_error: str | None = attrs.field(init=False, default=None)
    #: Scopes of which names were forgotten, and the back end's time of it.
    _lost: dict[str, float] = attrs.field(init=False, factory=dict)
    #: Scopes with rows whose names no record may have, and the back end's time at
    #: which that was said first; those that are yet to be said.
    _unnamed: dict[str, float] = attrs.field(init=False, factory=dict)
    _unnamed_unsaid: set[str] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        self._implausible = self._rows.implausible
        self._dirty = dirty_module.DirtyRecords(self._options.max_dirty_records, self._clock)
        self._wake = self._dirty.wake
        self._last_beat = self._last_heartbeats = float("-inf")
        #: When the last beat was said, and what, or what is being said since; None before the
        #: first one.
        self._said: tuple[float, Mapping[str, Any]] | None = None
        #: When the beat was said of which the log told that this reporter's thread hangs since.
        self._hung_since = float("-inf")
        #: The back end's time and this process's, when they were held against each other last.
        self._times: tuple[float, float] | None = None
        #: When no heartbeat waited any more; None before the first beat.
        self._all_told_at: float | None = None
        self._published = self._refused = self._failed_flushes = 0
        self._version = self._beat_number = self._late_places = 0

    # -- Nova's threads ---------------------------------------------------

    def mark(self, scope: str, namespace: str, keys: Collection[str]) -> None:
        """Note that rows were written. Never blocks, never raises."""
        self._dirty.mark(scope, [records.RecordKey(namespace, key) for key in keys])
        self.ensure_started()

    def wait_published(self, namespace: str, keys: Collection[str]) -> bool:
        """Wait until rows that were marked are published; as long as the bound, and no longer.

        Nobody waits while the back end is away, or was slower than the bound and has not
        published in less since. Never raises.

        :returns: whether they are published
        """
        bound = self._options.place_bound_seconds
        if not bound or self._is_slow or self._last_error is not None:
            return False
        self._hurry.set()
        self._wake.set()
        names = [records.RecordKey(namespace, key) for key in keys]
        begun = self._clock()
        if self._dirty.wait_published(names, bound):
            return True
        # One that rests, as its database is down or its record refused, says nothing of others.
        if self._clock() - begun >= bound:
            self._is_slow = True
        self._late_places += 1
        return False

    def heartbeat(
        self,
        scope: str,
        service: str,
        report_count: int,
        last_seen_up: str | None,
        *,
        silent_seconds: float = 0.0,
    ) -> None:
        """Note a heartbeat of a compute service. Never blocks, never raises.

        :param silent_seconds: since the one before; of a service that was down
            it does not wait for others, unless it goes to a journal: each flush takes one of
            its slots, and there are as many as flushes in a ring's time
        """
        journal = self.journal
        self._dirty.beat(
            scope,
            service,
            report_count,
            last_seen_up,
            self._wall_clock(),
            keeps_each=journal is not None and journal.keeps_each,
        )
        is_back = silent_seconds > self._options.service_down_time_seconds
        if is_back and (journal is None or not journal.is_on):
            self._last_heartbeats = float("-inf")
            self._wake.set()
        self.ensure_started()

    def ensure_started(self) -> None:
        """Start the flushing thread if this process has none yet; cheap otherwise."""
        if self._pid == os.getpid():
            return
        with self._start_lock:
            if self._pid == os.getpid():
                return
            self._stop = threading.Event()
            self._opened = False
            if self.standstills is not None:
                self.standstills.start()
            thread = threading.Thread(target=self._run, name="nodb-reporter", daemon=True)
            thread.start()
            # Only now: a thread that could not start is tried again by the next mark.
            self._thread, self._pid = thread, os.getpid()
            atexit.register(self.stop)

    # -- another thread ---------------------------------------------------

    def speak_while_hung(
        self, publisher: publisher_module.Publisher, now_seconds: Callable[[], float]
    ) -> None:
        """Say in the place of this reporter's thread, where that hangs, that its cells are behind.

        The naive way, to be silent, has it forgotten behind a sweep. What its process hears
        from then on is told to nobody, in a cell that others prove: a host all of whose
        heartbeats come here looks dead. One thread calls it again and again.

        :param publisher: of a connection that does not hang with this reporter's
        :param now_seconds: the back end's time, by that connection
        :raises BackendUnavailable: it could not be said
        """
        spoken_for, stop = self._said, self._stop
        if spoken_for is None:
            return
        said_at, said = spoken_for
        waits = self._clock() - said_at
        if waits <= self._options.reporter_bound_seconds:
            return
        ages = dict.fromkeys(said["guards"], waits)
        for known in (reporter_facts.lateness(said), self._dirty.ages_seconds()):
            for scope, seconds in known.items():
                ages[scope] = max(seconds, ages.get(scope, 0.0))
        # A sweep that was asked for settles nothing as long as it hangs.
        lateness = self._lateness({name: min(age, UNSETTLED_SECONDS) for name, age in ages.items()})
        before = {name: value for name, value in said.items() if name != "late_seconds"}

        def late(current: publisher_module.State | None) -> publisher_module.Computed:
            if self._said is not spoken_for or stop.is_set():
                return publisher_module.UNCHANGED  # it goes on, or leaves
            return {**before, **lateness, "beat_at": now_seconds()}

        identity = self.identity
        assert identity is not None  # it has said something
        key = records.RecordKey(known_namespaces.REPORTERS.name, identity.reporter_id)
        publisher.publish({key: late})
        if self._hung_since != said_at:
            self._hung_since = said_at
            LOG.warning(
                "Nothing was reported for %(seconds).0f s, for the thread that does it hangs, or "
                "its connection. Until it goes on schedulers do not trust what they know of "
                "%(scopes)s.",
                {"seconds": waits, "scopes": ", ".join(sorted(ages))},
            )

    # -- life -------------------------------------------------------------

    def stop(self) -> None:
        """Flush what can be flushed within the bound and leave; idempotent."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        atexit.unregister(self.stop)
        self._said = None
        deadline = self._clock() + self._options.exit_flush_seconds
        self._stop.set()
        self._hurry.set()
        self._wake.set()
        thread.join(self._options.exit_flush_seconds)
        company, self._company = self._company, None
        if company is not None:
            company.stop()
        if self.standstills is not None:
            self.standstills.stop()
        # What was marked since its thread looked last; then what was marked until this one did.
        if self._is_left_unsaid(thread, deadline):
            self._leave()
        self._pid = None
        if self._is_left_unsaid(thread, deadline) and self._thread is None:
            self._leave()
        left = len(self._dirty)
        if thread.is_alive() or left:
            LOG.warning(
                "%(left)d changed records could not be published within %(seconds).1f s; "
                "the next sweep of their cells will find them, or run 'nova-nodb-manage import'.",
                {"left": left, "seconds": self._options.exit_flush_seconds},
            )
        elif self._clock() < deadline:
            LOG.debug("The reporter published everything and left.")

    def _is_left_unsaid(self, thread: threading.Thread, deadline: float) -> bool:
        """Say whether something waits of which no beat tells, and there is time to publish it."""
        is_unsaid = not thread.is_alive() and self._has_left and len(self._dirty) > 0
        return is_unsaid and self._clock() < deadline

    def flush(self) -> int:
        """Publish all that is dirty now; returns the highest version written so far.

        :raises BackendUnavailable: what was not published stays dirty
        """
        with self._flush_lock:
            self._open()
            self._flush_records(all_of_them=True)
            self._flush_heartbeats(force=True)
        return self._version

    def status(self) -> ChangeReporterStatus:
        """Return what operators see of this reporter."""
        thread = self._thread
        return ChangeReporterStatus(
            queued=len(self._dirty),
            oldest_seconds=max(self._dirty.ages_seconds().values(), default=0.0),
            published=self._published,
            failed_flushes=self._failed_flushes,
            version=self._version,
            last_error=self._last_error,
            running=thread is not None and thread.is_alive(),
            late_places=self._late_places,
            journal=None if self.journal is None else self.journal.figures(),
        )

    # -- the flushing thread ----------------------------------------------

    def _run(self) -> None:
        self._keep_company()
        pause = self._options.flush_interval_seconds
        while not self._stop.is_set():
            self._wake.wait(self._until_next_duty())
            self._hurry.wait(self._options.flush_interval_seconds)
            self._hurry.clear()
            if self._stop.is_set():
                break
            try:
                self._turn()
                pause = self._options.flush_interval_seconds
            except errors.NodbError as error:
                pause = self._trouble(error, pause)
            except Exception as error:
                LOG.exception("The reporter failed; it keeps its records and tries again.")
                pause = self._trouble(error, pause, logged=True)
        self._leave()

    def _keep_company(self) -> None:
        """Start what comes with the thread; its faults are not the reporter's."""
        try:
            self._company = None if self.make_company is None else self.make_company()
            if self._company is not None:
                self._company.start()
        except Exception:
            LOG.exception("The metrics of this process cannot be served.")

    def _until_next_duty(self) -> float:
        next_beat = self._last_beat + self._options.beat_interval_seconds
        if not self._heartbeats:
            next_beat = float("inf")
        next_heartbeats = self._last_heartbeats + self._options.heartbeat_flush_interval_seconds
        due = min(next_beat, next_heartbeats)
        return max(0.0, min(due - self._clock(), self._options.beat_interval_seconds))

    def _turn(self) -> None:
        with self._flush_lock:
            if self.journal is not None and self.identity is not None:
                # Before any I/O: what waits for a back end that is away waits within its bounds.
                self._fill_journal(self.journal)
            self._open()
            self._note_lost()
            self._flush_records()
            self._flush_heartbeats(force=False)
            self._send_beat()
        if self._last_error is not None:
            LOG.info("The synchronizer back end is back; nothing was lost.")
            self._last_error = None

    def _trouble(self, error: Exception, pause: float, *, logged: bool = False) -> float:
        self._failed_flushes += 1
        if self._last_error is None and not logged:
            LOG.warning(
                "Cannot publish host states, schedulers will read the databases themselves "
                "until it works again: %(error)s",
                {"error": error},
            )
        self._last_error = str(error)
        self._stop.wait(pause)
        return min(pause * 2 + 0.05, 2.0)

    def _open(self) -> None:
        if not self._opened:
            self._synchronizer.open()
            self.identity = self._identify()
            self._opened = True
        if self._since is None:
            # Marks are taken since an earlier moment: all that is written
            # from now on is reported here.
            self._since = self._synchronizer.now_seconds()

    def _note_standstill(self, now_there: float) -> None:
        """Begin anew behind a standstill in which this process was taken for gone.

        A heartbeat that nobody reported shows by the next one that is reported here, and
        meanwhile none was: a process that is cut off and forgotten may have heard a host for
        longer than its down time. One whose reporter hung, or could not reach the back end, has
        heard all the while, and tells it before its beat.

        :param now_there: the time that the beat says
        """
        if self.standstills is None:
            return
        now = self._clock()
        seconds = self.standstills.take_longest()
        if self._times is not None:
            # A paused machine's clock stands still with it, and the back end's goes on.
            there, here = self._times
            seconds = max(seconds, (now_there - there) - (now - here))
        self._times = now_there, now
        if seconds > self._options.reporter_bound_seconds:
            LOG.warning(
                "This process stood still for %(seconds).0f s; what it guards is swept.",
                {"seconds": seconds},
            )
            self._since = None
            self._open()

    def _note_lost(self) -> None:
        """Have scopes swept whose names were forgotten, and say so in each beat until then."""
        lost = self._dirty.take_lost()
        if not lost:
            return
        try:
            now = self._synchronizer.now_seconds()
        except BaseException:
            self._dirty.lose(lost)
            raise
        self._lost.update(dict.fromkeys(lost, now))
        self._last_beat = float("-inf")
        LOG.warning(
            "Some of what was written may be told to nobody: more changes waited for the back end "
            "than are kept (of records %(limit)d), or heartbeats are told in another way from now "
            "on. %(scopes)s will be swept.",
            {"limit": self._options.max_dirty_records, "scopes": ", ".join(sorted(lost))},
        )
        self.on_lost(lost)

    def _note_unnamed(
        self, batch: Collection[dirty_module.DirtyRecord], unnamed: Collection[records.RecordKey]
    ) -> None:
        """Remember scopes for whose hosts memory cannot speak, until a sweep says so itself.

        Without I/O: the names are out of the queue, and must not be forgotten.
        """
        scopes = {dirty.scope for dirty in batch if dirty.key in unnamed}
        if scopes - self._unnamed.keys():
            self._last_beat = float("-inf")
        self._unnamed_unsaid |= scopes

    def _forget_swept(self) -> None:
        """Forget what a sweep, begun after it, has made good, or says itself."""
        scopes = self._lost.keys() | self._unnamed.keys()
        if not scopes:
            return
        epoch = self._synchronizer.head().epoch
        keys = [records.RecordKey(known_namespaces.CELLS.name, scope) for scope in sorted(scopes)]
        for key, record in self._synchronizer.read(keys).items():
            if record.deleted:
                continue
            try:
                state = codec.decode(record.payload).state
            except errors.UndecodableRecord:
                continue
            for noted in (self._lost, self._unnamed):
                noted_at = noted.get(key.key, float("inf"))
                if state["epoch"] == epoch and float(state["swept_from"]) > noted_at:
                    del noted[key.key]

    def _flush_records(self, *, all_of_them: bool = False) -> None:
        for _ in range(1 + len(self._dirty) // self._options.batch_records):
            batch = self._dirty.take(self._options.batch_records, rested=all_of_them)
            all_of_them = False
            if not batch:
                break
            stays = frozenset(dirty.key for dirty in batch)
            begun = self._clock()
            try:
                published = self._rows.publish(batch)
                stays = published.failed
                # Before those who wait go on: what they save next may be waited for.
                self._is_slow = self._clock() - begun > self._options.place_bound_seconds
            finally:
                self._dirty.done(batch, stays)
            self._published += published.written
            self._refused += len(published.rejected) + len(published.unnamed)
            self._note_unnamed(batch, published.unnamed)
            self._version = max(self._version, published.version)

    def _flush_heartbeats(self, *, force: bool) -> None:
        now = self._clock()
        due = self._last_heartbeats + self._options.heartbeat_flush_interval_seconds
        if not force and now < due:
            return
        if self.journal is not None and not force and now > self.journal.decided_until:
            # Behind the next beat it is known again where they go.
            return
        self._last_heartbeats = now
        heartbeats = self._dirty.take_heartbeats()
        try:
            if self.journal is not None:
                heartbeats = self.journal.take(heartbeats)
                # What comes meanwhile is for the journal, and waits for the next flush.
                self._flush_journal(self.journal)
            if heartbeats:
                version, lost = self._rows.publish_heartbeats(heartbeats)
                self._version = max(self._version, version)
                heartbeats = lost
        finally:
            self._dirty.return_heartbeats(heartbeats)
        if self.journal is None or not self.journal.waiting:
            self._all_told_at = now

    def _fill_journal(self, journal: journal_writer.JournalWriter) -> None:
        """Hand heartbeats to the journal; those that it is not for stay. No I/O."""
        self._dirty.return_heartbeats(journal.take(self._dirty.take_heartbeats()))

    def _flush_journal(self, journal: journal_writer.JournalWriter) -> None:
        flushed = journal.flush()
        if flushed is None:
            return
        self._version = max(self._version, flushed.version)
        if flushed.lost:
            self._dirty.lose([journal.cell])

    def _send_beat(self) -> None:
        now = self._clock()
        if not self._heartbeats or now < self._last_beat + self._options.beat_interval_seconds:
            return
        identity = self.identity
        assert identity is not None  # set by _open
        self._beat_number += 1
        if self._unnamed_unsaid:
            # Later than the rows were met: a sweep that began behind it met them, too.
            now_seconds = self._synchronizer.now_seconds()
            self._unnamed.update(dict.fromkeys(self._unnamed_unsaid, now_seconds))
            self._unnamed_unsaid.clear()
        self._forget_swept()
        now_there = self._synchronizer.now_seconds()
        # What is said below is younger: of a hang or a standstill behind it the beat is old.
        self._note_standstill(now_there)
        # JSON has no infinity: a scope that lost names is as old as can be.
        ages = self._dirty.ages_seconds()
        if seconds := self._held_up_seconds():
            for scope in identity.guards:
                ages[scope] = max(seconds, ages.get(scope, 0.0))
        for scope in self.unsettled():
            ages[scope] = max(UNSETTLED_SECONDS, ages.get(scope, 0.0))
        ages.update(dict.fromkeys(self._lost, LOST_SECONDS))
        state: Mapping[str, Any] = {
            "cell": identity.cell,
            "guards": list(identity.guards),
            "writes_every_cell": identity.writes_every_cell,
            "binary": identity.role,
            "host": identity.host,
            "pid": identity.pid,
            "plugin": identity.plugin_version,
            "nova": identity.nova_version,
            "claiming": identity.claiming,
            "since": self._since,
            "beat": self._beat_number,
            "beat_at": now_there,
            "clock_offset_seconds": self._wall_clock() - now_there,
            "queued": len(self._dirty),
            **self._lateness({scope: min(age, LOST_SECONDS) for scope, age in ages.items()}),
            "published": self._published,
            "failed_flushes": self._failed_flushes,
            "refused": self._refused,
            "unnamed": sorted(self._unnamed),
            "implausible": self._implausible.count,
            **self.more_facts(),
        }
        key = records.RecordKey(known_namespaces.REPORTERS.name, identity.reporter_id)
        before = self._said
        if before is not None:
            # Where this hangs, and the back end has it, no older one is to be said again.
            self._said = before[0], state
        self._beat_publisher.publish({key: lambda current: state})
        self._last_beat = now
        self._said = now, state
        try:
            self.on_beat(self._synchronizer, identity.reporter_id)
        except errors.NodbError as error:
            LOG.debug("A mode is not known: %(error)s", {"error": error})
        except Exception:
            # What reads a record of others must not hold up what this process reports.
            LOG.exception("A mode could not be looked at.")

    def _held_up_seconds(self) -> float:
        """Return for how long heartbeats wait that should long have been told; 0 for none.

        For this thread hung behind their flush, it is not known where they go, or the ring has
        no room. Their services look as if they were silent.
        """
        now = self._clock()
        waits = self._dirty.beats_waiting() or (self.journal is not None and self.journal.waiting)
        if self._all_told_at is None or not waits:
            self._all_told_at = now
        seconds = now - self._all_told_at
        return seconds if seconds > 2 * self._options.heartbeat_flush_interval_seconds else 0.0

    def _lateness(self, ages: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
        """Return what a beat says of how old changes are that wait, by scope."""
        if self.journal is None or not self.journal.is_announced:
            return {"behind_seconds": ages}
        # To schedulers that know no journals records look as if their services were dead.
        cell = self.journal.cell
        told = {**ages, cell: max(UNSETTLED_SECONDS, ages.get(cell, 0.0))}
        return {"behind_seconds": told, "late_seconds": ages}

    def lose(self, scopes: Collection[str]) -> None:
        """Have scopes swept; its beats say so from the next turn on until then. Any thread."""
        self._dirty.lose(scopes)
        self._wake.set()

    def _leave(self) -> None:
        """Publish what is left and take the beat away; again, while more is marked meanwhile.

        Nova's threads may write on. What is marked behind the last flush of a reporter whose
        beat is gone is known to nobody before a sweep, which nobody knows to be due: so it is
        looked whether there is some once the beat is gone, and what cannot be published then
        has the beat said again. Left behind, a beat falls silent, and its cells are swept.
        """
        self._has_left = False
        try:
            with self._flush_lock:
                for _ in range(_LAST_LOOKS):
                    if not self._flush_last():
                        break
                    self._take_beat_away()
                    self._has_left = True
                    if not len(self._dirty):
                        break
        except errors.NodbError as error:
            LOG.warning("The reporter could not leave in order: %(error)s", {"error": error})
        except Exception:
            LOG.exception("The reporter could not leave in order.")
        if self._has_left and len(self._dirty):
            self._come_back()

    def _flush_last(self) -> bool:
        """Publish what waits; tell whether nothing is left of which only the beat tells."""
        if len(self._dirty) or self._dirty.beats_waiting() or self._opened:
            self._open()
            self._note_lost()
            self._flush_records(all_of_them=True)
            self._flush_heartbeats(force=True)
        waits = self.journal is not None and self.journal.waiting
        return not (len(self._dirty) or self._lost or waits or self.unsettled())

    def _take_beat_away(self) -> None:
        # A mark behind the end begins another life, whose beat it is.
        if self._heartbeats and self.identity is not None and self._thread is None:
            key = records.RecordKey(known_namespaces.REPORTERS.name, self.identity.reporter_id)
            self._beat_publisher.publish({key: lambda current: publisher_module.DELETE})

    def _come_back(self) -> None:
        """Say the beat again, for something is left that nobody would know of."""
        try:
            with self._flush_lock:
                self._last_beat = float("-inf")
                self._send_beat()
            self._has_left = False
        except Exception:
            LOG.exception(
                "Nobody knows that %(left)d changed records are not published; run "
                "'nova-nodb-manage import'.",
                {"left": len(self._dirty)},
            )


_reporter: ChangeReporter | None = None
_make: Callable[[], ChangeReporter] | None = None
_scopes: scopes_module.Scopes | None = None
_complained = False
_pid = os.getpid()


def install(
    reporter: ChangeReporter | None,
    scopes: scopes_module.Scopes | None,
    make: Callable[[], ChangeReporter] | None = None,
) -> None:
    """Make a reporter the process's own; None takes it away.

    :param make: makes the reporter of a child, should this process fork
    """
    global _reporter, _scopes, _make, _complained, _pid
    _reporter, _scopes, _make, _complained = reporter, scopes, make, False
    _pid = os.getpid()


def _after_fork() -> None:
    """Give a child a reporter of its own; no I/O.

    The parent's may have been copied with a lock held, which nobody in the
    child would release; its connections and its name are the parent's.
    """
    global _reporter, _pid
    _pid = os.getpid()
    if _reporter is not None:
        _reporter = _make() if _make is not None else None


os.register_at_fork(after_in_child=_after_fork)


def _own() -> ChangeReporter | None:
    """Return this process's reporter; servers that fork in C run no hooks of Python."""
    if _pid != os.getpid():
        _after_fork()
    return _reporter


def cell_of(context: Any) -> str | None:
    """Return the cell a context's rows belong to; None where nothing is reported."""
    global _complained
    if _scopes is None:
        return None
    try:
        return _scopes.of_context(context)
    except errors.ConfigurationError as error:
        if not _complained:
            _complained = True
            LOG.error("Changes of this process are not reported: %(error)s", {"error": error})
        return None


def mark(context: Any, namespace: str, keys: Collection[str]) -> None:
    """Note that rows of a cell's database were written."""
    cell = cell_of(context)
    if cell is not None:
        mark_in(cell, namespace, keys)


def mark_in(cell: str, namespace: str, keys: Collection[str]) -> None:
    """Note that rows of a known cell's database were written."""
    reporter = _own()
    if reporter is not None:
        reporter.mark(cell, namespace, keys)


def place_in(cell: str, namespace: str, key: str) -> None:
    """Note that a row was written that decides where a server is; schedulers hear of it first.

    Where records answer for compute nodes it waits for that, bounded.
    """
    reporter = _own()
    if reporter is not None:
        reporter.mark(cell, namespace, [key])
        reporter.wait_published(namespace, [key])


def mark_api(namespace: str, keys: Collection[str]) -> None:
    """Note that rows of the API database were written."""
    reporter = _own()
    if reporter is not None:
        reporter.mark(scopes_module.API, namespace, keys)


def heartbeat(
    context: Any,
    service: str,
    report_count: int,
    last_seen_up: str | None,
    *,
    silent_seconds: float = 0.0,
) -> None:
    """Note a heartbeat of a compute service.

    :param silent_seconds: since the one before
    """
    cell = cell_of(context)
    reporter = _own()
    if cell is not None and reporter is not None:
        reporter.heartbeat(cell, service, report_count, last_seen_up, silent_seconds=silent_seconds)


def identity_of(role: str, host: str, cell: Callable[[], str]) -> metric_labels.MetricIdentity:
    """Return who a reporter is among those that are scraped."""
    served = cell()
    return metric_labels.MetricIdentity(role, host, None if served == EVERY_CELL else served)


class ReporterExport:
    """The metrics of a reporter's process, served as long as its thread runs.

    :param register: registers what every process exports
    """

    def __init__(
        self,
        reporter: ChangeReporter,
        who: metric_labels.MetricIdentity,
        place: exporter.ScrapeAddress,
        register: Callable[[prometheus_client.CollectorRegistry], None],
    ) -> None:
        registry = prometheus_client.CollectorRegistry()
        self._reporter = reporter
        self.metrics = reporter_metrics.ReporterMetrics(registry, self._figures)
        register(registry)
        self.exporter = exporter.Exporter(registry, who, place)

    def start(self) -> None:
        """Serve; see :class:`.exporter.Exporter`."""
        self.exporter.start()

    def stop(self) -> None:
        """Stop serving; idempotent."""
        self.exporter.stop()

    def _figures(self) -> Mapping[str, float]:
        status = self._reporter.status()
        return reporter_metrics.figures_of(
            running=status.running,
            publishing=status.last_error is None,
            dirty=status.queued,
            oldest_seconds=status.oldest_seconds,
            published=status.published,
            failed_flushes=status.failed_flushes,
            late_places=status.late_places,
            heartbeats={
                **service_heartbeats.figures(),
                **({} if status.journal is None else _told(status.journal)),
            },
        )


def _told(journal: journal_writer.JournalFigures) -> dict[str, float]:
    return {
        "journal_waiting": float(journal.waiting),
        "journal_dropped": float(journal.dropped),
        "journal_slots": float(journal.slots),
        "journals_given_up": float(journal.given_up),
    }
