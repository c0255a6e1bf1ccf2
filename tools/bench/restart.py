# SPDX-License-Identifier: Apache-2.0
"""One of two nova-schedulers is restarted, then killed and started, while requests come.

Before that the same requests come while nothing happens: what is slow there, too, is the
machine's.
"""

import signal
import time
from collections.abc import Mapping
from typing import Any

from tools.bench import contest, measuring, meters, options
from tools.bench.control_plane import configuration, databases
from tools.bench.processes import worker

#: The goal: the longest answer, in seconds.
MOST_SECONDS = 2.0
#: Requests that may be under way at once: a scheduler that is away must not slow the rate.
_THREADS = 200
_SECONDS = 60.0
#: After so many the scheduler is ended.
_BEFORE_SECONDS = 10.0
_POLL_SECONDS = 0.25
_READY_SECONDS = 1800.0
_END_SECONDS = 200.0
_HOSTS = ("bench-scheduler-a", "bench-scheduler-b")
_WARM_UP_SEED, _RESTART_SEED, _KILL_SEED, _STEADY_SEED = 21, 22, 23, 24
_STEADY = "steady"
_CALLER = "caller"


class RestartContest(contest.Contest):
    """The plugin's schedulers as Nova's own command runs them, on a real bus."""

    def restart(self) -> dict[str, Any]:
        """Measure; returns figures by what was done to the first scheduler.

        :raises RuntimeError: it failed
        """
        self._running.start_rabbitmq()
        with self._conductor(options.PLUGIN) as conductor:
            scene = measuring.Scene(
                self._given.durations(self._hosts), 0, self._running, conductor, self._say
            )
            rates = self._rates()
            self._delete(conductor, databases.left_behind(self._running.settings, self._hosts))
            conductor.ask(
                "write", heartbeats_per_second=rates.heartbeats, reports_per_second=rates.reports
            )
            self._wait_swept(scene)
            try:
                return self._with_schedulers(scene)
            finally:
                for host in _HOSTS:
                    self._running.table.stop(host, signal.SIGKILL)
                conductor.ask("quiet")
                self._delete(conductor, scene.consumers)

    def _with_schedulers(self, scene: measuring.Scene) -> dict[str, Any]:
        path = self._write("bench-caller")
        with self._worker("caller", [str(path)]) as caller:
            for host in _HOSTS:
                self._start(host)
            for host in _HOSTS:
                self._wait_taking(caller, host, 0)
            self._run(caller, scene, _WARM_UP_SEED, 5.0)
            self._finish(caller, scene)
            found = {}
            for name, how, seed in (
                (_STEADY, None, _STEADY_SEED),
                ("restarted", signal.SIGTERM, _RESTART_SEED),
                ("killed", signal.SIGKILL, _KILL_SEED),
            ):
                self._say(
                    f"{self._hosts} hosts: {name}, {self._given.restart_rate:g} requests a second"
                )
                found[name] = self._trial(caller, scene, how, seed)
                self._log(f"{self._hosts} hosts, {name}: {found[name]}")
            return found

    def _trial(
        self, caller: worker.Worker, scene: measuring.Scene, how: signal.Signals | None, seed: int
    ) -> dict[str, Any]:
        """Make requests, end the first scheduler meanwhile and start it at once.

        :param how: the signal that ends it; None: it goes on
        """
        first, second = _HOSTS
        before = {host: caller.ask("status", host=host) for host in _HOSTS}
        log_size = self._running.access_log.stat().st_size
        gauges = self._meters(caller, scene) if how is None else None
        reading = gauges.read() if gauges is not None else None
        seconds = self._given.paced_seconds or _SECONDS
        self._run_begin(caller, seed, seconds)
        time.sleep(min(_BEFORE_SECONDS, seconds / 4))
        ended_seconds = 0.0
        if how is not None:
            began = time.monotonic()
            self._running.table.stop(first, how, timeout_seconds=_END_SECONDS)
            ended_seconds = time.monotonic() - began
            self._start(first)
        ran = self._run_end(caller, scene)
        used = gauges.since(reading) if gauges is not None and reading is not None else None
        after = self._wait_taking(caller, first, before[first]["pid"] if how is not None else 0)
        other = caller.ask("status", host=second)
        latencies = sorted(ran["latencies"])
        return {
            "hosts": self._hosts,
            "per_second": self._given.restart_rate,
            "requests": len(latencies),
            "answered": ran["decided"],
            "errors": ran["errors"],
            "ended_seconds": round(ended_seconds, 2),
            "candidates_asked_of_placement": self._asked(log_size),
            "fallbacks": {
                first: after["fallbacks"],
                second: _more(other["fallbacks"], before[second]["fallbacks"]),
            },
            "decided_after_the_start": after["outcomes"],
            "p50_seconds": round(latencies[len(latencies) // 2], 3),
            "p99_seconds": round(latencies[(len(latencies) * 99) // 100 - 1], 3),
            "longest_seconds": round(latencies[-1], 3),
            **(_per_request(used, len(latencies)) if used is not None else {}),
        }

    def _meters(self, caller: worker.Worker, scene: measuring.Scene) -> meters.Meters:
        table = self._running.table
        schedulers = [pid for host in _HOSTS if (pid := table.pid(host)) is not None]
        return meters.Meters(
            self._running,
            {
                meters.SCHEDULER: schedulers,
                meters.CONDUCTOR: [scene.conductor.pid],
                _CALLER: [caller.pid],
            },
        )

    def _asked(self, log_size: int) -> int:
        """Count requests for candidates since the log had a size: Nova's own path asks."""
        with self._running.access_log.open("rb") as log:
            log.seek(log_size)
            return sum(b"GET /allocation_candidates" in line for line in log)

    def _run_begin(self, caller: worker.Worker, seed: int, seconds: float) -> None:
        rate = self._given.restart_rate
        most = max(1, int(seconds * rate))
        caller.send("run", requests=most, seconds=seconds, seed=seed, threads=_THREADS, rate=rate)

    def _run_end(self, caller: worker.Worker, scene: measuring.Scene) -> dict[str, Any]:
        ran: dict[str, Any] = caller.receive(_READY_SECONDS)
        scene.consumers.extend(ran["consumers"])
        return ran

    def _run(
        self, caller: worker.Worker, scene: measuring.Scene, seed: int, seconds: float
    ) -> None:
        self._run_begin(caller, seed, seconds)
        self._run_end(caller, scene)

    def _finish(self, caller: worker.Worker, scene: measuring.Scene) -> None:
        self._delete(scene.conductor, scene.consumers)
        scene.consumers.clear()

    def _write(self, host: str) -> Any:
        return configuration.write_nova(
            self._running.settings,
            configuration.SCHEDULER,
            self._hosts,
            plugin=True,
            limit=self._limit,
            host=host,
            transport_url=configuration.rabbitmq_url(self._running.settings),
        )

    def _start(self, host: str) -> None:
        program = self._running.settings.program("nova-scheduler")
        self._running.table.start(host, [program, "--config-file", str(self._write(host))])

    def _wait_taking(self, caller: worker.Worker, host: str, not_pid: int) -> dict[str, Any]:
        """Wait until a scheduler, not the one before, has all proved; returns its status."""
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            status: dict[str, Any] = caller.ask("status", host=host)
            if status["state"] == "following" and status["pid"] != not_pid:
                return status
            self._say(f"{self._hosts} hosts: {host} is {status['state']}: {status['waits_for']}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{host} takes no requests: {status}")
            time.sleep(_POLL_SECONDS)


def judge(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say what falls short of the goal; what a killed process had taken is lost in stock, too."""
    texts = []
    for name, each in found.items():
        if each["candidates_asked_of_placement"] or any(each["fallbacks"].values()):
            texts.append(f"{name}: requests took Nova's own path")
        if name == "restarted" and each["answered"] < each["requests"]:
            texts.append(f"{name}: {each['requests'] - each['answered']} requests were lost")
        if name == "restarted" and each["longest_seconds"] > MOST_SECONDS:
            texts.append(f"{name}: the longest answer took {each['longest_seconds']} s")
    return texts


def _per_request(used: meters.Usage, requests: int) -> dict[str, Any]:
    return {
        "cpu_ms_per_request": {
            name: round(seconds / requests * 1000, 1) for name, seconds in used.cpu_seconds.items()
        },
        "calls_per_request": {
            name: round(calls / requests, 2) for name, calls in sorted(used.calls.items())
        },
    }


def _more(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {
        name: count - before.get(name, 0)
        for name, count in now.items()
        if count > before.get(name, 0)
    }
