# SPDX-License-Identifier: Apache-2.0
"""``nova-nodb-simulate``: several schedulers, made hosts, a workload, and what goes wrong."""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import rich.console
import rich.progress

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.simulator import (
    backends,
    campaign,
    charts,
    cluster,
    generator,
    results,
    run_clock,
    strategies,
    tables,
    timeline,
    workload,
    workload_file,
    world,
)

PROGRAM = "nova-nodb-simulate"

#: Beats that the default back end bears beside claims, in a second.
_BEATS_PER_SECOND = 500.0
_MISSED_BEATS = 6


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    # What goes wrong on purpose is told of in the report.
    logging.getLogger("nova_nodb_scheduler").setLevel(logging.CRITICAL)
    try:
        return _simulate(arguments)
    except errors.NodbError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted; nothing is reported", file=sys.stderr)
        return 130


def _simulate(arguments: argparse.Namespace) -> int:
    if arguments.charts is not None:
        charts.check()
    planned = make_campaign(arguments)
    planned.check()
    with _Progress(quiet=arguments.quiet) as progress:
        found = planned.run(progress.told)
        packing = planned.pack(arguments.packing_trials, progress.told) if arguments.packing else {}
    console = rich.console.Console(width=None if sys.stdout.isatty() else 160)
    document = results.document(settings_of(arguments, planned), found, packing)
    if arguments.json == "-":
        print(json.dumps(document, indent=2, sort_keys=True))
    else:
        console.print(tables.table(found, packing))
        if arguments.json is not None:
            _write(arguments.json, json.dumps(document, indent=2, sort_keys=True) + "\n")
    if arguments.choices is not None:
        lines = [f"{each.strategy},{s},{h}\n" for each in found for s, h in each.sequence]
        _write(arguments.choices, "strategy,server,host\n" + "".join(lines))
    if arguments.charts is not None:
        for path in charts.draw(pathlib.Path(arguments.charts), found):
            print(f"chart: {path}", file=sys.stderr)
    return 0


def _write(path: str, text: str) -> None:
    try:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise errors.ConfigurationError("file", path, str(error)) from error


