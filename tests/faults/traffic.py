# SPDX-License-Identifier: Apache-2.0
"""Servers that are booted and deleted all the time, and what became of each."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Mapping

import attrs
from keystoneauth1 import exceptions as keystone_exceptions

from tools.stack import cloud as stack_cloud

_ROUND_SECONDS = 1.0
_HOLD_SECONDS = (2.0, 30.0)
_SETTLED_SECONDS = 420.0


@attrs.define
class _Server:
    name: str
    asked_at: float
    status: str = ""
    fault: str = ""
    delete_at: float = 0.0
    deleting: bool = False
    asked_again: bool = False


class Traffic:
    """One thread that keeps so many servers standing, each for some seconds.

    It goes by the list of servers alone: a request whose answer was lost may have been taken.

    :param prefix: of their names
    :param wanted: how many stand or are being built; fewer than there is room for, so that
        every failure is one
    """

    def __init__(self, cloud: stack_cloud.Cloud, prefix: str, wanted: int) -> None:
        self._cloud = cloud
        self._image = cloud.image_id()
        self._prefix = prefix
        self._wanted = wanted
        self._random = random.Random(prefix)
        self._number = 0
        self._servers: dict[str, _Server] = {}
        self._gone: dict[str, _Server] = {}
        self._stop = threading.Event()
        self._paused = threading.Event()
        self._rounds = 0
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self.refused = 0
        self.deletions_failed = 0
        self.errors: list[str] = []

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[list[str]]:
        """Ask for no server and delete none; gives the names of those that did not settle."""
        with self.held():
            deadline = time.monotonic() + _SETTLED_SECONDS
            while self.unsettled() and time.monotonic() < deadline:
                time.sleep(_ROUND_SECONDS / 2)
            yield self.unsettled()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Send no request to the API; what was asked for is built and deleted meanwhile."""
        self._paused.set()
        try:
            quiet_from = self._rounds + 2
            while self._rounds < quiet_from and self._thread.is_alive():
                time.sleep(_ROUND_SECONDS / 2)
            yield
        finally:
            self._paused.clear()

    def unsettled(self) -> list[str]:
        """Names of servers that are neither ACTIVE nor failed, or are still being deleted."""
        standing = list(self._servers.values())
        return [s.name for s in standing if s.deleting or s.status not in ("ACTIVE", "ERROR")]

    def standing(self) -> list[str]:
        """Ids of the servers that are there."""
        return list(self._servers)

    def active(self) -> int:
        """How many servers became ACTIVE so far."""
        return sum(1 for server in self._all() if server.status == "ACTIVE")

    def asked(self) -> int:
        """How many servers the API took so far."""
        return len(self._servers) + len(self._gone)

    def failed(self) -> Mapping[str, str]:
        """Why servers did not become ACTIVE, by name."""
        return {s.name: s.fault for s in self._all() if s.status == "ERROR"}

    def _all(self) -> list[_Server]:
        return [*self._servers.values(), *self._gone.values()]

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._look()
                if not self._paused.is_set():
                    self._delete()
                    self._ask()
            except keystone_exceptions.ClientException:
                # The API is being restarted; clients ask again.
                self.refused += 1
            except Exception as error:  # told with the scenario's promises
                self.errors.append(f"{type(error).__name__}: {error}")
            self._rounds += 1
            self._stop.wait(max(0.1, began + _ROUND_SECONDS - time.monotonic()))

    def _look(self) -> None:
        listed = {server["id"]: server for server in self._cloud.servers(self._prefix)}
        for identity, found in listed.items():
            server = self._servers.setdefault(
                identity, _Server(found["name"], asked_at=time.monotonic())
            )
            if found["status"] in ("ACTIVE", "ERROR") and not server.status:
                server.status = found["status"]
                server.fault = found.get("fault", {}).get("message", "")
                server.delete_at = time.monotonic() + self._random.uniform(*_HOLD_SECONDS)
            elif found["status"] == "ERROR" and server.status == "ACTIVE" and server.deleting:
                # nova-compute asked a conductor that stopped. Clients ask again, once here.
                server.deleting = server.asked_again
                self.deletions_failed += not server.asked_again
                server.asked_again = True
            elif found["status"] == "ERROR" and server.status != "ERROR":
                server.status = "ERROR"
                server.fault = "after it was ACTIVE: " + found.get("fault", {}).get("message", "")
        for identity in set(self._servers) - set(listed):
            self._gone[identity] = self._servers.pop(identity)

    def _delete(self) -> None:
        for identity, server in self._servers.items():
            if server.status and not server.deleting and time.monotonic() > server.delete_at:
                with contextlib.suppress(keystone_exceptions.NotFound):
                    self._cloud.compute.delete(f"/servers/{identity}")
                server.deleting = True

    def _ask(self) -> None:
        # One that is being deleted may hold its room still.
        for _ in range(self._wanted - len(self._servers)):
            self._number += 1
            name = f"{self._prefix}{self._number}"
            identity = self._cloud.boot(name, self._image)
            self._servers[identity] = _Server(name, time.monotonic())
