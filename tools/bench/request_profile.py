# SPDX-License-Identifier: Apache-2.0
"""What one request costs a scheduler's process, by part: calls of functions, which no other work
on the machine moves, and CPU time.

usage: python -m tools.bench.request_profile --state DIRECTORY [--hosts N] [--requests N]
    [--claims on|off] [--batch-window S] [--threads N] [--top N] [--guarded]

The data are those of tools/bench.sh (``--populate-only`` makes them), with few heartbeats and
reports beside the requests. The scheduler runs in this process; what it allocated is deleted at the
end.
"""

import argparse
import collections
import contextlib
import cProfile
import functools
import os
import pathlib
import pstats
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tools.bench import meters, options
from tools.bench.clouds import workload
from tools.bench.control_plane import configuration, databases, servers
from tools.bench.processes import scheduler_process, worker

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_MIRROR_SECONDS = 1800.0
_DELETE_SECONDS = 3600.0
_REST = "Nova's preparation"
#: A part's name, and the methods that are it: module, class, name.
_PARTS = {
    "view and copy": (("nova_adapter.reads.request_views", "RequestViews", "open"),),
    "plan": (
        ("nova_adapter.decisions.request_decider", "RequestPlanner", "__init__"),
        ("nova_adapter.decisions.request_decider", "RequestPlanner", "plan"),
    ),
    "reservation": (
        ("scheduling.pipeline.placing", "HostReservations", "reserve"),
        ("scheduling.pipeline.placing", "HostReservations", "confirm"),
    ),
    "claim": (("scheduling.pipeline.placing", "Placing", "_claim"),),
    "POST": (("nova_adapter.decisions.request_allocations", "RequestAllocations", "write"),),
    "confirm": (("scheduling.pipeline.placing", "Placing", "_confirm"),),
    "reply": (("nova_adapter.decisions.request_decider", "_Decision", "_selections"),),
    "account": (("nova_adapter.manager", "SchedulerManager", "_account"),),
}


class Parts:
    """Attributes calls and CPU time of the thread that asks to the part it is in."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()
        #: By whose code was called, or called what is written in C.
        self.packages: collections.Counter[str] = collections.Counter()
        self.seconds: collections.Counter[str] = collections.Counter()
        #: By function: calls of it, and calls below it.
        self.below: dict[str, list[int]] = {}
        self._inside = [_REST]
        self._since: float | None = None
        self._thread = threading.get_ident()

    def install(self) -> None:
        """Wrap the methods that are the parts, for good."""
        import importlib

        for part, methods in _PARTS.items():
            for module_name, class_name, name in methods:
                module = importlib.import_module(f"nova_nodb_scheduler.{module_name}")
                owner = getattr(module, class_name)
                setattr(owner, name, self._wrapped(part, getattr(owner, name)))

    def _wrapped(self, part: str, own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return own(*args, **kwargs)
            self._switch()
            self._inside.append(part)
            try:
                return own(*args, **kwargs)
            finally:
                self._switch()
                self._inside.pop()

        return wrapped

    def _switch(self) -> None:
        if self._since is None:
            return
        now = time.thread_time()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Count CPU time meanwhile."""
        self._since = time.thread_time()
        yield
        self._switch()
        self._since = None

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count calls meanwhile, Python's functions and C's."""
        stack: list[tuple[str, int]] = []
        total = 0

        def count(frame: FrameType, event: str, _: Any) -> None:
            nonlocal total
            code = frame.f_code
            if event == "return":
                if stack:
                    name, before = stack.pop()
                    found = self.below.setdefault(name, [0, 0])
                    found[0] += 1
                    found[1] += total - before
            elif event in ("call", "c_call") and code.co_filename != __file__:
                total += 1
                self.calls[self._inside[-1]] += 1
                self.packages[_package(code.co_filename)] += 1
            if event == "call":
                place = "/".join(code.co_filename.split("/")[-2:])
                stack.append((f"{place}:{code.co_firstlineno} {code.co_qualname}", total))

        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(None)


@functools.cache
def _package(filename: str) -> str:
    """Return whose code a file holds: ours by package, others' by project."""
    _, found, rest = filename.partition("/nova_nodb_scheduler/")
    if found:
        return "nova_nodb_scheduler." + rest.split("/")[0].removesuffix(".py")
    _, found, rest = filename.partition("/site-packages/")
    if found:
        return rest.split("/")[0].removesuffix(".py")
    return "standard library"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.request_profile", description=__doc__
    )
    add = parser.add_argument
    add("--state", type=pathlib.Path, default=options.default_state_directory())
    add("--hosts", type=int, default=1000)
    add("--requests", type=int, default=100, help="of each measurement (%(default)s)")
    add("--claims", choices=("on", "off"), default="on")
    add("--batch-window", type=float, help="allocation_batch_window_seconds")
    add("--threads", type=int, default=0, help="measure throughput, too, with so many threads")
    add("--seconds", type=float, default=10.0, help="of the throughput (%(default)s)")
    add("--top", type=int, default=0, help="print so many functions of cProfile")
    add("--guarded", action="store_true", help="Placement's application is the plugin's")
    add("--keep", action="store_true", help="leave the servers running")
    given = parser.parse_args()
    running = servers.Servers(
        given.state.absolute(), pathlib.Path(sys.prefix), guarded=given.guarded
    )
    try:
        running.start_mariadb()
        databases.create_store_schema(running.settings, given.hosts)
        running.start_placement(given.hosts)
        with _conductor(running, given.hosts) as conductor:
            made: list[str] = []
            try:
                _measure(running, conductor, given, made)
            finally:
                conductor.ask("quiet")
                conductor.ask("delete_allocations", _DELETE_SECONDS, consumers=made)
    finally:
        if not given.keep:
            running.stop()
        sys.stdout.flush()
    # Nova's pools of threads would keep the process.
    os._exit(0)


