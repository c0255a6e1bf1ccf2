# SPDX-License-Identifier: Apache-2.0
"""What waits for room in a run: how long, in which classes, of which projects, by which order."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.waiting import queue_settings
from nova_nodb_scheduler.simulator.scenario import workload

#: Of one part of the arrivals: (name, number or weight, share).
_Part = tuple[str, float, float]


@attrs.frozen
class ClassShare:
    """A priority class, and the share of the requests that ask for it."""

    name: str
    number: int
    share: float


@attrs.frozen
class ProjectShare:
    """A project, its weight, and the share of the requests that are its."""

    name: str
    weight: float
    share: float


@attrs.frozen(kw_only=True)
class QueueScenario:
    """The queue of one run; sent to every process of it.

    :param wait_seconds: after which a request is given up
    :param classes: names and numbers differ
    :param most_pending: servers that may wait, of one project or in all
    """

    wait_seconds: float = 600.0
    classes: tuple[ClassShare, ...] = (ClassShare("normal", 50, 1.0),)
    projects: tuple[ProjectShare, ...] = (ProjectShare("simulated", 1.0, 1.0),)
    order: queue_settings.Order = queue_settings.Order.FAIR
    discipline: queue_settings.Discipline = queue_settings.Discipline.BEST_EFFORT
    aging_seconds: float = 3600.0
    hold_after_seconds: float = 60.0
    hold_seconds: float = 600.0
    most_pending: int = 1_000_000
    lease_seconds: float = 30.0

    def settings(self) -> queue_settings.QueueSettings:
        """Return what the plugin would read of its configuration.

        :raises ConfigurationError: classes or weights do not fit together
        """
        return queue_settings.QueueSettings(
            classes=[queue_settings.PriorityClass(each.name, each.number) for each in self.classes],
            default_class=self.classes[0].name,
            project_weights={each.name: each.weight for each in self.projects},
            order=self.order,
            discipline=self.discipline,
            aging_seconds=self.aging_seconds,
            hold_after_seconds=self.hold_after_seconds,
            hold_seconds=self.hold_seconds,
            max_pending=self.most_pending,
            max_pending_per_project=self.most_pending,
            lease_seconds=self.lease_seconds,
        )


def parse_classes(texts: Iterable[str]) -> tuple[ClassShare, ...]:
    """Read ``NAME:NUMBER:SHARE`` each.

    :raises ConfigurationError: a text is none
    """
    found = [_part("--class", text, "NAME:NUMBER:SHARE, as in high:100:0.2") for text in texts]
    for (name, number, _), text in zip(found, texts, strict=True):
        if number != int(number):
            raise errors.ConfigurationError("--class", text, f"give {name} a whole number.")
    return tuple(ClassShare(name, int(number), share) for name, number, share in found)


def parse_projects(texts: Iterable[str]) -> tuple[ProjectShare, ...]:
    """Read ``NAME:WEIGHT:SHARE`` each.

    :raises ConfigurationError: a text is none, or a weight is not above 0
    """
    found = [_part("--project", text, "NAME:WEIGHT:SHARE, as in blue:3:0.5") for text in texts]
    return tuple(ProjectShare(*each) for each in found)


def _part(option: str, text: str, form: str) -> _Part:
    name, *numbers = text.split(":")
    try:
        number, share = map(float, numbers)
    except ValueError as error:
        raise errors.ConfigurationError(option, text, f"write it as {form}.") from error
    if not name or not math.isfinite(number) or not 0 < share <= 1:
        raise errors.ConfigurationError(option, text, f"write it as {form}; a share is 0 to 1.")
    return name, number, share


def assign(
    arrivals: Sequence[workload.Arrival], asked: QueueScenario, seed: int
) -> tuple[workload.Arrival, ...]:
    """Return the same requests, each of a class and a project; the same for the same arguments."""
    chance = random.Random(f"queue {seed}")
    classes = [each.name for each in asked.classes]
    class_shares = [each.share for each in asked.classes]
    projects = [each.name for each in asked.projects]
    project_shares = [each.share for each in asked.projects]
    return tuple(
        attrs.evolve(
            each,
            priority_class=chance.choices(classes, class_shares)[0],
            project_id=chance.choices(projects, project_shares)[0],
        )
        for each in arrivals
    )


def paced(
    arrivals: Sequence[workload.Arrival], servers_per_second: float
) -> tuple[workload.Arrival, ...]:
    """Return the requests so far apart that so many servers are asked for in a second.

    What is bursty stays so; requests that all come at once do, too.
    """
    last = max((each.at_seconds for each in arrivals), default=0.0)
    servers = sum(each.servers for each in arrivals)
    if not last:
        return tuple(arrivals)
    factor = servers / servers_per_second / last
    return tuple(attrs.evolve(each, at_seconds=each.at_seconds * factor) for each in arrivals)
