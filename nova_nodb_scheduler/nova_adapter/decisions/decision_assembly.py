# SPDX-License-Identifier: Apache-2.0
"""What decides from memory in one scheduler worker: made, started and stopped together."""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.claims import outside_claims, worker_claims
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion, scheduling_options
from nova_nodb_scheduler.nova_adapter.decisions import (
    claim_upkeep,
    fallback_claims,
    request_allocations,
    request_decider,
)
from nova_nodb_scheduler.nova_adapter.placement.allocations import (
    allocation_writer,
    placement_calls,
    verification,
    write_turns,
)
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_assembly
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_keeper as mirror_keeper_module
from nova_nodb_scheduler.observe import claim_metrics
from nova_nodb_scheduler.scheduling.facts import fact_source, frame_keeper, journal_reader
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.namespaces import node_facts
from nova_nodb_scheduler.scheduling.pipeline import candidates, chosen_hosts, engine, placing
from nova_nodb_scheduler.scheduling.reservations import host_reservations
from nova_nodb_scheduler.store import store_snapshot
from nova_nodb_scheduler.synchronizer.claims import group_places
from nova_nodb_scheduler.synchronizer.replication import heartbeats
from nova_nodb_scheduler.synchronizer.settlement import claim_proof, pending_waits

LOG = logging.getLogger(__name__)

#: How often the columns are brought to the present without a request.
_FOLLOW_SECONDS = 1.0
#: The same before they were made for the first time, which a start waits for.
_FIRST_SECONDS = 0.1
#: Hosts whose claims a line of the log tells.
_MOST_TOLD = 10


@attrs.frozen
class DecisionOptions(claim_upkeep.UpkeepOptions):
    """Bounds of deciding from memory; see the options of the same names.

    :param request_threads: how many requests the worker's RPC server has decided at once
    """

    mirror: mirror_assembly.MirrorOptions
    deadline_seconds: float
    request_threads: int
    batch_window_seconds: float
    max_batch_servers: int
    max_allocation_calls: int
    cache_bytes: int
    claims: bool
    claim_spread: str
    verify_allocations: str


@attrs.frozen
class WorkerSurroundings(claim_upkeep.UpkeepSurroundings):
    """What of the worker the parts stand on, beside what the upkeep of claims does."""

    plugin: mirror_assembly.MirrorPlugin
    host_manager: Any
    claim_meter: claim_metrics.ClaimMetrics
    journals: journal_reader.JournalReader