@contextlib.contextmanager
def _conductor(running: servers.Servers, hosts: int) -> Iterator[worker.Worker]:
    path = configuration.write_nova(running.settings, configuration.CONDUCTOR, hosts, plugin=True)
    with worker.Worker(
        "conductor",
        sys.executable,
        "tools.bench.processes.conductor_process",
        [str(path), str(hosts)],
        running.settings.log / "conductor.out",
        _CHECKOUT,
    ) as conductor:
        conductor.ask("ready")
        left = databases.left_behind(running.settings, hosts)
        conductor.ask("delete_allocations", _DELETE_SECONDS, consumers=left)
        conductor.ask("write", heartbeats_per_second=5, reports_per_second=1)
        databases.fill_mirror(running.settings, hosts)
        yield conductor


def _measure(
    running: servers.Servers,
    conductor: worker.Worker,
    given: argparse.Namespace,
    made: list[str],
) -> None:
    more = {"claims": given.claims}
    if given.batch_window is not None:
        more["allocation_batch_window_seconds"] = str(given.batch_window)
    path = configuration.write_nova(
        running.settings, configuration.SCHEDULER, given.hosts, plugin=True, more=more
    )
    scheduler = scheduler_process.Scheduler(str(path))
    parts = Parts()
    parts.install()
    made += scheduler.begin(_MIRROR_SECONDS)["consumers"]
    requests = workload.stream(7)
    profile = cProfile.Profile(time.thread_time)

    def decide(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            answer = scheduler.decide(next(requests), 1)
            seconds.append(time.perf_counter() - started)
            made.extend(answer.consumers)
            if answer.error not in (None, "NoValidHost"):
                raise RuntimeError(answer.error)
        return seconds

    own = scheduler._manager.select_destinations

    def through(context: contextlib.AbstractContextManager[Any], count: int) -> None:
        """Decide, with only Nova's call itself in a context."""
        scheduler._manager.select_destinations = functools.partial(_within, own, context)
        decide(count)
        scheduler._manager.select_destinations = own

    decide(30)
    meter = meters.Meters(
        running, {meters.SCHEDULER: [os.getpid()], meters.CONDUCTOR: [conductor.pid]}
    )
    print(f"{given.hosts} hosts, claims {given.claims}, load {os.getloadavg()[0]:.1f}")
    _show_threads(meter, given.requests, decide)
    through(_Again(parts.timing), given.requests)
    through(_Again(parts.counting), given.requests)
    print(f"{'part':24}{'calls':>8}{'CPU ms':>8}")
    for part in (_REST, *_PARTS):
        each_ms = parts.seconds[part] * 1e3 / given.requests
        print(f"{part:24}{parts.calls[part] / given.requests:8.0f}{each_ms:8.2f}")
    total_ms = sum(parts.seconds.values()) * 1e3 / given.requests
    print(f"{'all':24}{sum(parts.calls.values()) / given.requests:8.0f}{total_ms:8.2f}")
    for package, calls in parts.packages.most_common():
        if calls >= 5 * given.requests:
            print(f"{package:40}{calls / given.requests:8.0f}")
    print("fallbacks", scheduler.fallbacks(), "candidates asked", dict(scheduler._candidates))
    if given.top:
        for name, (calls, below) in sorted(parts.below.items(), key=lambda each: -each[1][1])[
            : given.top
        ]:
            print(f"{below / given.requests:8.0f} below {calls / given.requests:7.1f} of {name}")
        through(_Again(lambda: _profiling(profile)), given.requests)
        figures = pstats.Stats(profile)
        figures.sort_stats("tottime").print_stats(given.top)
        figures.sort_stats("cumulative").print_stats(given.top)
    if given.threads:
        _show_throughput(meter, scheduler, given, made)


class _Again(contextlib.AbstractContextManager[None]):
    """A context that can be entered again and again."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._make = make
        self._now: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def __enter__(self) -> None:
        self._now = self._make()
        self._now.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._now.__exit__(*error)


@contextlib.contextmanager
def _profiling(profile: cProfile.Profile) -> Iterator[None]:
    profile.enable()
    try:
        yield
    finally:
        profile.disable()


def _within(
    call: Callable[..., Any],
    context: contextlib.AbstractContextManager[Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    with context:
        return call(*args, **kwargs)


def _show_threads(
    meter: meters.Meters, requests: int, decide: Callable[[int], list[float]]
) -> None:
    """Print the CPU of processes, and of this one's threads, less what they use at rest."""
    idle_before, started = _thread_seconds(), time.perf_counter()
    resting = meter.read()
    time.sleep(5.0)
    rested = meter.since(resting)
    idle_wall = time.perf_counter() - started
    idle = _difference(idle_before, _thread_seconds())
    before, started, reading = _thread_seconds(), time.perf_counter(), meter.read()
    latencies = decide(requests)
    # What is published and comes back belongs to the requests.
    time.sleep(1.0)
    wall = time.perf_counter() - started
    usage = meter.since(reading)
    used = _difference(before, _thread_seconds())
    own = {
        name: (seconds - idle.get(name, 0.0) * wall / idle_wall) * 1e3 / requests
        for name, seconds in used.items()
    }
    print("p50 ms", round(statistics.median(latencies) * 1e3, 1), dict(usage.calls))
    print(
        "process CPU ms",
        {
            name: round(
                (used - rested.cpu_seconds[name] * wall / rested.wall_seconds) * 1e3 / requests, 2
            )
            for name, used in usage.cpu_seconds.items()
        },
    )
    print(
        "SQL",
        {
            name: round(
                (count - rested.statements[name] * wall / rested.wall_seconds) / requests, 1
            )
            for name, count in usage.statements.items()
            if count
        },
    )
    print("thread CPU ms", {name: round(ms, 2) for name, ms in own.items() if abs(ms) >= 0.02})


def _thread_seconds() -> dict[str, float]:
    """Return the CPU time of each of this process's threads, by name, in seconds."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        nanoseconds = int((task / "schedstat").read_text().split()[0])
        name = names.get(int(task.name), "native")
        found[name] = found.get(name, 0.0) + nanoseconds / 1e9
    return found


def _difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


def _show_throughput(
    meter: meters.Meters,
    scheduler: scheduler_process.Scheduler,
    given: argparse.Namespace,
    made: list[str],
) -> None:
    before = meter.read()
    ran = scheduler.run(10**6, given.seconds, 21, threads=given.threads)
    usage = meter.since(before)
    made += ran["consumers"]
    decided = max(1, ran["decided"])
    print(
        f"{given.threads} threads: {decided / ran['wall_seconds']:.1f} decisions/s,",
        f"p50 {statistics.median(ran['latencies']) * 1e3:.0f} ms,",
        dict(usage.calls),
        {name: round(used * 1e3 / decided, 1) for name, used in usage.cpu_seconds.items()},
        ran["errors"],
        ran["fallbacks"],
    )


if __name__ == "__main__":
    sys.exit(main())
