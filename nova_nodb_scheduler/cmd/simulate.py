# SPDX-License-Identifier: Apache-2.0
"""``nova-nodb-simulate``: several schedulers, made hosts, a workload, and what goes wrong."""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import rich.console
import rich.progress

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.cmd import simulate_arguments
from nova_nodb_scheduler.cmd.framework import guard, reaching
from nova_nodb_scheduler.scheduling.pipeline import host_choosers
from nova_nodb_scheduler.scheduling.waiting import queue_settings
from nova_nodb_scheduler.simulator import campaign
from nova_nodb_scheduler.simulator.outcome import charts, results
from nova_nodb_scheduler.simulator.run import world
from nova_nodb_scheduler.simulator.scenario import (
    backend_choice,
    made_hosts,
    queue_scenario,
    run_clock,
    run_options,
    timeline,
    workload,
    workload_file,
    workload_generator,
)

PROGRAM = simulate_arguments.PROGRAM

#: From so many in a second on heartbeats go to a journal as pages, unless it is said.
_BEATS_PER_SECOND = 500.0
_MISSED_BEATS = 6
#: Records that are published in a second at most, unless it is said.
_LEAST_UPDATES = 2000.0
_CHOICES = tuple(each.value for each in host_choosers.Chooser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    return guard.main(PROGRAM, lambda: _run(given), argv=given)


def _run(given: Sequence[str]) -> int:
    arguments = simulate_arguments.parser().parse_args(given)
    # What goes wrong on purpose is told of in the report.
    own = logging.getLogger("nova_nodb_scheduler")
    level = own.level
    own.setLevel(logging.CRITICAL)
    try:
        return _simulate(arguments)
    finally:
        own.setLevel(level)


def _simulate(arguments: argparse.Namespace) -> int:
    if arguments.charts is not None:
        charts.check()
    for path in (arguments.json, arguments.choices):
        _check_place(path)
    planned = make_campaign(arguments)
    planned.check()
    if planned.backend is not None:
        reaching.backend(planned.backend.make)
    with _Progress(quiet=arguments.quiet) as progress:
        found = planned.run(progress.told)
        packing = planned.pack(arguments.packing_trials, progress.told) if arguments.packing else {}
    console = rich.console.Console(width=None if sys.stdout.isatty() else 160)
    document = results.document(settings_of(arguments, planned), found, packing)
    if arguments.json == "-":
        print(json.dumps(document, indent=2, sort_keys=True))
    else:
        console.print(results.comparison_table(found, packing))
        if arguments.json is not None:
            _write(arguments.json, json.dumps(document, indent=2, sort_keys=True) + "\n")
    if arguments.choices is not None:
        lines = [f"{each.strategy},{s},{h}\n" for each in found for s, h in each.sequence]
        _write(arguments.choices, "strategy,server,host\n" + "".join(lines))
    if arguments.charts is not None:
        for path in charts.draw(pathlib.Path(arguments.charts), found, packing):
            print(f"chart: {path}", file=sys.stderr)
    return 0


def _check_place(path: str | None) -> None:
    """See that a file can stand there, before a long run whose figures would be lost."""
    if path is None or path == "-":
        return
    place = pathlib.Path(path)
    if place.is_dir() or not place.parent.is_dir():
        raise errors.ConfigurationError(
            "file", path, "name a file in a directory that is there already."
        )


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
    is_full = arguments.arrivals is not None
    fill = arguments.fill
    if fill is None:
        fill = float(is_full and not arguments.servers_per_host)
    made = made_hosts.ClusterOptions(
        **{**_given(made_hosts.ClusterOptions, arguments), "fill": fill}
    )
    if arguments.packing and arguments.servers_per_host:
        raise errors.ConfigurationError(
            "--packing",
            f"--servers-per-host {arguments.servers_per_host}",
            "it packs requests onto hosts of which --fill alone takes part: leave one out.",
        )
    chosen = _strategies(arguments)
    backend = _backend(arguments)
    heartbeat = arguments.heartbeat_seconds
    journals = arguments.heartbeat_journals
    if journals is None:
        journals = arguments.hosts / heartbeat >= _BEATS_PER_SECOND
    reports = arguments.hosts / arguments.report_seconds
    if not journals:
        reports += arguments.hosts / heartbeat
    waits = any(each.waits for each in chosen)
    several = "real" if waits else "saturated"
    pace = arguments.pace or ("virtual" if arguments.schedulers == 1 else several)
    if waits and pace == "saturated":
        raise errors.ConfigurationError(
            "--pace", pace, "whoever waits does so while time passes; use real or virtual."
        )
    queue = _queue(arguments)
    departures = arguments.departures_per_second or float(is_full)
    options = run_options.RunOptions(
        **{
            **_given(run_options.RunOptions, arguments),
            "cluster": made,
            "strategy": chosen[0],
            "backend": backend or backend_choice.BackendChoice(),
            "pace": run_clock.Pace(pace),
            "heartbeat_journals": journals,
            "updates_per_second": arguments.updates_per_second or max(_LEAST_UPDATES, 2 * reports),
            "service_down_seconds": arguments.service_down_seconds or _MISSED_BEATS * heartbeat,
            "queue": queue,
            "departures_per_second": departures,
        }
    )
    lines = [("--fault", text) for text in arguments.fault]
    if arguments.timeline is not None:
        lines += timeline.read(pathlib.Path(arguments.timeline))
    racks = -(-made.hosts // made.rack_hosts)
    return campaign.Campaign(
        options=options,
        chosen=chosen,
        arrivals=queue_scenario.assign(_paced_arrivals(arguments, departures), queue, options.seed),
        faults=timeline.parse(lines, timeline.FaultBounds(racks, arguments.schedulers)),
        backend=backend,
        reset=arguments.reset,
    )


def _named(names: Sequence[str]) -> list[str]:
    every = _split(names)
    if "all" in every:
        every = [*run_options.AT_ONCE, *(name for name in every if name != "all")]
    return list(dict.fromkeys(every))


def _strategies(arguments: argparse.Namespace) -> list[run_options.Strategy]:
    """Return what is run: each strategy with each choice."""
    default = run_options.CLAIMS if arguments.wait is None else run_options.QUEUE
    names = _named(arguments.strategy or [default.name])
    if arguments.wait is not None and run_options.QUEUE.name not in names:
        raise errors.ConfigurationError(
            "--wait", arguments.wait, "only with --strategy queue does anybody wait."
        )
    choices = _split(arguments.choice or ["best"])
    for each in choices:
        if each not in _CHOICES:
            raise errors.ConfigurationError("--choice", each, f"choose of {', '.join(_CHOICES)}.")
    found = []
    for name in names:
        strategy = run_options.named_strategy(name)
        for choice in choices:
            label = name if len(choices) == 1 else f"{name}, {choice}"
            found.append(attrs.evolve(strategy, name=label, choice=choice))
    return found


def _split(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name for each in texts for name in each.split(",")))


def _queue(arguments: argparse.Namespace) -> queue_scenario.QueueScenario:
    """Return what waits.

    :raises ConfigurationError: classes or projects do not fit together
    """
    given: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("aging_seconds", "hold_after_seconds", "most_pending")
    }
    if arguments.wait is not None:
        given["wait_seconds"] = arguments.wait
    if arguments.classes:
        given["classes"] = queue_scenario.parse_classes(arguments.classes)
    if arguments.projects:
        given["projects"] = queue_scenario.parse_projects(arguments.projects)
    made = queue_scenario.QueueScenario(
        order=queue_settings.Order(arguments.order),
        discipline=queue_settings.Discipline(arguments.discipline),
        **given,
    )
    made.settings()
    return made


