# SPDX-License-Identifier: Apache-2.0
"""What one scenario does with the stack: boots servers, waits, compares, takes notes."""

import datetime
import json
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs
from keystoneauth1 import exceptions as keystone_exceptions

from tests.faults import watch as watch_module
from tools.stack import cloud as stack_cloud
from tools.stack import stack as stack_module

SERVED_SECONDS = 180.0
"""How long cells may take to be served from memory again before a scenario fails."""

_ACTIVE_SECONDS = 300.0
_ACCEPTED_SECONDS = 180.0
_COMPARED_SECONDS = 120.0
_SAME_SECONDS = 30.0
_COMMAND_TIMEOUT_SECONDS = 300.0


Say = Callable[[str], None]


@attrs.frozen
class Outcome:
    """What became of one scenario.

    :param fallbacks: requests that left memory, by reason
    :param reasons: why scopes were not proved meanwhile, by scope
    :param noticed_seconds: from the fault until the first scope was not proved; None: never
    :param recovery_seconds: from the end of the fault until all is served from memory again
    :param failures: what was promised and not kept; empty when all was well
    """

    number: int
    fault: str
    active: int
    asked: int
    fallbacks: Mapping[str, int]
    reasons: Mapping[str, list[str]]
    noticed_seconds: float | None
    recovery_seconds: float | None
    compare_clean: bool
    seconds: float
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    run_on: str = ""

    @property
    def passed(self) -> bool:
        return not self.failures


