# SPDX-License-Identifier: Apache-2.0
"""One scheduler as the plugin assembles it, less Nova: feed, store, claims, settling, placing."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling import (
    choice,
    claimed,
    claimer,
    engine,
    host_facts,
    host_frame,
    namespaces,
    options,
    placing,
    planning,
    reservations,
    room,
)
from nova_nodb_scheduler.simulator import claiming, cluster
from nova_nodb_scheduler.store import declarations, host_state_store
from nova_nodb_scheduler.synchronizer import (
    claim_batches,
    claim_views,
    contract,
    replication,
    replicator,
    settling,
    settling_duty,
)
from nova_nodb_scheduler.synchronizer import claimer as ledger_claimer
from nova_nodb_scheduler.wire import codec, packing
from tests.engine_faults import ledger, rows, steps

LEASE_SECONDS = 1.5
#: A feed is dead once its canary is out for so long, and whatever is older is not proved.
SILENCE_SECONDS = 3.0
#: How long a dead scheduler's duty of settling waits for another one.
DUTY_SECONDS = 2.0
DEADLINE_SECONDS = 4.0
#: How long what was deleted, and history, is kept.
KEEP_SECONDS = 3.0

_FEED = replication.ReplicatorOptions(
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
_SETTLING = settling.SettlingOptions(
    look_seconds=0.5,
    ask_after_seconds=0.5,
    ask_most_seconds=1.0,
    hasten_seconds=0.2,
    linger_seconds=1.0,
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

    def view(self, request: requests.Request) -> claim_batches.View | None:
        # Before the view: what it shows is then at least what was swept.
        cells = self._known.snapshot().namespace(namespaces.CELLS.name)
        swept = cells.get(SWEPT)
        found = super().view(request)
        if found is None or swept is None or swept.state["epoch"] != found.cursor.epoch:
            return None
        return found


class Authority(placing.Authority):
    """What writes allocations for one scheduler; the parent's ledger behind it.

    :param call: asks the parent
    """

    def __init__(self, call: Callable[..., object], at: Callable[[str], None]) -> None:
        self._call, self._at = call, at

    def write(
        self, wanted: Sequence[claimer.Wanted], deadline: float
    ) -> dict[str, placing.Outcome]:
        to_be_written, written = steps.AUTHORITY_STEPS
        self._at(to_be_written)
        self._call(
            "write", [(each.consumer, each.chosen.uuid, each.resources["VCPU"]) for each in wanted]
        )
        self._at(written)
        return {each.consumer: placing.Outcome(placing.Result.WRITTEN) for each in wanted}

    def remove(self, wanted: Sequence[claimer.Wanted], deadline: float) -> None:
        self._call("remove", [(each.consumer, each.chosen.uuid) for each in wanted])


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
            declared, codec.decode_state, packing=packing.Packing
        )
        clock = claiming.BackendClock(synchronizer)

        def beat() -> Mapping[str, object]:
            clock.adjust()
            return {}

        self.replicator = replicator.Replicator(
            synchronizer, self.store, declared, identity=identity, options=_FEED, beat=beat
        )
        self._frame = _full_of_room(rng)
        bounds = claimed.Bounds.of(self._frame.settings)
        views = _ProvedViews(
            self.store, self.replicator, lambda found, _request: claimed.make_fits(found, bounds)
        )
        batches = claim_batches.ClaimBatches(
            synchronizer,
            identity,
            lambda: str(uuid.uuid4()),
            LEASE_SECONDS,
            views.claimable,
            now_seconds=clock.now_seconds,
            after_step=observed.at_claims,
        )
        self._parts = placing.Parts(
            room.Room(self._frame, reservations.Reservations(time.monotonic)),
            ledger_claimer.LedgerClaimer(batches, views, confirm_seconds=2.0),
        )

        def ask(consumer: str) -> Mapping[str, Mapping[str, int]] | None:
            return call("allocations_of", consumer)  # type: ignore[return-value]

        self._settler = settling.Settler(
            synchronizer, self.store, self._cursor, ask, clock.now_seconds, _SETTLING
        )
        self._duty = settling_duty.SettlingDuty(
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
        self._parts = attrs.evolve(self._parts, claimer=claimer.NoClaims())

    def start(self) -> None:
        """Start the threads."""
        self.replicator.start()
        self._duty.start()

    def stop(self) -> None:
        """End the threads and close the driver."""
        self._duty.stop(2.0)
        self.replicator.stop(2.0)
        self.client.close()

    def _cursor(self) -> records.Cursor | None:
        generation = self.replicator.generation
        status = self.replicator.status()
        if (
            status.state is not replication.State.FOLLOWING
            or status.cursor_version is None
            or generation != self.replicator.generation
        ):
            return None
        return records.Cursor(status.epoch, status.cursor_version)

    def place(
        self, servers: Sequence[str], vcpus: int, group: requests.Group | None
    ) -> list[ledger.Allocation] | None:
        """Place servers; None if there is not room for all.

        :raises Unclaimable: the back end does not answer
        """
        request = requests.Request(
            requests.Flavor(vcpus=vcpus),
            group=group,
            cells=frozenset([cluster.CELL]),
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
        chosen: list[choice.Choice] | None = None
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
        options.SchedulingOptions(shuffle_best_same_weighed_hosts=True),
        (),
        (),
        frame=host_frame.HostFrame(),
        rng=rng,
    )
    provider = host_facts.ProviderFacts(1, {"VCPU": host_facts.Inventory(10**6)})
    for each in rows.MADE.values():
        made.put(
            host_facts.HostFacts(each.uuid, cluster.CELL, each.name, each.name, provider=provider)
        )
    return made


class _Planner:
    def __init__(self, frame: engine.Engine, request: requests.Request, servers: int) -> None:
        self._frame, self._request, self._servers = frame, request, servers

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        request = placing.with_group_hosts(self._request, group_hosts)
        made = self._frame.plan(request, servers=self._servers)
        if request.group is not None and request.group.policy == ledger.AFFINITY and group_hosts:
            # What Nova's filter would: the group's hosts, and no others.
            for each in made.best(rows.HOSTS):
                if each.host not in group_hosts:
                    made.refuse(each)
        return made

    def about(self, consumer: str) -> None:
        pass


class _NoTrace:
    def refuse(self, server: str, chosen: choice.Choice, reason: str) -> None:
        pass
