# SPDX-License-Identifier: Apache-2.0
"""Some schedulers, the reporter of their hosts, the ledger, and what is looked at after a fault."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import declarations
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.wire import codec
from tests.engine_faults import child, engines, processes, scheduler, truth, witnesses

POLICIES = {"apart": truth.ANTI_AFFINITY, "together": truth.AFFINITY}

START_SECONDS = 60.0
#: Time for the last lease to end, and for everything to be settled.
SETTLE_SECONDS = 25.0


class Broken(AssertionError):
    """Something that must not be."""


class World:
    """One back end with its schedulers; one thread beside its own.

    :param site: how the back end is reached
    :param pause_seconds: most time between two operations of a scheduler
    :param claims: False: schedulers take none, to see that the ledger notices
    """

    def __init__(
        self,
        site: engines.Site,
        schedulers: int = 3,
        *,
        seed: int = 1,
        pause_seconds: float = 0.03,
        claims: bool = True,
    ) -> None:
        self.site = site
        self._count = schedulers
        self._seed = seed
        self._pause_seconds = pause_seconds
        self._claims = claims
        self.ledger = truth.Ledger(dict.fromkeys(truth.MADE, truth.VCPUS), POLICIES)
        self.clerk = processes.Clerk(self.ledger)
        self._lives = itertools.count()
        self.schedulers: list[processes.Process] = []
        self.client: contract.Synchronizer = site.direct.make()
        self._laggards = [
            witnesses.Laggard(
                "the reader that is late", site.direct.make(), 0.75 * scheduler.KEEP_SECONDS
            ),
            witnesses.Laggard("the reader that sleeps through the trial", site.direct.make(), None),
        ]
        self._reporter = truth.Reporter(self.client, self.clerk.rows)
        self._swept_epoch = ""
        self._reporting = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="reporter", daemon=True)
        self._declared: dict[str, namespaces_model.Namespace] = {
            each.name: each for each in declarations.load_namespaces()
        }

    # -- life -----------------------------------------------------------------------

    def start(self) -> None:
        """Publish the hosts and start the schedulers."""
        self._open()
        self._reporting.set()
        self._thread.start()
        for place in range(self._count):
            self.schedulers.append(self._begin(place))
        self.wait_ready(START_SECONDS)

    def _open(self) -> None:
        """Open and sweep; a busy machine may not answer in time at first."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client.open()
                self._sweep_new_epoch()
                for each in self._laggards:
                    each.start()
                return
            except errors.BackendUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def stop(self) -> None:
        """End everything."""
        self._ended.set()
        for each in self.schedulers:
            each.end()
        if self._thread.ident is not None:
            self._thread.join(10.0)
        for each in self._laggards:
            each.stop()
        self.client.close()

    def _begin(self, place: int) -> processes.Process:
        return processes.Process(
            child.Options(
                f"s{place}-{next(self._lives)}",
                self.site.backend_of(place),
                POLICIES,
                self._seed,
                self._pause_seconds,
                truth.HOSTS * truth.VCPUS // self._count,
                self._claims,
            ),
            self.clerk.answer,
        )

    def replace(self, dead: processes.Process) -> None:
        """Start another scheduler in the place of a dead one, and bury what that left."""
        place = self.schedulers.index(dead)
        dead.end()
        self.ledger.bury(dead.identity)
        self.schedulers[place] = self._begin(place)

    def wait_ready(self, timeout_seconds: float) -> None:
        """Wait until every scheduler follows the feed."""
        for each in self.schedulers:
            wait(
                lambda each=each: self._status(each).get("state") == "following",
                timeout_seconds,
                f"{each.identity} does not come to follow: {self._status(each)}",
            )

    # -- the reporter -----------------------------------------------------------------

    def _report(self) -> None:
        turn = 0
        while not self._ended.wait(0.2):
            if not self._reporting.is_set():
                continue
            turn += 1
            with contextlib.suppress(errors.NodbError):
                self._sweep_new_epoch()
                for host in truth.MADE:
                    self._reporter.publish(truth.host_keys(host))
                if turn % 5 == 0:
                    self._reporter.publish(map(truth.instance_key, self.ledger.standing()))

    def _sweep_new_epoch(self) -> None:
        """Publish everything in an epoch that lacks it, and then say so.

        :raises BackendUnavailable: it is to be done again
        """
        epoch = self.client.head().epoch
        if epoch == self._swept_epoch:
            return
        self.sweep()
        key = records.RecordKey(known_namespaces.CELLS.name, scheduler.SWEPT)
        standing = self.client.read([key]).get(key)
        live = standing is not None and not standing.deleted
        payload = codec.encode({"epoch": epoch}, known_namespaces.CELLS.schema, record=str(key))
        revision = standing.revision if standing is not None and live else 0
        [result] = self.client.write([records.Write(key, revision, payload)])
        if result.won and self.client.head().epoch == epoch:
            self._swept_epoch = epoch

    def sweep(self) -> None:
        """Make every record equal to the ledger, as a reporter's sweep does.

        :raises BackendUnavailable: nothing is known then
        """
        known = {key for key in self.records() if key[0] == known_namespaces.INSTANCES.name}
        consumers = {key.partition("@")[0] for _, key in known} | self.ledger.standing().keys()
        self._reporter.publish(map(truth.instance_key, sorted(consumers)))
        for host in truth.MADE:
            self._reporter.publish(truth.host_keys(host))

    def records(self) -> dict[tuple[str, str], bytes]:
        """Return what the back end holds.

        :raises BackendUnavailable: it does not answer
        """
        while True:
            with contextlib.suppress(contract.SnapshotInterrupted):
                return {
                    (each.key.namespace, each.key.key): each.payload
                    for page in self.client.snapshot().pages
                    for each in page
                    if each.key.namespace in self._declared
                }

    def delete_orphans(self) -> None:
        """Delete the servers of schedulers that are gone, as their users do some day."""
        living = {each.identity for each in self.schedulers}
        for consumer in self.ledger.standing():
            if consumer.partition("/")[0] not in living:
                self.ledger.delete(consumer)

    @contextlib.contextmanager
    def without_reporter(self) -> Iterator[None]:
        """Publish nothing meanwhile."""
        self._reporting.clear()
        time.sleep(0.4)
        try:
            yield
        finally:
            self._reporting.set()

    # -- commanding ---------------------------------------------------------------------

    def work(self) -> None:
        """Have all schedulers place, delete and publish."""
        for each in self.schedulers:
            each.ask("work")

    def rest(self, timeout_seconds: float = 30.0) -> None:
        """Have all schedulers come to an end with what they do."""
        for each in self.schedulers:
            each.ask("rest")
        for each in self.schedulers:
            wait(
                lambda each=each: each.ask("is_resting"),
                timeout_seconds,
                f"{each.identity} does not come to rest",
            )

    def _status(self, each: processes.Process) -> dict[str, Any]:
        try:
            return dict(each.ask("status"))
        except processes.NoAnswer:
            return {}

    def statuses(self) -> list[dict[str, Any]]:
        """Return what the schedulers that answer say of themselves."""
        return [found for found in map(self._status, self.schedulers) if found]

    def grants(self) -> int:
        return len(self.clerk.granted_at)

    def wait_grants(self, more: int, timeout_seconds: float) -> bool:
        """Wait for so many more grants; False after the time-out."""
        wanted = self.grants() + more
        deadline = time.monotonic() + timeout_seconds
        while self.grants() < wanted:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    # -- what must be --------------------------------------------------------------------

    def recover(self, bound_seconds: float, besides: processes.Process | None = None) -> float:
        """Wait until all schedulers follow a proved feed and have decided since; return when.

        :param besides: one that was started meanwhile
        :raises Broken: not within the bound
        """
        began = time.monotonic()
        waiting = {each.identity: each for each in self.schedulers if each is not besides}
        last: dict[str, Any] = {}
        while waiting:
            for identity, each in list(waiting.items()):
                status = self._status(each)
                last[identity] = status
                if (
                    status
                    and status["state"] == "following"
                    and status["alive"]
                    and status["decided_at"] > began
                ):
                    del waiting[identity]
            if time.monotonic() - began > bound_seconds:
                told = {name: last[name] for name in waiting}
                raise Broken(f"not recovered within {bound_seconds:g} s: {told}")
            time.sleep(0.05)
        return time.monotonic() - began

    def check(self) -> float:
        """Let everything come to quiet, and see what is left; return how long it took.

        :raises Broken: more was granted than there is, a replica differs, or
            something leaked
        """
        began = time.monotonic()
        self.rest()
        self._reporting.clear()
        self.check_ledger()
        for each in self.schedulers:
            self.ledger.bury(each.identity)
        left = ""
        while True:
            try:
                self._sweep_new_epoch()
                self.sweep()
                left = self.difference()
            except errors.BackendUnavailable as error:
                left = str(error)
            if not left:
                break
            if time.monotonic() - began > SETTLE_SECONDS:
                raise Broken(f"after {SETTLE_SECONDS:g} s of quiet {left}")
            time.sleep(0.2)
        self._reporting.set()
        for status in self.statuses():
            if status["failure"]:
                raise Broken(status["failure"])
        self.check_sweeps()
        return time.monotonic() - began

    def check_sweeps(self) -> None:
        """See that no scheduler's sweep had to repair what its feed owed it.

        :raises Broken: one had to, though all is well by now
        """
        swept = {each.identity: self._status(each).get("swept") for each in self.schedulers}
        found = {identity: counts for identity, counts in swept.items() if counts}
        if found:
            raise Broken(f"sweeps repaired what the feed did not bring: {found}")

    def check_ledger(self) -> None:
        """See that nothing was granted that was not there.

        :raises Broken: it was
        """
        if self.ledger.broken:
            raise Broken("; ".join(self.ledger.broken[:5]))

    def difference(self) -> str:
        """Say what a replica lacks, or what leaked; empty if all is well."""
        return self.difference_to(self.records())

    def difference_to(self, held: dict[tuple[str, str], bytes]) -> str:
        """Say how replicas differ from what the back end is said to hold, or what leaked in it."""
        leaked = self._leaked(held)
        if leaked:
            return leaked
        epoch = self.client.head().epoch
        lost = self.clerk.marks.lost(epoch, held.keys())
        if lost and self.client.head().epoch == epoch:
            return f"acknowledged records of epoch {epoch} are gone: {lost[:5]} of {len(lost)}"
        unanswered = self.ledger.unanswered()
        if unanswered:
            return f"allocations of servers that nobody was granted: {unanswered[:5]}"
        expected = {
            key: child.digest(payload) for key, payload in held.items() if key[0] not in child.BEATS
        }
        for each in self.schedulers:
            found = each.ask("digests")
            wrong = sorted(
                key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)
            )
            if wrong:
                return f"{each.identity} differs in {wrong[:5]}: {self._status(each)}"
        return self._lagging(expected)

    def _lagging(self, expected: dict[tuple[str, str], str]) -> str:
        for laggard in self._laggards:
            holds = {
                key: child.digest(payload)
                for key, payload in laggard.held().items()
                if key[0] in self._declared and key[0] not in child.BEATS
            }
            wrong = sorted(
                key for key in expected.keys() | holds.keys() if expected.get(key) != holds.get(key)
            )
            if wrong:
                return f"{laggard.name} ({laggard.resyncs} resyncs) differs in {wrong[:5]}"
        return ""

    def _leaked(self, held: dict[tuple[str, str], bytes]) -> str:
        for (name, key), payload in held.items():
            if name == known_namespaces.CLAIM_RECORDS.name:
                claims = codec.decode_state(payload).get("claims")
                if claims:
                    return f"claims are left on {key}: {claims}"
            elif name == known_namespaces.GROUP_CLAIMS.name:
                members = codec.decode_state(payload).get("members")
                if members:
                    return f"places are left in group {key}: {members}"
        return ""


def wait(condition: Callable[[], object], timeout_seconds: float, what: str) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        with contextlib.suppress(processes.NoAnswer):
            if condition():
                return
        if time.monotonic() > deadline:
            raise Broken(what)
        time.sleep(0.05)
