# SPDX-License-Identifier: Apache-2.0
"""What is asked for in a round: many clients at once, each by dice of its own.

What became of their servers they read in the ledger's samples, not from the API, so that asking
costs the control plane nothing and a request whose answer was lost is known all the same.
"""

import collections
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import requests
from keystoneauth1 import exceptions as keystone_exceptions

from tests.chaos import snapshot as snapshot_module
from tools.stack import cloud as stack_cloud

POLICIES = ("anti-affinity", "affinity", "soft-anti-affinity", "soft-affinity")

_PAUSE_SECONDS = (0.2, 1.2)
_CALL_SECONDS = 90.0
"""How long a client waits for the API."""
_IMPATIENT_SECONDS = 20.0
"""After which a deletion that does not come is asked for again."""
_FLAVORS = ("42", "84")
"""Of one VCPU each; a resize goes from one to the other."""
_CREATE, _IN_GROUP, _SEVERAL = "create", "create in a group", "create several"
_DELETE, _RESIZE, _MIGRATE = "delete", "resize", "migrate"
_CHANCES = {_CREATE: 6, _IN_GROUP: 4, _SEVERAL: 1, _DELETE: 3, _RESIZE: 1, _MIGRATE: 1}

Latest = Callable[[], snapshot_module.Snapshot | None]


