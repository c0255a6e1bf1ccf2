# SPDX-License-Identifier: Apache-2.0
"""How many claims a second each back end takes, from several schedulers at once.

usage: python -m tools.bench.claim_rates [--engines memcached,redis,...] [--schedulers N]
    [--threads N] [--hosts N] [--seconds S] [--json]

A claim is taken and confirmed, as a scheduler does it around its allocation, on a host drawn at
random; nothing is allocated. Each scheduler is a process with a driver of its own, each engine a
server of its own on this machine, with its default durability. Lost are compare-and-sets that
another claim won first; each was judged again by what it lost to. Refused are claims for which
there was no way any more, here only after 64 losses. Few hosts (--hosts 4) show threads and
schedulers that all want the same ones.
"""

import argparse
import contextlib
import json
import multiprocessing
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import rich.console
import rich.table

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import ledger_claimer
from nova_nodb_scheduler.synchronizer.drivers import etcd, memcached, redis
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.testing import etcd_server, redis_server, servers

Make = Callable[[], contract.Synchronizer]


@attrs.define
class Rates:
    """What one scheduler process did.

    :ivar seconds: of each claim, taken and confirmed
    :ivar cpu_seconds: of the process, driver and claimer together
    """

    seconds: list[float] = attrs.field(factory=list)
    lost: int = 0
    refused: int = 0
    cpu_seconds: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    """Measure each engine and print a table."""
    options = _parser().parse_args(arguments)
    found = []
    for name in options.engines.split(","):
        with contextlib.ExitStack() as stack:
            found.append(_measured(name, _ENGINES[name](stack), options))
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        rich.console.Console(width=None if sys.stdout.isatty() else 100).print(_table(found))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="claim_rates", description=__doc__)
    parser.add_argument("--engines", default=",".join(_ENGINES))
    parser.add_argument("--schedulers", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--threads", type=int, default=4, help="of each (%(default)s)")
    parser.add_argument("--hosts", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    return parser


# -- engines ------------------------------------------------------------------


def _sqlite(stack: contextlib.ExitStack) -> Any:
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    return ("sql", f"sqlite:///{directory}/nodb.sqlite")


def _mariadb(stack: contextlib.ExitStack) -> Any:
    return ("sql", stack.enter_context(servers.MariaDB(private=True)).url)


def _postgresql(stack: contextlib.ExitStack) -> Any:
    return ("sql", stack.enter_context(servers.PostgreSQL(private=True)).url)


def _memcached(stack: contextlib.ExitStack) -> Any:
    return ("memcached", stack.enter_context(servers.Memcached("-m", "256", "-M")).address)


def _redis(stack: contextlib.ExitStack) -> Any:
    return ("redis", stack.enter_context(redis_server.Redis()).url)


def _etcd(stack: contextlib.ExitStack) -> Any:
    return ("etcd", stack.enter_context(etcd_server.Etcd(private=True)).url)


_ENGINES: dict[str, Callable[[contextlib.ExitStack], Any]] = {
    "memcached": _memcached,
    "redis": _redis,
    "etcd": _etcd,
    "sqlite": _sqlite,
    "mariadb": _mariadb,
    "postgresql": _postgresql,
}


def _make(kind: str, where: str) -> contract.Synchronizer:
    if kind == "memcached":
        return memcached.MemcachedSynchronizer(memcached.MemcachedOptions(servers=(where,)))
    if kind == "redis":
        return redis.RedisSynchronizer(redis.RedisOptions(url=where))
    if kind == "etcd":
        return etcd.EtcdSynchronizer(etcd.EtcdOptions(endpoints=(where,)))
    return sql.SQLAlchemySynchronizer(
        sql.SQLOptions(where, timeout_seconds=20.0, auto_upgrade=True)
    )


# -- measuring ----------------------------------------------------------------


def _measured(name: str, where: Any, options: argparse.Namespace) -> dict[str, Any]:
    first = _make(*where)
    first.open()
    first.head()
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.schedulers) as pool:
        jobs = [(where, options.threads, options.hosts, options.seconds)] * options.schedulers
        rates = pool.starmap(_schedule, jobs)
    first.close()
    seconds = sorted(each for rate in rates for each in rate.seconds)
    count = len(seconds)
    return {
        "engine": name,
        "claims_per_second": round(count / options.seconds, 1),
        "p50_ms": round(1000 * seconds[count // 2], 2),
        "p99_ms": round(1000 * seconds[count * 99 // 100], 2),
        "cpu_ms_per_claim": round(1000 * sum(rate.cpu_seconds for rate in rates) / count, 2),
        "lost_percent": round(100 * sum(rate.lost for rate in rates) / count, 2),
        "refused": sum(rate.refused for rate in rates),
    }


def _schedule(where: Any, threads: int, hosts: int, seconds: float) -> Rates:
    """Claim for a while; in a process of its own."""
    synchronizer = _make(*where)
    synchronizer.open()
    rates = Rates()

    def count_lost(count: int) -> None:
        rates.lost += count

    batches = ledger_claimer.ClaimBatches(
        synchronizer,
        f"scheduler-{uuid.uuid4()}",
        lambda: str(uuid.uuid4()),
        60.0,
        lambda _host: True,
        now_seconds=time.time,
        count_lost=count_lost,
    )
    view = ledger_claimer.ClaimView(synchronizer.head(), lambda _claim, _record: True)
    for _ in _claims(batches, view, hosts, random.Random(), time.monotonic() + 0.5):
        pass  # connections are made, statements prepared
    rates.lost = 0
    began, end = time.process_time(), time.monotonic() + seconds
    parts: list[list[float]] = [[] for _ in range(threads)]

    def work(own: list[float]) -> None:
        for taken in _claims(batches, view, hosts, random.Random(), end):
            if taken is None:
                rates.refused += 1
            else:
                own.append(taken)

    running = [threading.Thread(target=work, args=(own,)) for own in parts]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    rates.cpu_seconds = time.process_time() - began
    rates.seconds = [each for own in parts for each in own]
    synchronizer.close()
    return rates


def _claims(
    batches: ledger_claimer.ClaimBatches,
    view: ledger_claimer.ClaimView,
    hosts: int,
    rng: random.Random,
    end: float,
) -> Iterator[float | None]:
    """Take and confirm one claim after the other; yield the seconds of each, None if refused."""
    while (began := time.monotonic()) < end:
        claim = model.Claim(
            str(uuid.UUID(int=rng.getrandbits(128))),
            f"host-{rng.randrange(hosts)}",
            {"VCPU": 4, "MEMORY_MB": 8192, "DISK_GB": 40},
            node=model.NodeShare(4, 8192, 40, 1, 1),
        )
        [answer] = batches.take([claim], view).values()
        stands = isinstance(answer, ledger_claimer.StandingClaim) and batches.confirm([answer]) == [
            True
        ]
        yield time.monotonic() - began if stands else None


def _table(found: list[dict[str, Any]]) -> rich.table.Table:
    table = rich.table.Table(
        "engine", "claims/s", "p50 ms", "p99 ms", "CPU ms", "lost %", "refused"
    )
    for each in found:
        table.add_row(*map(str, each.values()))
    return table


if __name__ == "__main__":
    sys.exit(main())
