# SPDX-License-Identifier: Apache-2.0
"""Claims on Redis while connections break, replies vanish and the server stands still."""

from __future__ import annotations

import functools
import random
import threading
import time
import uuid
from collections import Counter

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.testing import proxy
from nova_nodb_scheduler.testing.conformance import contract_case
from nova_nodb_scheduler.testing.conformance_claims import claims_case as claims_base
from tests.functional.synchronizer.drivers.redis import redis_case

HOSTS = tuple(f"host-{number}" for number in range(12))
SCHEDULERS = 4
SECONDS = 6.0


class TestClaimsUnderFire(redis_case.RedisCase):
    #: Of the accidents and choices; for an author to change in a long run.
    seed = 20
    seconds = SECONDS

    def test_no_host_is_given_away_twice_whatever_breaks(self) -> None:
        """The ledger here counts what schedulers were told, not what records say."""
        fire = self.enterContext(proxy.Proxy(self.server.port))
        reader = contract_case.FeedReader(self.client())
        done = threading.Event()
        told: list[model.Granted] = []
        doubtful: Counter[str] = Counter()
        tried: Counter[str] = Counter()

        def schedule(number: int) -> None:
            chance = random.Random(self.seed + number)
            client = self.through(fire.address, timeout_seconds=0.5)
            scheduler = claims_base.ClaimingScheduler(client, f"scheduler-{number}")
            while not done.is_set():
                host = chance.choice(HOSTS)
                tried[host] += 1
                try:
                    answer = scheduler.claim(claims_base.claim(str(uuid.uuid4()), host))
                    if isinstance(answer, model.Granted):
                        told.append(answer)
                        scheduler.hosts.confirm(answer)
                        if chance.random() < 0.7:
                            scheduler.hosts.release(answer)
                            told.remove(answer)
                except errors.BackendUnavailable:
                    doubtful[host] += 1

        def accidents() -> None:
            chance = random.Random(self.seed)
            end = time.monotonic() + self.seconds
            patience = end + contract_case.PATIENCE_SECONDS
            try:
                # On a busy machine it takes longer until enough was tried.
                while time.monotonic() < end or (
                    (sum(tried.values()) <= 50 or not doubtful) and time.monotonic() < patience
                ):
                    time.sleep(chance.uniform(0.05, 0.3))
                    chance.choice((fire.cut, fire.lose_replies, fire.lose_requests, self._stand))()
                    time.sleep(chance.uniform(0.0, 0.3))
                    fire.heal()
            finally:
                done.set()

        self.in_threads([accidents, *(functools.partial(schedule, n) for n in range(SCHEDULERS))])
        self.assertGreater(sum(tried.values()), 50)
        self.assertTrue(doubtful, "no accident hit anybody")
        ledger = claims_base.ClaimingScheduler(self.client()).hosts
        for host in HOSTS:
            record = ledger.read(host)
            self.assertLessEqual(record.used({}).get("VCPU", 0), claims_base.CAPACITY["VCPU"])
            granted = {grant.claim.consumer for grant in told if grant.claim.host == host}
            # A release whose answer was lost may have been carried out.
            missing = granted - set(record.claims)
            self.assertLessEqual(len(missing), doubtful[host])
            self.assertLessEqual(len(granted - missing), claims_base.CAPACITY["VCPU"])
        self.assert_reader_is_right(reader)

    def _stand(self) -> None:
        """Stop the server for longer than clients wait."""
        self.server.pause()
        time.sleep(0.7)
        self.server.resume()
