# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage status --watch: a screen of what schedulers do, drawn again and again.

It reads the back end alone, where every worker writes its figures every few
seconds: it adds nothing to the message bus, and works while that is down. The
back end is read in a thread of its own, so that a dead one stops no screen.
"""

from __future__ import annotations

import datetime
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import rich.console
import rich.live
import rich.text

from nova_nodb_scheduler.cmd.framework import bounded, terminal
from nova_nodb_scheduler.cmd.overview import cell_names, deployment

#: As often as workers write their figures, about.
DEFAULT_SECONDS = 2.0
LEAST_SECONDS = 0.2
#: The first frame waits so long for the back end.
_FIRST_SECONDS = 3.0

#: Reads the back end; blocks for as long as its driver does.
Read = Callable[[], deployment.Deployment]

_COLUMNS = (
    *("host", "pid", "feed", "lag s", "decided", "1/s", "p50 s", "p99 s", "fell back"),
    "pending",
)


@attrs.define
class Rates:
    """Decisions a second, by worker, from two beats of it."""

    _seen: dict[str, tuple[float, int, float | None]] = attrs.field(factory=dict)

    def rate(self, worker: str, beat_at: float | None, total: int) -> float | None:
        """Take a worker's figures; returns its rate between its last two beats, None before."""
        if beat_at is None:
            return None
        last = self._seen.get(worker)
        if last is None:
            self._seen[worker] = (beat_at, total, None)
            return None
        last_at, last_total, rate = last
        if beat_at > last_at:
            rate = max(0, total - last_total) / (beat_at - last_at)
            self._seen[worker] = (beat_at, total, rate)
        return rate


class RepeatedReader:
    """Reads again and again, in a thread that keeps no process.

    :param pause_seconds: between the end of a read and the next
    """

    def __init__(self, read: Read, pause_seconds: float) -> None:
        self._read = read
        self._pause_seconds = pause_seconds
        self._ended = threading.Event()
        self._arrived = threading.Event()
        self._last: deployment.Deployment | None = None
        self._failure: str | None = None
        self._began_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=bounded.THREAD_NAME, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._last, self._failure = self._read(), None
            except Exception as error:  # noqa: BLE001 - whatever a driver raises, it is shown
                self._failure = f"{type(error).__name__}: {error}"
            self._began_at = time.monotonic()
            self._arrived.set()
            self._ended.wait(self._pause_seconds)

    def wait(self, bound_seconds: float) -> None:
        """Wait for the first answer, at most so long."""
        self._arrived.wait(bound_seconds)

    def last(self) -> tuple[deployment.Deployment | None, str | None]:
        """Return what was read last, and why it may be old; None where it is not."""
        waited = time.monotonic() - self._began_at
        if self._failure is None and waited > 2 * self._pause_seconds + 1:
            return self._last, f"The back end has not answered for {waited:.0f} s."
        return self._last, self._failure

    def stop(self) -> None:
        """Read no more; a read that hangs is left behind."""
        self._ended.set()


def watch(
    console: rich.console.Console,
    read: Read,
    names: cell_names.CellNames,
    every_seconds: float,
    *,
    everything: bool = False,
    frames: int | None = None,
) -> None:
    """Draw until somebody presses ctrl-C.

    On a terminal each frame takes the place of the one before; elsewhere they
    follow one another.

    :param frames: how many are drawn; None for as many as somebody looks at
    """
    reader = RepeatedReader(read, every_seconds)
    rates = Rates()
    pause = threading.Event()
    screen: Any = _Plain(console)
    if console.is_terminal:
        screen = rich.live.Live(console=console, auto_refresh=False, screen=True)
    numbers = itertools.count(1) if frames is None else range(1, frames + 1)
    last: rich.console.RenderableType | None = None
    try:
        reader.wait(max(every_seconds, _FIRST_SECONDS))
        with screen:
            for number in numbers:
                found, failure = reader.last()
                last = frame(console, found, failure, rates, names, every_seconds, everything)
                screen.update(last, refresh=True)
                if number != frames:
                    pause.wait(every_seconds)
    except KeyboardInterrupt:
        # No error: ctrl-C is the way to end the screen, and the last line of each frame says so.
        pass
    finally:
        reader.stop()
    if console.is_terminal and last is not None:
        # The screen is as it was before: leave what was seen last.
        console.print(last)


