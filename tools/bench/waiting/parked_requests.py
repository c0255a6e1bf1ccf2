# SPDX-License-Identifier: Apache-2.0
"""Records of requests that wait: by class, project and flavor as an overloaded cloud has them.

Most ask for one of a few flavors, one in five for one of many; projects are many, and three
classes. What each is depends on its number and the seed alone.
"""

import random
import uuid
from collections.abc import Iterator, Mapping

import attrs

from nova_nodb_scheduler.model import pending
from tools.bench.clouds import workload

CLASSES = (("high", 0.1), ("normal", 0.6), ("low", 0.3))
PROJECTS = 1000
RARE_FLAVORS = 1000
#: Every project's weight is one of these.
WEIGHTS = (1.0, 2.0, 3.0)
#: None of them ends during a measurement.
_FOREVER = 1e12


@attrs.frozen
class Asked:
    """One request: what for, by whom."""

    flavor: workload.Flavor
    project: str
    priority_class: str


def project_weights() -> dict[str, float]:
    """Return the weights by project."""
    return {_project(n): WEIGHTS[n % len(WEIGHTS)] for n in range(PROJECTS)}


def stream(seed: int) -> Iterator[Asked]:
    """Yield requests without end."""
    chance = random.Random(f"parked {seed}")
    rare = _rare_flavors()
    names = [name for name, _ in CLASSES]
    shares = [share for _, share in CLASSES]
    plain = [flavor for flavor in workload.REPEATED if not flavor.traits]
    while True:
        is_repeated = chance.random() < workload.REPEATED_SHARE
        yield Asked(
            chance.choice(plain if is_repeated else rare),
            _project(chance.randrange(PROJECTS)),
            chance.choices(names, shares)[0],
        )


def record(asked: Asked, number: int, needs: Mapping[str, int]) -> pending.PendingRequest:
    """Return the record of a request that was refused once and waits; older by its number."""
    key = str(uuid.UUID(int=(0x5A << 120) | number, version=4))
    return pending.PendingRequest(
        key=key,
        servers=(key,),
        project_id=asked.project,
        user_id=asked.project,
        flavor=asked.flavor.name,
        priority_class=asked.priority_class,
        needs=needs,
        queue=uuid.uuid5(uuid.NAMESPACE_OID, asked.flavor.name).hex,
        asked_at=1e9 + number / 100,
        deadline_at=_FOREVER,
        state=pending.PendingState.WAITING,
        grant=pending.Grant(1, "conductor", 0.0),
        parked_at=1e9 + number / 100,
        refusals=1,
        reason="No valid host was found. There are not enough hosts available.",
    )


def _project(number: int) -> str:
    return uuid.UUID(int=number + 1).hex


def _rare_flavors() -> list[workload.Flavor]:
    chance = random.Random("rare flavors")
    return [
        workload.Flavor(
            f"rare-{number}",
            chance.randint(1, 8),
            256 * chance.randint(2, 64),
            chance.randint(1, 100),
        )
        for number in range(RARE_FLAVORS)
    ]
