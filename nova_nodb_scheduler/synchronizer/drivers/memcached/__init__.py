# SPDX-License-Identifier: Apache-2.0
"""Driver ``memcached``: records in one memcached server, without durability.

memcached has neither a feed nor transactions: both are made of a counter, log slots and cas tokens,
by a protocol that holds under writers that crash or pause at any step: :mod:`.writing`,
:mod:`.following`. What memcached loses (restart, flush, eviction) shows as a new epoch.
"""

from __future__ import annotations

from nova_nodb_scheduler.synchronizer.drivers.memcached.driver import MemcachedSynchronizer
from nova_nodb_scheduler.synchronizer.drivers.memcached.options import OPTS, MemcachedOptions
from nova_nodb_scheduler.synchronizer.drivers.memcached.steps import Step

__all__ = ["OPTS", "MemcachedOptions", "MemcachedSynchronizer", "Step"]
