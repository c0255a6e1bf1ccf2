# SPDX-License-Identifier: Apache-2.0
"""A worker over records in memory and a few small hosts, which goes step by step.

Records, order, grants and hosts are the real ones. What fits is what a test says: hosts
are asked for by a function, and of a conductor there is no more than what it was told.
"""

from __future__ import annotations

import itertools
import unittest

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.scheduling.waiting import queue_settings, wait_queues
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules
from nova_nodb_scheduler.synchronizer.waking import (
    arrivals,
    followed_requests,
    hold_upkeep,
    pending_fit,
    queue_grants,
    queue_worker,
    usage_upkeep,
)
from nova_nodb_scheduler.wire import codec
from tests.unit.scheduling import toys
from tests.unit.scheduling.pipeline import test_engine
from tests.unit.synchronizer.pending import made_requests

#: Behind the sending of servers.
LOOK_SECONDS = 100.0

_NAMESPACES = [
    known_namespaces.PENDING,
    known_namespaces.INSTANCES,
    known_namespaces.SCHEDULERS,
]


@attrs.define
class MadePlans:
    """What a test says of who fits.

    :ivar answers: by queue; those that are not named do not fit. An error is raised
    :ivar asked: keys, in order
    """

    answers: dict = attrs.field(factory=dict)
    shortages: dict = attrs.field(factory=dict)
    asked: list = attrs.field(factory=list)
    unproved: str = ""

    def view(self):
        if self.unproved:
            raise pending_fit.HostsUnproved(self.unproved)
        return "view"

    def fit(self, request, view, *, among=None, charged=None):
        self.asked.append(request.key)
        answer = self.answers.get(request.queue, pending_fit.NoRoom())
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shortage(self, request, most=pending_fit.MOST_HOSTS):
        return self.shortages.get(request.queue, pending_fit.NotTold("nobody said"))


class MadeMeter:
    """Counts errors, and who left."""

    def __init__(self):
        self.failures = 0
        self.endings = []

    def left(self, priority_class, ending, waited_seconds):
        self.endings.append(ending)

    def looked_at(self, result):
        pass

    def round_took(self, seconds):
        pass

    def failed(self):
        self.failures += 1


class AllOwn:
    """One scheduler alone; or none of what there is."""

    own = True

    def is_own(self, digest):
        return self.own


class WorkerCase(unittest.TestCase):
    """Three hosts, uuid-0 to uuid-2, and one scheduler."""

    SETTINGS: dict = {}

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.hub = memory.MemoryHub(clock=lambda: self.now)
        self.client = memory.MemorySynchronizer(shared_hub=self.hub)
        self.client.open()
        self.addCleanup(self.client.close)
        self.ledger = pending_ledger.PendingLedger(
            self.client, made_requests.LEASE_SECONDS, pause=lambda _: None
        )
        self.store = host_state_store.HostStateStore(_NAMESPACES, codec.decode_state)
        self.engine = test_engine.make()
        for number in range(3):
            self.engine.put(toys.facts(number))
        self.plans, self.meter, self.told = MadePlans(), MadeMeter(), []
        self.events: list = []
        self.places: dict = {}
        self.numbers = itertools.count()
        self.owners = AllOwn()
        self.worker = self.make_worker()

    def make_worker(self):
        """Return a scheduler's worker that knows nothing yet."""
        settings = queue_settings.QueueSettings(**self.SETTINGS)
        self.followed = followed_requests.FollowedRequests(
            self.store, lambda: wait_queues.WaitQueues(settings)
        )
        self.usage = usage_upkeep.UsageUpkeep(
            self.followed, self.store, self.engine, lambda server: self.places.get(server, ())
        )
        return queue_worker.QueueWorker(
            queue_worker.WorkerParts(
                followed=self.followed,
                plans=self.plans,
                grants=queue_grants.QueueGrants(
                    self.ledger, self, lambda: f"grant-{next(self.numbers)}"
                ),
                owners=self.owners,
                engine=self.engine,
                catch_up=lambda: None,
                is_following=lambda: True,
                meter=self.meter,
                granted=(),
                observed=(self,),
                clock=lambda: self.now,
                holds=hold_upkeep.HeldHosts(self.followed, self.engine),
                proved_upkeep=(
                    hold_upkeep.HoldUpkeep(
                        self.followed, self.plans, self.ledger, 600.0, lambda digest: True
                    ),
                ),
                usages=(self.usage,),
                arrivals=arrivals.ArrivedRequests(
                    self.followed,
                    lambda server: self.places.get(server, ()),
                    self.ledger,
                    lambda digest: True,
                ),
            )
        )

    def publish(self, event):
        """Stands for who is told of events."""
        self.events.append(event.kind)

    def dispatch(self, key, attempt):
        """Stands for the cast to a conductor."""
        self.told.append((key, attempt))

    # -- records -------------------------------------------------------------------------

    def park(self, key, *, servers=None, **known):
        """Have somebody wait for room."""
        request = attrs.evolve(
            made_requests.newcomer(key, servers or (key,), now_seconds=self.now, wait_seconds=1e6),
            **known,
        )
        assert self.ledger.create(request, "payload") == request
        self.ledger.park(pending_rules.holding_of(request), "no room", 0.0)

    def place(self, key):
        """Have a conductor take what was granted, send its servers, and let go of it."""
        standing = self.ledger.read(key)
        taken = self.ledger.take(key, standing.grant.attempt, f"conductor-{standing.grant.attempt}")
        holding = pending_rules.holding_of(taken)
        self.ledger.begin(holding)
        for server in taken.servers:
            self.ledger.sent(holding, server)
        self.ledger.place(holding, LOOK_SECONDS)

    def state(self, key):
        standing = self.ledger.read(key)
        return None if standing is None else standing.state

    def feed(self):
        """Bring what is written into the store; what cannot be read leaves it as it was."""
        for page in self.client.snapshot([known_namespaces.PENDING.name]).pages:
            for record in page:
                try:
                    state = None if record.deleted else codec.decode_state(record.payload)
                except errors.UndecodableRecord:
                    continue
                self.store.apply(records.Change(record, state))
        known = list(self.store.snapshot().namespace(known_namespaces.PENDING.name).row_keys())
        found = self.client.read([pending_ledger.record_key(key) for key in known])
        for record in found.values():
            if record.deleted:
                self.store.apply(records.Change(record, None))

    def round(self, seconds=1.0):
        """Let time go by, and have the worker look."""
        self.now += seconds
        self.feed()
        self.worker.round()
