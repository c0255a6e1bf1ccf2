# SPDX-License-Identifier: Apache-2.0
"""A cell of conductor processes goes over to journals and back; they are killed, stopped, cut off.

By real clocks, over Nova's tables and a real back end. Whatever happens, a reader that takes the
cell for proved has heard of each service that its conductors hear.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from nova_nodb_scheduler.nova_adapter.reporting import change_reporter
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.journals import nova_processes
from tests.functional.synchronizer.drivers.sqlalchemy import sql_databases

#: How long anything that is waited for may take, on a machine with much else to do.
_WAIT_SECONDS = 120.0
#: The bound of a beat, and of the time that a service may be silent.
_BOUND, _DOWN = 5.0, 24
_INTERVAL = 0.5
_SERVICES = 4
_JOURNALS = known_namespaces.HEARTBEAT_JOURNALS
_LIVENESS = known_namespaces.SERVICE_LIVENESS


class Beats(threading.Thread):
    """Has services beat through the conductors that answer, one after the other.

    :ivar counts: of each service, what was answered last
    :ivar began_at: when each service was answered first behind a pause, for its conductors had
        other things to do or this machine had; of the monotonic clock
    :ivar heard_at: when it was answered last
    """

    def __init__(self, services: list[str]) -> None:
        super().__init__(name="beats", daemon=True)
        self._services = services
        self._over = threading.Event()
        self.lock = threading.Lock()
        self.conductors: list[nova_processes.NovaProcess] = []
        self.counts = dict.fromkeys(services, 0)
        self.began_at: dict[str, float] = {}
        self.heard_at: dict[str, float] = {}
        self.failed: list[BaseException] = []

    def run(self) -> None:
        turns = itertools.count()
        try:
            while not self._over.wait(_INTERVAL / len(self._services)):
                turn = next(turns)
                service = self._services[turn % len(self._services)]
                with self.lock:
                    if not self.conductors:
                        continue
                    # A service goes through all of them.
                    at = (turn + turn // len(self._services)) % len(self.conductors)
                    self.counts[service] = self.conductors[at].ask("beat", service)
                    now = time.monotonic()
                    if now - self.heard_at.get(service, float("-inf")) > _BOUND:
                        self.began_at[service] = now
                    self.heard_at[service] = now
        except BaseException as error:
            self.failed.append(error)

    def stop(self) -> None:
        self._over.set()
        self.join()

    def ask(self, conductor: nova_processes.NovaProcess, *call: Any) -> Any:
        with self.lock:
            return conductor.ask(*call)


class ProcessCase(cloud.CloudCase):
    """A cell's database and a back end, both files of SQLite."""

    BACK_END = "sqlalchemy"

    def setUp(self) -> None:
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.back_end = self.directory / "nodb.sqlite"
        shutil.copy(sql_databases._migrated_file(), self.back_end)
        loader.load_class("sqlalchemy").register_opts(cloud.CONF)
        cloud.CONF.set_override("connection", f"sqlite:///{self.back_end}", group="nodb_sqlalchemy")
        self.addCleanup(cloud.CONF.clear_override, "connection", group="nodb_sqlalchemy")
        super().setUp()
        self.addCleanup(self.synchronizer.close)
        change_reporter.install(None, None)
        self.services = [
            self.service(cloud.CELL1, f"h{number}").uuid for number in range(_SERVICES)
        ]
        self.beats = Beats(self.services)
        self.beats.start()
        self.reader = self.begin("reader", wanted=False)
        self.looks = 0

    def begin(self, role: str, *, wanted: bool) -> nova_processes.NovaProcess:
        """Start a process by a nova.conf of its own."""
        path = self.directory / f"{role}-{'on' if wanted else 'off'}.conf"
        path.write_text(
            f"[DEFAULT]\ntransport_url = fake://\nhost = here\nstate_path = {self.directory}\n"
            f"service_down_time = {_DOWN}\nscheduler_driver = nodb_scheduler\n"
            f"[database]\nconnection = {self.urls[cloud.CELL1]}\nsqlite_synchronous = false\n"
            f"[api_database]\nconnection = {self.urls['api']}\nsqlite_synchronous = false\n"
            "[oslo_messaging_notifications]\ndriver = nodb_scheduler\n"
            f"[nodb_sqlalchemy]\nconnection = sqlite:///{self.back_end}\ntimeout_seconds = 2\n"
            "[nodb_scheduler]\nsynchronizer = sqlalchemy\nclaims = off\n"
            "candidates = placement\nverify_allocations = never\n"
            f"heartbeat_journals = {wanted}\nheartbeat_flush_interval_seconds = 0.2\n"
            f"beat_interval_seconds = 0.5\nreporter_bound_seconds = {_BOUND}\n"
            f"feed_bound_seconds = {_BOUND}\nsweep_interval_seconds = 2\nsweep_pause_seconds = 0\n"
        )
        made = nova_processes.NovaProcess(role, path)
        self.addCleanup(made.kill)
        # Before any of them is gone.
        self.addCleanup(self.beats.stop)
        return made

    def conduct(self, *, wanted: bool) -> nova_processes.NovaProcess:
        made = self.begin("conductor", wanted=wanted)
        with self.beats.lock:
            self.beats.conductors.append(made)
        return made

    def leave(self, conductor: nova_processes.NovaProcess, end: Callable[[], object]) -> None:
        """Have nothing go through a conductor any more, and end it."""
        with self.beats.lock:
            self.beats.conductors.remove(conductor)
            end()

    def stop(self, conductor: nova_processes.NovaProcess) -> None:
        """Stop a conductor, but not in a transaction: its locks would be SQLite's only ones."""
        files = (self.back_end, sa.make_url(self.urls[cloud.CELL1]).database)
        with contextlib.ExitStack() as locked:
            for path in files:
                connection = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
                locked.callback(connection.close)
                connection.execute("BEGIN EXCLUSIVE")
            conductor.signal(signal.SIGSTOP)
            patience.wait_until(lambda: conductor.is_stopped, _WAIT_SECONDS, "it is not stopped")

    # -- what holds ------------------------------------------------------------------

    def look(self) -> str | None:
        """Return why the cell is not proved; see that nobody who lives is taken for dead."""
        now = time.monotonic()
        heard = {key for key, at in list(self.beats.heard_at.items()) if now - at < _BOUND}
        found = self.reader.ask("look", cloud.CELL1, self.services)
        self.assertEqual([], self.beats.failed)
        missing: str | None = found["missing"]
        if missing is None:
            self.looks += 1
            for key in heard:
                # One that was silent until now may wait for its first flush.
                silent = now - self.beats.began_at[key]
                age = min(found["ages"][key] or silent, silent)
                self.assertLess(age, _DOWN, f"a living service looks dead, {self.looks} looks")
        return missing

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait, and look all the while."""

        def is_so() -> bool:
            self.look()
            return bool(holds())

        patience.wait_until(is_so, _WAIT_SECONDS, what, 0.1)

    def until_proved(self, *conductors: nova_processes.NovaProcess, journaling: bool) -> None:
        """Wait until these conductors alone live, all journal or none, and the cell is proved."""

        def holds() -> bool:
            reporters = self.states(known_namespaces.REPORTERS).values()
            beats = [each for each in reporters if each["guards"]]
            return (
                [each.get("journals", False) for each in beats] == [journaling] * len(conductors)
                and all(
                    self.beats.ask(each, "journal")["is_on"] is journaling for each in conductors
                )
                and self.look() is None
            )

        self.until(holds, f"proved, and journals: {journaling}")

    def counts(self) -> dict[str, set[int]]:
        """Return all counts of each service that stand in journals."""
        found: dict[int, set[int]] = {}
        for key, state in self.states(_JOURNALS).items():
            slot = heartbeat_journals.read(key, state)
            for number, count in zip(slot.ids.tolist(), slot.counts.tolist(), strict=True):
                found.setdefault(number, set()).add(count)
        ids = {each: heartbeat_journals.service_id(each) for each in self.services}
        return {key: found[number] for key, number in ids.items() if number in found}

    def journaled(self) -> dict[str, int]:
        return {key: max(counts) for key, counts in self.counts().items()}

    def recorded(self) -> dict[str, int]:
        return {key: state["report_count"] for key, state in self.states(_LIVENESS).items()}

    def until_told(self, told: Callable[[], dict[str, int]], what: str) -> None:
        """Wait until all that was answered by now is told."""
        with self.beats.lock:
            answered = dict(self.beats.counts)
        self.until(
            lambda: all(count <= told().get(key, -1) for key, count in answered.items()), what
        )


class ProcessesTest(ProcessCase):
    def test_over_and_back_though_one_is_killed_and_one_is_stopped(self) -> None:
        other = self.conduct(wanted=False)
        self.until_proved(other, journaling=False)
        first = self.conduct(wanted=True)
        self.until_proved(first, other, journaling=False)
        self.until_told(self.recorded, "records are kept up")
        self.assertEqual({}, self.states(_JOURNALS))
        # The other one is configured for it, too.
        self.leave(other, lambda: other.ask("end"))
        second = self.conduct(wanted=True)
        self.until_proved(first, second, journaling=True)
        self.until_told(self.journaled, "journals are written")
        self.leave(first, lambda: first.signal(signal.SIGKILL))
        self.until_proved(second, journaling=True)
        # Who begins joins it at once.
        third = self.conduct(wanted=True)
        self.until_proved(second, third, journaling=True)
        self.leave(second, lambda: self.stop(second))
        self.until_proved(third, journaling=True)
        second.signal(signal.SIGCONT)
        with self.beats.lock:
            self.beats.conductors.append(second)
        self.until_proved(second, third, journaling=True)
        self.until_told(self.journaled, "journals are written by who was stopped, too")
        # The option is taken away from one of them.
        self.leave(third, lambda: third.ask("end"))
        last = self.conduct(wanted=False)
        self.until_proved(second, last, journaling=False)
        self.until_told(self.recorded, "records are kept up again")

    def test_a_back_end_that_is_away_loses_nothing(self) -> None:
        conductors = [self.conduct(wanted=True) for _ in range(2)]
        self.until_proved(*conductors, journaling=True)
        with self.beats.lock:
            began = dict(self.beats.counts)
        self.until_told(self.journaled, "journals are written")
        with sqlite3.connect(self.back_end, timeout=_WAIT_SECONDS, isolation_level=None) as locked:
            # Nobody writes, and who reads goes on.
            locked.execute("BEGIN IMMEDIATE")
            self.until(self.look, "the cell is not proved any more")
            self.until(
                lambda: all(
                    self.beats.ask(each, "journal")["waiting"] >= 2 * _SERVICES
                    for each in conductors
                ),
                "heartbeats wait for the back end",
            )
            locked.execute("ROLLBACK")
        self.until_proved(*conductors, journaling=True)
        with self.beats.lock:
            answered = dict(self.beats.counts)

        def lacks() -> dict[str, set[int]]:
            counts = self.counts()
            return {
                key: missing
                for key in self.services
                if (missing := set(range(began[key] + 1, answered[key] + 1)) - counts[key])
            }

        # Not one is missing since both journal; each conductor tells its own when it can.
        self.until(lambda: not lacks(), "what waited is written")
        for each in conductors:
            figures = self.beats.ask(each, "journal")
            self.assertEqual((0, 0), (figures["dropped"], figures["given_up"]))
