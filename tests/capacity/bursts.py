# SPDX-License-Identifier: Apache-2.0
"""Many servers asked for at once, where there is room for all: python -m tests.capacity.bursts."""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import logging
import math
import pathlib
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from prometheus_client import parser as prometheus_parser
from rich import console as rich_console
from rich import table as rich_table

from tests.capacity import ledger as ledger_module
from tests.chaos import audit
from tests.chaos import snapshot as snapshot_module
from tools.stack import __main__ as command_line
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module
from tools.stack.counts import placement_requests, processor_time

STOCK = "stock"
WAYS = ("best", "two", "random")
_FLAVOR = "42"
_CHOICE = "nodb:choice"
_CLIENTS = 32
_SAMPLE_SECONDS = 0.5
_PATIENCE_SECONDS = 1800.0
_GONE_SECONDS = 900.0
_ROOM = 1.25
"""Slots for each server: a burst is about who meets whom, not about the last place."""
_METERS = {
    "conflicts": "nodb_claim_conflicts_total",
    "writes_lost": "nodb_claim_writes_lost_total",
    "absorbed": "nodb_claim_writes_absorbed_total",
}
_WIDTH = 150


@attrs.frozen
class Burst:
    """What became of one burst. Seconds count from the first request.

    :param way: ``stock``, or how hosts were chosen
    :param asked_seconds: until the API had answered all
    :param placed_seconds: until Placement held an allocation of each that did not fail
    :param active_seconds: until each stood, or had failed
    :param allocation_writes: PUT and POST of allocations that Placement was asked for
    :param conflicts: claims refused for what another scheduler had written on the host meanwhile:
        the request was decided again
    :param writes_lost: compare-and-sets of claims that another scheduler won
    :param absorbed: of which were written to the same host by the next
    :param again: builds at a compute beyond a server's first
    :param per_host: fewest and most servers of a host in the end
    :param over: most that was allocated beyond what a host has, in any sample
    :param processor_seconds: by kind of process, while servers were asked for and built
    """

    way: str
    asked: int
    active: int
    failed: int
    asked_seconds: float
    placed_seconds: float
    active_seconds: float
    allocation_writes: int
    conflicts: int | None
    writes_lost: int | None
    absorbed: int | None
    again: int
    per_host: tuple[int, int]
    over: int
    processor_seconds: Mapping[str, float]

    @property
    def is_kept(self) -> bool:
        """Whether each server stands, was built once, and no host has more than it may."""
        return self.active == self.asked and not self.over and not self.again


def main(arguments: list[str] | None = None) -> int:
    """The exit status is 0 when every burst with the plugin went as promised."""
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    width = None if sys.stdout.isatty() else _WIDTH
    terminal = rich_console.Console(
        stderr=options.json, highlight=False, soft_wrap=True, width=width
    )

    def say(step: str) -> None:
        terminal.print(f"  {step}", style="dim", markup=False)

    settings = _settings(options)
    stack_module.Stack(settings, say).down(wipe=True)
    stack = stack_module.Stack(settings, say)
    found: list[Burst] = []
    try:
        stack.up()
        stack.wait_heartbeats("nova-scheduler")
        if not options.no_stock:
            found.append(run(STOCK, options.servers, stack, say))
        stack.plugin(True)
        stack.queue(True)
        stack.wait_heartbeats("nova-scheduler")
        for way in options.ways:
            words = {"extra_specs": {_CHOICE: way}}
            stack.cloud.compute.post(f"/flavors/{_FLAVOR}/os-extra_specs", json=words)
            found.append(run(way, options.servers, stack, say))
    finally:
        stack.down()
    if options.json:
        print(json.dumps([attrs.asdict(burst) for burst in found], indent=1))
    terminal.print(_table(options, found))
    terminal.print(_processors(found))
    kept = [burst.is_kept for burst in found if burst.way != STOCK]
    terminal.print(f"{sum(kept)} passed, {len(kept) - sum(kept)} failed, 0 skipped")
    if all(kept):
        stack.down(wipe=True)
        return 0
    terminal.print(f"The logs are kept in {settings.log}")
    return 1


