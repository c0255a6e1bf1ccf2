# SPDX-License-Identifier: Apache-2.0
"""What a run of the benchmark is asked to do: the command line as a frozen value."""

import argparse
import os
import pathlib

import attrs

STOCK = "stock"
PLUGIN = "plugin"
SIDES = (STOCK, PLUGIN)

#: With more hosts than this, stock with a limit of all hosts takes minutes and a gigabyte.
_MOST_HOSTS_WITHOUT_LIMIT = 10_000
_DEFAULT_LIMIT = 1000
_HOSTS = (100, 1000)
#: Sizes up to this serve to see that everything works: they are measured in a hurry.
_SMALL_HOSTS = 100
_HURRY = 0.2
_SECONDS = 60.0
_RESTART_RATE = 20.0
_IDLE_SECONDS = _PACED_SECONDS = 30.0
_CORE_HOSTS = (1000, 10_000, 100_000)
_FIT_HOSTS = (1000, 10_000)
_START_HOSTS = (10_000, 100_000)


@attrs.frozen
class Durations:
    """Seconds of one measurement, of one without requests, of one at a stated rate."""

    seconds: float
    idle_seconds: float
    paced_seconds: float


@attrs.frozen
class Options:
    """See ``tools/bench.sh --help``; a limit of None stands for all hosts."""

    state: pathlib.Path
    hosts: tuple[int, ...]
    limits: tuple[int | None, ...]
    sides: tuple[str, ...]
    again: frozenset[str]
    requests: int
    seconds: float | None
    idle_seconds: float | None
    paced_seconds: float | None
    heartbeats_per_second: float | None
    reports_per_second: float | None
    json: pathlib.Path | None
    documents: pathlib.Path | None
    keep: bool
    core: bool
    fit: bool
    start: bool
    servers_per_host: int | None
    start_database: str | None
    populate_only: bool
    restart: bool
    restart_rate: float
    guarded: bool

    def durations(self, hosts: int) -> Durations:
        """Return how long measurements of a size take where the command line does not say."""
        hurry = _HURRY if hosts <= _SMALL_HOSTS else 1.0
        return Durations(
            seconds=self.seconds or _SECONDS * hurry,
            idle_seconds=self.idle_seconds or _IDLE_SECONDS * hurry,
            paced_seconds=self.paced_seconds or _PACED_SECONDS * hurry,
        )

    def limits_for(self, hosts: int) -> list[int]:
        """Return the values of max_placement_results to measure, each once."""
        found = []
        for limit in self.limits:
            if limit is None and not _DEFAULT_LIMIT < hosts <= _MOST_HOSTS_WITHOUT_LIMIT:
                continue
            value = hosts if limit is None else limit
            if value not in found:
                found.append(value)
        return found or [_DEFAULT_LIMIT]


def default_state_directory() -> pathlib.Path:
    """Return where data is kept between runs: below XDG_CACHE_HOME."""
    named = os.environ.get("NOVA_NODB_BENCH_STATE")
    if named:
        return pathlib.Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "nova-nodb-scheduler" / "bench"


