# SPDX-License-Identifier: Apache-2.0
"""What it takes that no two calls of a scheduler under way touch the same host, behind the guard.

usage: python -m tools.bench.writes.write_queue [--state DIR] [--hosts N] [--among 1,4,1000]
    [--threads N] [--writes N] [--rounds N] [--unguarded]

The plugin's own writer of allocations in this process, with its defaults (two calls at once, a
window of 30 ms), and threads that each write one small server after the other to hosts drawn at
random among so many, at a Placement of the benchmark. In turns: with the rule (*kept*), and with
one that keeps apart the same servers alone (*loose*). What is written is deleted again.
"""

import argparse
import collections
import pathlib
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import nova.conf
import rich.console
import rich.table
from nova import config as _nova_options  # noqa: F401 - registers them
from nova.scheduler.client import report

from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    allocation_writer,
    placement_replies,
    shared_calls,
)
from tools.bench import figures, floor, meters, options
from tools.bench.clouds import cluster as cluster_module
from tools.bench.control_plane import databases, servers

_Touches = Callable[[shared_calls.RequestPart], frozenset[str]]
_CONFIGURATION = """
[placement]
auth_type = admin_token
endpoint = {url}
endpoint_override = {url}
token = admin
"""
_DEADLINE_SECONDS = 60.0


def _loose(part: shared_calls.RequestPart) -> frozenset[str]:
    return frozenset(server.consumer for server in part.servers)


_RULES: dict[str, _Touches] = {"kept": allocation_writer._touches, "loose": _loose}


def _server(host: cluster_module.Host) -> placement_replies.NewServer:
    body = floor.allocation(host)
    asked = {name: body[name] for name in ("allocations", "mappings")}
    return placement_replies.NewServer(
        str(uuid.uuid4()), asked, body["project_id"], body["user_id"]
    )


def measure(
    running: servers.Servers,
    rule: str,
    hosts: Sequence[cluster_module.Host],
    threads: int,
    writes: int,
) -> dict[str, Any]:
    """Write from some threads at once; what was written is deleted behind the measurement.

    :param writes: of each thread
    """
    client = report.SchedulerReportClient()
    with mock.patch.object(allocation_writer, "_touches", _RULES[rule]):
        writer = allocation_writer.AllocationWriter(
            client, batch_window_seconds=0.03, max_batch_consumers=16, max_calls=2
        )
    latencies: list[float] = []
    outcomes: collections.Counter[str] = collections.Counter()
    made: list[str] = []

    def write(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(writes):
            one = _server(rng.choice(hosts))
            began = time.monotonic()
            with writer.coming():
                found = writer.write([one], began + _DEADLINE_SECONDS)[one.consumer]
            latencies.append(time.monotonic() - began)
            outcomes[type(found).__name__] += 1
            made.append(one.consumer)

    meter = meters.Meters(running, {})
    own, before = time.process_time(), meter.read()
    started = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    usage, own = meter.since(before), time.process_time() - own
    posts = writer.calls.get("post", 0)
    for consumer in made:
        client.delete(f"/allocations/{consumer}")
    return {
        "rule": rule,
        "hosts": len(hosts),
        "writes_a_second": len(made) / usage.wall_seconds,
        "writes_a_post": len(made) / max(1, posts),
        "not_written": len(made) - outcomes["AllocationWritten"],
        "cpu_ms": {
            **{name: used * 1000 / len(made) for name, used in usage.cpu_seconds.items()},
            "writer": own * 1000 / len(made),
        },
        **figures.latency(latencies),
    }


def main() -> int:
    """Measure both rules in turns, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.writes.write_queue", description=__doc__
    )
    parser.add_argument("--state", type=pathlib.Path, default=options.default_state_directory())
    parser.add_argument("--hosts", type=int, default=1000, help="of the benchmark's data")
    parser.add_argument("--among", default="1,4,1000", help="hosts that are written to")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--writes", type=int, default=60, help="of each thread")
    parser.add_argument("--rounds", type=int, default=4, help="of each, in turns")
    parser.add_argument("--unguarded", action="store_true")
    given = parser.parse_args()
    running = servers.Servers(
        given.state.absolute(), pathlib.Path(sys.prefix), guarded=not given.unguarded
    )
    running.start_mariadb()
    try:
        if not databases.is_populated(running.settings, given.hosts):
            raise SystemExit(f"populate {given.hosts} hosts first: tools/bench.sh --populate-only")
        running.start_placement(given.hosts)
        _configure(running.settings.url("placement"))
        total = given.threads * given.writes
        roomy = {
            # Drawn at random: some get several times their share.
            among: floor.hosts(among, given.hosts, servers=min(total, 8 + 8 * total // among))
            for among in map(int, given.among.split(","))
        }
        measure(running, "kept", roomy[max(roomy)], given.threads, 20)
        found = []
        for number in range(given.rounds):
            for among in roomy.values():
                for rule in sorted(_RULES, reverse=bool(number % 2)):
                    found.append(measure(running, rule, among, given.threads, given.writes))
    finally:
        running.stop()
    _show(found)
    return 0


def _configure(url: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(_CONFIGURATION.format(url=url))
        file.flush()
        nova.conf.CONF(["--config-file", file.name], project="nova", default_config_files=[])


def _show(found: Sequence[dict[str, Any]]) -> None:
    columns = ("among hosts", "rule", "writes/s", "writes a POST", "p50 ms", "p99 ms")
    table = rich.table.Table(*columns, "placement ms", "mariadb ms", "writer ms", "not written")
    for each in sorted(found, key=lambda one: (one["hosts"], one["rule"])):
        table.add_row(
            str(each["hosts"]),
            each["rule"],
            f"{each['writes_a_second']:.0f}",
            f"{each['writes_a_post']:.1f}",
            f"{each['p50_seconds'] * 1000:.0f}",
            f"{each['p99_seconds'] * 1000:.0f}",
            f"{each['cpu_ms'][meters.PLACEMENT]:.2f}",
            f"{each['cpu_ms'][meters.MARIADB]:.2f}",
            f"{each['cpu_ms']['writer']:.2f}",
            str(each["not_written"]),
        )
    rich.console.Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
