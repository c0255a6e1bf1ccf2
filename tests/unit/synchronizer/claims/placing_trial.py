# SPDX-License-Identifier: Apache-2.0
"""Schedulers that place servers at once, and a ledger of what is true.

The truth is plain dictionaries that know nothing of claims: who was granted
which host, and what is allocated there. It never refuses an allocation: what
keeps hosts from being filled beyond their room is the claims alone.
"""

from __future__ import annotations

import collections
import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records, requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts, engine, placing, planning
from nova_nodb_scheduler.scheduling.reservations import host_reservations
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import group_removal, group_rules, ledger_claimer
from nova_nodb_scheduler.synchronizer.records import record_editor
from nova_nodb_scheduler.testing import single_claims

#: Small: the fewer hosts and places there are, the more often schedulers meet.
HOSTS = ("h1", "h2", "h3")
CAPACITY = 4
LEASE_SECONDS = 30.0
CELL = "cell"

#: The groups that servers may belong to; the second one keeps together.
GROUPS = (
    requests.Group("apart", "anti-affinity", frozenset(["anti-affinity"])),
    requests.Group("together", "affinity", frozenset(["affinity"])),
)


class Stopped(BaseException):
    """The scheduler died here; nothing in it may catch this."""


class Broken(AssertionError):
    """Something that must never be."""


