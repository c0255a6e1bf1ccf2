# SPDX-License-Identifier: Apache-2.0
"""Stands for nova-conductor with all its computes: writes heartbeats and reports at a steady rate.

The writes go through Nova's objects, as the conductor does them for a nova-compute; with the
plugin's lines in nova.conf its reporter and sweeps run here.
"""

import concurrent.futures
import itertools
import sys
import threading
import time
from typing import Any

from tools.bench.clouds import cluster as cluster_module
from tools.bench.processes import nova_process, serving

_BINARY = "nova-conductor"
#: So many hosts, evenly spread, write in turns: their objects are kept, as computes keep theirs.
_MOST_WRITERS = 2000
_MOST_BEHIND_SECONDS = 1.0
_DELETED_AT_A_TIME = 4


class Computes:
    """The writes of some hosts that are up, in one thread."""

    def __init__(self, context: Any, cluster: cluster_module.Cluster) -> None:
        self._context = context
        names = [host.name for host in cluster.hosts() if not host.is_down]
        self._names = names[:: max(1, len(names) // _MOST_WRITERS)]
        self._services: dict[str, Any] = {}
        self._nodes: dict[str, Any] = {}
        self._claimed: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.heartbeats = self.reports = 0
        self.behind_seconds = 0.0

    def start(self, heartbeats_per_second: float, reports_per_second: float) -> None:
        """Begin to write at these rates."""
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._run, args=(heartbeats_per_second, reports_per_second), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End, and leave each compute node's usage as it was. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for name in sorted(self._claimed):
            self._report(name)

    def _run(self, heartbeats_per_second: float, reports_per_second: float) -> None:
        turns = []
        for rate, write in (
            (heartbeats_per_second, self._heartbeat),
            (reports_per_second, self._report),
        ):
            if rate > 0:
                turns.append([time.monotonic(), 1 / rate, write, itertools.cycle(self._names)])
        while turns and not self._stop.is_set():
            turn = min(turns, key=lambda each: each[0])
            pause = turn[0] - time.monotonic()
            if pause > 0 and self._stop.wait(pause):
                return
            self.behind_seconds = max(self.behind_seconds, -pause)
            turn[2](next(turn[3]))
            # What a busy machine did not let happen is left out: no bursts afterwards.
            turn[0] = max(turn[0] + turn[1], time.monotonic() - _MOST_BEHIND_SECONDS)

    def _heartbeat(self, name: str) -> None:
        from nova import objects

        service = self._services.get(name)
        if service is None:
            service = objects.Service.get_by_compute_host(self._context, name)
            self._services[name] = service
        service.report_count += 1
        service.save()
        self.heartbeats += 1

    def _report(self, name: str) -> None:
        """Save a node as after a claim of the resource tracker; the next time, after its end."""
        from nova import objects

        node = self._nodes.get(name)
        if node is None:
            node = objects.ComputeNode.get_by_host_and_nodename(self._context, name, name)
            self._nodes[name] = node
        more = -1 if name in self._claimed else 1
        node.vcpus_used += more
        node.memory_mb_used += 512 * more
        node.free_ram_mb -= 512 * more
        node.local_gb_used += more
        node.free_disk_gb -= more
        node.disk_available_least -= more
        node.running_vms += more
        running = int(node.stats["num_instances"]) + more
        node.stats = {**node.stats, "num_instances": str(running)}
        node.save()
        self._claimed ^= {name}
        self.reports += 1


class Conductor:
    """What the parent can ask of this process."""

    def __init__(self, config_file: str, hosts: int) -> None:
        conf = nova_process.configure(_BINARY, config_file)
        self._manager = nova_process.make_manager(_BINARY, conf)
        self._context = nova_process.cell1_context()
        self._computes = Computes(self._context, cluster_module.Cluster(hosts))

    def write(self, heartbeats_per_second: float, reports_per_second: float) -> None:
        """Begin the computes' writes."""
        self._computes.start(heartbeats_per_second, reports_per_second)

    def written(self) -> dict[str, float]:
        """Return what was written until when, and the longest delay of a write in seconds."""
        return {
            "at": time.monotonic(),
            "heartbeats": self._computes.heartbeats,
            "reports": self._computes.reports,
            "behind_seconds": self._computes.behind_seconds,
        }

    def delete_allocations(self, consumers: list[str]) -> int:
        """End servers' allocations as Nova's report client does; returns how many there were."""
        from nova.scheduler.client import report

        client = report.report_client_singleton()

        def delete(consumer: str) -> bool:
            return bool(client.delete_allocation_for_instance(self._context, consumer))

        with concurrent.futures.ThreadPoolExecutor(_DELETED_AT_A_TIME) as pool:
            return sum(pool.map(delete, consumers))

    def quiet(self) -> None:
        """End the computes' writes, usage as it was."""
        self._computes.stop()

    def stop(self) -> None:
        """End the writes and what the manager started."""
        self._computes.stop()
        self._manager.cleanup_host()


def main() -> None:
    """Serve the parent: conductor_process CONFIG_FILE HOSTS."""
    config_file, hosts = sys.argv[1:]
    conductor = Conductor(config_file, int(hosts))
    names = ("write", "written", "delete_allocations", "quiet", "stop")
    serving.serve({"ready": lambda: True, **{name: getattr(conductor, name) for name in names}})


if __name__ == "__main__":
    main()
