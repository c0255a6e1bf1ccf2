# SPDX-License-Identifier: Apache-2.0
"""What was given away, as Placement's and Nova's tables say; sampled while a run is under way."""

import collections
import threading
from collections.abc import Iterable, Mapping

import attrs

from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

_SAMPLE_SECONDS = 0.25

_ALLOCATED = (
    "SELECT p.name, SUM(a.used) FROM placement.allocations a"
    " JOIN placement.resource_providers p ON p.id = a.resource_provider_id"
    " JOIN placement.resource_classes c ON c.id = a.resource_class_id"
    " WHERE c.name = 'VCPU' GROUP BY p.name"
)
_STANDING = (
    "SELECT host, uuid FROM nova_{cell}.instances"
    " WHERE deleted = 0 AND host IS NOT NULL AND vm_state != 'error'"
)
_BUILDS = (
    "SELECT a.instance_uuid, e.host FROM nova_{cell}.instance_actions_events e"
    " JOIN nova_{cell}.instance_actions a ON a.id = e.action_id"
    " WHERE e.event = 'compute__do_build_and_run_instance'"
)


@attrs.frozen
class Build:
    """One attempt of a compute to build a server.

    What came of it the event does not say: nova-compute ends it with "Success"
    when it gives a server back to be built elsewhere, too.
    """

    server: str
    host: str


class Ledger:
    """Watches one stack. A context manager: samples in a thread of its own.

    :ivar over_allocated: most VCPU that Placement had given away of a provider beyond what it
        offers, in any sample
    :ivar samples: how often it looked
    """

    def __init__(self, stack: stack_module.Stack, capacity: Mapping[str, int]) -> None:
        self._stack = stack
        self._capacity = capacity
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ledger", daemon=True)
        self.over_allocated = 0
        self.samples = 0
        self.failures: list[str] = []

    def __enter__(self) -> "Ledger":
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            try:
                self.look()
            except Exception as error:  # told with the run's figures, which then fail it
                self.failures.append(f"{type(error).__name__}: {error}")
                return

    def look(self) -> None:
        """Take one sample."""
        for name, used in self._stack.sql(_ALLOCATED):
            self.over_allocated = max(
                self.over_allocated, int(used) - self._capacity.get(str(name), 0)
            )
        self.samples += 1


def standing(stack: stack_module.Stack, servers: Iterable[str]) -> dict[str, list[str]]:
    """Return which of some servers stand on each host, as the cells' databases have it."""
    wanted = set(servers)
    found: dict[str, list[str]] = collections.defaultdict(list)
    for cell in stack.settings.cell_names:
        for host, uuid in stack.sql(_STANDING.format(cell=cell)):
            if uuid in wanted:
                found[str(host)].append(str(uuid))
    return dict(found)


def builds(stack: stack_module.Stack, servers: Iterable[str]) -> list[Build]:
    """Return every attempt to build one of some servers."""
    wanted = set(servers)
    return [
        Build(str(server), str(host))
        for cell in stack.settings.cell_names
        for server, host in stack.sql(_BUILDS.format(cell=cell))
        if server in wanted
    ]


def late_checks_failed(settings: stack_settings.Settings) -> int:
    """Return how often a compute found, at the build, that a group's policy was broken."""
    return sum(
        path.read_text(errors="replace").count("instance group policy was violated")
        for name in settings.compute_names
        if (path := settings.log / f"{name}.log").exists()
    )
