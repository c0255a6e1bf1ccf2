# SPDX-License-Identifier: Apache-2.0
"""One host after another with its records, claims on it, and who settles them."""

import json

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.settlement import settlement_worker
from nova_nodb_scheduler.testing import single_claims
from nova_nodb_scheduler.wire import codec
from tests.unit.scheduling import claims, hosts

LEASE_SECONDS = 10.0
#: As Nova's CellMapping has it.
CELL0 = "00000000-0000-0000-0000-000000000000"
BY_NAME = {each.name: each for each in known_namespaces.BUILT_IN}


class World:
    """Two schedulers' claims, one store that follows, one settler."""

    def __init__(self, **options):
        self.clock = [0.0]
        self.hub = memory.MemoryHub(clock=lambda: self.clock[0])
        self.client = memory.MemorySynchronizer(shared_hub=self.hub)
        self.client.open()
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self.cursor = records.Cursor(self.client.head().epoch, 0)
        #: Whether the store is proved to have come as far as the cursor.
        self.proved = True
        #: Whether anybody judges claims, by a mirror of allocations.
        self.judged = True
        self.ids = iter(range(10**6))
        #: The authority: allocations by provider by consumer; None: it does not answer.
        self.allocations = {}
        self.asked = []
        now_seconds = lambda: self.clock[0]  # noqa: E731 - the made one
        batches = ledger_claimer.ClaimBatches(
            self.client,
            "scheduler",
            lambda: str(next(self.ids)),
            LEASE_SECONDS,
            lambda host: True,
            now_seconds=now_seconds,
        )
        self.ledger = single_claims.HostClaimsOneByOne(self.client, batches, now_seconds)
        self.groups = single_claims.GroupClaimsOneByOne(self.client, batches, now_seconds)
        self.settler = self.make_settler(**options)

    def make_settler(self, **options):
        return settlement_worker.Settler(
            self.client,
            self.store,
            lambda: self.cursor if self.proved else None,
            self.ask,
            lambda: self.clock[0],
            settlement_worker.SettlementOptions(**{"ask_after_seconds": 15.0, **options}),
            lambda: self.clock[0],
            is_judged=lambda snapshot: self.judged,
        )

    def ask(self, consumer):
        self.asked.append(consumer)
        if self.allocations is None:
            return None
        return {
            provider: amounts
            for (name, provider), amounts in self.allocations.items()
            if name == consumer
        }

    # -- what others write ------------------------------------------------------

    def put(self, namespace, key, state):
        """Write a record as its owner, None to delete it; schedulers follow at once."""
        record_key = records.RecordKey(namespace.name, key)
        found = self.client.read([record_key]).get(record_key)
        revision = 0 if found is None or found.deleted else found.revision
        if state is None:
            write = records.Write(record_key, revision, deleted=True)
        else:
            write = records.Write(record_key, revision, codec.encode(state, namespace.schema))
        (result,) = self.client.write([write])
        assert result.won, result
        self.follow()

    def follow(self):
        """Bring the store to the present."""
        while True:
            changes = self.client.fetch(self.cursor)
            for record in changes.records:
                state = None if record.deleted else codec.decode(record.payload).state
                self.store.apply(records.Change(record, state))
            if changes.cursor == self.cursor:
                return
            self.cursor = changes.cursor

    def node(self, count=0, uuid="n1", host="h1"):
        """The node is reported, with so many servers."""
        stats = json.dumps({"num_instances": str(count), "io_workload": "0"})
        self.put(known_namespaces.COMPUTE_NODES, uuid, hosts.node(uuid, host, stats=stats))

    def mirror(self, uuid="n1"):
        """The mirror reads a provider anew."""
        allocations = {
            name: amounts
            for (name, provider), amounts in self.allocations.items()
            if provider == uuid
        }
        self.put(known_namespaces.PROVIDERS, uuid, hosts.provider(1, allocations=allocations))

    def instance(self, name, host="h1", node="node-n1", **row):
        """An instance is saved; None as its host: it is deleted."""
        state = None if host is None else claims.instance(name, host, node, **row)
        self.put(known_namespaces.INSTANCES, f"{name}@{hosts.CELL}", state)

    def buried(self, name):
        """The conductor gives a server up: it is on no host, and never will be."""
        state = claims.instance(name, None, None, CELL0, vm_state="error")
        self.put(known_namespaces.INSTANCES, f"{name}@{CELL0}", state)

    def migration(
        self, name, host="h1", node="node-n1", status="pre-migrating", kind="resize", source=None
    ):
        """A migration is saved; None as its status: it is over."""
        state = None if status is None else claims.migration(name, host, node, status, kind)
        if state is not None and source is not None:
            state["row"]["source_compute"] = source
        self.put(known_namespaces.MIGRATIONS, f"m-{name}@{hosts.CELL}", state)

    # -- what schedulers do -------------------------------------------------------

    def claim(self, name, host="n1", share=claims.SMALL, *, fits=True, **resources):
        claim = model.Claim(name, host, resources or {"VCPU": 1}, node=share)
        answer = self.ledger.claim(claim, lambda record: fits, self.cursor)
        self.follow()
        return answer

    def place(self, name, host="n1", share=claims.SMALL, **resources):
        """Claim, write the allocation, confirm."""
        granted = self.claim(name, host, share, **resources)
        self.allocations[name, host] = dict(granted.claim.resources)
        answer = self.ledger.confirm(granted)
        assert isinstance(answer, model.Granted), answer
        self.follow()
        return granted

    def settle(self, seconds=0.0):
        """Let time pass, and take turns until nothing is waiting."""
        self.clock[0] += seconds
        self.follow()
        while self.settler.turn():
            self.follow()
        self.follow()

    def left(self, host="n1"):
        """Return who holds claims on a host."""
        return set(self.ledger.read(host).claims)
