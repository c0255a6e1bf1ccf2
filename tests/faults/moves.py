# SPDX-License-Identifier: Apache-2.0
"""The back end is changed for another while servers are booted and deleted."""

import contextlib
import json
import time
from collections.abc import Mapping

import attrs

from nova_nodb_scheduler.testing import redis_server, servers
from tests.capacity import ledger as ledger_module
from tests.chaos import snapshot as snapshot_module
from tests.faults import backends, leftovers
from tests.faults import traffic as traffic_module
from tests.faults import trial as trial_module
from tools.stack import stack as stack_module

_VCPUS = 4
"""Room for so many servers on each host."""
_SPARE = 6
"""Slots that are free while servers come and go."""
_BEYOND = 4
"""Servers beyond the last slot."""
_SUPER = "nova-super-conductor"
_TAKERS = ("nova-api", _SUPER)
"""What these have taken when they stop Nova forgets, stock or not: the API between a server's new
task state and the message, the conductor between the message and its thread."""
_QUIET_SECONDS = 240.0
_REFUSAL = "No valid host was found"
_UNCLAIMED = ("Nova's own goes ahead", "Claims are not judged by now")


@attrs.frozen
class BackEnd:
    """A back end to move to.

    :param options: its driver's own, in their group; empty: they stand in nova.conf already
    """

    driver: str
    options: Mapping[str, Mapping[str, str]]


SQL = BackEnd("sqlalchemy", {})


def to_redis_and_back(trial: trial_module.Trial) -> None:
    """Between two back ends of which neither forgets in a restart."""
    with redis_server.Redis("--maxmemory-policy", "noeviction") as redis:
        _there_and_back(trial, BackEnd("redis", {"nodb_redis": {"url": redis.url}}))


def to_memcached_and_back(trial: trial_module.Trial) -> None:
    """Between the default and one that is only memory."""
    with servers.Memcached("-m", "64", "-M") as memcached:
        own = {"nodb_memcached": {"servers": memcached.address}}
        _there_and_back(trial, BackEnd("memcached", own))


def _there_and_back(trial: trial_module.Trial, other: BackEnd) -> None:
    """By the administrator's guide, step by step, and to the first back end again."""
    settings = trial.stack.settings
    with contextlib.ExitStack() as held:
        trial.stack.capacity(_VCPUS)
        held.callback(trial.stack.capacity, None)
        trial.wait_served()
        capacity = trial.cloud.vcpu_capacity()
        reader = held.enter_context(contextlib.closing(snapshot_module.Reader(settings)))
        ledger = held.enter_context(ledger_module.OverCommitWatch(reader.snapshot))
        traffic = traffic_module.Traffic(
            trial.cloud, trial.name("traffic-"), sum(capacity.values()) - _SPARE
        )
        move = _Moves(trial, traffic, ledger, sum(capacity.values()))
        held.callback(move.restore)
        with traffic:
            time.sleep(10.0)
            move.to(other)
            move.to(SQL)
        trial.count(traffic.active(), traffic.asked())
        trial.expect(not traffic.errors, f"servers come and go: {traffic.errors[:3]}")
        trial.expect(not ledger.failures and ledger.samples > 0, f"all is seen: {ledger.failures}")
        trial.note(
            f"{traffic.asked()} servers asked for on {settings.computes} hosts meanwhile, "
            f"{traffic.active()} ACTIVE, the API away {traffic.refused} times, "
            f"{traffic.deletions_failed} deletions asked for again; "
            f"{ledger.samples} looks at Placement's tables"
        )


