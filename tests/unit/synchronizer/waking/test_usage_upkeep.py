# SPDX-License-Identifier: Apache-2.0
"""Who goes first is told by what projects have at that moment, not some seconds ago."""

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer.pending import pending_rules
from nova_nodb_scheduler.synchronizer.waking import pending_fit
from nova_nodb_scheduler.wire import codec
from tests.unit.synchronizer.waking import made_worker

INSTANCES = known_namespaces.INSTANCES
FITS = pending_fit.ServersFit(("uuid-0",))


class UsageTest(made_worker.WorkerCase):
    """Projects rich and poor; hosts have 48 processors in all, and every request wants 4."""

    def own(self, server, project, vcpus):
        """Have a server stand on a host."""
        row = {
            "project_id": project,
            "host": "Host-1",
            "vm_state": "active",
            "vcpus": vcpus,
            "memory_mb": 0,
            "root_gb": 0,
            "ephemeral_gb": 0,
        }
        state = {"cell": "c", "row": row}
        key = records.RecordKey(INSTANCES.name, f"{server}@c")
        payload = codec.encode(state, INSTANCES.schema)
        self.store.apply(records.Change(records.Record(key, 10**6, 10**6, payload), state))

    def share(self, project):
        with self.followed.lock:
            return self.followed.queues.share(project)

    def test_the_first_round_knows_what_projects_have(self):
        self.own("s", "rich", 8)
        self.park("a", project_id="rich")
        self.now += 1.0
        self.park("b", project_id="poor")
        self.plans.answers["digest"] = FITS
        self.round()
        self.assertEqual([("b", 2), ("a", 2)], self.told)

    def step_after_step(self, key):
        """Place a granted request, with a look behind each step."""
        taken = self.ledger.take(key, 2, "conductor")
        self.round(0.05)
        holding = pending_rules.holding_of(taken)
        self.ledger.begin(holding)
        self.round(0.05)
        self.ledger.sent(holding, key)
        self.round(0.05)
        self.ledger.finish(holding)

    def test_what_was_granted_counts_until_its_servers_name_their_host(self):
        for place in (self.step_after_step, self.place):
            key = place.__name__
            self.park(key, project_id=key)
            self.park("other", queue="never")
            self.plans.answers["digest"] = FITS
            self.round()
            self.assertEqual(4 / 48, self.share(key))
            place(key)
            for _ in range(50):
                self.round(0.1)
                self.assertEqual(4 / 48, self.share(key), key)
            self.places[key] = (("c", "Host-0"),)
            self.own(key, key, 4)
            self.round(2.0)
            self.assertEqual(4 / 48, self.share(key))
            self.ledger.drop_server("other", "other")

    def test_one_that_never_had_hosts_counts_for_nobody(self):
        self.park("a")
        self.park("other", queue="never")
        self.round()
        self.ledger.drop_server("a", "a")
        self.round()
        self.assertIsNone(self.state("a"))
        self.assertEqual(0.0, self.share("project"))