class Truth:
    """What is the case, whatever any record says; any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: Host by consumer: what was answered to whoever asked.
        self.granted: dict[str, str] = {}
        #: (host, VCPUs) by consumer: what Placement would show.
        self.allocations: dict[str, tuple[str, int]] = {}
        self.sizes: dict[str, int] = {}
        self.group_of: dict[str, requests.Group] = {}
        self.most = collections.Counter[str]()

    def write(self, wanted: chosen_hosts.WantedClaim) -> None:
        with self.lock:
            self.allocations[wanted.consumer] = (wanted.chosen.uuid, wanted.resources["VCPU"])

    def remove(self, consumer: str) -> None:
        with self.lock:
            self.granted.pop(consumer, None)
            self.allocations.pop(consumer, None)

    def grant(self, hosts: Mapping[str, str]) -> None:
        """Take in an answer, and see that it breaks nothing."""
        with self.lock:
            self.granted.update(hosts)
            used = collections.Counter[str]()
            for consumer, host in self.granted.items():
                used[host] += self.sizes[consumer]
                if self.allocations.get(consumer) != (host, self.sizes[consumer]):
                    raise Broken(f"{consumer} was granted {host} without an allocation there")
            self.most |= used
            for host, count in used.items():
                if count > CAPACITY:
                    raise Broken(f"{count} of {CAPACITY} VCPUs were granted on {host}")
            for group in GROUPS:
                self._check_group(group)

    def _check_group(self, group: requests.Group) -> None:
        hosts = [h for c, h in self.granted.items() if self.group_of.get(c) is group]
        if group.policy == "anti-affinity" and len(set(hosts)) < len(hosts):
            raise Broken(f"members of {group.uuid} were granted {sorted(hosts)}")
        if group.policy == "affinity" and len(set(hosts)) > 1:
            raise Broken(f"members of {group.uuid} were granted {sorted(hosts)}")

    def shown(self, host: str) -> dict[str, dict[str, int]]:
        with self.lock:
            return {c: {"VCPU": n} for c, (h, n) in self.allocations.items() if h == host}

    def servers_of(self, group: requests.Group) -> set[str]:
        with self.lock:
            return {consumer for consumer, own in self.group_of.items() if own is group}

    def copy(self) -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
        """Return what is allocated, and what was granted."""
        with self.lock:
            return dict(self.allocations), dict(self.granted)


class Authority:
    """Placement, which writes whatever it is told; stops and pauses come between."""

    def __init__(self, truth: Truth, after: Callable[[str], None]) -> None:
        self._truth, self._after = truth, after

    def write(
        self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float
    ) -> dict[str, placing.AllocationOutcome]:
        self._after("before the write")
        for each in wanted:
            self._truth.write(each)
        self._after("written")
        return {
            each.consumer: placing.AllocationOutcome(placing.AllocationResult.WRITTEN)
            for each in wanted
        }

    def remove(self, wanted: Sequence[chosen_hosts.WantedClaim], deadline: float) -> None:
        for each in wanted:
            self._truth.remove(each.consumer)
        self._after("removed")

    def is_in_doubt(self, wanted: chosen_hosts.WantedClaim) -> bool:
        return False


@attrs.frozen
class _Seen:
    cursor: records.Cursor
    allocations: Mapping[str, tuple[str, int]]
    granted: Mapping[str, str]


class Scheduler:
    """One scheduler process: everything of the plugin's way but Nova and a feed.

    Claims it learns of by its compare-and-sets, allocations now and then.

    :param after: called with each step of the protocol once done
    :param looks: how probably it looks at the present when it claims
    """

    def __init__(
        self,
        client: contract.Synchronizer,
        name: str,
        truth: Truth,
        after: Callable[[str], None],
        now_seconds: Callable[[], float],
        *,
        seed: int = 0,
        looks: float = 1.0,
    ) -> None:
        numbers = itertools.count()

        def make_id() -> str:
            return f"{name}-{next(numbers)}"

        self.client, self.truth, self.after = client, truth, after
        self._rng, self._looks = random.Random(seed), looks
        self._seen: _Seen | None = None
        self.removed = 0
        self.engine = engine.Engine(
            decision_settings.SchedulingOptions(shuffle_best_same_weighed_hosts=True),
            (),
            (),
            frame=host_frame.HostFrame(),
            rng=random.Random(seed),
        )
        # As many as anybody asks for: nothing but claims keeps hosts from filling.
        provider = host_facts.ProviderFacts(1, {"VCPU": host_facts.Inventory(10**6)})
        for host in HOSTS:
            self.engine.put(host_facts.HostFacts(host, CELL, host, host, provider=provider))
        cache = record_editor.RecordCache()
        self.batches = ledger_claimer.ClaimBatches(
            client,
            name,
            make_id,
            LEASE_SECONDS,
            lambda host: True,
            now_seconds=now_seconds,
            after_step=after,
            pause=lambda _: None,
            cache=cache,
        )
        self._removal = group_removal.GroupRemoval(client, cache)
        self.parts = placing.PlacingParts(
            placing.HostReservations(self.engine, host_reservations.Reservations(now_seconds)),
            ledger_claimer.LedgerClaimer(self.batches, self, sleep=lambda _: None),
            sleep=lambda _: None,
        )
        self.ledger = single_claims.HostClaimsOneByOne(client, self.batches, now_seconds)
        self.groups = single_claims.GroupClaimsOneByOne(client, self.batches, now_seconds)

    # -- views ----------------------------------------------------------------------

    def view(self, request: requests.Request) -> ledger_claimer.ClaimView:
        if self._seen is None or self._rng.random() < self._looks:
            # First the cursor: what is seen is of then or later.
            self._seen = _Seen(self.client.head(), *self.truth.copy())
        return ledger_claimer.ClaimView(self._seen.cursor, self._fits)

    def members(self, group: requests.Group) -> group_rules.Known:
        assert self._seen is not None
        of_group = self.truth.servers_of(group)
        return {c: [h] for c, h in self._seen.granted.items() if c in of_group}

    def _fits(self, claim: model.Claim, record: model.ClaimRecord) -> bool:
        assert self._seen is not None
        shown = {
            consumer: {"VCPU": count}
            for consumer, (host, count) in self._seen.allocations.items()
            if host == claim.host
        }
        used = record.used(shown, without=claim.consumer)
        return used.get("VCPU", 0) + claim.resources["VCPU"] <= CAPACITY

    # -- what it is asked -------------------------------------------------------------

    def placing(
        self,
        servers: Sequence[str],
        vcpus: int,
        authority: placing.AllocationAuthority,
        group: requests.Group | None = None,
    ) -> placing.Placing:
        """Return one request's placing, not begun."""
        with self.truth.lock:
            for server in servers:
                self.truth.sizes[server] = vcpus
                if group is not None:
                    self.truth.group_of[server] = group
        request = requests.Request(
            requests.Flavor(vcpus=vcpus),
            group=group,
            cells=frozenset([CELL]),
            queries=(requests.CandidateQuery({"VCPU": vcpus}),),
        )
        return placing.Placing(
            self.parts,
            request,
            servers,
            _Planner(self, request, len(servers)),
            authority,
            _NoTrace(),
            lambda server: (),
            1e18,
        )

    def place(
        self, servers: Sequence[str], vcpus: int, group: requests.Group | None = None
    ) -> dict[str, str] | None:
        """Place servers and grant them; None if there is not room for all."""
        made = self.placing(servers, vcpus, Authority(self.truth, self.after), group)
        chosen = None
        try:
            chosen = made.place()
        except Stopped:
            # A dead process undoes nothing.
            chosen = []
            raise
        except placing.ClaimsUnavailable:
            pass
        finally:
            if chosen is None:
                made.undo()
        if chosen is None:
            return None
        hosts = {server: each.uuid for server, each in zip(servers, chosen, strict=True)}
        self.truth.grant(hosts)
        return hosts

    def tidy(self, host: str) -> None:
        """Do what the settling duty does, for one host and all groups."""
        self.ledger.expire(host)
        self.ledger.reconcile(host, self._exists)
        shown = self.truth.shown(host)
        # The mirror's record, written after what it shows.
        key = records.RecordKey(known_namespaces.PROVIDERS.name, host)
        found = self.client.read([key]).get(key)
        write = records.Write(key, found.revision if found else 0, b"allocations")
        [result] = self.client.write([write])
        if result.won and result.record is not None:
            at = records.Cursor(self.client.head().epoch, result.record.version)
            self.ledger.settle(host, list(shown), at)
        for group in GROUPS:
            self.groups.expire(group.uuid)
            self.groups.reconcile(group.uuid, lambda consumer, host: self._exists(consumer))
        if self._rng.random() < 0.5:
            self._remove_empty()

    def _remove_empty(self) -> None:
        """Remove what is empty at once: no view is too old for the floor to tell."""
        keys = [group_rules.group_key(each.uuid) for each in GROUPS]
        standing = self.client.read(keys)
        revisions = {key: each.revision for key, each in standing.items() if not each.deleted}
        self.removed += self._removal.remove(revisions)

    def _exists(self, consumer: str) -> bool:
        with self.truth.lock:
            return consumer in self.truth.allocations


class _Planner:
    def __init__(self, scheduler: Scheduler, request: requests.Request, servers: int) -> None:
        self._scheduler, self._request, self._servers = scheduler, request, servers

    def plan(self, group_hosts: frozenset[str]) -> planning.Plan:
        request = placing.with_group_hosts(self._request, group_hosts)
        made = self._scheduler.engine.plan(request, servers=self._servers)
        if request.group is not None and request.group.policy == "affinity" and group_hosts:
            # What Nova's filter would: the group's hosts, and no others.
            for each in made.best(len(HOSTS)):
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


@attrs.define
class Dice:
    """When schedulers die, or sleep for longer than any lease.

    :param sleep: lets the lease of everybody's pending claims end
    """

    rng: random.Random
    sleep: Callable[[], None]
    dies: float = 0.0
    sleeps: float = 0.0
    steps: collections.Counter[str] = attrs.field(factory=collections.Counter)

    def after(self, step: str) -> None:
        self.steps[step] += 1
        if self.rng.random() < self.sleeps:
            self.sleep()
        if self.rng.random() < self.dies:
            raise Stopped(step)