class _Moves:
    """One move after the other.

    :param slots: how many servers there is room for
    """

    def __init__(
        self,
        trial: trial_module.Trial,
        traffic: traffic_module.Traffic,
        ledger: ledger_module.OverCommitWatch,
        slots: int,
    ) -> None:
        self._trial = trial
        self._traffic = traffic
        self._ledger = ledger
        self._slots = slots
        self._standing = SQL
        self._closed = False
        self._told_failures: set[str] = set()

    def to(self, target: BackEnd) -> None:
        """Move by the guide's steps, while requests wait in the super conductor's queue."""
        trial, stack = self._trial, self._trial.stack
        source = self._standing
        before, unclaimed = self._fallbacks(), _unclaimed(stack)
        arguments = ["synchronizer", "move", "--to", target.driver, "--json"]
        if target.options:
            file = stack.settings.etc / f"to-{target.driver}.conf"
            file.write_text(rendered(target.options))
            arguments += ["--to-config", str(file)]
        checked = trial.manage(*arguments, "--check")
        trial.expect(
            checked.returncode == 0,
            f"the move to {target.driver} can be made: {checked.stdout}{checked.stderr[-500:]}",
        )
        trial.fault(f"move from {source.driver} to {target.driver}")
        begun = time.monotonic()
        self._closed = True
        self._ledger.over_allocated = 0
        self._stop(_SUPER, *stack.settings.scheduler_names)
        moved = trial.manage(*arguments)
        if moved.returncode:
            raise RuntimeError(f"the move failed: {moved.stdout}{moved.stderr[-2000:]}")
        told = json.loads(moved.stdout)
        trial.say(f"moved: {told}")
        self._reconfigure(target)
        self._standing, self._closed = target, False
        trial.heal(f"every service uses {target.driver}")
        waited = time.monotonic() - begun
        time.sleep(10.0)
        with self._traffic.paused() as unsettled:
            trial.expect(not unsettled, f"every server settles: {unsettled}")
            left = self._fallbacks(before)
            self._look(target)
        trial.note(
            f"{source.driver} to {target.driver}: {told['records']} records and "
            f"{told['claims']} of claims in {told['seconds']:.1f} s, fenced for "
            f"{told['fenced_seconds']:.1f} s; requests waited for {waited:.0f} s; "
            f"read from databases: {left or 'none'}"
        )
        trial.expect(not left, f"no request leaves memory: {left}")
        new = _unclaimed(stack) - unclaimed
        trial.expect(not new, f"nothing is allocated without a claim: {sorted(new)[:3]}")
        beyond = self._ledger.over_allocated
        trial.expect(beyond <= 0, f"no host gives more than it has (it gave {beyond} more)")

    def _reconfigure(self, target: BackEnd) -> None:
        """What the guide says behind the command: new files, and everybody restarted by them."""
        trial, stack = self._trial, self._trial.stack
        names = stack.settings.control_plane_names
        options = {"nodb_scheduler": {"synchronizer": target.driver}, **target.options}
        changed = None if target == SQL else options
        stack.configure(dict.fromkeys([*names, "nova-manage"], changed))
        schedulers = stack.settings.scheduler_names
        conductors = map(stack.settings.conductor_names, stack.settings.cell_names)
        for group in zip(*conductors, strict=True):
            self._restart(*group)
        self._restart("nova-api")
        imported = trial.manage("import", "--json")
        trial.expect(imported.returncode == 0, f"all is swept: {imported.stderr[-500:]}")
        trial.say("every cell is swept")
        self._restart(*schedulers)
        trial.wait_served()
        trial.wait_for(
            f"status says that all is healthy on {target.driver}",
            lambda: leftovers.is_healthy(trial, target.driver),
            _QUIET_SECONDS,
        )
        self._restart(_SUPER)

    def _restart(self, *names: str) -> None:
        """End services and start them together; one that stands already is started."""
        began = time.monotonic()
        self._stop(*names)
        for name in names:
            self._trial.stack.start(name)
        for name in names:
            self._trial.stack.wait_ready(name)
        self._trial.say(f"{', '.join(names)} restarted in {time.monotonic() - began:.1f} s")

    def _stop(self, *names: str) -> None:
        """End services in order; those that stand already are left."""
        for name in names:
            with self._traffic.held() if name in _TAKERS else contextlib.nullcontext():
                self._trial.stack.stop(name, graceful=True)

    def _look(self, target: BackEnd) -> None:
        """What holds behind a move, while nobody asks for anything."""
        trial = self._trial
        failed = dict(self._traffic.failed())
        told = {name: fault for name, fault in failed.items() if name not in self._told_failures}
        self._told_failures |= set(told)
        for name, fault in told.items():
            trial.expect(False, f"{name} becomes ACTIVE, with room for it ({fault})")
        trial.expect(trial.compare(), f"compare is clean on {target.driver}")
        leftovers.expect_none(trial, target.driver)
        self._fill(target)

    def _fill(self, target: BackEnd) -> None:
        """Ask for more than there is room for: exactly what fits becomes ACTIVE."""
        trial = self._trial
        free = self._slots - len(leftovers.allocated(trial.stack))
        asked = trial.ask(f"fill-{target.driver}", free + _BEYOND)
        filled = trial.cloud.wait_settled(asked, _QUIET_SECONDS)
        active = sum(1 for server in filled if server["status"] == "ACTIVE")
        refused = [s for s in filled if _REFUSAL in s.get("fault", {}).get("message", "")]
        trial.expect(
            (active, len(refused)) == (free, _BEYOND),
            f"{free} of {len(asked)} find the last slots on {target.driver}, and {_BEYOND} none "
            f"(they are {active} and {len(refused)})",
        )
        trial.say(f"{active} of {len(asked)} found the last {free} slots")
        trial.cloud.delete_servers(asked)
        trial.forget([{"id": server} for server in asked])

    def _fallbacks(self, before: Mapping[str, int] | None = None) -> dict[str, int]:
        now = self._trial.watch.fallbacks()
        counts = {reason: count - (before or {}).get(reason, 0) for reason, count in now.items()}
        return {reason: count for reason, count in counts.items() if count}

    def restore(self) -> None:
        """Leave the stack on its own back end, whatever happened."""
        if self._standing == SQL and not self._closed:
            return
        self._trial.say("back to sqlalchemy, emptied")
        for table in backends.tables(self._trial):
            backends.empty(self._trial, table)
        self._reconfigure(SQL)
        self._standing, self._closed = SQL, False
        self._trial.wait_served()


def _unclaimed(stack: stack_module.Stack) -> set[str]:
    """What services have written of allocations that no claim stood before."""
    return {
        line
        for name in stack.settings.control_plane_names
        if (path := stack.settings.log / f"{name}.log").exists()
        for line in path.read_text(errors="replace").splitlines()
        if any(told in line for told in _UNCLAIMED)
    }


def rendered(options: Mapping[str, Mapping[str, str]]) -> str:
    """The file of a new driver's options, for the command."""
    lines = []
    for group, values in options.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in values.items())]
    return "\n".join([*lines, ""])