def parse(arguments: list[str] | None = None) -> Options:
    """Parse the command line; ends the process with status 2 for a wrong one."""
    parser = argparse.ArgumentParser(
        prog="tools/bench.sh",
        description="Stock Nova and the plugin on the same made clouds, in turns.",
        epilog="What was measured before is kept and not measured again; see --again.",
    )
    add = parser.add_argument
    add(
        "--hosts",
        type=_numbers,
        metavar="N,N",
        help="sizes (100,1000; 1000,10000,100000 of the core, 1000,10000 of --fit,"
        " 10000,100000 of --start)",
    )
    add(
        "--limit",
        type=_limits,
        default=(_DEFAULT_LIMIT, None),
        metavar="L,L",
        help="values of max_placement_results; N means all hosts, for sizes from 1,001 to 10,000"
        " (1000,N)",
    )
    add("--sides", type=_sides, default=SIDES, help="stock, plugin or both (stock,plugin)")
    add(
        "--again",
        type=_sides,
        default=(),
        metavar="SIDES",
        help="measure these sides again, although there is a result",
    )
    add("--requests", type=_count, default=200, help="most requests of one measurement (200)")
    add("--seconds", type=_seconds, help="time for one measurement (60; of 100 hosts 12)")
    add("--idle-seconds", type=_seconds, help="time without requests (30; 6)")
    add("--paced-seconds", type=_seconds, help="time at each stated rate (30; 6)")
    add(
        "--heartbeats",
        type=_rate,
        metavar="PER_SECOND",
        help="heartbeats of compute services (a tenth of the hosts, at most 50)",
    )
    add(
        "--reports",
        type=_rate,
        metavar="PER_SECOND",
        help="saves of compute nodes (a sixtieth of the hosts, at most 16)",
    )
    add("--state", type=pathlib.Path, default=default_state_directory(), help="%(default)s")
    add("--json", type=pathlib.Path, metavar="FILE", help="write all results to FILE")
    add(
        "--documents",
        type=pathlib.Path,
        metavar="DIRECTORY",
        help="write table and charts into this doc/source/reference",
    )
    add("--keep", action="store_true", help="leave MariaDB and Placement running")
    add("--core", action="store_true", help="the pipeline alone: no Nova, no servers")
    add(
        "--fit",
        action="store_true",
        help="requests for NUMA cells and PCI devices, against Nova's own filters: no servers",
    )
    add(
        "--start",
        action="store_true",
        help="host states of a scheduler that starts, from SQLite and from a checkpoint: no Nova, "
        "no servers",
    )
    add(
        "--servers-per-host",
        type=_count,
        metavar="N",
        help="servers of each host of --start (0 to 8, about four)",
    )
    add(
        "--start-database",
        metavar="URL",
        help="an empty database for the records of --start, in place of a file of SQLite's; each "
        "size wants one of its own",
    )
    add("--populate-only", action="store_true", help="make the data of each size, measure nothing")
    add(
        "--restart",
        action="store_true",
        help="two nova-schedulers on a real bus under requests: nothing happens, one is restarted,"
        " one is killed and started; nothing else is measured",
    )
    add(
        "--restart-rate",
        type=_rate_above_zero,
        default=_RESTART_RATE,
        metavar="PER_SECOND",
        help="requests of --restart (%(default)g)",
    )
    add(
        "--guarded",
        action="store_true",
        help="Placement's application is the plugin's, which keeps writers apart; results are"
        " kept apart",
    )
    given = parser.parse_args(arguments)
    return Options(
        state=given.state.absolute(),
        hosts=given.hosts or _default_hosts(given),
        limits=given.limit,
        sides=given.sides,
        again=frozenset(given.again),
        requests=given.requests,
        seconds=given.seconds,
        idle_seconds=given.idle_seconds,
        paced_seconds=given.paced_seconds,
        heartbeats_per_second=given.heartbeats,
        reports_per_second=given.reports,
        json=given.json,
        documents=given.documents,
        keep=given.keep,
        core=given.core,
        fit=given.fit,
        start=given.start,
        servers_per_host=given.servers_per_host,
        start_database=given.start_database,
        populate_only=given.populate_only,
        restart=given.restart,
        restart_rate=given.restart_rate,
        guarded=given.guarded,
    )


def _default_hosts(given: argparse.Namespace) -> tuple[int, ...]:
    if given.core:
        return _CORE_HOSTS
    if given.start:
        return _START_HOSTS
    return _FIT_HOSTS if given.fit else _HOSTS


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part) for part in text.split(",")}))


def _limits(text: str) -> tuple[int | None, ...]:
    return tuple(None if part == "N" else _count(part) for part in text.split(","))


def _sides(text: str) -> tuple[str, ...]:
    named = text.split(",")
    unknown = sorted(set(named) - set(SIDES))
    if unknown:
        raise argparse.ArgumentTypeError(f"no side {', '.join(unknown)}; choose of stock,plugin")
    return tuple(side for side in SIDES if side in named)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.5 <= value <= 86400:
        raise argparse.ArgumentTypeError("must be 0.5 to 86400")
    return value


def _rate_above_zero(text: str) -> float:
    value = _rate(text)
    if not value:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 10_000:
        raise argparse.ArgumentTypeError("must be 0 to 10000")
    return value
