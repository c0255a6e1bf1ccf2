# SPDX-License-Identifier: Apache-2.0
"""Samples the databases all through a round, and keeps whatever was wrong in any sample."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping

import attrs
import pymysql

from tests.chaos import audit, grants
from tests.chaos import snapshot as snapshot_module

_SAMPLE_SECONDS = 0.3
_MOVE = "a move"
_AWAY = (pymysql.OperationalError, pymysql.InternalError, pymysql.InterfaceError, OSError)
"""What a server that is away is told by; other errors are those of what reads."""
_SAME_SECONDS = 1.5
"""Between two samples of one time in which a host held too much; reading takes its time, too."""


@attrs.define
class Record:
    """A finding through time.

    :ivar first_seconds, last_seconds: since the round began
    :ivar excess: the greatest of all samples
    """

    kind: str
    subject: str
    detail: str
    first_seconds: float
    last_seconds: float
    samples: int = 1
    excess: int = 0
    finding: audit.Finding | None = attrs.field(default=None, eq=False, repr=False)

    def seen_again(self, finding: audit.Finding, at_seconds: float) -> None:
        self.samples += 1
        self.last_seconds = at_seconds
        if finding.excess > self.excess:
            self.excess, self.detail = finding.excess, finding.detail


def _record(finding: audit.Finding, at_seconds: float) -> Record:
    return Record(
        finding.kind,
        finding.subject,
        finding.detail,
        at_seconds,
        at_seconds,
        excess=finding.excess,
        finding=finding,
    )


def merged(records: Iterable[Record]) -> list[Record]:
    """Return a record for each kind and subject, in the order in which each was seen first."""
    found: dict[tuple[str, str], Record] = {}
    for each in sorted(records, key=lambda record: record.first_seconds):
        known = found.get((each.kind, each.subject))
        if known is None:
            found[each.kind, each.subject] = attrs.evolve(each)
            continue
        known.samples += each.samples
        known.last_seconds = max(known.last_seconds, each.last_seconds)
        if each.excess > known.excess:
            known.excess, known.detail = each.excess, each.detail
    return list(found.values())


class Ledger:
    """Watches one round. A context manager: samples in a thread of its own.

    :param take: reads a snapshot, see :class:`.snapshot.Reader`
    :param told: reads what writers of allocations say they took back and answered
    :ivar leaving: uuids of servers whose deletion was asked for, before it was sent
    :ivar samples: how often it looked
    :ivar clock_ahead_seconds: of the time since the epoch before that of the round
    :ivar most_active: most servers that stood at once
    """

    def __init__(
        self, take: Callable[[], snapshot_module.Snapshot], told: grants.Told = tuple
    ) -> None:
        self._take = take
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="ledger", daemon=True)
        self._records: dict[tuple[str, str, str], Record] = {}
        self._grants = grants.Grants(told)
        self._first: dict[str, float] = {}
        self._there: dict[tuple[str, str], float] = {}
        self._allocated: dict[str, float] = {}
        self._settled: dict[str, tuple[float, str]] = {}
        self._states: dict[str, tuple[tuple[str | None, str | None], float]] = {}
        self._free: list[tuple[float, Mapping[str, int]]] = []
        self._latest: snapshot_module.Snapshot | None = None
        self.began = time.monotonic()
        self.clock_ahead_seconds = time.time()
        self.leaving: set[str] = set()
        self.samples = 0
        self._blind_seconds = 0.0
        self._ended: float | None = None
        self.most_active = 0
        self.failures: list[str] = []

    def __enter__(self) -> "Ledger":
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._ended = time.monotonic()

    @property
    def blind_seconds(self) -> float:
        """The longest time in which it could not look: at the begin and at the end, too."""
        with self._lock:
            last = self.began if self._latest is None else self._latest.at
            end = time.monotonic() if self._ended is None else self._ended
            return max(self._blind_seconds, end - last)

    @property
    def latest(self) -> snapshot_module.Snapshot | None:
        """The last sample."""
        with self._lock:
            return self._latest

    def wait_newer(self, than: float, timeout_seconds: float) -> snapshot_module.Snapshot | None:
        """Wait for a sample that was taken after a moment; None if none came."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            latest = self.latest
            if latest is not None and latest.at > than:
                return latest
            time.sleep(_SAMPLE_SECONDS / 3)
        return None

    def records(self) -> list[Record]:
        """Everything that was wrong, in the order in which it was seen first.

        Asked when the round is over: see :mod:`.grants`.
        """
        return merged(self.seen())

    def seen(self) -> list[Record]:
        """As :meth:`records`, but a record for each way in which it was wrong.

        What excuses one of them says nothing of the others.
        """
        with self._lock:
            found = [*self._records.values(), *self._judged(audit.OVER_COMMIT)]
        return sorted(found, key=lambda record: record.first_seconds)

    def withdrawn(self) -> list[Record]:
        """Hosts that held too much while nobody was answered with what was too much.

        A record for each time; asked when the round is over.
        """
        with self._lock:
            return self._judged(grants.WITHDRAWN)

    def _judged(self, kind: str) -> list[Record]:
        """Return records of the samples of one kind, the lock held."""
        records: list[Record] = []
        last: dict[str, Record] = {}
        for at, finding in self._grants.judged():
            if finding.kind != kind:
                continue
            at_seconds = round(at - self.began, 2)
            record = last.get(finding.subject)
            again = kind == grants.WITHDRAWN and record is not None
            if record is None or (again and at_seconds > record.last_seconds + _SAME_SECONDS):
                record = last[finding.subject] = _record(finding, at_seconds)
                records.append(record)
            else:
                record.seen_again(finding, at_seconds)
        return records

    def settled(self) -> dict[str, tuple[float, str]]:
        """When each server was first seen ACTIVE or in ERROR (monotonic), and which, by name."""
        with self._lock:
            return dict(self._settled)

    def first_seen(self, uuid: str) -> float | None:
        """Return when a server or its request was first seen, in seconds of the round."""
        with self._lock:
            at = self._first.get(uuid)
        return None if at is None else at - self.began

    def there_since(self, uuid: str, host: str) -> float | None:
        """Return when a server was first seen on a host, likewise."""
        with self._lock:
            at = self._there.get((uuid, host))
        return None if at is None else at - self.began

    def allocated_since(self, consumer: str) -> float:
        """Return since when a consumer has had an allocation (monotonic); the begin if never."""
        with self._lock:
            return self._allocated.get(consumer, self.began)

    def in_state_since(self, uuid: str) -> float:
        """Return when a server was first seen as it is now (monotonic); the begin if never."""
        with self._lock:
            known = self._states.get(uuid)
        return self.began if known is None else known[1]

    def is_unended_move(self, uuid: str) -> bool:
        """Say whether a consumer is a move that nobody has seen end, with a row or without."""
        with self._lock:
            (status, kind), _ = self._states.get(uuid, ((None, None), 0.0))
        return kind == _MOVE and status not in snapshot_module.FINAL

    def always_free(self, since: float, until: float) -> int | None:
        """Return the slots that were free in every sample of a time; None: no sample.

        Each on its host: one that was taken while another host had one is none.
        """
        with self._lock:
            samples = [free for at, free in self._free if since <= at <= until]
        if not samples:
            return None
        hosts = set[str]().union(*samples)
        return sum(min(free.get(host, 0) for free in samples) for host in hosts)

    def note(self, findings: Iterable[audit.Finding], at: float) -> None:
        """Keep findings of a moment; those that were kept before are seen again."""
        with self._lock:
            for finding in findings:
                at_seconds = round(at - self.began, 2)
                key = finding.kind, finding.subject, finding.detail
                known = self._records.get(key)
                if known is not None:
                    known.seen_again(finding, at_seconds)
                    continue
                self._records[key] = _record(finding, at_seconds)

    def look(self, now: snapshot_module.Snapshot) -> None:
        """Take one sample into account."""
        found = audit.at_any_moment(now, self.leaving)
        # What these are, is judged by what became of them.
        self.note((each for each in found if each.kind != audit.OVER_COMMIT), now.at)
        with self._lock:
            self._grants.look(now, self.leaving)
            if self._latest is not None:
                self._blind_seconds = max(self._blind_seconds, now.at - self._latest.at)
            else:
                self._blind_seconds = now.at - self.began
            self._latest = now
            self.samples += 1
            self._free.append((now.at, now.free()))
            self.most_active = max(self.most_active, now.active())
            for move in now.migrations.values():
                self._enter(move.uuid, (move.status, _MOVE), now.at)
            for uuid in now.build_requests:
                self._first.setdefault(uuid, now.at)
            self._allocated = {
                consumer: self._allocated.get(consumer, now.at) for consumer in now.allocated
            }
            for server in now.servers.values():
                self._first.setdefault(server.uuid, now.at)
                if server.host:
                    self._there.setdefault((server.uuid, server.host), now.at)
                self._enter(server.uuid, (server.vm_state, server.task_state), now.at)
                if server.vm_state in ("active", "error"):
                    self._settled.setdefault(server.name, (now.at, server.vm_state))
            for uuid in now.build_requests - set(now.servers):
                self._enter(uuid, ("requested", None), now.at)

    def _enter(self, uuid: str, state: tuple[str | None, str | None], at: float) -> None:
        if self._states.get(uuid, (None, 0.0))[0] != state:
            self._states[uuid] = (state, at)

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            try:
                self.look(self._take())
            except _AWAY:
                continue  # told as blind_seconds
            except Exception as error:  # told with the round's findings, which then fail it
                self.failures.append(f"{type(error).__name__}: {error}")
                return