def make_campaign(arguments: argparse.Namespace) -> campaign.Campaign:
    """Return what the arguments ask for.

    :raises ConfigurationError: they do not fit together
    :raises InvalidFile: the workload or the timeline cannot be read
    """
    made = cluster.ClusterOptions(
        hosts=arguments.hosts,
        rack_hosts=arguments.rack_hosts,
        cpu_ratio=arguments.cpu_ratio,
        fill=arguments.fill,
        seed=arguments.seed,
    )
    names = arguments.strategy or [strategies.CLAIMS.name]
    chosen = [strategies.named(name) for name in _named(names)]
    backend = _backend(arguments)
    heartbeat = arguments.heartbeat_seconds or max(10.0, arguments.hosts / _BEATS_PER_SECOND)
    pace = arguments.pace or ("virtual" if arguments.schedulers == 1 else "saturated")
    options = world.RunOptions(
        cluster=made,
        strategy=chosen[0],
        backend=backend or backends.BackendChoice(),
        schedulers=arguments.schedulers,
        pace=run_clock.Pace(pace),
        speed=arguments.speed,
        seed=arguments.seed,
        seconds=arguments.seconds,
        build_seconds=arguments.build_seconds,
        heartbeat_seconds=heartbeat,
        report_seconds=arguments.report_seconds,
        service_down_seconds=arguments.service_down_seconds or _MISSED_BEATS * heartbeat,
        updates_per_second=arguments.updates_per_second,
        authority_seconds=arguments.authority_seconds,
        cache_seconds=arguments.cache_seconds,
        claim_lease_seconds=arguments.claim_lease_seconds,
        claim_spread=arguments.claim_spread,
        deadline_seconds=arguments.deadline_seconds,
    )
    lines = [("--fault", text) for text in arguments.fault]
    if arguments.timeline is not None:
        lines += timeline.read(pathlib.Path(arguments.timeline))
    racks = -(-made.hosts // made.rack_hosts)
    return campaign.Campaign(
        options=options,
        chosen=chosen,
        arrivals=_arrivals(arguments),
        faults=timeline.parse(lines, timeline.Bounds(racks, arguments.schedulers)),
        backend=backend,
        reset=arguments.reset,
    )


def _named(names: Sequence[str]) -> list[str]:
    every = [name for each in names for name in each.split(",")]
    if "all" in every:
        return list(strategies.ALL)
    return list(dict.fromkeys(every))


def _backend(arguments: argparse.Namespace) -> backends.BackendChoice | None:
    if arguments.synchronizer is None:
        if arguments.option or arguments.config_file:
            raise errors.ConfigurationError(
                "--option", arguments.option, "name the driver with --synchronizer."
            )
        return None
    return backends.BackendChoice(
        driver=arguments.synchronizer,
        options=backends.parse_options(arguments.option),
        config_files=tuple(arguments.config_file),
    )


def _arrivals(arguments: argparse.Namespace) -> tuple[workload.Arrival, ...]:
    if arguments.workload is not None:
        return workload_file.read(pathlib.Path(arguments.workload))
    return generator.generate(
        generator.GeneratorOptions(
            requests=arguments.requests,
            requests_per_second=arguments.requests_per_second,
            burstiness=arguments.burstiness,
            repeat_share=arguments.repeat_share,
            most_servers=arguments.most_servers,
            lifetime_scale=arguments.lifetime_scale,
            immortal=arguments.immortal,
            seed=arguments.seed,
        )
    )


def settings_of(arguments: argparse.Namespace, planned: campaign.Campaign) -> dict[str, Any]:
    """Return how the runs were set up, without what a back end's options hold."""
    options = planned.options
    return {
        "workload": arguments.workload or "synthetic",
        "requests": len(planned.arrivals),
        "servers": sum(each.servers for each in planned.arrivals),
        "hosts": options.cluster.hosts,
        "rack_hosts": options.cluster.rack_hosts,
        "fill": options.cluster.fill,
        "schedulers": options.schedulers,
        "synchronizer": arguments.synchronizer or "sqlalchemy (an SQLite file)",
        "pace": options.pace.value,
        "speed": options.speed,
        "seed": options.seed,
        "heartbeat_seconds": options.heartbeat_seconds,
        "service_down_seconds": options.service_down_seconds,
        "authority_seconds": options.authority_seconds,
        "claim_lease_seconds": options.claim_lease_seconds,
        "claim_spread": options.claim_spread,
        "faults": [{**attrs.asdict(fault), "kind": fault.kind.value} for fault in planned.faults],
    }


class _Progress:
    """A bar on standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("{task.fields[more]}"),
            console=rich.console.Console(stderr=True),
            disable=quiet,
            transient=True,
        )
        self._task = self._bar.add_task("", more="")

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._bar.stop()

    def told(self, progress: world.Progress) -> None:
        more = ""
        if progress.servers:
            more = (
                f"{progress.servers:,} servers, {progress.overcommitted:,} over-committed, "
                f"{progress.waiting:,} records waiting"
            )
        self._bar.update(
            self._task,
            description=progress.stage,
            completed=progress.done,
            total=progress.of or None,
            more=more,
        )


# -- arguments -----------------------------------------------------------------------


def _bounded(
    kind: Callable[[str], Any], least: float, most: float = float("inf")
) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from error
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not within {least:g} to {most:g}")
        return value

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Run several schedulers over one synchronizer against made hosts, with the "
        "plugin's own pipeline, claims and drivers; neither Nova nor a server is needed.",
    )
    _add_cluster(parser.add_argument_group("hosts"))
    _add_workload(parser.add_argument_group("workload"))
    _add_schedulers(parser.add_argument_group("schedulers"))
    _add_backend(parser.add_argument_group("back end"))
    _add_times(parser.add_argument_group("time"))
    _add_faults(parser.add_argument_group("faults"))
    _add_report(parser.add_argument_group("report"))
    return parser


def _add_cluster(group: Any) -> None:
    whole = _bounded(int, 1, 1_000_000)
    group.add_argument("--hosts", type=whole, default=100, help="how many (default: 100)")
    group.add_argument("--rack-hosts", type=whole, default=40, help="of each rack (default: 40)")
    group.add_argument(
        "--cpu-ratio", type=_bounded(float, 0.1, 64), default=4.0, help="VCPUs a CPU (default: 4)"
    )
    group.add_argument(
        "--fill",
        type=_bounded(float, 0, 0.95),
        default=0.0,
        help="share that is taken before the run (default: 0)",
    )


def _add_workload(group: Any) -> None:
    group.add_argument("--workload", metavar="FILE", help="CSV or JSON lines; else made by seed")
    group.add_argument(
        "--requests", type=_bounded(int, 1), default=1000, help="to be made (default: 1000)"
    )
    group.add_argument(
        "--requests-per-second",
        type=_bounded(float, 0.001),
        default=10.0,
        help="mean rate of arrival, simulated (default: 10)",
    )
    group.add_argument(
        "--burstiness",
        type=_bounded(float, 0.2, 1),
        default=0.6,
        help="1: none; less: requests come in bursts (default: 0.6)",
    )
    group.add_argument(
        "--repeat-share",
        type=_bounded(float, 0, 1),
        default=0.8,
        help="of requests for one of a few VM types (default: 0.8)",
    )
    group.add_argument(
        "--most-servers", type=_bounded(int, 1, 1000), default=10, help="a request (default: 10)"
    )
    group.add_argument(
        "--lifetime-scale",
        type=_bounded(float, 0.000001),
        default=0.01,
        help="lifetimes are multiplied by it (default: 0.01)",
    )
    group.add_argument("--immortal", action="store_true", help="servers are not deleted")


def _add_schedulers(group: Any) -> None:
    group.add_argument(
        "--schedulers", type=_bounded(int, 1, 64), default=1, help="processes (default: 1)"
    )
    group.add_argument(
        "--strategy",
        action="append",
        metavar="NAME",
        help="; ".join(f"{name}: {each.summary}" for name, each in strategies.ALL.items())
        + "; all. May be given several times, or with commas (default: claims)",
    )
    group.add_argument(
        "--claim-spread",
        choices=("off", "auto"),
        default="auto",
        help="whether schedulers prefer different hosts of those that weigh nearly the same "
        "(default: auto, as in the plugin)",
    )
    group.add_argument(
        "--claim-lease-seconds",
        type=_bounded(float, 0.5),
        default=10.0,
        help="how long a pending claim is held (default: 10)",
    )
    group.add_argument(
        "--deadline-seconds",
        type=_bounded(float, 0.1),
        default=10.0,
        help="how long a scheduler tries a request (default: 10)",
    )
    group.add_argument(
        "--cache-seconds",
        type=_bounded(float, 0.1),
        default=60.0,
        help="how old the states of the strategy 'cached' get (default: 60)",
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
        help="of the driver's own group of options; may be given several times",
    )
    group.add_argument(
        "--config-file", action="append", default=[], help="where else its options stand"
    )
    group.add_argument(
        "--reset",
        action="store_true",
        help="drop EVERYTHING the back end holds before each run; never that of a cloud",
    )


def _add_times(group: Any) -> None:
    seconds = _bounded(float, 0.0)
    some = _bounded(float, 0.01)
    group.add_argument(
        "--pace",
        choices=[pace.value for pace in run_clock.Pace],
        help="virtual: from event to event, reproducible, one scheduler; real: by the clock; "
        "saturated: a request whenever a scheduler is free (default: virtual with one "
        "scheduler, else saturated)",
    )
    group.add_argument(
        "--speed",
        type=_bounded(float, 0.01, 1000),
        default=1.0,
        help="simulated seconds in a real one, with --pace real (default: 1)",
    )
    group.add_argument("--seconds", type=some, help="simulated time at which a run is cut off")
    group.add_argument("--seed", type=int, default=1, help="of all that is drawn (default: 1)")
    group.add_argument(
        "--build-seconds", type=seconds, default=5.0, help="until a host counts a server"
    )
    group.add_argument(
        "--heartbeat-seconds", type=some, help="of each host (default: 10, or hosts / 500)"
    )
    group.add_argument("--report-seconds", type=some, default=60.0, help="of a host left alone")
    group.add_argument(
        "--service-down-seconds", type=some, help="Nova's service_down_time (default: six beats)"
    )
    group.add_argument(
        "--updates-per-second",
        type=_bounded(float, 1),
        default=2000.0,
        help="records published in a second at most (default: 2000)",
    )
    group.add_argument(
        "--authority-seconds",
        type=seconds,
        default=0.0,
        help="how long a write of allocations takes; Placement's: 0.04 (default: 0)",
    )


def _add_faults(group: Any) -> None:
    kinds = ", ".join(kind.value for kind in timeline.Kind)
    group.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="LINE",
        help=f"'SECONDS KIND [NUMBER] [for SECONDS]'; kinds: {kinds}",
    )
    group.add_argument("--timeline", metavar="FILE", help="such lines")


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
        "--packing-trials", type=_bounded(int, 1, 99), default=3, help="of the shrinking"
    )
    group.add_argument("--quiet", action="store_true", help="show no progress")


if __name__ == "__main__":
    sys.exit(main())
