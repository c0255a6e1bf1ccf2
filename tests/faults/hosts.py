# SPDX-License-Identifier: Apache-2.0
"""Compute hosts die, are forced down, deleted, renamed."""

import datetime
import time
from collections.abc import Mapping
from typing import Any

from tests.faults import trial as trial_module

_DOWN_SECONDS = 150.0
"""``service_down_time`` (60 s) and what the last heartbeats and the periodic task add."""

_KNOWN_SECONDS = 1.0
"""The way of a heartbeat to the schedulers: the first one behind a silence waits for no other."""

_REGISTER_SECONDS = 90.0


def dead_host_forced_down(trial: trial_module.Trial) -> None:
    """No server is placed on it until it is back; one of its servers is evacuated."""
    victim, host, cell = next(iter(trial.stack.settings.compute_cells()))
    trial.boot("before")
    there = [server["id"] for server in trial.boot("on-it", 2, host=host)]
    trial.fault(f"kill -9 {victim}, and {host} forced down")
    trial.stack.kill(victim)
    service = _service(trial, host)
    _update(trial, service, {"forced_down": True})
    placed = trial.boot("down", 8)
    trial.expect(host not in _hosts(placed), f"nothing is placed on {host} while it is down")
    trial.cloud.action(there[0], {"evacuate": {}})
    trial.wait_for(
        f"a server of {host} is evacuated",
        lambda: _stopped_on(trial, there[0]) not in (host, None),
        _DOWN_SECONDS,
    )
    trial.note(f"evacuated from {host} to {_stopped_on(trial, there[0])}")
    trial.cloud.action(there[0], {"os-start": None})
    trial.wait_for(
        "the evacuated server is started",
        lambda: _server(trial, there[0])["status"] == "ACTIVE",
        _DOWN_SECONDS,
    )
    _start_and_wait(trial, victim, host)
    trial.heal(f"{host} is not forced down any more")
    _update(trial, service, {"forced_down": False})
    trial.wait_served()
    back = trial.boot("back", 4, host=host)
    trial.expect(_hosts(back) == {host}, f"servers asked for on {host} are placed there again")
    trial.note(f"{host} of {cell} takes servers again")


def dead_host_not_told(trial: trial_module.Trial) -> None:
    """Nobody forces it down: its heartbeats stop, and it counts as down after the down time."""
    victim, host, _cell = list(trial.stack.settings.compute_cells())[-1]
    trial.boot("before")
    trial.fault(f"kill -9 {victim}")
    trial.stack.kill(victim)
    trial.wait_for(
        f"{host} is down", lambda: _service(trial, host)["state"] == "down", _DOWN_SECONDS
    )
    placed = trial.boot("down", 8)
    trial.expect(host not in _hosts(placed), f"nothing is placed on {host} while it is down")
    trial.heal(f"start {victim}")
    _start_and_wait(trial, victim, host)
    trial.wait_served()
    back = trial.boot("back", 2, host=host)
    trial.expect(_hosts(back) == {host}, f"servers asked for on {host} are placed there again")


def service_deleted_host_renamed(trial: trial_module.Trial) -> None:
    """A host leaves by the API and comes back; another comes back under a new name."""
    *_rest, (victim, host, _cell) = trial.stack.settings.compute_cells()
    trial.boot("before")
    for server in trial.cloud.servers():
        if server["OS-EXT-SRV-ATTR:host"] == host:
            trial.cloud.delete_servers([server["id"]])
            trial.forget([server])
    trial.fault(f"{victim} stopped, its service deleted")
    trial.stack.stop(victim)
    service = _service(trial, host)
    trial.cloud.compute.delete(f"/os-services/{service['id']}")
    trial.expect(trial.compare(), "compare is clean after the service was deleted")
    placed = trial.boot("deleted", 6)
    trial.expect(host not in _hosts(placed), f"nothing is placed on the deleted {host}")
    for name, options in (
        (host, None),
        (f"{host}-renamed", {"DEFAULT": {"host": f"{host}-renamed"}}),
        (host, None),
    ):
        _come_back(trial, victim, name, options)
    trial.wait_served()
    trial.boot("after")


def _come_back(
    trial: trial_module.Trial,
    process: str,
    host: str,
    options: Mapping[str, Mapping[str, str]] | None,
) -> None:
    """Start a compute under a name and note what Nova makes of it; the store must equal it."""
    started = datetime.datetime.now(datetime.UTC).replace(tzinfo=None).isoformat()
    try:
        trial.stack.override(process, options)
    except (RuntimeError, TimeoutError):
        trial.say(f"{process} does not stay")
    deadline = time.monotonic() + _REGISTER_SECONDS
    while time.monotonic() < deadline and trial.stack.status()[process] is not None:
        if any(s["host"] == host and (s["updated_at"] or "") > started for s in _computes(trial)):
            break
        time.sleep(1.0)
    if trial.stack.status()[process] is None:
        trial.note(f"as {host}: nova-compute refuses to start: {_last_error(trial, process)}")
        trial.expect(trial.compare(), f"compare is clean after the start as {host}")
        return
    trial.stack.discover_hosts()
    made = [s for s in _computes(trial) if s["host"] == host]
    trial.note(f"as {host}: service {'made' if made else 'not made'}")
    trial.expect(trial.compare(), f"compare is clean after the start as {host}")
    if made:
        placed = trial.boot(f"as-{host}-{int(deadline)}", 2, host=host)
        trial.expect(_hosts(placed) == {host}, f"servers asked for on {host} are placed there")
        trial.cloud.delete_servers([server["id"] for server in placed])
        trial.forget(placed)


def _start_and_wait(trial: trial_module.Trial, process: str, host: str) -> None:
    """Start a compute and wait for its first heartbeat.

    Until then its start ends every build that is under way on it, in stock Nova too.
    """
    before = _service(trial, host)["updated_at"]
    trial.stack.start(process)
    trial.wait_for(
        f"{host} beats again",
        lambda: _service(trial, host)["updated_at"] != before,
        _DOWN_SECONDS,
    )
    trial.say(f"{host} beats again")
    time.sleep(_KNOWN_SECONDS)


def _last_error(trial: trial_module.Trial, process: str) -> str:
    lines = (trial.stack.settings.log / f"{process}.log").read_text().splitlines()
    raised = (line for line in reversed(lines) if " ERROR nova nova.exception." in line)
    return next(raised, "it does not say").partition(" ERROR nova ")[2]


def _computes(trial: trial_module.Trial) -> list[dict[str, Any]]:
    return trial.cloud.services("nova-compute")


def _hosts(servers: list[dict[str, Any]]) -> set[str]:
    return {server["OS-EXT-SRV-ATTR:host"] for server in servers}


def _server(trial: trial_module.Trial, server: str) -> dict[str, Any]:
    found: dict[str, Any] = trial.cloud.compute.get(f"/servers/{server}").json()["server"]
    return found


def _stopped_on(trial: trial_module.Trial, server: str) -> str | None:
    """The host of a server that is shut off, as every evacuated one is from API 2.95 on."""
    found = _server(trial, server)
    return found["OS-EXT-SRV-ATTR:host"] if found["status"] == "SHUTOFF" else None


def _service(trial: trial_module.Trial, host: str) -> dict[str, Any]:
    return next(s for s in trial.cloud.services("nova-compute") if s["host"] == host)


def _update(trial: trial_module.Trial, service: dict[str, Any], body: dict[str, Any]) -> None:
    trial.cloud.compute.put(f"/os-services/{service['id']}", json=body)
