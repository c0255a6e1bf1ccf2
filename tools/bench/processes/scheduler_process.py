# SPDX-License-Identifier: Apache-2.0
"""A scheduler worker that calls its own manager's select_destinations, and times the calls."""

import collections
import contextlib
import functools
import gc
import resource
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from tools.bench.clouds import workload
from tools.bench.processes import load as load_module
from tools.bench.processes import nova_process, serving

_BINARY = "nova-scheduler"
_READY_SECONDS = 6 * 3600.0
_POLL_SECONDS = 0.2
#: How long a plugin that is proved may take until it asks Placement for no more candidates.
_MIRROR_SECONDS = 600.0
#: Pause between two tries, in times of the last one's length: a try that asks is dear.
_PAUSES = 5
_MOST_PAUSE_SECONDS = 60.0


class Scheduler:
    """What the parent can ask of this process."""

    def __init__(self, config_file: str) -> None:
        self._conf = nova_process.configure(_BINARY, config_file)
        from nova import service

        self._is_plugin = "nova_nodb" in service.SERVICE_MANAGERS[_BINARY]
        self._manager: Any = None
        self._status: Any = None
        self._asks_for_candidates = True
        from tools.bench.clouds import nova_requests

        self._requests = nova_requests.NovaRequests()
        self._candidates = _count_candidate_calls()

    # -- becoming ready ------------------------------------------------------

    def begin(self, mirror_seconds: float = _MIRROR_SECONDS) -> dict[str, Any]:
        """Make the manager and wait until it decides as it does from then on.

        For stock, as if all computes had told it of their instances (of none, in its favour):
        hours after its start. For the plugin, until a request is decided without a fallback, and
        for at most ``mirror_seconds`` more without asking for candidates.
        """
        gc.collect()
        memory_before = serving.resident_mb()
        started, cpu_started = time.perf_counter(), time.process_time()
        if not self._is_plugin:
            _without_instances(self._conf)
        self._manager = nova_process.make_manager(_BINARY, self._conf)
        made: list[str] = []
        ready, cpu_ready = time.perf_counter(), time.process_time()
        if self._is_plugin:
            self._wait_proved()
            ready, cpu_ready = self._decide_from_memory(made, mirror_seconds)
        gc.collect()
        return {
            "ready_seconds": ready - started,
            "ready_cpu_seconds": cpu_ready - cpu_started,
            "asks_for_candidates": self._asks_for_candidates,
            "memory_mb_before": memory_before,
            "memory_mb_ready": serving.resident_mb(),
            "consumers": made,
        }

    def _wait_proved(self) -> None:
        from nova import context

        from nova_nodb_scheduler.nova_adapter import assembly, rpc_server

        self._status = rpc_server.make_client(assembly.get(), 60.0)
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            status = self._status.get_status(context.get_admin_context())
            unproved = {each.scope: each.reason for each in status.scopes if not each.proved}
            if not unproved:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not proved: {unproved}")
            time.sleep(_POLL_SECONDS)

    def _decide_from_memory(self, made: list[str], mirror_seconds: float) -> tuple[float, float]:
        """Decide until nothing falls back, and if possible, no candidates are asked for.

        Returns the clocks (wall, process) after the first such decision.
        """
        requests = workload.stream(0)
        began = time.perf_counter()
        without_fallback: tuple[float, float] | None = None
        while True:
            fallbacks, asked = self.fallbacks(), self._candidates["asked"]
            tried = time.perf_counter()
            made += self.decide(next(requests), 1).consumers
            clocks = time.perf_counter(), time.process_time()
            if self.fallbacks() == fallbacks:
                if self._candidates["asked"] == asked:
                    self._asks_for_candidates = False
                    return clocks
                without_fallback = without_fallback or clocks
            if without_fallback and clocks[0] > began + mirror_seconds:
                return without_fallback
            if clocks[0] > began + _READY_SECONDS:
                raise TimeoutError(f"still falling back: {self.fallbacks()}")
            pause = _PAUSES * (clocks[0] - tried)
            time.sleep(min(_MOST_PAUSE_SECONDS, max(_POLL_SECONDS, pause)))

    def fallbacks(self) -> dict[str, int]:
        """Return the plugin's own count of requests that left memory, by reason."""
        if self._status is None:
            return {}
        from nova import context

        return dict(self._status.get_status(context.get_admin_context()).fallbacks)

    # -- requests ---------------------------------------------------------------

    def run(
        self,
        requests: int,
        seconds: float,
        seed: int,
        threads: int = 1,
        instances: int = 1,
        rate: float = 0.0,
        repeated: bool = False,
    ) -> dict[str, Any]:
        """Make requests, one after the other in each thread, or at a stated rate.

        :param requests: most requests
        :param seconds: no request begins later; at least one is made
        :param rate: requests a second, 0 for as fast as answers come; latency then counts from
            when a request was due
        :param repeated: only flavors that come again and again
        """
        stream = workload.stream(seed)
        if repeated:
            stream = (each for each in stream if each.zone is None and each.flavor.name != "rare")
        fallbacks, asked = self.fallbacks(), self._candidates["asked"]
        load = load_module.Load(self.decide, stream, requests, seconds, instances, rate)
        cpu = time.process_time()
        load.run(threads)
        cpu = time.process_time() - cpu
        after = self.fallbacks()
        return {
            "latencies": load.latencies,
            "wall_seconds": load.wall_seconds,
            "scheduler_cpu_seconds": cpu,
            "decided": load.decided,
            "errors": dict(load.errors),
            "candidates_asked": self._candidates["asked"] - asked,
            "may_ask": self._asks_for_candidates,
            "hosts": len(load.hosts),
            "consumers": load.consumers,
            "fallbacks": {
                reason: count - fallbacks.get(reason, 0)
                for reason, count in after.items()
                if count > fallbacks.get(reason, 0)
            },
        }

    def decide(self, request: workload.Request, instances: int) -> load_module.Answer:
        """Have the manager choose; errors are part of the answer."""
        uuids = [str(uuid.uuid4()) for _ in range(instances)]
        context, spec = self._requests.make(request, uuids)
        try:
            chosen = self._manager.select_destinations(
                context,
                spec_obj=spec,
                instance_uuids=uuids,
                return_objects=True,
                return_alternates=True,
            )
        except Exception as error:  # noqa: BLE001 - counted by kind, which fails the run
            # An expected exception comes wrapped for the RPC server.
            inner = getattr(error, "exc_info", (None, error))[1]
            text = type(inner).__name__
            if text != "NoValidHost":
                text += f": {str(inner)[:200]}"
            return load_module.Answer(uuids, [], text)
        return load_module.Answer(uuids, [each[0].nodename for each in chosen], None)

    def wait_unclaimed(self, seconds: float) -> int:
        """Wait until no claim is left of servers that were deleted; returns how many are.

        They are asked for as before a refusal: reports of their hosts, which end them within
        seconds elsewhere, do not come here, and the next regular question is minutes away.
        """
        if not self._is_plugin:
            return 0
        from nova_nodb_scheduler.synchronizer.settlement import claim_proof

        duty = self._manager.nodb.decisions.claim_duty

        def left() -> int:
            with contextlib.suppress(claim_proof.ClaimsUnproved):
                duty.proof.prove()
            figures = duty.figures()
            return int(figures["pending"] + figures["confirmed"])

        return _wait_for_none(left, seconds)

    def wait_reported(self, seconds: float) -> int:
        """Wait until a sweep made good all heartbeats that no reporter saw; returns how many are
        left.

        Those of stock's turn on the same data: its conductor reports nothing.
        """
        from nova_nodb_scheduler.nova_adapter.reporting import state_proof

        store = self._manager.nodb.store
        return _wait_for_none(
            lambda: sum(state_proof.unreported_by_cell(store.snapshot()).values()), seconds
        )

    def rest(self, seconds: float) -> None:
        """Do nothing for a while; what runs beside requests goes on."""
        time.sleep(seconds)

    def state(self) -> dict[str, Any]:
        """Return memory now and at its peak, in MiB."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {
            "memory_mb": serving.resident_mb(),
            "memory_mb_peak": peak,
            "own_memory_mb": serving.own_mb(),
            "is_plugin": self._is_plugin,
        }

    def stop(self) -> None:
        """End what the manager started."""
        if self._manager is not None:
            self._manager.cleanup_host()


def _count_candidate_calls() -> collections.Counter[str]:
    """Count this process's calls for allocation candidates from now on, under "asked"."""
    from nova.scheduler.client import report

    counted: collections.Counter[str] = collections.Counter()
    own = report.SchedulerReportClient.get_allocation_candidates

    @functools.wraps(own)
    def counting(*args: Any, **kwargs: Any) -> Any:
        counted["asked"] += 1
        return own(*args, **kwargs)

    report.SchedulerReportClient.get_allocation_candidates = counting
    return counted


def _wait_for_none(count: Callable[[], int], seconds: float) -> int:
    """Wait until nothing is counted any more; returns how many are left."""
    deadline = time.monotonic() + seconds
    while True:
        left = count()
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_SECONDS)


def _without_instances(conf: Any) -> None:
    """Let stock Nova trust an empty list of instances of each host from the start."""
    from nova.scheduler import host_manager

    class Trusted(dict[str, Any]):
        def get(self, host: str, default: Any = None) -> Any:
            return self.setdefault(host, {"instances": {}, "updated": True})

    def init(self: Any, computes_by_cell: Any = None) -> None:
        self._instance_info = Trusted()

    host_manager.HostManager._init_instance_info = init


def main() -> None:
    """Serve the parent: scheduler_process CONFIG_FILE."""
    scheduler = Scheduler(sys.argv[1])
    names = (
        "begin",
        "run",
        "wait_unclaimed",
        "wait_reported",
        "rest",
        "state",
        "fallbacks",
        "stop",
    )
    serving.serve({"ready": lambda: True, **{name: getattr(scheduler, name) for name in names}})


if __name__ == "__main__":
    main()
