# SPDX-License-Identifier: Apache-2.0
"""What was given away, as Placement's and Nova's tables say; sampled while a run is under way."""

import collections
import threading
from collections.abc import Callable, Iterable

import attrs

from tests.chaos import audit
from tests.chaos import snapshot as snapshot_module
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

_SAMPLE_SECONDS = 0.25

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


class OverCommitWatch:
    """Watches one stack. A context manager: samples in a thread of its own.

    :param take: reads a snapshot, see :class:`tests.chaos.snapshot.Reader`
    :ivar over_allocated: most that Placement had given away of a provider beyond what it offers, of
        any class, in any sample
    :ivar samples: how often it looked
    """

    def __init__(self, take: Callable[[], snapshot_module.Snapshot]) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="over-commit-watch", daemon=True)
        self.over_allocated = 0
        self.samples = 0
        self.failures: list[str] = []

    def __enter__(self) -> "OverCommitWatch":
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

    def look(self) -> snapshot_module.Snapshot:
        """Take one sample and return it; any thread."""
        with self._lock:
            now = self._take()
            for finding in audit.over_committed(now):
                self.over_allocated = max(self.over_allocated, finding.excess)
            self.samples += 1
            return now


def standing(now: snapshot_module.Snapshot, servers: Iterable[str]) -> dict[str, list[str]]:
    """Return which of some servers stand on each host, as the cells' databases have it."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for uuid in servers:
        server = now.servers.get(uuid)
        if server is not None and server.host is not None and server.vm_state != "error":
            found[server.host].append(uuid)
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
