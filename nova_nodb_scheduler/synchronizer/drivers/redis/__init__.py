# SPDX-License-Identifier: Apache-2.0
"""Driver ``redis``: records in one Redis or Valkey server.

Every write is one Lua call, carried out whole or not at all; a sorted set by version is the feed,
a stream only wakes readers. What the server can lose (a restart, a flush, a stale replica that is
promoted) shows as a new epoch: :mod:`.scripts`, :mod:`.epochs`.
"""

from __future__ import annotations

from nova_nodb_scheduler.synchronizer.drivers.redis.driver import RedisSynchronizer
from nova_nodb_scheduler.synchronizer.drivers.redis.options import OPTS, RedisOptions
from nova_nodb_scheduler.synchronizer.drivers.redis.steps import Step

__all__ = ["OPTS", "RedisOptions", "RedisSynchronizer", "Step"]