class Trial:
    """The stack during one scenario. Methods block; none raises for what a fault may cause."""

    def __init__(
        self,
        number: int,
        stack: stack_module.Stack,
        watch: watch_module.Watch,
        say: Say,
    ) -> None:
        self.stack = stack
        self.watch = watch
        self._number = number
        self._say = say
        self._asked: list[str] = []
        self._gone = [0, 0]
        self._began = self._fault_at = self._healed_at = time.monotonic()
        self._noticed: float | None = None
        self._recovery: float | None = None
        self._notes: list[str] = []
        self._failures: list[str] = []
        self._image: str | None = None

    # -- the course of a scenario -------------------------------------------------

    def begin(self) -> None:
        """Count from now on, seconds and what schedulers tell."""
        self.watch.begin()
        self._recovery = None
        self._began = self._fault_at = self._healed_at = time.monotonic()

    def say(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def note(self, text: str) -> None:
        """Keep an observation for the report."""
        self._notes.append(text)
        self.say(text)

    def expect(self, condition: bool, promise: str) -> None:
        """Note a promise that was not kept; the scenario goes on, and fails."""
        if not condition:
            self._failures.append(promise)
            self.say(f"NOT SO: {promise}")

    def fault(self, text: str) -> None:
        """The fault happens now."""
        self._fault_at = self._healed_at = time.monotonic()
        self._noticed = self._recovery = None
        self.watch.begin_noticing()
        self.say(text)

    def heal(self, text: str) -> None:
        """The fault ends now; without it, it is over as soon as it has happened."""
        self._healed_at = time.monotonic()
        self.say(text)

    # -- servers --------------------------------------------------------------------

    def ask(self, stage: str, count: int = 3, **more: Any) -> list[str]:
        """Ask for servers, again and again while the API cannot take requests."""
        ids = []
        for number in range(count):
            name = self.name(f"{stage}-{number}")
            server = self._accepted(lambda name=name: self._boot(name, more))
            if server is not None:
                ids.append(server)
        self._asked += ids
        self.expect(len(ids) == count, f"the API took {count} requests {stage}")
        return ids

    def settle(self, ids: Iterable[str], excused: str | None = None) -> list[stack_cloud.Json]:
        """Wait for servers; each must become ACTIVE.

        :param excused: a fault that stock Nova has at this moment, too: noted, and not counted
        """
        wanted = list(ids)
        servers = self._patient(lambda: self.cloud.wait_settled(wanted, _ACTIVE_SECONDS)) or []
        for server in servers:
            fault = server.get("fault", {}).get("message", "")
            if server["status"] != "ACTIVE" and excused is not None and excused in fault:
                self.note(f"{server['name']} is {server['status']}, as with stock Nova: {fault}")
                self.forget([server])
                continue
            promise = f"{server['name']} becomes ACTIVE (it is {server['status']} {fault})"
            self.expect(server["status"] == "ACTIVE", promise)
        hosts = [server["OS-EXT-SRV-ATTR:host"] for server in servers]
        self.say(f"{len(servers)} servers settled on {', '.join(map(str, hosts))}")
        return servers

    def forget(self, servers: Iterable[stack_cloud.Json]) -> None:
        """Count these no longer: they were deleted, or may not run."""
        gone = {server["id"] for server in servers}
        self._asked = [server for server in self._asked if server not in gone]

    def count(self, active: int, asked: int) -> None:
        """Count servers that are gone by the end, too."""
        self._gone = [self._gone[0] + active, self._gone[1] + asked]

    def boot(self, stage: str, count: int = 3, **more: Any) -> list[stack_cloud.Json]:
        """Ask for servers and wait until they are ACTIVE."""
        return self.settle(self.ask(stage, count, **more))

    @property
    def cloud(self) -> stack_cloud.Cloud:
        return self.stack.cloud

    # -- memory ---------------------------------------------------------------------

    def wait_served(self, timeout_seconds: float = SERVED_SECONDS) -> float:
        """Wait until every scheduler serves every cell from memory.

        Returns the seconds since the end of the fault; the longest is kept for the report.
        """
        begun = time.monotonic()
        missing: Mapping[str, str] | None = None
        while time.monotonic() < begun + timeout_seconds:
            missing = self.watch.missing(begun)
            if missing == {}:
                seconds = time.monotonic() - self._healed_at
                self._recovery = max(self._recovery or 0.0, seconds)
                self.say(f"all is served from memory; {seconds:.1f} s since the fault was over")
                return seconds
            time.sleep(0.2)
        told = "a scheduler does not answer" if missing is None else str(dict(missing))
        self.expect(False, f"all is served from memory within {timeout_seconds:.0f} s ({told})")
        return timeout_seconds

    def wait_noticed(
        self, scope: str, timeout_seconds: float, reason: str | None = None
    ) -> str | None:
        """Wait until a scheduler says that it cannot prove a scope; return its reason.

        :param reason: wait for this one
        """
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            for (where, why), at in self.watch.noticed().items():
                if where == scope and reason in (why, None) and at > self._fault_at:
                    seconds = at - self._fault_at
                    self._noticed = self._noticed or seconds
                    self.say(f"{scope} is not proved after {seconds:.1f} s: {why}")
                    return why
            time.sleep(0.2)
        return None

    def wait_for(self, what: str, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait for anything else; a promise not kept if it does not come."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if self._patient(condition, tries=1):
                return True
            time.sleep(1.0)
        self.expect(False, f"within {timeout_seconds:.0f} s: {what}")
        return False

    # -- the end --------------------------------------------------------------------

    def finish(self, fault: str) -> Outcome:
        """Compare, count, and delete the servers."""
        clean = self.compare()
        self.wait_for("all schedulers hold as many records", self._hold_the_same, _SAME_SECONDS)
        servers = [s for s in self._patient(self.cloud.servers) or [] if s["id"] in self._asked]
        active = sum(1 for server in servers if server["status"] == "ACTIVE")
        noticed = self.watch.noticed()
        if self._noticed is None and noticed:
            self._noticed = max(0.0, min(noticed.values()) - self._fault_at)
        outcome = Outcome(
            number=self._number,
            fault=fault,
            active=active + self._gone[0],
            asked=len(self._asked) + self._gone[1],
            fallbacks=self.watch.fallbacks(),
            reasons=_reasons(noticed),
            noticed_seconds=self._noticed,
            recovery_seconds=self._recovery if noticed else None,
            compare_clean=clean,
            seconds=time.monotonic() - self._began,
            notes=tuple(self._notes),
            failures=tuple(self._failures),
            run_on=datetime.datetime.now(datetime.UTC).date().isoformat(),
        )
        # A request that was sent anew may have been taken before, too.
        mine = self._patient(lambda: self.cloud.servers(self.name(""))) or []
        self._patient(lambda: self.cloud.delete_servers([server["id"] for server in mine]))
        return outcome

    def _hold_the_same(self) -> bool:
        held = list(self.watch.records().values())
        return all(records == held[0] for records in held)

    def compare(self) -> bool:
        """Compare the store with Nova's databases, until the command can.

        All is served from memory by then: a difference is a promise not kept,
        though a sweep would mend it.
        """
        begun = time.monotonic()
        told = ""
        while time.monotonic() < begun + _COMPARED_SECONDS:
            answer = self.manage("compare", "--json")
            if answer.returncode == 0:
                self.say(f"compare is clean after {time.monotonic() - begun:.1f} s")
                return True
            differs = differences(answer.stdout)
            told = differs or answer.stderr[-500:]
            self.say(f"compare: {told}")
            if differs:
                break
            time.sleep(2.0)
        self.expect(False, f"compare is clean: {told}")
        return False

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run nova-nodb-manage with the configuration of nova-manage."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_TIMEOUT_SECONDS,
        )

    def command(self, *arguments: str) -> list[str]:
        """The command line of :meth:`manage`."""
        settings = self.stack.settings
        file = settings.etc / "nova" / "nova-manage" / "nova.conf"
        return [settings.program("nova-nodb-manage"), "--config-file", str(file), *arguments]

    # -- requests -------------------------------------------------------------------

    def name(self, text: str) -> str:
        """A server's name; those of this scenario are deleted at its end."""
        return f"fault{self._number}-{text}"

    def _boot(self, name: str, more: Mapping[str, Any]) -> str:
        cloud = self.cloud
        if self._image is None:
            self._image = cloud.image_id()
        return cloud.boot(name, self._image, **more)

    def _accepted(self, boot: Callable[[], str]) -> str | None:
        """The id of a server; a request that failed is sent anew, as a client would."""
        deadline = time.monotonic() + _ACCEPTED_SECONDS
        refused = 0
        while True:
            try:
                server = boot()
            except keystone_exceptions.ClientException as error:
                refused += 1
                if time.monotonic() > deadline:
                    self.say(f"refused to the end: {error}")
                    return None
                time.sleep(1.0)
            else:
                if refused:
                    self.say(f"the API refused {refused} times before it took the request")
                return server

    def _patient(self, call: Callable[[], Any], tries: int = 60) -> Any:
        """What a call of the API returns; it is repeated while the API is not there."""
        for _ in range(tries):
            try:
                return call()
            except keystone_exceptions.ClientException as error:
                self.say(f"the API does not answer yet: {str(error)[:100]}")
                time.sleep(2.0)
        return None


def _reasons(noticed: Mapping[tuple[str, str], float]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for scope, reason in sorted(noticed, key=lambda pair: noticed[pair]):
        found.setdefault(scope, []).append(reason)
    return found


def differences(output: str) -> str:
    """What ``nova-nodb-manage compare --json`` found, in one line."""
    return counted(output, ("missed", "stale", "extra"))


def counted(output: str, kinds: Collection[str]) -> str:
    """What ``nova-nodb-manage compare --json`` counted of some kinds, in one line."""
    try:
        found = json.loads(output)
    except json.JSONDecodeError:
        return ""
    told = []
    for scope, tables in found.items():
        for table, comparison in tables.items():
            counts = {kind: comparison.get(f"{kind}_count", 0) for kind in kinds}
            if any(counts.values()):
                told.append(f"{scope[:8]} {table} {counts} {comparison.get('stale_by_field')}")
    return "; ".join(told)
