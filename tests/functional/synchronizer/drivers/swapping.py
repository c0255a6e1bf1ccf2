# SPDX-License-Identifier: Apache-2.0
"""An address that leads to one of two servers, as a failover's or a flipping name does."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Callable

from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.testing import proxy


def front(
    case: unittest.TestCase, first_port: int, second_port: int
) -> tuple[str, Callable[[], None]]:
    """Return an address that leads to the first server, and what moves it to the other.

    :param case: it ends with this test
    """
    before = case.enterContext(proxy.Proxy(first_port))
    following = itertools.cycle((second_port, first_port))
    return before.address, lambda: before.redirect(next(following))


def hub(shared: memory.MemoryHub) -> Callable[[], None]:
    """Return what lets a hub stand for one of two servers, and then for the other."""
    second = memory.MemoryHub()
    # Two hubs' first epochs both count revisions from 1.
    second.begin_epoch()
    elsewhere = [second.backup()]

    def swap() -> None:
        left = shared.backup()
        shared.restore(elsewhere.pop())
        elsewhere.append(left)

    return swap
