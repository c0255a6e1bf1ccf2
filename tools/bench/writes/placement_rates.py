# SPDX-License-Identifier: Apache-2.0
"""How many new servers a second Placement takes alone: its floor, by batch and by calls at once.

usage: python -m tools.bench.writes.placement_rates [--state DIR] [--hosts N] [--servers 1,2,4,8]
    [--calls 1,2,4,8] [--on distinct,same] [--seconds S]

The same POSTs that the plugin sends, from threads that do nothing else, each on a connection of
its own. A call that meets another's is refused (409) and counted apart. The state directory is
the benchmark's; what is written is deleted again.
"""

import argparse
import http.client
import json
import pathlib
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import rich.console
import rich.table

from tools.bench import figures, floor, meters, options
from tools.bench.clouds import cluster as cluster_module
from tools.bench.control_plane import databases, servers

DISTINCT, SAME = "distinct", "same"
_WARM_UP_SECONDS = 8.0


@attrs.define
class Client:
    """One thread's calls, and what came of them."""

    port: int
    batches: Iterator[dict[str, Any]]
    latencies: list[float] = attrs.field(factory=list)
    refused: int = 0
    consumers: list[str] = attrs.field(factory=list)

    def run(self, until: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {**floor.HEADERS, "Content-Type": "application/json"}
        while time.perf_counter() < until:
            body = next(self.batches)
            started = time.perf_counter()
            connection.request("POST", "/allocations", json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 204:
                self.latencies.append(time.perf_counter() - started)
                self.consumers += body
            elif answer.status == 409:
                self.refused += 1
            else:
                raise RuntimeError(f"Placement answered {answer.status}: {text[:300]!r}")
        connection.close()


def _batches(
    hosts: Sequence[cluster_module.Host], size: int, number: int, clients: int, on: str
) -> Iterator[dict[str, Any]]:
    """Yield bodies: of hosts that no other client writes to, or each time of a client's one host.

    With SAME all clients and servers are for one host.
    """
    own = [hosts[0]] if on == SAME else hosts[number::clients]
    place = 0
    while True:
        body = {}
        for _ in range(size):
            body[str(uuid.uuid4())] = floor.allocation(own[place % len(own)])
            place += 1
        yield body


def measure(
    running: servers.Servers, hosts: int, size: int, calls: int, on: str, seconds: float
) -> dict[str, Any]:
    """Write batches of ``size`` servers, ``calls`` at a time; deletes them afterwards."""
    roomy = floor.hosts(min(hosts, 1000), hosts, servers=1000 if on == SAME else 20)
    port = running.settings.port("placement")
    clients = [Client(port, _batches(roomy, size, number, calls, on)) for number in range(calls)]
    meter = meters.Meters(running, {})
    before = meter.read()
    until = time.perf_counter() + seconds
    threads = [threading.Thread(target=each.run, args=(until,)) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    usage = meter.since(before)
    latencies = [each for client in clients for each in client.latencies]
    made = [each for client in clients for each in client.consumers]
    _delete(port, made)
    return {
        "servers_a_call": size,
        "calls_at_once": calls,
        "on": on,
        "servers_a_second": len(made) / usage.wall_seconds,
        "refused_calls": sum(each.refused for each in clients),
        "cpu_ms_a_server": {
            name: used * 1000 / max(1, len(made)) for name, used in usage.cpu_seconds.items()
        },
        **figures.latency(latencies or [0.0]),
    }


def _delete(port: int, consumers: Sequence[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for consumer in consumers:
        connection.request("DELETE", f"/allocations/{consumer}", headers=floor.HEADERS)
        connection.getresponse().read()
    connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.writes.placement_rates", description=__doc__
    )
    parser.add_argument("--state", type=pathlib.Path, default=options.default_state_directory())
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--servers", type=_numbers, default=[1, 2, 4, 8])
    parser.add_argument("--calls", type=_numbers, default=[1, 2, 4, 8])
    parser.add_argument("--on", type=lambda text: text.split(","), default=[DISTINCT, SAME])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--keep", action="store_true", help="leave the servers running")
    given = parser.parse_args()
    running = servers.Servers(given.state.absolute(), pathlib.Path(sys.prefix))
    found = []
    running.start_mariadb()
    try:
        if not databases.is_populated(running.settings, given.hosts):
            raise SystemExit(f"populate {given.hosts} hosts first: tools/bench.sh --populate-only")
        running.start_placement(given.hosts)
        # Its processes read their tables and fill their caches with the first calls.
        measure(running, given.hosts, 1, 4, DISTINCT, _WARM_UP_SECONDS)
        for on in given.on:
            for size in given.servers:
                for calls in given.calls:
                    found.append(measure(running, given.hosts, size, calls, on, given.seconds))
    finally:
        if not given.keep:
            running.stop()
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    _show(found)
    return 0


def _show(found: Sequence[dict[str, Any]]) -> None:
    columns = ("hosts", "servers a call", "calls at once", "servers/s", "p50 ms")
    table = rich.table.Table(*columns, "refused", "placement ms/server", "mariadb ms/server")
    for each in found:
        table.add_row(
            each["on"],
            str(each["servers_a_call"]),
            str(each["calls_at_once"]),
            f"{each['servers_a_second']:.1f}",
            f"{each['p50_seconds'] * 1000:.0f}",
            str(each["refused_calls"]),
            f"{each['cpu_ms_a_server'][meters.PLACEMENT]:.1f}",
            f"{each['cpu_ms_a_server'][meters.MARIADB]:.1f}",
        )
    rich.console.Console(width=100).print(table)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
