# SPDX-License-Identifier: Apache-2.0
"""Any interleaving ends with equal stores, and no capacity is granted twice.

Hypothesis draws the order of publish, claim, confirm, release, settle, expire,
reconcile, apply, restart, new epochs, collections, lost and late replies, and
dead feeds, on three replicas; and what others do between the read and the
write of an operation. Set NODB_PROPERTY_EXAMPLES for more cases than CI runs.
"""

import os
import unittest

from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler.synchronizer.drivers import memory
from tests import machine_runs
from tests.unit.synchronizer.replication import replica_cluster

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "120"))
STEPS = 60

REPLICAS = st.integers(0, 2)
HOSTS = st.sampled_from(replica_cluster.HOSTS)
NAMES = st.sampled_from(sorted(replica_cluster.SERVERS))
UNGROUPED = st.sampled_from(
    sorted(n for n, s in replica_cluster.SERVERS.items() if s.group is None)
)
WRITE_FAULTS = st.sampled_from(
    [memory.Fault.REPLY_LOST, memory.Fault.REQUEST_LOST, memory.Fault.LATE]
)


class Machine(stateful.RuleBasedStateMachine):
    """One cluster, and everything that may happen to it."""

    single_key = False

    @stateful.initialize()
    def begin(self):
        self.cluster = replica_cluster.Cluster(single_key=self.single_key)
        self.cluster.publish(*replica_cluster.HOSTS)
        for replica in self.cluster.replicas:
            replica.catch_up()

    def replica(self, number):
        return self.cluster.replicas[number]

    def grant(self, number, which):
        grants = self.replica(number).grants
        return grants[which % len(grants)] if grants else None

    # --- the protocol -------------------------------------------------------

    @stateful.rule(hosts=st.sets(HOSTS, min_size=1))
    def publish(self, hosts):
        self.cluster.publish(*sorted(hosts))

    @stateful.rule(number=REPLICAS, name=NAMES, host=HOSTS, leave=st.booleans())
    def claim(self, number, name, host, leave):
        self.cluster.claim(self.replica(number), name, host, leave=leave)

    @stateful.rule(
        number=REPLICAS,
        names=st.tuples(UNGROUPED, UNGROUPED),
        hosts=st.permutations(replica_cluster.HOSTS),
    )
    def claim_two(self, number, names, hosts):
        if names[0] != names[1]:
            self.cluster.claim_each(self.replica(number), names, hosts[:2])

    @stateful.rule(number=REPLICAS, which=st.integers(0, 3))
    def allocate(self, number, which):
        grant = self.grant(number, which)
        if grant:
            self.cluster.allocate(grant)

    @stateful.rule(number=REPLICAS, which=st.integers(0, 3))
    def confirm(self, number, which):
        grant = self.grant(number, which)
        if grant:
            self.cluster.confirm(self.replica(number), grant)

    @stateful.rule(number=REPLICAS, name=NAMES, host=HOSTS, fresh=st.booleans())
    def place(self, number, name, host, fresh):
        """The whole way in one go, so that servers come to stand often."""
        replica = self.replica(number)
        if fresh:
            self.catch_up(number)
        before = len(replica.grants)
        self.cluster.claim(replica, name, host)
        if len(replica.grants) > before:
            self.cluster.confirm(replica, replica.grants[-1])

    @stateful.rule(number=REPLICAS, which=st.integers(0, 3))
    def release(self, number, which):
        grant = self.grant(number, which)
        if grant:
            self.cluster.release(self.replica(number), grant)

    @stateful.rule(number=REPLICAS)
    def settle_unknown(self, number):
        self.cluster.settle_unknown(self.replica(number))

    @stateful.rule(number=REPLICAS, host=HOSTS)
    def settle(self, number, host):
        self.cluster.settle(self.replica(number), host)

    @stateful.rule(number=REPLICAS, host=HOSTS)
    def publish_apply_and_settle(self, number, host):
        """The usual course, so that claims are handed over often."""
        self.cluster.publish(host)
        self.catch_up(number)
        self.cluster.settle(self.replica(number), host)

    @stateful.rule(number=REPLICAS, host=HOSTS)
    def expire(self, number, host):
        self.cluster.expire(self.replica(number), host)

    @stateful.rule(number=REPLICAS, host=HOSTS)
    def reconcile(self, number, host):
        self.cluster.reconcile(self.replica(number), host)

    @stateful.rule(which=st.integers(0, 8))
    def delete_server(self, which):
        servers = sorted(self.cluster.truth.servers)
        if servers:
            self.cluster.truth.remove(servers[which % len(servers)])

    # --- the replicas -------------------------------------------------------

    @stateful.rule(number=REPLICAS, steps=st.integers(1, 8))
    def apply(self, number, steps):
        for _ in range(steps):
            self.replica(number).replicator.step()

    @stateful.rule(number=REPLICAS)
    def catch_up(self, number):
        """The feed is as good as it gets."""
        replica = self.replica(number)
        for fault in (replica.feed.faults, self.cluster.hub.faults):
            fault.thaw()
            fault.come_up()
        replica.catch_up()

    @stateful.rule(number=REPLICAS)
    def restart(self, number):
        self.cluster.restart(self.replica(number))

    # --- the world ----------------------------------------------------------

    @stateful.rule(seconds=st.sampled_from([1.0, 5.0, 11.0, 30.0]))
    def time_passes(self, seconds):
        self.cluster.clock.now += seconds

    @stateful.rule(odds=st.integers(0, 3))
    def begin_epoch(self, odds):
        if not odds:
            self.cluster.begin_epoch()

    @stateful.rule(keep_seconds=st.sampled_from([0.0, 10.0]))
    def collect(self, keep_seconds):
        self.cluster.hub.collect(keep_seconds)

    @stateful.rule(number=REPLICAS, fault=WRITE_FAULTS)
    def next_write_of_a_scheduler_fails(self, number, fault):
        self.replica(number).client.faults.fail_next(fault)

    @stateful.rule(fault=WRITE_FAULTS)
    def next_write_of_the_reporter_fails(self, fault):
        self.cluster.reporter.faults.fail_next(fault)

    @stateful.rule(number=REPLICAS)
    def a_scheduler_is_cut_off_in_mid_write(self, number):
        client = self.replica(number).client
        client.faults.fail_next(memory.Fault.LATE)
        client.meanwhile.append(
            lambda: client.faults.fail_next(memory.Fault.UNAVAILABLE, operation="read")
        )

    @stateful.rule()
    def late_writes_arrive(self):
        self.cluster.hub.deliver_late()

    @stateful.rule(number=REPLICAS, frozen=st.booleans())
    def a_feed_falls_silent_or_comes_back(self, number, frozen):
        faults = self.replica(number).feed.faults
        (faults.freeze if frozen else faults.thaw)()

    @stateful.rule(number=REPLICAS, down=st.booleans())
    def a_feed_goes_down_or_comes_up(self, number, down):
        faults = self.replica(number).feed.faults
        (faults.go_down if down else faults.come_up)()

    # --- what comes between a read and a write -------------------------------

    @stateful.rule(
        victim=st.integers(0, 3),
        number=REPLICAS,
        host=HOSTS,
        name=NAMES,
        what=st.sampled_from(
            ["place", "place", "settle", "publish", "delete", "wait", "expire", "epoch"]
        ),
    )
    def meanwhile(self, victim, number, host, name, what):
        """Order what comes between the next read and write of one process."""
        if victim - 1 == number:
            return
        clients = [self.cluster.reporter, *(each.client for each in self.cluster.replicas)]
        act = {
            "place": lambda: self.place(number, name, host, True),
            "settle": lambda: self.publish_apply_and_settle(number, host),
            "publish": lambda: self.cluster.publish(host) if victim else None,
            "delete": lambda: self.cluster.truth.remove((name, host)),
            "wait": lambda: self.time_passes(11.0),
            "expire": lambda: self.expire(number, host),
            "epoch": self.cluster.begin_epoch,
        }[what]
        own = self.cluster.replicas[number].client
        clients[victim].meanwhile.append(lambda: None if own.is_busy else act())

    # --- what must hold -----------------------------------------------------

    @stateful.invariant()
    def no_capacity_is_granted_twice(self):
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self):
        if not hasattr(self, "cluster"):
            return
        self.cluster.drain()
        self.cluster.check()
        self.cluster.check_equal()
        counted(self.cluster)


