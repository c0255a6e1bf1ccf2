# SPDX-License-Identifier: Apache-2.0
"""After each of Nova's tests, once all is quiet: no claim is left, whatever the test did.

Each test is one way in which servers come, move, fail and go. At its end its
compute services report once more, as they do every minute, and the scheduler
that settles is given some seconds. What is left then fails the test. Not asked for
are claims on hosts whose compute service the test stopped, which a deployment keeps until
that reports again. In a test of ``kept_claims.txt`` a confirmed claim may stay whose
server is on the claim's host, and no other.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Mapping
from typing import Any

import fixtures
from nova import context as nova_context
from nova import objects
from nova import service as nova_service

from nova_nodb_scheduler.model import claims as claims_model
from nova_nodb_scheduler.nova_adapter.reporting import scopes
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.settlement import settlement_worker
from nova_nodb_scheduler.wire import codec
from tests.nova_suite import feed, placements, reporters, selection

#: Within which claims end after the last report.
QUIET_SECONDS = 15.0

#: Within which compute services have reported once. A test may have left one with a lock
#: that nobody gives back: it is not waited for until the whole run's time is over.
REPORT_SECONDS = 60.0

#: As an operator's minutes, for tests that take seconds.
OPTIONS = settlement_worker.SettlementOptions(
    look_seconds=0.2,
    ask_after_seconds=1.0,
    hasten_seconds=0.2,
    grace_seconds=0.0,
    cool_down_seconds=0.0,
    others_seconds=0.0,
)


class ClaimsLeft(AssertionError):
    """Claims that nobody ended."""


class EndingsFixture(fixtures.Fixture):
    """Knows the compute services that run, and looks at the claims when a test ends.

    :param schedulers: runtimes of the schedulers that decided in the test
    """

    def __init__(
        self,
        test: Any,
        plugin_scopes: scopes.Scopes,
        process: reporters.Reporters,
        schedulers: Any,
        waits: feed.FeedWaits,
    ) -> None:
        super().__init__()
        self._scopes = plugin_scopes
        self._waits = waits
        self._test = test
        self._process = process
        self._schedulers = schedulers
        self._computes: list[Any] = []

    def _setUp(self) -> None:
        start, stop = nova_service.Service.start, nova_service.Service.stop

        def started(service: Any) -> Any:
            if service.binary == "nova-compute":
                self._computes.append(service)
            return start(service)

        def stopped(service: Any) -> Any:
            if service in self._computes:
                self._computes.remove(service)
            return stop(service)

        for name, method in (("start", started), ("stop", stopped)):
            self.useFixture(fixtures.MonkeyPatch(f"nova.service.Service.{name}", method))
        tear_down = self._test.tearDown

        def torn_down() -> None:
            tear_down()
            self.check()

        self._test.tearDown = torn_down
        # Before the test begins: it may start a Placement of its own.
        self._placements = self.useFixture(placements.PlacementsFixture())

    def check(self) -> None:
        """Wait for quiet.

        :raises ClaimsLeft: there are claims that end by nothing, or whose compute service
            does not come back from its report
        """
        self._waits.claims["tests looked at"] += 1
        if not any(self._left().values()):
            return
        self._waits.claims["tests that ended with claims"] += 1
        deadline = time.monotonic() + QUIET_SECONDS
        for runtime in self._schedulers():
            ends_claims = runtime.decisions or runtime.upkeep
            if ends_claims is not None:
                ends_claims.claim_duty.settler.pace(OPTIONS)
        with self._placements.running_again():
            while any((left := self._left()).values()) and time.monotonic() < deadline:
                self._report_in_time()
                time.sleep(0.5)
        if any(left.values()):
            raise ClaimsLeft(f"Claims left: {left}")

    def _report_in_time(self) -> None:
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def report() -> None:
            try:
                self._report()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=report, name="nodb-last-report", daemon=True).start()
        concurrent.futures.wait([done], REPORT_SECONDS)
        if not done.done():
            raise ClaimsLeft(
                "A compute service does not come back from its report within "
                f"{REPORT_SECONDS:g} s, and there are claims: {self._left()}"
            )
        done.result()

    def _report(self) -> None:
        """Have the compute services report, and the mirror follow."""
        for service in list(self._computes):
            service.manager.update_available_resource(self._context_of(service.host))
        version = self._process.drain()
        for runtime in self._schedulers():
            if runtime.decisions is not None:
                runtime.decisions.mirror_keeper._sweep_at = float("-inf")
            runtime.replicator.wait_until(version, 5.0)

    def _context_of(self, host: str) -> Any:
        """Return a context as a host's compute service has it: its cell's, and no other."""
        mapping = getattr(self._test, "host_mappings", {}).get(host)
        if mapping is None:
            return nova_context.get_admin_context()
        return self._scopes.context_for(mapping.cell_mapping.uuid)

    def _left(self) -> Mapping[str, Any]:
        """Return what claim records hold, but what is not asked for (see the module)."""
        running = {service.host for service in self._computes}
        hosts: dict[str, str] = {}
        claims: dict[str, Any] = {}
        wanted = (
            known_namespaces.COMPUTE_NODES.name,
            known_namespaces.CLAIM_RECORDS.name,
            known_namespaces.GROUP_CLAIMS.name,
        )
        for page in self._process.synchronizer.snapshot(wanted).pages:
            for record in page:
                state = codec.decode_state(record.payload)
                if record.key.namespace == wanted[0]:
                    hosts[record.key.key] = state["row"]["host"]
                else:
                    claims[record.key.key] = state.get("claims") or state.get("members")
        asked = {
            key: held for key, held in claims.items() if hosts.get(key, key) in {*running, key}
        }
        kept = selection.read(selection.EXPECTED / "kept_claims.txt")
        if not selection.covers(kept, self._test.id()):
            return asked
        return {
            key: self._wrong(hosts[key], held) if held and key in hosts else held
            for key, held in asked.items()
        }

    def _wrong(self, host: str, claims: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a host's claims that stay for no server on it, or were never confirmed."""
        servers = objects.InstanceList.get_by_host(self._context_of(host), host)
        there = {server.uuid for server in servers}
        return {
            consumer: held
            for consumer, held in claims.items()
            if held["state"] != claims_model.ClaimState.CONFIRMED.value or consumer not in there
        }
