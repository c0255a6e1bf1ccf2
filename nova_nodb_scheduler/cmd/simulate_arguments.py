# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``nova-nodb-simulate``."""

from __future__ import annotations

import argparse
from typing import Any

from nova_nodb_scheduler.cmd.framework import number_arguments
from nova_nodb_scheduler.simulator.scenario import run_clock, run_options, timeline

PROGRAM = "nova-nodb-simulate"

_within = number_arguments.within


def parser() -> argparse.ArgumentParser:
    """Return the parser of all arguments."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Run several schedulers over one synchronizer against made hosts, with the "
        "plugin's own pipeline, claims and drivers; neither Nova nor a server is needed.",
    )
    _add_cluster(made.add_argument_group("hosts"))
    _add_workload(made.add_argument_group("workload"))
    _add_schedulers(made.add_argument_group("schedulers"))
    _add_queue(made.add_argument_group("requests that wait (strategy queue)"))
    _add_backend(made.add_argument_group("back end"))
    _add_times(made.add_argument_group("time"))
    _add_faults(made.add_argument_group("faults"))
    _add_report(made.add_argument_group("report"))
    return made


def _add_cluster(group: Any) -> None:
    whole = _within(int, 1, 1_000_000)
    group.add_argument(
        "--hosts", type=whole, default=100, help="number of made hosts (default: 100)"
    )
    group.add_argument(
        "--rack-hosts", type=whole, default=40, help="hosts in each rack (default: 40)"
    )
    group.add_argument(
        "--cpu-ratio",
        type=_within(float, 0.1, 64),
        default=4.0,
        help="CPU allocation ratio of the hosts (default: 4)",
    )
    group.add_argument(
        "--fill",
        type=_within(float, 0, 0.95),
        help="share of each host that is taken before the run, 0 to 0.95 (default: 0; with "
        "--arrivals and no --servers-per-host all of it)",
    )
    group.add_argument(
        "--servers-per-host",
        type=_within(int, 0, 1000),
        default=0,
        help="servers that stand on each host before the run, as far as they fit: each has records "
        "of its own and a flavor of those asked for (default: 0)",
    )


def _add_workload(group: Any) -> None:
    group.add_argument(
        "--workload",
        metavar="FILE",
        help="requests from a file, CSV or JSON lines (default: made by the seed)",
    )
    group.add_argument(
        "--requests",
        type=_within(int, 1),
        default=1000,
        help="number of requests that are made (default: 1000)",
    )
    group.add_argument(
        "--requests-per-second",
        type=_within(float, 0.001),
        default=10.0,
        help="mean rate of arrival, simulated (default: 10)",
    )
    group.add_argument(
        "--burstiness",
        type=_within(float, 0.2, 1),
        default=0.6,
        help="1: none; less: requests come in bursts (default: 0.6)",
    )
    group.add_argument(
        "--repeat-share",
        type=_within(float, 0, 1),
        default=0.8,
        help="share of requests for one of a few VM types (default: 0.8)",
    )
    group.add_argument(
        "--most-servers",
        type=_within(int, 1, 1000),
        default=10,
        help="most servers in a request (default: 10)",
    )
    group.add_argument(
        "--lifetime-scale",
        type=_within(float, 0.000001),
        default=0.01,
        help="factor of the servers' lifetimes (default: 0.01)",
    )
    group.add_argument("--immortal", action="store_true", help="servers are not deleted")


def _add_schedulers(group: Any) -> None:
    group.add_argument(
        "--schedulers", type=_within(int, 1, 64), default=1, help="scheduler processes (default: 1)"
    )
    group.add_argument(
        "--strategy",
        action="append",
        metavar="NAME",
        help="; ".join(f"{name}: {each.summary}" for name, each in run_options.ALL.items())
        + "; all. May be given several times, or with commas (default: claims)",
    )
    group.add_argument(
        "--claim-spread",
        choices=("off", "auto", "tolerant"),
        default="auto",
        help="whether schedulers prefer different hosts of those that weigh the same, or, "
        "tolerant, nearly the same (default: auto, as in the plugin)",
    )
    group.add_argument(
        "--claim-lease-seconds",
        type=_within(float, 0.5),
        default=10.0,
        help="how long a pending claim is held (default: 10)",
    )
    group.add_argument(
        "--deadline-seconds",
        type=_within(float, 0.1),
        default=10.0,
        help="how long a scheduler tries a request (default: 10)",
    )
    group.add_argument(
        "--cache-seconds",
        type=_within(float, 0.1),
        default=60.0,
        help="how old the states of the strategy 'cached' get (default: 60)",
    )


def _add_queue(group: Any) -> None:
    some = _within(float, 0.001)
    group.add_argument(
        "--wait",
        metavar="SECONDS",
        type=some,
        help="how long a request waits for room, simulated; the strategy is 'queue' then "
        "(default with it: 600)",
    )
    group.add_argument(
        "--arrivals",
        metavar="X",
        type=some,
        help="ask for X times as many servers as are deleted of those from before the run, which "
        "fill the hosts; instead of --requests-per-second",
    )
    group.add_argument(
        "--departures-per-second",
        type=some,
        help="servers from before the run that are deleted, simulated (default: 1 with --arrivals, "
        "else none)",
    )
    group.add_argument(
        "--choice",
        action="append",
        metavar="NAME",
        help="best, two or random: which of the hosts that pass is taken. May be given several "
        "times, or with commas: one run for each (default: best)",
    )
    group.add_argument(
        "--class",
        dest="classes",
        action="append",
        metavar="NAME:NUMBER:SHARE",
        help="a priority class, and the share of the requests that are of it; may be given several "
        "times (default: normal:50:1)",
    )
    group.add_argument(
        "--project",
        dest="projects",
        action="append",
        metavar="NAME:WEIGHT:SHARE",
        help="a project with its weight, and the share of the requests that are its; may be given "
        "several times (default: simulated:1:1)",
    )
    group.add_argument(
        "--order", choices=("fair", "fifo"), default="fair", help="as the option (default: fair)"
    )
    group.add_argument(
        "--discipline",
        choices=("best_effort", "strict"),
        default="best_effort",
        help="as the option (default: best_effort)",
    )
    group.add_argument(
        "--aging-seconds",
        type=_within(float, 0.0),
        default=3600.0,
        help="as the option (default: 3600)",
    )
    group.add_argument(
        "--hold-after-seconds",
        type=_within(float, 0.0),
        default=60.0,
        help="as the option (default: 60)",
    )
    group.add_argument(
        "--most-pending",
        type=_within(int, 1),
        default=1_000_000,
        help="servers that may wait, of one project or in all (default: 1000000)",
    )


def _add_backend(group: Any) -> None:
    group.add_argument(
        "--synchronizer", metavar="DRIVER", help="any that is installed (default: an SQLite file)"
    )
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the driver's own group of options; may be given several times. Anybody on this "
        "host sees it in the list of processes: give a password, or a URL that holds one, by "
        "--config-file instead",
    )
    group.add_argument(
        "--config-file",
        action="append",
        default=[],
        help="configuration file with the driver's options; may be given several times",
    )
    group.add_argument(
        "--reset",
        action="store_true",
        help="drop EVERYTHING the back end holds before each run; never that of a cloud",
    )


def _add_times(group: Any) -> None:
    seconds = _within(float, 0.0)
    some = _within(float, 0.01)
    group.add_argument(
        "--pace",
        choices=[pace.value for pace in run_clock.Pace],
        help="virtual: from event to event, reproducible, one scheduler; real: by the clock; "
        "saturated: a request whenever a scheduler is free (default: virtual with one "
        "scheduler, else saturated)",
    )
    group.add_argument(
        "--speed",
        type=_within(float, 0.01, 1000),
        default=1.0,
        help="simulated seconds in a real one, with --pace real (default: 1)",
    )
    group.add_argument("--seconds", type=some, help="simulated time at which a run is cut off")
    group.add_argument(
        "--seed", type=int, default=1, help="seed of all that is drawn at random (default: 1)"
    )
    group.add_argument(
        "--build-seconds",
        type=seconds,
        default=5.0,
        help="time from a grant until the host counts the server (default: 5)",
    )
    group.add_argument(
        "--heartbeat-seconds",
        type=some,
        default=10.0,
        help="interval of each host's heartbeats (default: 10)",
    )
    group.add_argument(
        "--heartbeat-journals",
        action=argparse.BooleanOptionalAction,
        help="whether heartbeats go to a journal as pages, as with the option of this name, and "
        "not to a record of each host (default: from 500 in a second on)",
    )
    group.add_argument(
        "--report-seconds",
        type=some,
        default=60.0,
        help="interval of a host's reports while nothing changes there (default: 60)",
    )
    group.add_argument(
        "--service-down-seconds",
        type=some,
        help="Nova's service_down_time (default: six heartbeats)",
    )
    group.add_argument(
        "--updates-per-second",
        type=_within(float, 1),
        help="records published in a second at most (default: 2000, or twice the hosts' reports, "
        "and heartbeats unless they go to a journal)",
    )
    group.add_argument(
        "--authority-seconds",
        type=seconds,
        default=0.0,
        help="how long a write of allocations takes; Placement's: 0.04 (default: 0)",
    )


def _add_faults(group: Any) -> None:
    kinds = ", ".join(kind.value for kind in timeline.FaultKind)
    group.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="LINE",
        help=f"'SECONDS KIND [NUMBER] [for SECONDS]'; kinds: {kinds}",
    )
    group.add_argument("--timeline", metavar="FILE", help="a file of such lines")


def _add_report(group: Any) -> None:
    group.add_argument("--json", metavar="FILE", help="write the figures there; - for output")
    group.add_argument("--charts", metavar="DIRECTORY", help="draw PNG charts there")
    group.add_argument("--choices", metavar="FILE", help="write every server with its host there")
    group.add_argument(
        "--packing",
        action="store_true",
        help="also find how far the fleet can shrink until the workload no longer fits",
    )
    group.add_argument(
        "--packing-trials",
        type=_within(int, 1, 99),
        default=3,
        help="trials of --packing, of which the median counts (default: 3)",
    )
    group.add_argument("--quiet", action="store_true", help="show no progress")
    group.add_argument("--debug", action="store_true", help="show all of an error")