class OneKeyMachine(Machine):
    single_key = True


#: What the cases came by: a property over cases in which nothing happens
#: would hold, too.
SEEN = {"cases": 0, "servers": 0, "snapshots": 0, "resyncs": 0, "epochs": 0}


def counted(made):
    SEEN["cases"] += 1
    SEEN["servers"] += len(made.truth.servers)
    SEEN["epochs"] += int(made.hub.head().epoch.partition("-")[2])
    for replica in made.replicas:
        status = replica.replicator.status()
        SEEN["snapshots"] += status.snapshots
        SEEN["resyncs"] += sum(status.resyncs.values())


class TestReplicas(unittest.TestCase):
    def run_machine(self, machine):
        machine_runs.run(
            machine, SEEN, tuple(SEEN), max_examples=EXAMPLES, stateful_step_count=STEPS
        )

    def test_any_interleaving_over_atomic_writes(self):
        self.run_machine(Machine)

    def test_any_interleaving_over_one_key_at_a_time(self):
        self.run_machine(OneKeyMachine)


class TestFound(unittest.TestCase):
    """Interleavings that once broke what must hold."""

    def test_a_stale_repetition_gives_nothing_of_others_back(self):
        for single_key in (True, False):
            made = replica_cluster.Cluster(single_key=single_key)
            stale, present, _ = made.replicas
            made.publish(*replica_cluster.HOSTS)
            stale.catch_up()
            made.begin_epoch()
            made.publish(*replica_cluster.HOSTS)
            present.catch_up()
            made.claim_each(present, ("one-0", "two-0"), replica_cluster.HOSTS)
            made.claim_each(stale, ("one-0", "two-0"), replica_cluster.HOSTS)
            made.claim_each(present, ("one-0", "one-1"), replica_cluster.HOSTS)
            made.check()
            self.assertEqual(3, len(present.grants))
