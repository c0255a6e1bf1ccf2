# SPDX-License-Identifier: Apache-2.0
"""One side at one size: starts its processes, measures, and leaves the data as they were."""

import contextlib
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tools.bench import measuring, options
from tools.bench.control_plane import configuration, databases, servers
from tools.bench.processes import worker

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
# What two cores bear beside the measured work.
_MOST_HEARTBEATS = 50.0
_MOST_REPORTS = 16.0
_WARM_UP = {options.STOCK: 1, options.PLUGIN: 10}
_SETTLE_SECONDS = 3.0
_READY_SECONDS = 6 * 3600.0
#: Until Placement's mirror, which is filled already, is compared with Placement.
_MIRROR_SECONDS = 1800.0
_DELETE_SECONDS = 3600.0
_UNCLAIMED_SECONDS = 300.0
_CLEAR_SECONDS = 2 * _UNCLAIMED_SECONDS


class Contest:
    """A size and a limit, for one side after the other. Placement serves the size already.

    :param say: told what happens now, ``log`` what is worth keeping
    """

    def __init__(
        self,
        given: options.Options,
        running: servers.Servers,
        hosts: int,
        limit: int,
        say: Callable[[str], None],
        log: Callable[[str], None],
    ) -> None:
        self._given = given
        self._running = running
        self._hosts = hosts
        self._limit = limit
        self._say = say
        self._log = log

    def run(self, side: str) -> dict[str, Any]:
        """Measure a side.

        :raises RuntimeError: it failed, or counts for nothing
        """
        settings, hosts = self._running.settings, self._hosts
        with self._conductor(side) as conductor:
            self._delete(conductor, databases.left_behind(settings, hosts))
            allocated = databases.allocated(settings, hosts)
            scene = measuring.Scene(
                self._given.durations(hosts),
                self._given.requests,
                self._running,
                conductor,
                self._say,
            )
            try:
                found = self._measure(side, scene)
            finally:
                conductor.ask("quiet")
                self._delete(conductor, scene.consumers)
        if databases.allocated(settings, hosts) != allocated:
            raise RuntimeError(
                f"Placement's allocations are not what they were; remove {self._given.state}"
                f"/populated-{hosts} to have the size made again"
            )
        return found

    def _delete(self, conductor: worker.Worker, consumers: list[str]) -> None:
        self._say(f"deleting {len(consumers)} allocations")
        conductor.ask("delete_allocations", _DELETE_SECONDS, consumers=consumers)

    def _clear(self, scene: measuring.Scene, scheduler: worker.Worker) -> None:
        """Delete what was scheduled until now, and have its claims settled.

        Nobody builds these servers: claims of the plugin would gather that a report of their
        host ends within seconds elsewhere.
        """
        self._delete(scene.conductor, scene.consumers)
        scene.consumers.clear()
        self._say("claims of what was deleted come to their end")
        left = scheduler.ask("wait_unclaimed", _CLEAR_SECONDS, seconds=_UNCLAIMED_SECONDS)
        if left:
            self._log(f"{left} claims are left of servers that were deleted")

    def _measure(self, side: str, scene: measuring.Scene) -> dict[str, Any]:
        rates = self._rates()
        scene.conductor.ask(
            "write", heartbeats_per_second=rates.heartbeats, reports_per_second=rates.reports
        )
        written = scene.conductor.ask("written")
        if side == options.PLUGIN:
            self._wait_swept(scene)
        full = self._limit == self._given.limits_for(self._hosts)[0]
        with self._scheduler(side) as scheduler:
            self._say(f"{self._hosts} hosts, {side}: a scheduler gets ready")
            started = self._begin(scheduler, scene)
            measure = measuring.Measuring(scene, [scheduler])
            measure.warm_up(_WARM_UP[side])
            self._clear(scene, scheduler)
            found: dict[str, Any] = {
                "facts": self._facts(side, rates),
                "start": started,
                "idle": measure.idle(),
                "one_by_one": measure.one_by_one(),
            }
            if full:
                self._clear(scene, scheduler)
                found["paced"] = measure.paced(found["one_by_one"]["p50_seconds"])
            if full and self._hosts == measuring.SIZE_OF_CROWDS:
                self._clear(scene, scheduler)
                found["crowd"] = measure.crowd()
            found["memory"] = scheduler.ask("state")
            if full and self._hosts == measuring.SIZE_OF_CROWDS:
                with self._scheduler(side) as second:
                    self._begin(second, scene)
                    self._clear(scene, scheduler)
                    found["together"] = measuring.Measuring(scene, [scheduler, second]).together()
            self._clear(scene, scheduler)
        found["written"] = _rates_between(written, scene.conductor.ask("written"))
        return found

    def _begin(
        self, scheduler: worker.Worker, scene: measuring.Scene, **bounds: float
    ) -> dict[str, Any]:
        started: dict[str, Any] = scheduler.ask("begin", _READY_SECONDS, **bounds)
        scene.consumers.extend(started.pop("consumers"))
        return started

    def _wait_swept(self, scene: measuring.Scene) -> None:
        """Fill Placement's mirror, and wait until it and the cell are proved.

        With a scheduler that is not measured: the conductor sweeps its cell, twice where stock
        wrote before, and the scheduler compares the mirror with Placement.
        """
        self._say(f"{self._hosts} hosts: the mirror of Placement is filled")
        started = time.monotonic()
        databases.fill_mirror(self._running.settings, self._hosts)
        self._log(f"{self._hosts} hosts: mirror filled in {time.monotonic() - started:.0f} s")
        self._say(f"{self._hosts} hosts: the conductor compares its cell with the store")
        started = time.monotonic()
        with self._scheduler(options.PLUGIN) as probe:
            self._begin(probe, scene, mirror_seconds=_MIRROR_SECONDS)
            left = probe.ask("wait_reported", _READY_SECONDS, seconds=_MIRROR_SECONDS)
        if left:
            raise RuntimeError(f"{left} heartbeats that nobody reported are left")
        self._log(f"{self._hosts} hosts: proved after {time.monotonic() - started:.0f} s")
        time.sleep(_SETTLE_SECONDS)

    def _facts(self, side: str, rates: measuring.Rates) -> dict[str, Any]:
        return {
            "hosts": self._hosts,
            "limit": self._limit,
            "side": side,
            "when": time.strftime("%Y-%m-%d %H:%M:%S%z"),
            "commit": _commit(),
            "cpus": os.cpu_count(),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
            "heartbeats_per_second": rates.heartbeats,
            "reports_per_second": rates.reports,
        }

    def _rates(self) -> measuring.Rates:
        heartbeats, reports = (
            self._given.heartbeats_per_second,
            self._given.reports_per_second,
        )
        return measuring.Rates(
            min(self._hosts / 10, _MOST_HEARTBEATS) if heartbeats is None else heartbeats,
            min(self._hosts / 60, _MOST_REPORTS) if reports is None else reports,
        )

    # -- processes --------------------------------------------------------------

    @contextlib.contextmanager
    def _conductor(self, side: str) -> Iterator[worker.Worker]:
        path = configuration.write_nova(
            self._running.settings,
            configuration.CONDUCTOR,
            self._hosts,
            plugin=side == options.PLUGIN,
        )
        with self._worker("conductor", [str(path), str(self._hosts)]) as conductor:
            conductor.ask("ready")
            yield conductor

    @contextlib.contextmanager
    def _scheduler(self, side: str) -> Iterator[worker.Worker]:
        path = configuration.write_nova(
            self._running.settings,
            configuration.SCHEDULER,
            self._hosts,
            plugin=side == options.PLUGIN,
            limit=self._limit,
        )
        with self._worker("scheduler", [str(path)]) as scheduler:
            is_plugin = scheduler.ask("state")["is_plugin"]
            if is_plugin != (side == options.PLUGIN):
                raise RuntimeError(f"the scheduler of the {side} side runs the other one's manager")
            yield scheduler

    def _worker(self, name: str, arguments: list[str]) -> worker.Worker:
        return worker.Worker(
            name,
            sys.executable,
            f"tools.bench.processes.{name}_process",
            arguments,
            self._running.settings.log / f"{name}.out",
            _CHECKOUT,
        )


def _rates_between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    seconds = after["at"] - before["at"]
    return {
        "heartbeats_per_second": (after["heartbeats"] - before["heartbeats"]) / seconds,
        "reports_per_second": (after["reports"] - before["reports"]) / seconds,
        "behind_seconds": after["behind_seconds"],
    }


def _commit() -> str:
    answer = subprocess.run(
        ["git", "-C", str(_CHECKOUT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"
