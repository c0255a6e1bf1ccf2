# SPDX-License-Identifier: Apache-2.0
"""Epochs where clients do not see the same server, or a server goes back in time."""

from __future__ import annotations

from nova_nodb_scheduler.synchronizer.drivers import redis
from nova_nodb_scheduler.synchronizer.drivers.memcached import layout
from nova_nodb_scheduler.testing import redis_server, servers
from nova_nodb_scheduler.testing.conformance import contract_case
from tests.functional.synchronizer.drivers import epoch_order_case, step_case
from tests.functional.synchronizer.drivers.memcached import memcached_case
from tests.functional.synchronizer.drivers.redis import redis_case


class TestMemcached(epoch_order_case.EpochOrderCase, memcached_case.MemcachedCase):
    def setUp(self) -> None:
        super().setUp()
        self.first_port = self.server.port
        self.second_port = self.enterContext(servers.Memcached("-m", "64", "-M")).server.port

    def keep(self) -> dict[bytes, bytes]:
        epoch = layout.Epoch.decode(b"nodb", self.raw().get(b"nodb:epoch"))
        # The records are left: what tells is the counter.
        keys = [b"nodb:epoch", epoch.sequence_key, epoch.stable_key, epoch.floor_key]
        found: dict[bytes, bytes] = self.raw().get_many(keys)
        return found

    def put_back(self, kept: dict[bytes, bytes]) -> None:
        self.raw().set_many(kept, noreply=False)


class TestRedis(epoch_order_case.EpochOrderCase, redis_case.RedisCase):
    def setUp(self) -> None:
        super().setUp()
        self.first_port = self.server.port
        self.second_port = self.enterContext(redis_server.Redis()).server.port

    def keep(self) -> dict[bytes, bytes]:
        raw = self.raw()
        return {key: raw.dump(key) for key in raw.keys("{nodb}:*")}

    def put_back(self, kept: dict[bytes, bytes]) -> None:
        raw = self.raw()
        raw.delete(*raw.keys("{nodb}:*"))
        for key, value in kept.items():
            raw.restore(key, 0, value)

    def test_nor_where_others_wrote_past_what_was_seen_before_it_was_ended(self) -> None:
        client, beside = self.client(), self.client()
        before = self.put(client, "claims", b"before")
        beside.head()
        kept = self.keep()
        self.put(client, "claims", b"granted", before.revision)
        self.put_back(kept)
        client.on_step = step_case.at(
            redis.Step.EPOCH, lambda: [self.put(beside, name, b"new") for name in "abc"]
        )
        self.assertEqual({}, client.read([before.key]))
        self.assertEqual({}, contract_case.everything(beside))
