# SPDX-License-Identifier: Apache-2.0
"""A Galera cluster whose nodes are killed and frozen while both are written through."""

from __future__ import annotations

import random
import threading
import time
import unittest
from collections import Counter
from typing import ClassVar

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.testing import galera_server, patience
from nova_nodb_scheduler.testing.conformance import contract_case
from nova_nodb_scheduler.testing.conformance_claims import claims_case as cases

FIRST, SECOND = 0, 1
TIMEOUT_SECONDS = 4.0
HOSTS = 100
#: A node that is lost is noticed, a new view agreed upon, and what waited repeated.
RECOVERY_SECONDS = galera_server.EVICTION_SECONDS + 2 * TIMEOUT_SECONDS


class Traffic:
    """Writes records through one node and keeps what it was told of each."""

    def __init__(self, client: contract.Synchronizer, name: str) -> None:
        self._client = client
        self._name = name
        self.told: dict[records.RecordKey, records.Verdict] = {}
        self.won_at: list[float] = []
        self.refused = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            key = records.RecordKey("suite", f"{self._name}-{number}")
            try:
                [result] = self._client.write([records.Write(key, 0, self._name.encode())])
            except errors.BackendUnavailable:
                self.refused += 1
                self._stop.wait(0.05)
                continue
            self.told[key] = result.verdict
            if result.won:
                self.won_at.append(time.monotonic())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60.0)