def _paced_arrivals(
    arguments: argparse.Namespace, departures_per_second: float
) -> tuple[workload.Arrival, ...]:
    """Return the requests, at the pace at which servers are deleted where that is asked for."""
    arrivals = _arrivals(arguments)
    if arguments.arrivals is None:
        return arrivals
    if arguments.workload is None:
        # Room is freed by those from before the run, at a known pace.
        arrivals = tuple(attrs.evolve(each, lifetime_seconds=None) for each in arrivals)
    return queue_scenario.paced(arrivals, arguments.arrivals * departures_per_second)


def _backend(arguments: argparse.Namespace) -> backend_choice.BackendChoice | None:
    if arguments.synchronizer is None:
        if arguments.option or arguments.config_file:
            raise errors.ConfigurationError(
                "--option", arguments.option, "name the driver with --synchronizer."
            )
        return None
    options = backend_choice.parse_options(arguments.option)
    for name in backend_choice.secrets_among(arguments.synchronizer, options):
        print(
            f"warning: anybody on this host saw the secret in '--option {name}=...' in the list "
            "of processes: put it into a file, and give that by --config-file",
            file=sys.stderr,
        )
    return backend_choice.BackendChoice(
        driver=arguments.synchronizer,
        options=options,
        config_files=tuple(arguments.config_file),
    )


def _arrivals(arguments: argparse.Namespace) -> tuple[workload.Arrival, ...]:
    if arguments.workload is not None:
        return workload_file.read(pathlib.Path(arguments.workload))
    generator = workload_generator.GeneratorOptions
    return workload_generator.generate(generator(**_given(generator, arguments)))


def _given(kind: type[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that are called as a field of an attrs class."""
    given = vars(arguments)
    return {each.name: given[each.name] for each in attrs.fields(kind) if each.name in given}


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
        "servers_per_host": options.servers_per_host,
        "heartbeat_seconds": options.heartbeat_seconds,
        "heartbeat_journals": options.heartbeat_journals,
        "service_down_seconds": options.service_down_seconds,
        "authority_seconds": options.authority_seconds,
        "claim_lease_seconds": options.claim_lease_seconds,
        "claim_spread": options.claim_spread,
        "arrivals": arguments.arrivals,
        "departures_per_second": options.departures_per_second,
        "queue": _shown_queue(options.queue)
        if any(each.waits for each in planned.chosen)
        else None,
        "faults": [{**attrs.asdict(fault), "kind": fault.kind.value} for fault in planned.faults],
    }


def _shown_queue(asked: queue_scenario.QueueScenario) -> dict[str, Any]:
    shown = attrs.asdict(asked)
    return {**shown, "order": asked.order.value, "discipline": asked.discipline.value}


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

    def told(self, now: world.RunProgress) -> None:
        more = ""
        if now.servers:
            more = (
                f"{now.servers:,} servers, {now.overcommitted:,} over-committed, "
                f"{now.waiting:,} records waiting"
            )
        self._bar.update(
            self._task,
            description=now.stage,
            completed=now.done,
            total=now.of or None,
            more=more,
        )


if __name__ == "__main__":
    sys.exit(main())