def run(way: str, servers: int, stack: stack_module.Stack, say: Callable[[str], None]) -> Burst:
    """Ask for all servers, wait until each stands or has failed, and leave the cloud empty."""
    cloud = stack.cloud
    image = cloud.image_id()
    placement = placement_requests.PlacementRequests(stack.settings.log / "placement.log")
    metered = _meters(stack.settings)
    used = processor_time.by_kind(stack)
    began = time.monotonic()
    with (
        contextlib.closing(snapshot_module.Reader(stack.settings)) as reader,
        concurrent.futures.ThreadPoolExecutor(_CLIENTS) as pool,
    ):
        asked = [
            pool.submit(cloud.boot, f"burst-{way}-{i:04}", image, _FLAVOR) for i in range(servers)
        ]
        answered = pool.submit(_answered, asked, began)
        course = Course(began, servers)
        while not course.take(reader.snapshot()) and not course.is_late:
            time.sleep(_SAMPLE_SECONDS)
        asked_seconds = answered.result()
        ids = [each.result() for each in asked]
    after = processor_time.by_kind(stack)
    meters = _meters(stack.settings)
    counts = placement.counts()
    builds = collections.Counter(build.server for build in ledger_module.builds(stack, ids))
    burst = Burst(
        way=way,
        asked=servers,
        active=course.active,
        failed=course.failed,
        asked_seconds=asked_seconds,
        placed_seconds=course.placed_seconds,
        active_seconds=course.ended,
        allocation_writes=counts["PUT allocations"] + counts["POST allocations"],
        again=sum(count - 1 for count in builds.values()),
        per_host=course.per_host,
        over=course.over,
        processor_seconds={kind: after[kind] - used[kind] for kind in used},
        **{name: _grown(meters[name], metered[name]) for name in _METERS},
    )
    say(
        f"{way}: {burst.active} of {servers} stand, {burst.failed} failed; placed after "
        f"{burst.placed_seconds:.0f} s, stood after {burst.active_seconds:.0f} s"
    )
    _empty(stack, ids)
    return burst