class TestFaultsGalera(unittest.TestCase):
    """One cluster for all tests, which leave it whole."""

    database: ClassVar[galera_server.Galera]
    cluster: ClassVar[galera_server.GaleraCluster]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.database = cls.enterClassContext(galera_server.Galera(private=True))
        cls.cluster = cls.database.cluster

    def setUp(self) -> None:
        super().setUp()
        self.cluster.wait_until_whole()
        self.client(FIRST).reset()

    def client(
        self, node: int, timeout_seconds: float = TIMEOUT_SECONDS, ordering: str = "sequencer"
    ) -> driver.SQLAlchemySynchronizer:
        synchronizer = driver.SQLAlchemySynchronizer(
            driver.SQLOptions(
                self.database.urls[node],
                poll_interval_seconds=0.02,
                timeout_seconds=timeout_seconds,
                auto_upgrade=True,
                ordering=ordering,
            )
        )
        synchronizer.open()
        self.addCleanup(synchronizer.close)
        return synchronizer

    # --- claims ---

    def test_claims_through_both_nodes_give_exactly_the_capacity(self) -> None:
        capacity = HOSTS * cases.CAPACITY["VCPU"]
        granted: Counter[str] = Counter()
        lock = threading.Lock()

        def claim(seed: int) -> None:
            chance = random.Random(seed)
            scheduler = cases.ClaimingScheduler(self.client(seed % 2, 20.0), f"scheduler-{seed}")
            for number in range(capacity // 2):
                hosts = [f"host-{host}" for host in range(HOSTS)]
                chance.shuffle(hosts)
                for host in hosts:
                    if full[host]:
                        continue
                    answer = scheduler.claim(cases.claim(f"{seed}-{number}", host))
                    if isinstance(answer, model.Granted):
                        with lock:
                            granted[host] += 1
                        break
                    assert isinstance(answer, model.GrantRefused), answer
                    full[host] = True
                else:
                    return

        full = {f"host-{host}": False for host in range(HOSTS)}
        threads = [threading.Thread(target=claim, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240.0)
            self.assertFalse(thread.is_alive())
        self.assertEqual(capacity, granted.total())
        self.assertEqual({cases.CAPACITY["VCPU"]}, set(granted.values()))
        for node in (FIRST, SECOND):
            scheduler = cases.ClaimingScheduler(self.client(node))
            held = sum(len(scheduler.hosts.read(host).claims) for host in full)
            self.assertEqual(capacity, held)

    # --- nodes that are lost ---

    def test_a_node_killed_in_mid_commit_leaves_the_outcome_unknown(self) -> None:
        client, other = self.client(SECOND), self.client(FIRST)
        key = records.RecordKey("suite", "a")
        [old] = other.write([records.Write(key, 0, b"old")])
        assert old.record is not None
        client.on_step = lambda step: self.cluster.second.kill() if step == "commit" else None
        self.addCleanup(self.cluster.second.start)
        [result] = client.write([records.Write(key, old.record.revision, b"new")])
        self.assertIs(records.Verdict.UNKNOWN, result.verdict)
        self.assertIn(self._write_at_last(other, key), (b"old", b"new"))

    def _write_at_last(
        self, client: driver.SQLAlchemySynchronizer, key: records.RecordKey
    ) -> bytes:
        """Write until it is known to be written; returns what stood there before."""
        former = b""
        deadline = time.monotonic() + RECOVERY_SECONDS
        while True:
            try:
                standing = client.read([key])[key]
                if standing.payload == b"next":
                    return former
                former = standing.payload
                client.write([records.Write(key, standing.revision, b"next")])
            except errors.BackendUnavailable:
                if time.monotonic() > deadline:
                    raise

    def test_a_node_killed_under_load_takes_nothing_that_was_accepted(self) -> None:
        self._lose(self.cluster.second.kill, self.cluster.second.start)

    def test_a_node_frozen_under_load_takes_nothing_that_was_accepted(self) -> None:
        self._lose(self.cluster.second.pause, self.cluster.second.resume)

    def _lose(self, lose: object, bring_back: object) -> None:
        assert callable(lose)
        assert callable(bring_back)
        follower = contract_case.FeedReader(self.client(FIRST))
        traffic = [
            Traffic(self.client(node), f"writer-{node}-{number}")
            for node in (FIRST, SECOND)
            for number in range(2)
        ]
        time.sleep(2.0)
        given_up_at = time.monotonic() + RECOVERY_SECONDS
        while any(len(each.won_at) < 15 for each in traffic):
            if time.monotonic() > given_up_at:
                raise patience.OutOfPatience("nobody writes")
            time.sleep(0.05)
        lost_at = time.monotonic()
        lose()
        try:
            survivors = traffic[:2]
            deadline = lost_at + RECOVERY_SECONDS
            while not all(any(t > lost_at + 1.0 for t in each.won_at) for each in survivors):
                if time.monotonic() > deadline:
                    raise patience.OutOfPatience("the other node does not go on")
                time.sleep(0.05)
            recovered_seconds = time.monotonic() - lost_at
            time.sleep(1.0)
        finally:
            bring_back()
        self.cluster.wait_until_whole()
        for each in traffic:
            each.stop()
        self._check(traffic, follower)
        self.assertLess(recovered_seconds, RECOVERY_SECONDS)

    def _check(self, traffic: list[Traffic], follower: contract_case.FeedReader) -> None:
        told = {key: verdict for each in traffic for key, verdict in each.told.items()}
        won = {key for key, verdict in told.items() if verdict is records.Verdict.WON}
        self.assertGreater(len(won), 50)
        first, second = self.client(FIRST), self.client(SECOND)
        present = {key for key in contract_case.everything(first) if key.namespace == "suite"}
        self.assertEqual(set(), won - present)
        follower.catch_up()
        self.assertEqual(
            contract_case.states(contract_case.everything(first)),
            contract_case.states(follower.held),
        )
        self.assertEqual(contract_case.everything(first), contract_case.everything(second))
        self.assertEqual(0, follower.resyncs)

    # --- nodes that must not be relied upon ---

    def test_a_node_without_the_majority_is_refused_by_name(self) -> None:
        client = self.client(SECOND)
        self.cluster.first.kill()
        try:
            patience.wait_until(
                lambda: self.cluster.second.status().get("wsrep_ready") != "ON",
                RECOVERY_SECONDS,
                "the second node notices that it has no majority",
                0.2,
            )
            with self.assertRaisesRegex(
                errors.BackendUnavailable, "Galera node is not synced.*wsrep_"
            ):
                self.client(SECOND)
            with self.assertRaisesRegex(errors.BackendUnavailable, "Galera node is not synced"):
                client.head()
        finally:
            self.cluster.second.execute("SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'")
            self.cluster.first.start()
        self.cluster.wait_until_whole()
        client.head()

    def test_the_counter_is_warned_of_on_a_cluster(self) -> None:
        fresh = self.enterContext(galera_server.Galera())
        with self.assertLogs("nova_nodb_scheduler", "WARNING") as logged:
            counter = driver.SQLAlchemySynchronizer(driver.SQLOptions(fresh.url, auto_upgrade=True))
            counter.open()
            counter.close()
        self.assertIn("ordering = sequencer", " ".join(logged.output))