class Calls:
    """Calls of the API: how long each took, and what became of it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: list[float] = []
        self._answers: collections.Counter[str] = collections.Counter()

    def send(self, adapter: Any, method: str, path: str, body: Any = None) -> bool:
        """Send one request; whether it was taken. What a fault may cause is counted."""
        began = time.monotonic()
        told = "taken"
        try:
            getattr(adapter, method)(
                path, timeout=_CALL_SECONDS, **({"json": body} if body else {})
            )
        except keystone_exceptions.HttpError as error:
            told = str(error.http_status)
        except (keystone_exceptions.ClientException, requests.RequestException, OSError) as error:
            told = type(error).__name__
        with self._lock:
            self._seconds.append(time.monotonic() - began)
            self._answers[told] += 1
        return told == "taken"

    def seconds(self) -> list[float]:
        with self._lock:
            return list(self._seconds)

    def answers(self) -> Mapping[str, int]:
        with self._lock:
            return dict(sorted(self._answers.items()))


class Workload:
    """All clients of a round. A context manager: they work while its with block runs.

    :param prefix: of every server's and group's name
    :param wanted: servers that each client tries to have
    :param latest: the ledger's last sample
    :param leaving: takes the uuid of each server before its deletion is asked for
    :ivar asked: when each server was asked for (monotonic), by name
    :ivar together: how many its request asked for, by name
    :ivar taken: names of those that the API took
    :ivar grouped: names of those that were asked for in a group
    """

    def __init__(
        self,
        cloud: stack_cloud.Cloud,
        prefix: str,
        seed: int,
        clients: int,
        wanted: int,
        latest: Latest,
        leaving: set[str],
    ) -> None:
        self._cloud = cloud
        self._prefix = prefix
        self._image = cloud.image_id()
        self._wanted = wanted
        self._latest = latest
        self._leaving = leaving
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.calls = Calls()
        self.asked: dict[str, float] = {}
        self.together: dict[str, int] = {}
        self.taken: set[str] = set()
        self.grouped: set[str] = set()
        self.done: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []
        self.groups = {
            policy: cloud.create_group(f"{prefix}{policy}", policy) for policy in POLICIES
        }
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(f"{prefix}c{number}-", random.Random(f"{seed} {number}")),
                name=f"chaos-client-{number}",
                daemon=True,
            )
            for number in range(clients)
        ]

    def __enter__(self) -> "Workload":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def delete_groups(self) -> None:
        for group in self.groups.values():
            self.calls.send(self._cloud.compute, "delete", f"/os-server-groups/{group}")

    def _work(self, prefix: str, dice: random.Random) -> None:
        client = _Client(self, prefix, dice)
        while not self._stop.wait(dice.uniform(*_PAUSE_SECONDS)):
            try:
                client.step()
            except Exception as error:  # told with the round, which then fails
                with self._lock:
                    self.errors.append(f"{type(error).__name__}: {error}")
                return

    # -- for clients --------------------------------------------------------------------

    def servers(self, prefix: str) -> list[snapshot_module.Server]:
        now = self._latest()
        found = [] if now is None else list(now.servers.values())
        return sorted(
            (server for server in found if server.name.startswith(prefix)), key=lambda s: s.name
        )

    @property
    def wanted(self) -> int:
        return self._wanted

    def create(self, name: str, flavor: str, count: int = 1, group: str | None = None) -> None:
        """Ask for servers; those of a request for several get numbers behind their name."""
        names = [name] if count == 1 else [f"{name}-{k}" for k in range(1, count + 1)]
        server = {"name": name, "flavorRef": flavor, "imageRef": self._image, "networks": "none"}
        body: dict[str, Any] = {"server": {**server, "min_count": count, "max_count": count}}
        if group is not None:
            body["os:scheduler_hints"] = {"group": self.groups[group]}
        began = time.monotonic()
        with self._lock:
            self.asked |= dict.fromkeys(names, began)
            self.together |= dict.fromkeys(names, count)
            if group is not None:
                self.grouped |= set(names)
        is_taken = self.calls.send(self._cloud.compute, "post", "/servers", body)
        with self._lock:
            if is_taken:
                self.taken |= set(names)
            else:
                # It may have been taken: then the ledger sees it, and who counts finds it there.
                self.done["refused by the API"] += count

    def delete(self, server: snapshot_module.Server) -> None:
        self._leaving.add(server.uuid)
        self.calls.send(self._cloud.compute, "delete", f"/servers/{server.uuid}")

    def act(self, server: snapshot_module.Server, action: Mapping[str, Any]) -> None:
        path = f"/servers/{server.uuid}/action"
        self.calls.send(self._cloud.compute, "post", path, dict(action))

    def count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1


class _Client:
    """One of them; it touches only servers whose names begin with its prefix."""

    def __init__(self, workload: Workload, prefix: str, dice: random.Random) -> None:
        self._workload = workload
        self._prefix = prefix
        self._dice = dice
        self._number = 0
        self._unseen: dict[str, float] = {}
        self._deleted: dict[str, float] = {}

    def step(self) -> None:
        """Do one thing."""
        own = self._workload.servers(self._prefix)
        now = time.monotonic()
        seen = {server.name for server in own}
        self._unseen = {
            name: at
            for name, at in self._unseen.items()
            if name not in seen and at > now - _IMPATIENT_SECONDS
        }
        free = [server for server in own if self._may_touch(server, now)]
        failed = [server for server in free if server.vm_state == "error"]
        resized = [s for s in free if s.vm_state == "resized" and s.task_state is None]
        if failed:
            self._delete(failed[0], now)
        elif resized:
            self._end_resize(resized[0])
        else:
            self._choose(free, len(own) + len(self._unseen), now)

    def _choose(self, free: list[snapshot_module.Server], standing: int, now: float) -> None:
        chosen = self._dice.choices(list(_CHANCES), list(_CHANCES.values()))[0]
        active = [s for s in free if s.vm_state == "active" and s.task_state is None]
        if standing >= self._workload.wanted and chosen in (_CREATE, _IN_GROUP, _SEVERAL):
            chosen = _DELETE
        if chosen in (_CREATE, _IN_GROUP, _SEVERAL):
            self._create(chosen)
        elif chosen == _DELETE and free:
            # One that is being built, too.
            self._delete(self._dice.choice(free), now)
        elif chosen in (_RESIZE, _MIGRATE) and active:
            self._move(self._dice.choice(active), chosen)
        else:
            return
        self._workload.count(chosen)

    def _create(self, how: str) -> None:
        self._number += 1
        name = f"{self._prefix}{self._number}"
        count = self._dice.randint(2, 3) if how == _SEVERAL else 1
        policy = self._dice.choice(POLICIES) if how == _IN_GROUP else None
        names = [name] if count == 1 else [f"{name}-{k}" for k in range(1, count + 1)]
        self._unseen |= dict.fromkeys(names, time.monotonic())
        self._workload.create(name, self._dice.choice(_FLAVORS), count, policy)

    def _move(self, server: snapshot_module.Server, how: str) -> None:
        if how == _MIGRATE:
            self._workload.act(server, {"migrate": None})
        else:
            # To the flavor that it has, the API says no, and that is all.
            flavor = self._dice.choice(_FLAVORS)
            self._workload.act(server, {"resize": {"flavorRef": flavor}})

    def _end_resize(self, server: snapshot_module.Server) -> None:
        # Nova counts members where they stand: one that goes back may meet one that came since,
        # with any scheduler.
        goes_back = server.name not in self._workload.grouped and self._dice.random() < 0.3
        self._workload.act(server, {"revertResize" if goes_back else "confirmResize": None})
        self._workload.count("revert" if goes_back else "confirm")

    def _delete(self, server: snapshot_module.Server, now: float) -> None:
        self._deleted[server.uuid] = now
        self._workload.delete(server)

    def _may_touch(self, server: snapshot_module.Server, now: float) -> bool:
        return self._deleted.get(server.uuid, -_IMPATIENT_SECONDS) <= now - _IMPATIENT_SECONDS
