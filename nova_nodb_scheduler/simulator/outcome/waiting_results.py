# SPDX-License-Identifier: Apache-2.0
"""What waiting came to in a run: how long, who was served, and what waking them took."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova_nodb_scheduler.simulator.run import measures, waiting_measures, world
from nova_nodb_scheduler.simulator.scenario import made_hosts, queue_scenario

_RESOURCES = (made_hosts.VCPU, made_hosts.MEMORY_MB, made_hosts.DISK_GB)


def of(run: world.World) -> dict[str, Any]:
    """Return the figures of a finished run, fit for JSON; nothing where nobody could wait."""
    found = run.waiting
    if found is None:
        return {}
    stories = list(found.stories.values())
    last_asked = max((each.asked_at for each in stories), default=0.0)
    return {
        "waits": {
            name: _class_figures(some)
            for name, some in sorted(waiting_measures.by_class(stories).items())
        },
        "waits_by_servers": {
            name: _class_figures(some) for name, some in _by_gang(stories).items() if some
        },
        "projects": _projects(run.options.queue, stories, last_asked, _capacity(run)),
        "overtaken": found.overtaken,
        "grants": found.grants,
        "grants_anew": found.regrants,
        "failed_grants": found.failed_grants,
        "most_waiting": found.most_waiting,
        "unkept_requests": found.unkept,
        "departed_servers": run.departures.servers,
        "stranded_share": _stranded(found.samples, last_asked),
        **_waking(found),
    }


def wait_shares(run: world.World) -> dict[str, list[float]]:
    """Return the waits of requests that were placed behind a wait, by class, sorted; seconds."""
    if run.waiting is None:
        return {}
    by_class = waiting_measures.by_class(list(run.waiting.stories.values()))
    return {name: sorted(_waits(some)) for name, some in sorted(by_class.items())}


def _class_figures(stories: Sequence[waiting_measures.Story]) -> dict[str, Any]:
    endings = collections.Counter(each.ending or "waiting" for each in stories)
    at_once = sum(each.ending == "placed" and each.parked_at is None for each in stories)
    return {
        "requests": len(stories),
        "placed_at_once": at_once,
        "placed_after_a_wait": endings["placed"] - at_once,
        "expired": endings["expired"],
        "refused": endings["refused"],
        "failed": endings["failed"],
        "still_waiting": endings["waiting"],
        "wait_seconds": measures.spread(_waits(stories)),
    }


def _waits(stories: Iterable[waiting_measures.Story]) -> list[float]:
    return [
        each.waited_seconds
        for each in stories
        if each.ending == "placed" and each.parked_at is not None and each.waited_seconds
    ]


def _by_gang(
    stories: Iterable[waiting_measures.Story],
) -> dict[str, list[waiting_measures.Story]]:
    found: dict[str, list[waiting_measures.Story]] = {"1": [], "2 to 4": [], "5 or more": []}
    for each in stories:
        servers = each.arrival.servers
        found["1" if servers == 1 else "2 to 4" if servers < 5 else "5 or more"].append(each)
    return found


def _projects(
    asked: queue_scenario.QueueScenario,
    stories: Sequence[waiting_measures.Story],
    until: float,
    capacity: Mapping[str, int],
) -> dict[str, Any]:
    """Return what each project was given until the last request came.

    Shares are of what projects have: what was given before anybody waited is made up for.
    """
    given = {each.name: dict.fromkeys(_RESOURCES, 0) for each in asked.projects}
    for each in stories:
        if each.ending == "placed" and each.ended_at is not None and each.ended_at <= until:
            arrival = each.arrival
            for name, amount in arrival.flavor.resources.items():
                given[arrival.project_id][name] += amount * arrival.servers
    shares = {
        project: max(amounts[name] / capacity[name] for name in _RESOURCES)
        for project, amounts in given.items()
    }
    whole, weights = sum(shares.values()), sum(each.weight for each in asked.projects)
    return {
        each.name: {
            "weight_share": each.weight / weights,
            "placed_share": shares[each.name] / whole if whole else None,
            "dominant_share_of_cloud": shares[each.name],
        }
        for each in asked.projects
    }


def _capacity(run: world.World) -> dict[str, int]:
    return {name: sum(host.capacity[name] for host in run.cluster.hosts) for name in _RESOURCES}


def _stranded(samples: Sequence[tuple[float, float, int]], until: float) -> float | None:
    """Return how much of the scarcest resource was free while somebody waited, on average."""
    free = [1 - used for at, used, waiting in samples if waiting and at <= until]
    return sum(free) / len(free) if free else None


def _waking(found: waiting_measures.WaitingMeasures) -> dict[str, Any]:
    results: collections.Counter[str] = collections.Counter()
    for each in found.wakes:
        results.update(each.results)
    return {
        "wake_round_seconds": measures.spread([at for each in found.wakes for at in each.rounds]),
        "fit_seconds": measures.spread([at for each in found.wakes for at in each.fits]),
        "candidates": dict(results),
    }