class _Plain:
    """Prints frames one behind the other, where nothing can be drawn over."""

    def __init__(self, console: rich.console.Console) -> None:
        self._console = console

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *_args: object) -> None:
        return None

    def update(self, drawn: rich.console.RenderableType, *, refresh: bool) -> None:
        del refresh  # there is no screen
        # It flushes what it prints.
        self._console.print(drawn)


def frame(
    console: rich.console.Console,
    found: deployment.Deployment | None,
    failure: str | None,
    rates: Rates,
    names: cell_names.CellNames,
    every_seconds: float,
    everything: bool,
) -> rich.console.RenderableType:
    """Return one frame.

    :param failure: why nothing newer is known; None where this is new
    """
    now = datetime.datetime.now(datetime.UTC).strftime("%H:%M:%S")
    lines: list[rich.console.RenderableType] = []
    if failure is not None:
        lines.append(rich.text.Text(f"Not known anew: {failure}"))
    if found is None:
        lines.append(rich.text.Text("Nothing has been read yet."))
    else:
        count = len(found.problems)
        verdict = f"Not healthy, {count} problems" if count else "Nothing wrong on the back end"
        lines.append(rich.text.Text(f"{verdict}. {found.backend.driver}, {now} UTC.\n"))
        table, _left_out = terminal.table(
            _COLUMNS,
            (_row(each, rates) for each in found.schedulers),
            width=console.width,
            everything=everything,
        )
        lines.append(table or rich.text.Text("No scheduler with the plugin runs."))
        lines.append(rich.text.Text(f"\nFell back to Nova's own path: {_reasons(found)}"))
        lines.append(rich.text.Text(f"Claims: {_claims(found)}"))
        lines += [rich.text.Text(f"* {names.in_text(problem)}") for problem in found.problems[:5]]
        if count > 5:
            lines.append(rich.text.Text(f"* and {count - 5} more problems: see 'status'"))
    lines.append(rich.text.Text(f"\nEvery {every_seconds:g} s; ctrl-C ends."))
    return rich.console.Group(*lines)


def _row(each: Mapping[str, Any], rates: Rates) -> tuple[Any, ...]:
    total = sum((each["outcomes"] or {}).values())
    rate = rates.rate(str(each["worker"]), each["beat_at"], total)
    return (
        each["host"],
        each["pid"],
        each["state"] if each["alive"] else f"silent {each['age_seconds']:.0f} s",
        None if each["feed_lag_seconds"] is None else f"{each['feed_lag_seconds']:.2f}",
        total,
        None if rate is None else f"{rate:.1f}",
        terminal.seconds(each["schedule_seconds_p50"]),
        terminal.seconds(each["schedule_seconds_p99"]),
        sum((each["fallbacks"] or {}).values()),
        int((each["settling"] or {}).get("pending", 0)),
    )


def _reasons(found: deployment.Deployment) -> str:
    totals: dict[str, int] = {}
    for each in found.schedulers:
        for reason, count in (each["fallbacks"] or {}).items():
            totals[reason] = totals.get(reason, 0) + count
    return terminal.counts(totals) or "never"


def _claims(found: deployment.Deployment) -> str:
    if not found.claims:
        return "nobody claims."
    told = {name: int(found.claims.get(name, 0)) for name in ("pending", "confirmed", "settled")}
    oldest = terminal.seconds(found.claims.get("oldest_pending_seconds")) or "0"
    return f"{terminal.counts(told)}; the oldest pending one {oldest} s."