def _empty(stack: stack_module.Stack, ids: Sequence[str]) -> None:
    """Delete servers, and wait until nothing is left of them.

    :raises TimeoutError: something stays
    """
    until = time.monotonic() + _GONE_SECONDS
    with concurrent.futures.ThreadPoolExecutor(_CLIENTS // 4) as pool:
        list(pool.map(lambda server: stack.cloud.compute.delete(f"/servers/{server}"), ids))
    with contextlib.closing(snapshot_module.Reader(stack.settings)) as reader:
        while (now := reader.snapshot()).servers or now.allocated or now.build_requests:
            if time.monotonic() > until:
                raise TimeoutError(f"{len(now.servers)} servers, {len(now.allocated)} allocations")
            time.sleep(_SAMPLE_SECONDS)


class Course:
    """What samples show of a burst as it goes on. Only its own servers are there."""

    def __init__(self, began: float, servers: int) -> None:
        self._began = began
        self._servers = servers
        self.placed_seconds = self.ended = math.nan
        self.active = self.failed = self.over = 0
        self.per_host = (0, 0)

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._began + _PATIENCE_SECONDS

    def take(self, now: snapshot_module.Snapshot) -> bool:
        """Note a sample; whether all servers have ended."""
        seconds = now.at - self._began
        self.over = max([self.over, *(each.excess for each in audit.over_committed(now))])
        self.active = now.active()
        self.failed = sum(1 for each in now.servers.values() if each.vm_state == "error")
        placed = len(now.allocated.keys() & (now.servers.keys() | now.build_requests))
        if math.isnan(self.placed_seconds) and placed + self.failed >= self._servers:
            self.placed_seconds = seconds
        if self.active + self.failed < self._servers:
            return False
        self.ended = seconds
        if math.isnan(self.placed_seconds):
            self.placed_seconds = seconds
        hosts = collections.Counter({host: 0 for host, kind in now.capacity if kind == "VCPU"})
        hosts.update(each.node for each in now.servers.values() if each.node)
        self.per_host = min(hosts.values()), max(hosts.values())
        return True


def _answered(asked: Sequence["concurrent.futures.Future[str]"], began: float) -> float:
    concurrent.futures.wait(asked)
    return time.monotonic() - began


def _meters(settings: stack_settings.Settings) -> dict[str, int | None]:
    """Return what all schedulers have counted since they began; None of those that count not."""
    if not settings.plugin:
        return dict.fromkeys(_METERS)
    with urllib.request.urlopen(settings.url("metrics") + "/metrics", timeout=60) as answer:
        families = prometheus_parser.text_string_to_metric_families(answer.read().decode())
    totals: collections.Counter[str] = collections.Counter()
    for family in families:
        for sample in family.samples:
            totals[sample.name] += int(sample.value) if math.isfinite(sample.value) else 0
    return {name: totals[sample] for name, sample in _METERS.items()}


def _grown(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _settings(options: argparse.Namespace) -> stack_settings.Settings:
    settings = command_line.settings_from(options, plugin=False)
    vcpus = math.ceil(_ROOM * options.servers / options.computes)
    return attrs.evolve(settings, vcpus_per_host=vcpus)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/bursts.sh", description=__doc__)
    state = stack_settings.default_state_directory()
    parser.add_argument("--state", type=pathlib.Path, default=state, help="default: %(default)s")
    parser.add_argument("--servers", type=int, default=500, help="at once (%(default)s)")
    parser.add_argument(
        "--ways", type=_ways, default=WAYS, metavar="WAY,...", help=f"of {', '.join(WAYS)} (all)"
    )
    parser.add_argument("--no-stock", action="store_true", help="not without the plugin first")
    parser.add_argument("--json", action="store_true", help="print JSON, progress on stderr")
    command_line.add_size_options(parser)
    parser.set_defaults(computes=20, schedulers=4)
    return parser


def _ways(text: str) -> tuple[str, ...]:
    named = tuple(text.split(","))
    for way in named:
        if way not in WAYS:
            raise argparse.ArgumentTypeError(f"no way {way}; choose of {', '.join(WAYS)}")
    return named


def _table(options: argparse.Namespace, found: Sequence[Burst]) -> rich_table.Table:
    table = rich_table.Table(
        *("hosts chosen", "active", "failed", "asked", "placed", "stood", "writes", "conflicts"),
        *("lost", "absorbed", "built again", "on a host", "over"),
        title=f"{options.servers} servers at once, {options.schedulers} schedulers, "
        f"{options.computes} hosts",
        caption="asked, placed, stood: seconds until all were; writes: of allocations; conflicts: "
        "claims decided again; lost: compare-and-sets; on a host: fewest, most",
    )
    for each in found:
        seconds = (each.asked_seconds, each.placed_seconds, each.active_seconds)
        table.add_row(
            *(each.way, str(each.active), str(each.failed)),
            *(f"{value:.0f}" for value in seconds),
            *map(_text, (each.allocation_writes, each.conflicts, each.writes_lost)),
            *map(_text, (each.absorbed, each.again)),
            f"{each.per_host[0]}, {each.per_host[1]}",
            str(each.over),
        )
    return table


def _processors(found: Sequence[Burst]) -> rich_table.Table:
    kinds = sorted({kind for each in found for kind in each.processor_seconds})
    table = rich_table.Table("hosts chosen", *kinds, title="Processor seconds")
    for each in found:
        table.add_row(each.way, *(f"{each.processor_seconds.get(k, 0.0):.1f}" for k in kinds))
    return table


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
