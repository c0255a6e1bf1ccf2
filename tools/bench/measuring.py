# SPDX-License-Identifier: Apache-2.0
"""The measurements of one side at one size, each on a scheduler that is ready."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tools.bench import figures, floor, meters, options
from tools.bench.control_plane import servers
from tools.bench.processes import worker

#: At this size: many servers in one request, and several schedulers.
SIZE_OF_CROWDS = 1000
SERVERS_OF_A_CROWD = 50
_SEED = 7
_WARM_UP_SEED = 11
_CROWD_SEED = 13
_RATES = (1.0, 20.0)
_THREADS = 4
#: Time that a request may take after those for the requests are over.
_GRACE_SECONDS = 1800.0


class RefusedError(RuntimeError):
    """A run that counts for nothing: the plugin fell back, or requests failed."""


@attrs.frozen
class Rates:
    """The computes' writes, a second."""

    heartbeats: float
    reports: float


@attrs.frozen
class Scene:
    """What all measurements of one side at one size have in common.

    :param requests: most requests of one measurement
    :param consumers: whatever gets allocations is added here
    :param say: told what happens, for the progress display
    """

    durations: options.Durations
    requests: int
    running: servers.Servers
    conductor: worker.Worker
    say: Callable[[str], None]
    consumers: list[str] = attrs.field(factory=list)


