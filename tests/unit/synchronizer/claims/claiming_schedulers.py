# SPDX-License-Identifier: Apache-2.0
"""Schedulers that claim over one hub of the memory driver, and what is true of hosts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import group_rules, ledger_claimer

LEASE_SECONDS = 10.0
#: Far beyond all tests.
DEADLINE = 1e18

REQUEST = requests.Request(requests.Flavor(vcpus=1), queries=())


class Clock:
    """Seconds of everybody; they pass by order, or by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Views:
    """What one scheduler knows: capacities, and allocations that it saw written.

    :param shown: VCPUs by consumer, by host
    """

    #: Records of claims that its store has.
    stored: Mapping[records.RecordKey, records.Record] = {}

    def __init__(
        self,
        client: contract.Synchronizer,
        capacity: Mapping[str, int],
        shown: Mapping[str, Mapping[str, int]],
    ) -> None:
        self._client = client
        self._capacity = capacity
        self._shown = shown
        self.epoch: str | None = None
        self.known: dict[str, set[str]] = {}
        self.followed = True

    def view(self, request: requests.Request) -> ledger_claimer.ClaimView | None:
        if not self.followed:
            return None
        cursor = self._client.head()
        if self.epoch is not None:
            cursor = type(cursor)(self.epoch, cursor.version)
        return ledger_claimer.ClaimView(cursor, self.fits, self.stored.get)

    def shown(
        self, keys: Iterable[records.RecordKey]
    ) -> tuple[str, Iterable[records.Record]] | None:
        if not self.followed or not self.stored:
            return None
        return self._client.head().epoch, [self.stored[key] for key in keys if key in self.stored]

    def members(self, group: requests.Group) -> group_rules.Known:
        return self.known

    def fits(self, claim: model.Claim, record: model.ClaimRecord) -> bool:
        shown = {name: {"VCPU": n} for name, n in self._shown.get(claim.host, {}).items()}
        used = record.used(shown, without=claim.consumer).get("VCPU", 0)
        return used + claim.resources["VCPU"] <= self._capacity[claim.host]


class Scheduler:
    """One scheduler's claimer.

    :param after_step: see :class:`ledger_claimer.ClaimBatches`
    """

    def __init__(
        self,
        client: contract.Synchronizer,
        name: str,
        capacity: Mapping[str, int],
        shown: Mapping[str, Mapping[str, int]],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        lease_seconds: float = LEASE_SECONDS,
        claimable: Callable[[str], bool] = lambda host: True,
        after_step: Callable[[str], None] = lambda step: None,
        pause: Callable[[int], None] = lambda _: None,
        make_id: Callable[[], str] | None = None,
        now_seconds: Callable[[], float] | None = None,
    ) -> None:
        numbers = itertools.count()
        self.client = client
        self.lost = self.absorbed = 0
        self.views = Views(client, capacity, shown)
        self.batches = ledger_claimer.ClaimBatches(
            client,
            name,
            make_id or (lambda: f"{name}-{next(numbers)}"),
            lease_seconds,
            claimable,
            now_seconds=now_seconds,
            after_step=after_step,
            pause=pause,
            count_lost=self._lose,
            count_absorbed=self._absorb,
            shown=self.views.shown,
        )
        self.claimer = ledger_claimer.LedgerClaimer(
            self.batches, self.views, clock=clock, sleep=sleep
        )

    def _lose(self, count: int) -> None:
        self.lost += count

    def _absorb(self, count: int) -> None:
        self.absorbed += count


def wanted(consumer: str, host: str, vcpus: int = 1, **fields: object) -> chosen_hosts.WantedClaim:
    chosen = chosen_hosts.Choice(0, host, "cell", host, host, 0.0, ())
    return chosen_hosts.WantedClaim(consumer, chosen, {"VCPU": vcpus}, **fields)
