# SPDX-License-Identifier: Apache-2.0
"""Names of records as a compute node may choose them.

By a rule said a second time, in other words, each name is taken or refused;
and in a batch the refused keep none of the others from being written and read.
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import tempfile
import unicodedata
import uuid
from collections.abc import Callable
from typing import Any

from nova_nodb_scheduler.model import namespaces, records
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.drivers import etcd, memcached, memory, redis
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as sql
from nova_nodb_scheduler.synchronizer.drivers.support import record_names
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.testing import etcd_server, redis_server, servers
from tests.fuzz import target

POOLS = namespaces.Namespace("pools", "cinder", namespaces.SchemaVersion(1, 0))

_PIECES = (
    *(
        "a",
        "host-1",
        "node",
        "0f7@2c1",
        "é",
        "e\u0301",
        "主",
        "\U0001f600",
        " ",
        "\u00a0",
        "\u2028",
    ),
    *("\n", "\r", "\x00", "\x1f", "\x7f", "\x85", "\x9f", "\ud800", "\udfff", "\u200b", "\ufeff"),
    *("/", ":", "%", "'", '"', "\\", "*", "_", "k" * 63, "k" * 254, "主" * 255, "\ufffe", "\u0378"),
)
#: Of the pieces, so many from the first.
_HARMLESS = 11
_BATCH_NAMES = 20


def _name(dice: random.Random) -> str:
    if dice.random() < 0.2:
        return "".join(chr(dice.randrange(0x110000)) for _ in range(dice.randrange(4)))
    pieces = _PIECES[:_HARMLESS] if dice.random() < 0.6 else _PIECES
    return "".join(dice.choices(pieces, k=dice.randrange(5)))


def is_refused(text: str, most: int) -> bool:
    """Say the rule in other words."""
    return not 0 < len(text) <= most or any(
        unicodedata.category(character) in ("Cc", "Cs") for character in text
    )


class Names:
    """The rule, and one case in some over the memory driver."""

    case_bytes = 16 * 1024 * 1024
    #: One case of so many is a batch over a driver.
    batch_of = 100

    def __init__(self) -> None:
        self.clients: list[contract.Synchronizer] = self.make_clients()
        self._exits: contextlib.ExitStack
        for client in self.clients:
            client.open()
        self._cases = 0

    def make_clients(self) -> list[contract.Synchronizer]:
        """Return clients, not open."""
        return [memory.MemorySynchronizer(shared_hub=memory.MemoryHub(history_entries=1000))]

    def case(self, dice: random.Random) -> str:
        """See :class:`.target.Target`."""
        if dice.randrange(self.batch_of) == 0:
            client = dice.choice(self.clients)
            self._batch(dice, client)
            return f"batch over {client.name}"
        key = records.RecordKey(_name(dice), _name(dice))
        refused = is_refused(key.namespace, 64) or is_refused(key.key, 255)
        if refused != (key.fault is not None):
            raise target.Finding(f"{key!a}: {key.fault}")
        if not str(key).isprintable() or len(str(key)) > 4000:
            raise target.Finding(f"{key!a} is shown as {str(key)!a}")
        str(key).encode()
        if key.fault is None:
            if record_names.decode(record_names.encode(key)) != key:
                raise target.Finding(f"{key!a} is another when it was encoded")
            return "taken"
        if not key.fault.isprintable():
            raise target.Finding(f"{key!a}: {key.fault!a}")
        return "refused"

    def _batch(self, dice: random.Random, client: contract.Synchronizer) -> None:
        keys = {records.RecordKey(POOLS.name, _name(dice)) for _ in range(_BATCH_NAMES)}
        keys.add(records.RecordKey(POOLS.name, "good"))
        good = {key for key in keys if not is_refused(key.key, 255)}
        marker = {"n": dice.getrandbits(60)}
        report = publisher.Publisher(client, {POOLS.name: POOLS}, POOLS.owner).publish(
            dict.fromkeys(keys, lambda _current: marker)
        )
        if report.unnamed != keys - good or report.failed or report.published != len(good):
            raise target.Finding(f"{client.name}: {report!a}"[:300])
        if client.read(keys).keys() != good:
            raise target.Finding(f"{client.name}: others are read than were written")
        writes = [records.Write(key, 2**40, b"x") for key in sorted(keys)]
        for write, result in zip(writes, client.write(writes), strict=True):
            refused = result.verdict is records.Verdict.REFUSED
            if result.won or refused == (write.key in good):
                raise target.Finding(f"{client.name}: {write.key!a} is answered {result!a}"[:300])
        dropped = publisher.Publisher(client, {POOLS.name: POOLS}, POOLS.owner).publish(
            dict.fromkeys(good, lambda _current: publisher.DELETE)
        )
        if dropped.deleted != len(good):
            raise target.Finding(f"{client.name}: {dropped!a}"[:300])
        self._cases += 1
        if self._cases % 50 == 0:
            client.collect(0.0)

    def close(self) -> None:
        """See :class:`.target.Target`."""
        for client in self.clients:
            client.close()


class NamesOverEngines(Names):
    """The same over real engines, each started for the run."""

    case_bytes = 64 * 1024 * 1024
    batch_of = 1

    def make_clients(self) -> list[contract.Synchronizer]:
        """Return a client of each engine that needs no database server."""
        self._exits = contextlib.ExitStack()
        directory = self._exits.enter_context(tempfile.TemporaryDirectory())
        prefix = f"fuzz-{uuid.uuid4().hex[:8]}"
        made: list[Callable[[], contract.Synchronizer]] = [
            lambda: sql.SQLAlchemySynchronizer(
                sql.SQLOptions(f"sqlite:///{pathlib.Path(directory) / 'nodb.sqlite'}")
            ),
            lambda: redis.RedisSynchronizer(
                redis.RedisOptions(url=f"redis://{self._start(redis_server.Redis()).address}")
            ),
            lambda: memcached.MemcachedSynchronizer(
                memcached.MemcachedOptions(
                    servers=(self._start(servers.Memcached("-m", "128", "-M")).address,)
                )
            ),
            lambda: etcd.EtcdSynchronizer(
                etcd.EtcdOptions(
                    endpoints=(self._start(etcd_server.Etcd()).url,), key_prefix=prefix
                )
            ),
        ]
        return [make() for make in made]

    def _start(self, fixture: Any) -> Any:
        return self._exits.enter_context(fixture)

    def close(self) -> None:
        """See :class:`.target.Target`."""
        super().close()
        self._exits.close()
