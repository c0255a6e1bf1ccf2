# SPDX-License-Identifier: Apache-2.0
"""Which faults happen in a round, when, to whom and for how long: all drawn from the seed."""

import random
from collections.abc import Mapping, Sequence

import attrs

from tools.stack import settings as stack_settings

BACKEND = "backend"
"""The synchronizer's back end, where it is a server of its own."""
PEERS = ("placement", "rabbitmq", "mariadb", "keystone", BACKEND)
"""What a scheduler may be cut off from."""

WORKER_KILL = "api-worker-kill"
"""One process of the API's; its parent forks another at once."""

_ACTIONS = ("kill", "stop", "restart")
_FAMILIES = ("scheduler", "conductor", "api", "placement", "rabbitmq", "mariadb", BACKEND)
KINDS = (
    *(f"{family}-{action}" for family in _FAMILIES for action in _ACTIONS),
    WORKER_KILL,
    *(f"cut-{peer}" for peer in PEERS),
)
"""kill: -9, and a start after some seconds; stop: SIGSTOP for longer than a claim's lease;
restart: the service's own end, and a start; cut: no byte passes, or every connection is refused."""

_NOVAS_OWN = ("conductor-", "api-", "rabbitmq-", "mariadb-")
_LOSES_BEFORE_SECONDS = 60.0
_LOSES_AFTER_SECONDS = 30.0
_CELLS_OWN = "nova-conductor-"
_STARTS_SECONDS = 60.0
"""Within which a service that could not start behind a fault is seen to have ended."""

_WARM_UP_SECONDS = 5.0
"""Before the first fault: clients fill the cloud."""
_BREATH_SECONDS = 6.0
"""From the end of a fault until its target may be hit again, so that it did start."""
_AWAY_SECONDS = (0.2, 6.0)
_CUT_SECONDS = (2.0, 25.0)
_SLEEP_LEASES = (1.2, 2.2)


@attrs.frozen
class Fault:
    """One fault.

    :param at_seconds: since the begin of the round
    :param target: name of a process, or of the scheduler that is cut off
    :param seconds: how long it lasts
    :param choice: a number below 1 that picks among what is only known then (a worker's process;
        below a half, connections that are cut hold their bytes back, else they are refused)
    """

    at_seconds: float
    kind: str
    target: str
    seconds: float
    choice: float

    def __str__(self) -> str:
        how = ""
        if self.kind.startswith("cut-"):
            how = ", bytes held back" if self.holds_back else ", connections refused"
        long = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at_seconds:5.1f} s  {self.kind} {self.target}{long}{how}"

    @property
    def holds_back(self) -> bool:
        return self.choice < 0.5

    def loses_in_stock(self, since_seconds: float, cell: str | None = None) -> bool:
        """Whether Nova itself may have lost what has been in one state since then.

        What a conductor or an API worker has taken, or what is in RabbitMQ's queues, nobody takes
        up again when it ends; a nova-compute whose conductor or database is away gives up. Nothing
        of this excuses what was lost by a scheduler.

        :param since_seconds: of the round
        :param cell: whose conductors alone serve it, the name of its database; None: any may
        """
        if cell is not None and self.target.startswith(_CELLS_OWN):
            if self.target.removeprefix(_CELLS_OWN).split("-")[0] != cell.removeprefix("nova_"):
                return False
        begins = self.at_seconds - _LOSES_BEFORE_SECONDS
        is_novas = self.kind.startswith(_NOVAS_OWN) or self.target == "mariadb"
        return is_novas and begins <= since_seconds <= self.ends_seconds + _LOSES_AFTER_SECONDS

    def ends_others(self, at_seconds: float) -> bool:
        """Whether a service may have ended by itself for it then, as in stock.

        Who starts while MariaDB or RabbitMQ is away ends at once.

        :param at_seconds: of the round
        """
        is_such = self.kind.startswith(("rabbitmq-", "mariadb-")) or self.target == "mariadb"
        return is_such and self.at_seconds <= at_seconds <= self.ends_seconds + _STARTS_SECONDS

    @property
    def ends_seconds(self) -> float:
        return self.at_seconds + self.seconds


def kinds(wanted: str) -> tuple[str, ...]:
    """Return the kinds that a comma separated list names: kinds, their beginnings, or ``all``.

    :raises ValueError: one is unknown
    """
    found: list[str] = []
    for word in wanted.split(","):
        matching = [k for k in KINDS if word == "all" or k == word or k.startswith(f"{word}-")]
        if not matching:
            raise ValueError(f"no fault '{word}'; there are: all, {', '.join(KINDS)}")
        found += matching
    return tuple(kind for kind in KINDS if kind in found)


def targets(settings: stack_settings.Settings, backend: str | None) -> Mapping[str, Sequence[str]]:
    """Return whom each family of faults may hit.

    :param backend: what a fault of the back end hits; None: it has no server
    """
    conductors = [n for cell in settings.cell_names for n in settings.conductor_names(cell)]
    found: dict[str, Sequence[str]] = {
        "scheduler": settings.scheduler_names,
        "conductor": ("nova-super-conductor", *conductors),
        "api": ("nova-api",),
        "placement": ("placement",),
        "rabbitmq": ("rabbitmq",),
        "mariadb": ("mariadb",),
        "cut": settings.scheduler_names,
    }
    return found if backend is None else found | {BACKEND: (backend,)}


def possible(kinds: Sequence[str], targets: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the kinds that there is a target for."""
    families = set(targets)
    return tuple(
        kind
        for kind in kinds
        if kind.split("-")[0] in families and (kind != f"cut-{BACKEND}" or BACKEND in families)
    )


def without_backend(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return a plan for a control plane that has no synchronizer: all else happens the same."""
    return tuple(f for f in faults if f.target != BACKEND and f.kind != f"cut-{BACKEND}")


def draw(
    seed: int,
    seconds: float,
    kinds: Sequence[str],
    targets: Mapping[str, Sequence[str]],
    every_seconds: float,
    lease_seconds: float,
) -> tuple[Fault, ...]:
    """Return a round's faults, in their order; the same seed and arguments give the same.

    :param seconds: no fault begins later
    :param every_seconds: between the begins of two faults, on the mean
    :param lease_seconds: of claims; who is stopped sleeps for longer
    """
    dice = random.Random(seed)
    drawn: list[Fault] = []
    busy_until: dict[str, float] = {}
    at = _WARM_UP_SECONDS
    while at < seconds:
        kind = dice.choice(list(kinds))
        target = dice.choice(list(targets[kind.split("-")[0]]))
        fault = Fault(
            at_seconds=round(at, 2),
            kind=kind,
            target=target,
            seconds=round(_duration(kind, lease_seconds, dice), 2),
            choice=round(dice.random(), 4),
        )
        if busy_until.get(target, 0.0) <= at:
            drawn.append(fault)
            busy_until[target] = fault.ends_seconds + _BREATH_SECONDS
        at += every_seconds * dice.uniform(0.5, 1.5)
    return tuple(drawn)


def _duration(kind: str, lease_seconds: float, dice: random.Random) -> float:
    if kind.endswith("-stop"):
        return lease_seconds * dice.uniform(*_SLEEP_LEASES)
    if kind.startswith("cut-"):
        return dice.uniform(*_CUT_SECONDS)
    away = dice.uniform(*_AWAY_SECONDS)
    return away if kind.endswith("-kill") and kind != WORKER_KILL else 0.0
