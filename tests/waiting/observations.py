# SPDX-License-Identifier: Apache-2.0
"""What samples of the databases tell of each server: when it got room, stood, and gave it back."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence

import attrs
import pymysql

from tests.chaos import audit, grants
from tests.chaos import snapshot as snapshot_module

SAMPLE_SECONDS = 0.1


@attrs.define
class Seen:
    """One server. Times are monotonic seconds of the first sample that showed it; None: never.

    :ivar row: number of its first allocation in Placement's table: they are in the order in which
        servers were placed
    :ivar most_hosts: that it held allocations on in one sample
    :ivar freed: when an allocation that it had was gone
    """

    row: int | None = None
    placed: float | None = None
    active: float | None = None
    freed: float | None = None
    failed: float | None = None
    most_hosts: int = 0


class Observations:
    """All servers so far. Takes samples one by one; one thread."""

    def __init__(self, told: grants.Told = tuple) -> None:
        self.servers: dict[str, Seen] = {}
        self._grants = grants.Grants(told)
        self.samples = 0
        self.latest: snapshot_module.Snapshot | None = None
        #: Servers whose deletion was asked for.
        self.leaving: set[str] = set()

    def over_committed(self, kind: str = audit.OVER_COMMIT) -> dict[str, int]:
        """Return the most that hosts held too much, by host and class, in any sample.

        :param kind: ``grants.WITHDRAWN``: what its writer took back, unanswered
        """
        worst: dict[str, int] = {}
        for _at, finding in self._grants.judged():
            if finding.kind == kind:
                worst[finding.subject] = max(worst.get(finding.subject, 0), finding.excess)
        return worst

    def take(self, now: snapshot_module.Snapshot) -> None:
        """Note what a sample shows that none did before."""
        self.samples += 1
        self.latest = now
        self._grants.look(now, self.leaving)
        for (consumer, _host), row in now.rows.items():
            seen = self.servers.setdefault(consumer, Seen())
            seen.most_hosts = max(seen.most_hosts, len(now.allocated[consumer]))
            if seen.row is None:
                seen.row, seen.placed = row, now.at
        for uuid, server in now.servers.items():
            seen = self.servers.setdefault(uuid, Seen())
            if server.vm_state == "active" and seen.active is None:
                seen.active = now.at
            if server.vm_state == "error" and seen.failed is None:
                seen.failed = now.at
        for uuid, seen in self.servers.items():
            if seen.placed is not None and seen.freed is None and uuid not in now.allocated:
                seen.freed = now.at

    def of(self, uuid: str) -> Seen:
        """Return what is known of a server; nothing yet where it was in no sample."""
        return self.servers.get(uuid, Seen())


def out_of_order(observed: Observations, asked: Sequence[str]) -> list[str]:
    """Return those that were placed before one that had been asked for earlier.

    :param asked: uuids of servers that were placed, in the order that they had to be
    """
    late = []
    greatest = 0
    for uuid in asked:
        row = observed.of(uuid).row
        if row is None:
            continue
        if row < greatest:
            late.append(uuid)
        greatest = max(greatest, row)
    return late


def waits_seconds(freed: Iterable[float], reached: Iterable[float]) -> list[float]:
    """Return how long after each room was there it was used: the first by the first.

    :param freed: when rooms came to be there
    :param reached: when servers had got to what is measured
    """
    return [end - begin for begin, end in zip(sorted(freed), sorted(reached), strict=False)]


class Watch:
    """Samples in a thread of its own. A context manager.

    :param take: reads a snapshot; raises while the databases are away
    :param told: what schedulers say that they took back
    :ivar blind_seconds: the longest time without a sample
    """

    def __init__(
        self,
        take: Callable[[], snapshot_module.Snapshot],
        told: grants.Told = tuple,
    ) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="waiting-watch", daemon=True)
        self.observed = Observations(told)
        self.blind_seconds = 0.0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self, question: Callable[[Observations], bool]) -> bool:
        """Answer a question about what was seen so far; any thread."""
        with self._lock:
            return question(self.observed)

    def wait(self, question: Callable[[Observations], bool], seconds: float) -> bool:
        """Wait until a question is answered with yes; False if it is not in that time."""
        deadline = time.monotonic() + seconds
        while not self.look(question):
            if time.monotonic() > deadline:
                return False
            time.sleep(SAMPLE_SECONDS / 2)
        return True

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(SAMPLE_SECONDS):
            try:
                now = self._take()
            except (pymysql.MySQLError, OSError):
                continue
            with self._lock:
                self.blind_seconds = max(self.blind_seconds, now.at - last)
                last = now.at
                self.observed.take(now)
