# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmark: python -m tools.bench."""

import contextlib
import fcntl
import pathlib
import signal
import sys
import types
from collections.abc import Iterator

import rich.console

from tools.bench import options


def main() -> int:
    """Run; 0 when everything asked for was measured, 1 when something failed."""
    given = options.parse()
    console = rich.console.Console(stderr=True, log_path=False)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    with _lock(given.state):
        if given.core:
            return _core(given, console)
        if given.start:
            return _start(given, console)
        return _fit(given, console) if given.fit else _campaign(given, console)


def _campaign(given: options.Options, console: rich.console.Console) -> int:
    from tools.bench import campaign
    from tools.bench.reports import report

    running = campaign.Campaign(given, console)
    failures = running.run()
    if not (given.populate_only or given.restart):
        report.show(running.results, given)
    for failure in failures:
        console.print(f"[red]FAILED[/] {failure}")
    return 1 if failures else 0


def _core(given: options.Options, console: rich.console.Console) -> int:
    from tools.bench import core
    from tools.bench.reports import report, results

    kept = results.Results(given.state / "results")
    for hosts in given.hosts:
        with console.status(f"{hosts} hosts: the pipeline alone"):
            kept.save_core(hosts, core.measure(hosts))
    report.show(kept, given)
    return 0


def _fit(given: options.Options, console: rich.console.Console) -> int:
    from tools.bench import fit
    from tools.bench.reports import report, results

    kept = results.Results(given.state / "results")
    for hosts in given.hosts:
        with console.status(f"{hosts} hosts: NUMA cells and PCI devices"):
            kept.save_fit(hosts, {"hosts": hosts, "kinds": fit.measure(hosts)})
    report.show(kept, given)
    return 0


def _start(given: options.Options, console: rich.console.Console) -> int:
    from tools.bench.reports import report, results
    from tools.bench.starts import state_starts

    kept = results.Results(given.state / "results")
    for hosts in given.hosts:
        with console.status(f"{hosts} hosts: states of a scheduler that starts"):
            found = state_starts.measure(
                hosts, given.state, given.servers_per_host, given.start_database
            )
            kept.save_start(hosts, found)
    report.show(kept, given)
    return 0


@contextlib.contextmanager
def _lock(state: pathlib.Path) -> Iterator[None]:
    """Keep a second run off the same state directory."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run uses {state}; wait, or choose another --state") from None
        yield


def _end(number: int, _frame: types.FrameType | None) -> None:
    # An exception, so that everything started is ended.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
