# SPDX-License-Identifier: Apache-2.0
"""A scheduler that lets requests wait, and a conductor that does no more than its protocol says.

The scheduler, its threads, the records, Placement and the claims are the real ones. The
conductor keeps requests, asks the scheduler and parks them; it writes no servers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import attrs
from nova import exception

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter import assembly, queue_manager
from nova_nodb_scheduler.nova_adapter.waiting import conductor_rpc
from nova_nodb_scheduler.nova_adapter.waiting.waking import pending_plans
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.synchronizer.settlement import settlement_worker
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter.decisions import test_memory_decisions

WAIT_SECONDS = 30.0


@attrs.define
class Placed:
    """A request that found hosts, in the order in which they did."""

    key: str
    hosts: tuple[str, ...]
    attempt: int


class MadeConductor:
    """What a conductor is to the queue, in one thread."""

    def __init__(self, case: QueueCase) -> None:
        self._case = case
        #: By key: what the payload holds.
        self.specs: dict[str, dict[str, Any]] = {}
        self.servers: dict[str, tuple[str, ...]] = {}
        self.told: list[tuple[str, int]] = []
        self.placed: list[Placed] = []
        self.ended: list[tuple[str, pending.Purpose]] = []
        self.refusals: list[tuple[str, str]] = []
        #: Grants that nobody takes.
        self.deaf = False

    def dispatch(self, _api: Any, key: str, attempt: int) -> None:
        """Stands for the cast."""
        self.told.append((key, attempt))

    def ask(
        self, vcpus: int = 1, servers: int = 1, wait_seconds: float = 600.0, **known: Any
    ) -> str:
        """Take a new request, and try it; return its key."""
        uuids = tuple(str(uuid.uuid4()) for _ in range(servers))
        fields = known.pop("spec", {})
        self.specs[uuids[0]] = {"vcpus": vcpus, **fields}
        self.servers[uuids[0]] = uuids
        now = self._case.ledger.now_seconds()
        request = pending.PendingRequest(
            **{
                "key": uuids[0],
                "servers": uuids,
                "project_id": "project",
                "user_id": "user",
                "flavor": f"m{vcpus}",
                "priority_class": "normal",
                "needs": {"VCPU": vcpus, "MEMORY_MB": 512, "DISK_GB": 1},
                "queue": f"{vcpus}",
                "asked_at": now,
                "deadline_at": now + wait_seconds,
                "state": pending.PendingState.SCHEDULING,
                "grant": pending.Grant(1, str(uuid.uuid4()), now + 30.0),
                **known,
            }
        )
        made = self._case.ledger.create(request, "payload")
        assert isinstance(made, pending.PendingRequest), made
        self._try(made)
        return request.key

    def work(self) -> None:
        """Take what was granted, and try it."""
        while self.told and not self.deaf:
            key, attempt = self.told.pop(0)
            taken = self._case.ledger.take(key, attempt, str(uuid.uuid4()))
            if not isinstance(taken, pending.PendingRequest):
                continue
            if taken.grant.purpose is pending.Purpose.PLACE:
                self._try(taken)
            else:
                self.ended.append((key, taken.grant.purpose))
                self._case.ledger.finish(pending_rules.holding_of(taken))

    def _try(self, request: pending.PendingRequest) -> None:
        ledger, holding = self._case.ledger, pending_rules.holding_of(request)
        try:
            hosts = self._case.choose(request, self.specs[request.key])
        except exception.NoValidHost as error:
            self.refusals.append((request.key, str(error)))
            if pending.QUEUE_FULL in str(error):
                ledger.finish(holding)
            else:
                ledger.park(holding, str(error), self._case.PAUSE_SECONDS)
            return
        ledger.begin(holding)
        for server in request.servers:
            ledger.sent(holding, server)
        self.placed.append(Placed(request.key, hosts, request.grant.attempt))
        ledger.finish(holding)


class QueueCase(test_memory_decisions.MemoryDecisionsCase):
    """One scheduler over two hosts of 4 and 2 processors; nothing runs between two steps."""

    OPTIONS: dict[str, Any] = {}
    #: Of a request that found no room.
    PAUSE_SECONDS = 0.0

    def begin(self) -> None:
        """Start the scheduler and wait until it decides from memory."""
        self.override("scheduler_driver", "nodb_queue", None)
        for name, value in {"hold_after_seconds": 3600.0, **self.OPTIONS}.items():
            self.override(name, value, "nodb_queue")
        self.conductor = MadeConductor(self)
        self.patch(conductor_rpc.ConductorApi, "dispatch", self.conductor.dispatch)
        # The hub in memory stands for a back end that nothing is lost on.
        self.patch(assembly.Plugin, "_check_waiting", lambda _plugin: None)
        self.patch(assembly.Plugin, "_payload_reader", lambda _plugin, _ledger: self.read)
        self.ledger = pending_ledger.PendingLedger(self.synchronizer, 5.0)
        self.manager, self.runtime = self.scheduler("scheduler-1")
        self.queue = self.runtime.queue
        # Servers that are deleted here were never shown by instances: ask for them soon.
        self.runtime.decisions.claim_duty.settler.pace(
            settlement_worker.SettlementOptions(
                look_seconds=0.1,
                ask_after_seconds=0.2,
                ask_most_seconds=0.4,
                hasten_seconds=0.1,
                cool_down_seconds=0.05,
            )
        )
        self.settle()
        self.round()

    def scheduler(self, host: str) -> tuple[Any, Any]:
        """Start a scheduler whose queue is worked at step by step."""
        manager = queue_manager.QueueSchedulerManager(host=host)
        runtime = manager.nodb
        runtime._make_server = None
        for part in (runtime.queue.worker, runtime.queue.reconciler):
            part.start = lambda: None
        runtime.queue.worker.is_running = lambda: True
        runtime.start()
        self.addCleanup(runtime.stop)
        return manager, runtime

    def patch(self, owner: Any, name: str, value: Any) -> None:
        """Replace a method, or a value."""
        self.addCleanup(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, _as_method(value) if callable(value) else value)

    def read(self, key: str) -> pending_plans.RestoredRequest | None:
        """Read a payload."""
        fields = self.conductor.specs.get(key)
        if fields is None:
            return None
        servers = self.conductor.servers[key]
        return pending_plans.RestoredRequest(self.admin, self.spec([key], **fields), servers)

    def choose(self, request: pending.PendingRequest, fields: dict[str, Any]) -> tuple[str, ...]:
        """Ask the scheduler, as a conductor does."""
        spec = self.spec(list(request.servers), **fields)
        spec.scheduler_hints = {pending.HINT: pending.hint(request.key, request.grant.attempt)}
        self.beat()
        try:
            chosen = self.manager.select_destinations(
                self.admin,
                spec_obj=spec,
                instance_uuids=list(request.servers),
                return_objects=True,
                return_alternates=True,
            )
        except queue_manager.messaging.ExpectedException as wrapped:
            raise wrapped.exc_info[1] from None
        self.assertNotIn(pending.HINT, spec.scheduler_hints)
        self.beat()
        return tuple(each[0].service_host for each in chosen)

    # -- time goes on ------------------------------------------------------------------

    def follow(self, runtime: Any = None) -> None:
        """Wait until a scheduler has followed all that is written."""
        replicator = (runtime or self.runtime).replicator
        self.assertTrue(replicator.wait_until(self.synchronizer.head().version, WAIT_SECONDS))

    def round(self, runtime: Any = None) -> None:
        """Have a scheduler look once."""
        self.beat()
        self.follow(runtime)
        (runtime or self.runtime).queue.worker.round()

    def turn(self) -> None:
        """Have the scheduler look, and the conductor do what it is told."""
        self.round()
        self.conductor.work()

    def until(self, condition: Callable[[], Any]) -> None:
        """Go on until something is so."""

        def look() -> Any:
            self.turn()
            return condition()

        self.wait(look)

    def wait(self, look: Callable[[], Any]) -> None:
        """Look until something is so."""
        patience.wait_until(look, WAIT_SECONDS, self.waiting, 0.05)

    # -- what there is -----------------------------------------------------------------

    def request(self, key: str) -> pending.PendingRequest | None:
        return self.ledger.read(key)

    def waiting(self) -> list[str]:
        """Keys of those that wait, by the back end."""
        found = []
        for key, state in self.states(known_namespaces.PENDING).items():
            if pending.of_state(key, state).state is pending.PendingState.WAITING:
                found.append(key)
        return found

    def placed(self) -> list[str]:
        """Keys of those that found hosts, in order."""
        return [each.key for each in self.conductor.placed]

    def host_of(self, key: str) -> str:
        """The host of a request's first server."""
        [placed] = [each for each in self.conductor.placed if each.key == key]
        return placed.hosts[0]

    def delete(self, *keys: str) -> None:
        """Delete servers that were placed alone, and have the mirror know it."""
        nodes = []
        for key in keys:
            nodes.append(self.nodes[self.host_of(key)].uuid)
            self.client.delete(f"/allocations/{key}")
        self.runtime.decisions.mirror_keeper.look_at(nodes)

    def forgotten(self, key: str) -> bool:
        """Whether nothing that is followed tells of a server's room any more."""
        self.follow()
        told = (known_namespaces.PROVIDERS, known_namespaces.CLAIM_RECORDS)
        return not any(key in str(state) for each in told for state in self.states(each).values())

    def fill(self, vcpus: int = 6) -> list[str]:
        """Take so many processors, one each."""
        return [self.conductor.ask() for _ in range(vcpus)]

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


def _as_method(function: Callable[..., Any]) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method
