# SPDX-License-Identifier: Apache-2.0
"""One scheduler as the plugin assembles it, less Nova: feed, store, claims, settling, placing."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, engine, placing, planning
from nova_nodb_scheduler.scheduling.reservations import claim_fit, host_reservations
from nova_nodb_scheduler.simulator.scenario import made_hosts
from nova_nodb_scheduler.simulator.schedulers import scheduler_claims
from nova_nodb_scheduler.store import declarations, host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_views, ledger_claimer
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.synchronizer.settlement import settlement_worker
from nova_nodb_scheduler.wire import codec, payload_packing
from tests.engine_faults import steps, truth

LEASE_SECONDS = 1.5
#: A feed is dead once its canary is out for so long, and whatever is older is not proved.
SILENCE_SECONDS = 3.0
#: How long a dead scheduler's duty of settling waits for another one.
DUTY_SECONDS = 2.0
DEADLINE_SECONDS = 4.0
#: How long what was deleted, and history, is kept.
KEEP_SECONDS = 3.0

_FEED = replicator_contract.ReplicatorOptions(
    wait_seconds=0.2,
    canary_interval_seconds=0.5,
    silence_seconds=SILENCE_SECONDS,
    anti_entropy_interval_seconds=10.0,
    anti_entropy_page_seconds=0.05,
    reconnect_min_seconds=0.1,
    reconnect_max_seconds=0.5,
    # Whoever sleeps as long as a trial's freeze lasts has slept past all retention.
    collect_interval_seconds=1.0,
    collect_keep_seconds=KEEP_SECONDS,
)
_SETTLING = settlement_worker.SettlementOptions(
    look_seconds=0.5,
    ask_after_seconds=0.5,
    ask_most_seconds=1.0,
    hasten_seconds=0.2,
    grace_seconds=1.0,
)


#: Where the reporter says in which epoch it published everything.
SWEPT = "swept"


class _ProvedViews(claim_views.StoreViews):
    """Views of a store whose epoch was swept: until then nobody decides by it."""

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        follower: replicator.Replicator,
        make_fits: claim_views.MakeFits,
    ) -> None:
        super().__init__(store, follower, make_fits)
        self._known = store

    def view(self, request: requests.Request) -> ledger_claimer.ClaimView | None:
        # Before the view: what it shows is then at least what was swept.
        cells = self._known.snapshot().namespace(known_namespaces.CELLS.name)
        swept = cells.get(SWEPT)
        found = super().view(request)
        if found is None or swept is None or swept.state["epoch"] != found.cursor.epoch:
            return None
        return found


class Authority(placing.AllocationAuthority):
    """What writes allocations for one scheduler; the parent's ledger behind it.

    :param call: asks the parent
    """

    def __init__(self, call: Callable[..., object], at: Callable[[str], None]) -> None:
        self._call, self._at = call, at

    def write(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> dict[str, placing.AllocationOutcome]:
        to_be_written, written = steps.AUTHORITY_STEPS
        self._at(to_be_written)
        self._call(
            "write", [(each.consumer, each.chosen.uuid, each.resources["VCPU"]) for each in wanted]
        )
        self._at(written)
        return {
            each.consumer: placing.AllocationOutcome(placing.AllocationResult.WRITTEN)
            for each in wanted
        }

    def remove(self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float) -> None:
        self._call("remove", [(each.consumer, each.chosen.uuid) for each in wanted])

    def is_in_doubt(self, wanted: chosen_hosts.WantedClaim) -> bool:
        return False


class Scheduler:
    """One scheduler; ``place`` belongs to one thread.

    :param call: asks the parent's ledger, from any thread
    :param observed: told of all steps
    """

    def __init__(
        self,
        identity: str,
        synchronizer: contract.Synchronizer,
        call: Callable[..., object],
        observed: steps.Steps,
        rng: random.Random,
    ) -> None:
        self.client = synchronizer
        self._rng = rng
        declared = declarations.load_namespaces()
        self.store = host_state_store.HostStateStore(
            declared, codec.decode_state, packing=payload_packing.DictionaryPacking
        )
        clock = scheduler_claims.SimulatedBackendClock(synchronizer)

        def beat() -> Mapping[str, object]:
            clock.adjust()
            return {}

        self.replicator = replicator.Replicator(
            synchronizer, self.store, declared, identity=identity, options=_FEED, heartbeat=beat
        )
        self._frame = _full_of_room(rng)
        bounds = claim_fit.InstanceLimits.of(self._frame.settings)
        views = _ProvedViews(
            self.store, self.replicator, lambda found, _request: claim_fit.make_fits(found, bounds)
        )
        batches = ledger_claimer.ClaimBatches(
            synchronizer,
            identity,
            lambda: str(uuid.uuid4()),
            LEASE_SECONDS,
            views.claimable,
            now_seconds=clock.now_seconds,
            after_step=observed.at_claims,
        )
        self._parts = placing.PlacingParts(
            placing.HostReservations(self._frame, host_reservations.Reservations(time.monotonic)),
            ledger_claimer.LedgerClaimer(batches, views, confirm_seconds=2.0),
        )

        def ask(consumer: str) -> Mapping[str, Mapping[str, int]] | None:
            return call("allocations_of", consumer)  # type: ignore[return-value]

        self._settler = settlement_worker.Settler(
            synchronizer, self.store, self.replicator.followed, ask, clock.now_seconds, _SETTLING
        )
        self._duty = settlement_worker.SettlementWorker(
            synchronizer,
            self._settler,
            identity,
            turn_seconds=0.1,
            lease_seconds=DUTY_SECONDS,
        )
        self._authority = Authority(call, observed.at_claims)
        synchronizer.on_step = observed.at_driver
        self._numbers = itertools.count()

    def claim_nothing(self) -> None:
        """Place without claims, as a lone scheduler may."""
        self._parts = attrs.evolve(self._parts, claimer=chosen_hosts.NoClaims())

    def start(self) -> None:
        """Start the threads."""
        self.replicator.start()
        self._duty.start()

    def stop(self) -> None:
        """End the threads and close the driver."""
        self._duty.stop(2.0)
        self.replicator.stop(2.0)
        self.client.close()

    def place(
        self, servers: Sequence[str], vcpus: int, group: requests.Group | None
    ) -> list[truth.Allocation] | None:
        """Place servers; None if there is not room for all.

        :raises Unclaimable: the back end does not answer
        """
        request = requests.Request(
            requests.Flavor(vcpus=vcpus),
            group=group,
            cells=frozenset([made_hosts.CELL]),
            queries=(requests.CandidateQuery({"VCPU": vcpus}),),
        )
        made = placing.Placing(
            self._parts,
            request,
            servers,
            _Planner(self._frame, request, len(servers)),
            self._authority,
            _NoTrace(),
            lambda server: (),
            time.monotonic() + DEADLINE_SECONDS,
        )
        chosen: list[chosen_hosts.Choice] | None = None
        try:
            chosen = made.place()
        finally:
            if chosen is None:
                made.undo()
        if chosen is None:
            return None
        return [(server, each.uuid, vcpus) for server, each in zip(servers, chosen, strict=True)]


def _full_of_room(rng: random.Random) -> engine.Engine:
    """Return an engine of hosts that never fill: nothing but claims keeps them from filling."""
    made = engine.Engine(
        decision_settings.SchedulingOptions(shuffle_best_same_weighed_hosts=True),
        (),
        (),
        frame=host_frame.HostFrame(),
        rng=rng,
    )
    provider = host_facts.ProviderFacts(1, {"VCPU": host_facts.Inventory(10**6)})
    for each in truth.MADE.values():
        made.put(
            host_facts.HostFacts(
                each.uuid, made_hosts.CELL, each.name, each.name, provider=provider
            )
        )
    return made


class _Planner:
    def __init__(self, frame: engine.Engine, request: requests.Request, servers: int) -> None:
        self._frame, self._request, self._servers = frame, request, servers

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        request = placing.with_group_hosts(self._request, group_hosts)
        made = self._frame.plan(request, servers=self._servers)
        if request.group is not None and request.group.policy == truth.AFFINITY and group_hosts:
            # What Nova's filter would: the group's hosts, and no others.
            for each in made.best(truth.HOSTS):
                if each.host not in group_hosts:
                    made.refuse(each)
        return made

    def about(self, consumer: str) -> None:
        pass

    def check(self) -> None:
        pass


class _NoTrace:
    def refuse(self, server: str, chosen: chosen_hosts.Choice, reason: str) -> None:
        pass