class DecisionAssembly:
    """The engine with its hosts, Placement's mirror, and the decider over both."""

    def __init__(self, around: WorkerSurroundings, options: DecisionOptions) -> None:
        self._around = around
        self.host_manager = around.host_manager
        self.placement_client = around.placement_client
        self._replicator = around.replicator
        self._options = options
        self._stop = threading.Event()
        #: True once the hosts' columns were made of a whole store.
        self.columns_made = False
        self._follower: threading.Thread | None = None
        self.reservations = host_reservations.Reservations(
            time.monotonic,
            pending_seconds=10 * options.deadline_seconds,
            # A record that is used at all is no older than the bound.
            confirmed_seconds=2 * options.mirror.bound_seconds,
        )
        self.engine, self.frame_keeper = self._make_engine()
        quarantine = around.replicator.quarantine
        self._mirror = mirror_assembly.SchedulerMirror(
            around.plugin,
            around.synchronizer,
            around.store.snapshot,
            self._epoch,
            around.now_seconds,
            options.mirror,
            wait_for=self._wait_for,
            unreadable=quarantine.at_this_moment,
        )
        self._hints = self._mirror.hints
        #: Placement as this worker has it in memory.
        self.placement_mirror = self._mirror.mirror
        #: Of all that writes allocations in this worker, on Nova's own path as well.
        self.write_turns = write_turns.WriteTurns()
        self._writer = allocation_writer.AllocationWriter(
            placement_calls.LateClient(around.placement_client),
            batch_window_seconds=options.batch_window_seconds,
            max_batch_consumers=options.max_batch_servers,
            max_calls=options.max_allocation_calls,
            turns=self.write_turns,
        )
        self._spread = self._make_spread()
        self._upkeep = self._make_upkeep()
        #: Ends claims that have served: of others, and of before, where none are made.
        self.claim_duty = self._upkeep.claim_duty
        self._claim_proof = self.claim_duty.proof
        #: What requests wait by that nobody but pending claims refuses.
        self.pending_waits = pending_waits.PendingWaits(
            self._claim_proof.index,
            pending_waits.WaitBounds(options.claim_wait_seconds, options.claim_lease_seconds),
            around.now_seconds,
            around.claim_meter.refusal_waited,
            most_waiting=options.request_threads // 2,
        )
        #: Looks for allocations that somebody left behind as he died.
        self.orphan_duty = self._upkeep.orphan_duty
        #: What decides a request here.
        self.parts = self._make_parts()
        self.decider = request_decider.RequestDecider(
            self.parts,
            self._proved_full,
            self.pending_waits.begin,
            deadline_seconds=options.deadline_seconds,
        )

    def _make_parts(self) -> request_decider.DecisionEngine:
        around = self._around
        room = placing.HostReservations(self.engine, self.reservations)
        return request_decider.DecisionEngine(
            host_manager=around.host_manager,
            engine=self.engine,
            keeper=self.frame_keeper,
            ways=placing.PlacingParts(room, self._make_claimer(), self._spread),
            placement=request_allocations.AllocationAccess(
                around.placement_client,
                self._writer,
                self._hints.hint,
                verification.AllocationVerifier(around.placement_client, meter=around.claim_meter),
                self._options.verify_allocations,
                room.left,
                self._mirror.chosen,
                self.tell_left,
                self.write_turns,
            ),
            places=self._present.locate,
            generation=lambda: around.replicator.generation,
            snapshot=around.store.snapshot,
        )

    def _make_engine(self) -> tuple[engine.Engine, frame_keeper.FrameKeeper]:
        around = self._around
        settings = scheduling_options.settings(around.plugin.conf, around.host_manager)
        present = self._present = fact_source.Present()
        made = engine.Engine(
            settings,
            scheduling_options.enabled_filters(settings, around.host_manager),
            scheduling_options.enabled_weighers(settings, around.host_manager),
            frame=host_frame.HostFrame(locate=present.locate, attribute=present.attribute),
            rng=random.Random(),
            cache_bytes=self._options.cache_bytes,
        )
        if "ImagePropertiesFilter" in settings.enabled_filters:
            # Nearly every request reads it: the first one shall not pay for all hosts.
            made.frame.attribute("supported_instances")
        ratios = node_facts.DefaultRatios(
            **{
                name: getattr(around.plugin.conf, f"{name}_allocation_ratio")
                or getattr(around.plugin.conf, f"initial_{name}_allocation_ratio")
                for name in ("cpu", "ram", "disk")
            }
        )
        return made, frame_keeper.FrameKeeper(
            around.store,
            made,
            present,
            ratios=ratios,
            reservations=self.reservations,
            journals=around.journals,
        )

    def _make_upkeep(self) -> claim_upkeep.ClaimUpkeep:
        return claim_upkeep.ClaimUpkeep(
            self._around,
            self._options,
            is_own=None if self._spread is None else self._spread.is_own,
            wait_for=self._wait_for,
            hint=self._hints.hint,
        )

    @property
    def tell_left(self) -> verification.TellLeft:
        """What remembers allocations that may be left; without claims nobody does."""
        return self._upkeep.left.add if self._options.claims else verification.tell_nobody

    @property
    def members(self) -> group_places.MemberMemory:
        """What this worker remembers of groups' members, whatever the back end loses."""
        return self._upkeep.lost

    def claim_figures(self) -> dict[str, float]:
        """Return what is claimed, how claims ended here, and what they left behind."""
        return self._upkeep.figures()

    def _make_claimer(self) -> chosen_hosts.Claimer:
        if not self._options.claims:
            return chosen_hosts.NoClaims()
        around = self._around
        return worker_claims.make_claimer(
            around.synchronizer,
            around.store,
            around.replicator,
            self.engine,
            around.now_seconds,
            self._options.claim_lease_seconds,
            around.claim_meter,
            self._upkeep.cache,
            self._upkeep.lost,
        )

    def _make_spread(self) -> placing.Spreading | None:
        if not self._options.claims or self._options.claim_spread == "off":
            return None
        own = self._replicator.status().identity
        return placing.Spreading(
            own,
            heartbeats.SchedulerLiveness(
                self._around.store, own, self._options.silent_scheduler_seconds
            ),
            tolerant=self._options.claim_spread == "tolerant",
        )

    def fallback_claims(
        self, unjudged: outside_claims.UnjudgedClaimer | None
    ) -> fallback_claims.FallbackClaims | None:
        """Return what claims for one request that Nova's own code decides; None for nothing."""
        if not self._options.claims:
            return None
        return fallback_claims.FallbackClaims(
            self.parts, self._proves, self._options.deadline_seconds, unjudged
        )

    # -- life -------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; in the worker, after the feed was started."""
        self._mirror.start()
        self._upkeep.start()
        self.pending_waits.start()
        self._stop.clear()
        self._follower = threading.Thread(target=self._follow, name="nodb-frame", daemon=True)
        self._follower.start()

    def hurry(self) -> None:
        """Have no request wait for others' claims any more; idempotent."""
        self.pending_waits.stop()

    def stop(self) -> None:
        """Stop the threads; before the synchronizer is closed."""
        self._stop.set()
        self.hurry()
        if self._follower is not None:
            self._follower.join(10.0)
            self._follower = None
        self._upkeep.stop()
        self._mirror.stop()

    def _follow(self) -> None:
        """Keep the hosts' columns near the present between requests.

        Without it the first request after a start, or after a quiet hour, would
        pay for all that came meanwhile, and others would wait behind it.
        """
        complained = False
        while not self._stop.wait(_FOLLOW_SECONDS if self.columns_made else _FIRST_SECONDS):
            if self._epoch() is None:
                continue
            try:
                self.frame_keeper.catch_up(time.time())
                self.columns_made = True
                complained = False
            except Exception:
                # A request that meets the same goes to Placement and is counted.
                if not complained:
                    LOG.exception("The hosts' columns could not be brought to the present.")
                complained = True

    @property
    def claiming(self) -> bool:
        """Whether hosts are claimed among schedulers before they are allocated."""
        return self._options.claims

    @property
    def mirror_keeper(self) -> mirror_keeper_module.MirrorKeeper:
        """What keeps the mirror, should this worker be the one."""
        return self._mirror.keeper

    # -- Placement's mirror -------------------------------------------------------

    def mirror_figures(self) -> dict[str, float]:
        """Return how the mirror is kept, for the metrics; any thread."""
        return self._mirror.figures()

    def _epoch(self) -> str | None:
        followed = self._replicator.followed()
        return None if followed is None else followed.epoch

    def _proved_full(
        self,
        asked: request_decider.ScheduleCall,
        decided_at: float,
        claims: store_snapshot.NamespaceView,
        planned_on: store_snapshot.Snapshot,
        tried: frozenset[str],
        waiting: pending_waits.RequestWait,
    ) -> request_decider.FullHosts:
        """See :class:`request_decider.RequestDecider`."""
        enabled = [str(cell.uuid) for cell in self.host_manager.enabled_cells]
        cells = request_conversion.cells(request_conversion.destination(asked.spec), enabled)
        with self.engine.lock:
            if candidates.any_broken(self.engine.frame, cells):
                raise request_decider.MemoryCannotDecide("broken provider")
        group = request_conversion.group_uuid(asked.spec)
        found = request_decider.FullHosts.PROVED
        roomy: set[str] = set()
        for query in asked.queries or ():
            each, listed = self._proved(
                query.resources,
                decided_at,
                claims,
                asked.instance_uuids,
                group,
                planned_on,
                tried if len(asked.instance_uuids) > 1 else frozenset(),
            )
            if each is request_decider.FullHosts.CHANGED:
                return each
            if each is request_decider.FullHosts.ONCE_MORE:
                found = each
            roomy |= listed
        able = functools.partial(self._able, asked)
        if roomy and waiting.is_worth_another_look(roomy, able, asked.instance_uuids[0]):
            return request_decider.FullHosts.WAITED
        if roomy and LOG.isEnabledFor(logging.DEBUG):
            LOG.debug(
                "Placement has room for server %(server)s on %(count)d hosts, among these claims: "
                "%(claims)s",
                {
                    "server": asked.instance_uuids[0],
                    "count": len(roomy),
                    "claims": self.pending_waits.told(sorted(roomy)[:_MOST_TOLD]),
                },
            )
        return found

    def _able(self, asked: request_decider.ScheduleCall, uuids: Iterable[str]) -> frozenset[str]:
        """See :meth:`engine.Engine.may_take`."""
        return self.engine.may_take(self.parts.request(asked.spec, asked.queries), uuids)

    def _proves(self, *args: Any) -> request_decider.FullHosts:
        """See :class:`fallback_claims.FallbackClaims`; by the arguments of :meth:`_proved`."""
        return self._proved(*args)[0]

    def _proved(
        self,
        resources: Mapping[str, int],
        decided_at: float,
        claims: store_snapshot.NamespaceView,
        servers: Collection[str],
        group: str | None,
        planned_on: store_snapshot.Snapshot,
        tried: frozenset[str] = frozenset(),
    ) -> tuple[request_decider.FullHosts, frozenset[str]]:
        """Say whether no host's record was behind Placement; then the others are read again.

        Nor a claim left that nothing stands behind, those of the request's servers first,
        on any host that has room by Placement: where it has none a claim refused nobody
        who would be served.

        :param group: uuid of the servers' group, whose members' claims on full hosts may
            rule out others
        :param tried: hosts that took some of the servers, and not all
        :return: and the roots that have room by Placement
        :raises MemoryCannotDecide: nobody can tell
        """
        ended = claim_proof.ProvedClaims()
        try:
            proof = self.placement_mirror.prove_current(
                decided_at, resources, seen=planned_on, crowded=tried
            )
            if not proof.complete:
                raise request_decider.MemoryCannotDecide("mirror behind")
            again = proof.touched
            if proof.changed:
                again = True
                self._wait_for(proof.version)
                if self.placement_mirror.differs_from(planned_on, proof, resources):
                    return request_decider.FullHosts.CHANGED, proof.listed
            if proof.listed:
                roots = None if group is not None else proof.listed
                ended = self._claim_proof.prove(claims, servers, roots, decided_at, group)
        except request_decider.MemoryCannotDecide:
            raise
        except errors.NodbError as error:
            LOG.warning("Whether hosts are full cannot be proved: %(error)s", {"error": error})
            raise request_decider.MemoryCannotDecide("mirror not proved") from error
        if ended.version:
            self._wait_for(ended.version)
            if not ended.complete:
                return request_decider.FullHosts.CHANGED, proof.listed
            again = True
        if again:
            return request_decider.FullHosts.ONCE_MORE, proof.listed
        return request_decider.FullHosts.PROVED, proof.listed

    def _wait_for(self, version: int) -> None:
        """Wait until what was just published came back with the feed."""
        if not version:
            # Another published it: to ask again at once would meet the same snapshot.
            time.sleep(0.05)
        deadline = time.monotonic() + 5.0
        while (self._replicator.status().cursor_version or 0) < version:
            if time.monotonic() > deadline:
                raise request_decider.MemoryCannotDecide("feed behind")
            time.sleep(0.01)
