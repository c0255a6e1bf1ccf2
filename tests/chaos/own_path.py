# SPDX-License-Identifier: Apache-2.0
"""What sends each request of a series down Nova's own path, so that faults meet it there."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

from oslo_config import cfg

from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_keeper
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.records import leases
from tests.chaos import backends, plan

PLACEMENT = "placement"
MIRROR = "mirror"
BACKEND = "backend"
NAMES = (PLACEMENT, MIRROR, BACKEND)
"""``[nodb_scheduler] candidates``; a mirror of Placement that nobody keeps; a back end that is
down from the begin of the round until its clients stop."""

TITLES = {
    PLACEMENT: "candidates = placement",
    MIRROR: "the mirror missing",
    BACKEND: "the back end down",
}

_START_SECONDS = 5
"""How long a scheduler waits for what never comes before it takes requests."""
_DOWN_AT_SECONDS = 1.0
_LEASE_SECONDS = 86_400.0
"""Longer than any series: it is given back at the end of one."""


def check(name: str | None, backend: str) -> None:
    """Say at once what cannot be.

    :raises ValueError: the back end is no server that can be down
    """
    if name in (MIRROR, BACKEND) and backends.target(backend) != plan.BACKEND:
        raise ValueError(f"--own-path {name} needs a back end with a server of its own")


def options(name: str | None) -> Mapping[str, Mapping[str, str]]:
    """Return lines of nova.conf for every process."""
    if name is None:
        return {}
    found = {"start_timeout_seconds": str(_START_SECONDS)}
    if name == PLACEMENT:
        found["candidates"] = "placement"
    return {"nodb_scheduler": found}


def faults(name: str | None, drawn: Sequence[plan.Fault], seconds: float) -> tuple[plan.Fault, ...]:
    """Return a round's faults, with the one that is there all the time.

    :param seconds: of the round
    """
    if name != BACKEND:
        return tuple(drawn)
    down = plan.Fault(
        at_seconds=_DOWN_AT_SECONDS,
        kind=f"{plan.BACKEND}-kill",
        target=plan.BACKEND,
        seconds=seconds - _DOWN_AT_SECONDS,
        choice=0.0,
    )
    return (down, *(fault for fault in drawn if fault.target != plan.BACKEND))


@contextlib.contextmanager
def prepared(name: str | None, backend: backends.BackEnd | None) -> Iterator[None]:
    """Hold what keeps a mirror from being made, from before the first scheduler starts."""
    if name != MIRROR or backend is None:
        yield
        return
    conf = cfg.ConfigOpts()
    conf([], project="nova-nodb-chaos", default_config_files=[])
    lines = backend.options("nova-manage")
    driver = lines.pop("nodb_scheduler")["synchronizer"]
    loader.load_class(driver).register_opts(conf)
    for group, values in lines.items():
        for option, value in values.items():
            conf.set_override(option, value, group)
    synchronizer = loader.load(driver, conf)
    synchronizer.open()
    lease = leases.LeaseKeeper(
        synchronizer, mirror_keeper.LEASE, f"tools/chaos.sh {os.getpid()}", _LEASE_SECONDS
    )
    try:
        if not isinstance(lease.acquire(), leases.Lease):
            raise RuntimeError("Somebody keeps the mirror of an empty back end.")
        yield
        lease.release()
    finally:
        synchronizer.close()