class Measuring:
    """Measurements with some schedulers that are ready; the first does all that one can do."""

    def __init__(self, scene: Scene, schedulers: Sequence[worker.Worker]) -> None:
        self._scene = scene
        self._schedulers = list(schedulers)
        self._meters = self._meters_of(self._schedulers[:1])
        self._idle: meters.Usage | None = None

    def _meters_of(self, schedulers: Sequence[worker.Worker]) -> meters.Meters:
        return meters.Meters(
            self._scene.running,
            {
                meters.SCHEDULER: [each.pid for each in schedulers],
                meters.CONDUCTOR: [self._scene.conductor.pid],
            },
        )

    # -- each measurement ----------------------------------------------------

    def warm_up(self, requests: int) -> None:
        """Make requests that are not counted."""
        self._scene.say("warming up")
        self._run(requests, self._scene.durations.seconds / 2, _WARM_UP_SEED)

    def idle(self) -> dict[str, Any]:
        """Measure what goes on without requests."""
        self._scene.say("without requests")
        before = self._meters.read()
        self._schedulers[0].ask("rest", seconds=self._scene.durations.idle_seconds)
        usage = self._meters.since(before)
        self._idle = usage
        return {
            "seconds": usage.wall_seconds,
            "cpu_seconds_a_minute": {
                name: used * 60 / usage.wall_seconds for name, used in usage.cpu_seconds.items()
            },
            "sql_a_minute": {
                user: count * 60 / usage.wall_seconds for user, count in usage.statements.items()
            },
            "http_calls_a_minute": {
                name: count * 60 / usage.wall_seconds for name, count in usage.calls.items()
            },
        }

    def one_by_one(self) -> dict[str, Any]:
        """Measure requests for one server, each after the answer to the last."""
        self._scene.say("one request after the other")
        ran, usage = self._metered(self._scene.requests, self._scene.durations.seconds, _SEED)
        return self._figures(ran, usage)

    def paced(self, p50_seconds: float) -> list[dict[str, Any]]:
        """Measure the whole cost of a decision at stated rates, background included."""
        found: list[dict[str, Any]] = []
        for rate in _RATES:
            # Not above half of what the threads could do, if they did not hinder one another.
            if p50_seconds * rate > _THREADS / 2:
                found.append({"rate": rate, "skipped": "one scheduler is slower than that"})
                continue
            self._scene.say(f"{rate:g} requests a second")
            seconds = self._scene.durations.paced_seconds
            ran, usage = self._metered(
                int(rate * seconds), seconds, _SEED, rate=rate, threads=_THREADS
            )
            found.append(
                {"rate": rate, "wall_seconds": usage.wall_seconds, **self._figures(ran, usage)}
            )
        return found

    def crowd(self) -> dict[str, Any]:
        """Measure requests for many servers at once, and Placement's part of it alone."""
        self._scene.say(f"{SERVERS_OF_A_CROWD} servers in one request")
        ran, usage = self._metered(
            3,
            self._scene.durations.seconds / 2,
            _CROWD_SEED,
            instances=SERVERS_OF_A_CROWD,
            repeated=True,
        )
        found = {"servers": SERVERS_OF_A_CROWD, **self._figures(ran, usage)}
        alone = self._meters_of([])
        for name, count in (
            ("placement_alone", SERVERS_OF_A_CROWD),
            ("placement_alone_for_one", 1),
        ):
            found[name] = floor.measure(self._scene.running, alone, count, self._scene.consumers)
        return found

    def together(self, threads: int = _THREADS) -> dict[str, Any]:
        """Measure how much all schedulers decide at once.

        :param threads: requests at a time of each
        """
        self._scene.say(f"{len(self._schedulers)} schedulers x {threads} threads")
        both = self._meters_of(self._schedulers)
        before = both.read()
        seconds = self._scene.durations.seconds / 2
        for number, each in enumerate(self._schedulers):
            each.send("run", requests=10**6, seconds=seconds, seed=100 + number, threads=threads)
        ran = [each.receive(seconds + _GRACE_SECONDS) for each in self._schedulers]
        usage = both.since(before)
        for each in ran:
            self._check(each)
        decided = sum(each["decided"] for each in ran)
        wall_seconds = max(each["wall_seconds"] for each in ran)
        latencies = [seconds for each in ran for seconds in each["latencies"]]
        errors: dict[str, int] = {}
        for each in ran:
            for name, count in each["errors"].items():
                errors[name] = errors.get(name, 0) + count
        return {
            "schedulers": len(self._schedulers),
            "threads_each": threads,
            "decisions": decided,
            "decisions_per_second": decided / wall_seconds,
            "errors": errors,
            **figures.latency(latencies),
            **figures.per_request(usage, None, max(1, decided)),
        }

    # -- running ----------------------------------------------------------------

    def _metered(
        self, requests: int, seconds: float, seed: int, **more: Any
    ) -> tuple[dict[str, Any], meters.Usage]:
        before = self._meters.read()
        ran = self._run(requests, seconds, seed, **more)
        return ran, self._meters.since(before)

    def _run(self, requests: int, seconds: float, seed: int, **more: Any) -> dict[str, Any]:
        ran: dict[str, Any] = self._schedulers[0].ask(
            "run", seconds + _GRACE_SECONDS, requests=requests, seconds=seconds, seed=seed, **more
        )
        return self._check(ran)

    def _check(self, ran: dict[str, Any]) -> dict[str, Any]:
        self._scene.consumers.extend(ran["consumers"])
        if ran["fallbacks"]:
            raise RefusedError(f"the plugin took Nova's own path: {ran['fallbacks']}")
        if ran["candidates_asked"] and not ran["may_ask"]:
            raise RefusedError(
                f"the plugin asked Placement for candidates {ran['candidates_asked']} times,"
                " after it had done without"
            )
        unexpected = ran["errors"].keys() - {"NoValidHost"}
        if unexpected:
            raise RefusedError(f"requests failed: {'; '.join(sorted(unexpected))}")
        if not ran["decided"]:
            raise RefusedError(f"no request was decided: {ran['errors']}")
        return ran

    def _figures(self, ran: dict[str, Any], usage: meters.Usage) -> dict[str, Any]:
        requests = len(ran["latencies"])
        return {
            **figures.latency(ran["latencies"]),
            **figures.per_request(usage, self._idle, requests),
            "errors": ran["errors"],
            "fallbacks": sum(ran["fallbacks"].values()),
            "candidates_asked": ran["candidates_asked"] / requests,
            "different_hosts": ran["hosts"],
        }
