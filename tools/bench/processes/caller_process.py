# SPDX-License-Identifier: Apache-2.0
"""Stands for the conductors that ask schedulers over the bus, as Nova's RPC API does it."""

import sys
import uuid
from typing import Any

from tools.bench.clouds import workload
from tools.bench.processes import load as load_module
from tools.bench.processes import nova_process, serving

_ASK_SECONDS = 5.0


class Caller:
    """What the parent can ask of this process."""

    def __init__(self, config_file: str) -> None:
        self._conf = nova_process.configure("nova-conductor", config_file)
        import oslo_messaging
        from nova import context
        from nova.scheduler import rpcapi

        from nova_nodb_scheduler.nova_adapter import assembly, rpc_server
        from tools.bench.clouds import nova_requests

        self._context = context.get_admin_context()
        self._schedulers = rpcapi.SchedulerAPI()
        self._status = rpc_server.make_client(assembly.get(), _ASK_SECONDS)
        self._expected = rpc_server.CALL_ERRORS
        self._timeout = oslo_messaging.MessagingTimeout
        self._requests = nova_requests.NovaRequests()

    def status(self, host: str) -> dict[str, Any]:
        """Return where a scheduler stands; its state is None where it does not answer."""
        try:
            found = self._status.get_status(self._context, server=host)
        except self._expected:
            return {"state": None, "pid": 0, "fallbacks": {}, "outcomes": {}, "waits_for": ""}
        return {
            "state": found.feed.state,
            "pid": found.pid,
            "fallbacks": dict(found.fallbacks),
            "outcomes": dict(found.outcomes),
            "waits_for": found.feed.detail,
        }

    def run(
        self, requests: int, seconds: float, seed: int, threads: int, rate: float
    ) -> dict[str, Any]:
        """Make requests at a stated rate; latency counts from when a request was due."""
        load = load_module.Load(self._decide, workload.stream(seed), requests, seconds, 1, rate)
        load.run(threads)
        return {
            "latencies": load.latencies,
            "wall_seconds": load.wall_seconds,
            "errors": dict(load.errors),
            "decided": load.decided,
            "consumers": load.consumers,
        }

    def _decide(self, request: workload.Request, instances: int) -> load_module.Answer:
        uuids = [str(uuid.uuid4()) for _ in range(instances)]
        context, spec = self._requests.make(request, uuids)
        try:
            chosen = self._schedulers.select_destinations(
                context, spec, uuids, return_objects=True, return_alternates=True
            )
        except self._timeout:
            # Nobody took it, or who took it is gone.
            return load_module.Answer(uuids, [], "MessagingTimeout")
        except Exception as error:  # noqa: BLE001 - counted by kind, which fails the run
            return load_module.Answer(uuids, [], f"{type(error).__name__}: {str(error)[:200]}")
        return load_module.Answer(uuids, [each[0].nodename for each in chosen], None)

    def stop(self) -> None:
        """Nothing was started."""


def main() -> None:
    """Serve the parent: caller_process CONFIG_FILE."""
    caller = Caller(sys.argv[1])
    names = ("status", "run", "stop")
    serving.serve({"ready": lambda: True, **{name: getattr(caller, name) for name in names}})


if __name__ == "__main__":
    main()
