# SPDX-License-Identifier: Apache-2.0
"""Jobs of the conformance suite in processes of their own, which carry no open database."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent import futures

from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver

# Whose jobs these are.
from nova_nodb_scheduler.testing.conformance import races  # noqa: F401
from tests import forking

_CONTEXT = forking.context(__name__)


def run(
    options: driver.SQLOptions, jobs: Sequence[Callable[[contract.Synchronizer], int]]
) -> list[int]:
    """Do each job in a process, with a client that is opened there; return their answers."""
    with futures.ProcessPoolExecutor(len(jobs), _CONTEXT) as pool:
        return list(pool.map(functools.partial(_work, options), jobs))


def _work(options: driver.SQLOptions, job: Callable[[contract.Synchronizer], int]) -> int:
    synchronizer = driver.SQLAlchemySynchronizer(options)
    synchronizer.open()
    try:
        return job(synchronizer)
    finally:
        synchronizer.close()
