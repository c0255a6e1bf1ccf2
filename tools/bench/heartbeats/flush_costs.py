# SPDX-License-Identifier: Apache-2.0
"""What a flush of heartbeats costs as records and in a journal: statements, bytes and CPU.

Run with ``python -m tools.bench.heartbeats.flush_costs [--services N] [--conductors N]``. All
services are heard of in each round, by conductors that share them, as after ten seconds of a
cloud; each conductor has a client of its own, with the plugin's own publisher of records or its
ring. One reader follows the feed: records into a store, as a scheduler's, and slots into arrays.
The back end is a file of SQLite in this process, so CPU is all of it: conductors', the back end's
and the reader's. See ``doc/source/contributor/heartbeat-journals.rst``.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import numpy as np
import sqlalchemy as sa

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.reporting import (
    dirty_records,
    row_publisher,
)
from nova_nodb_scheduler.scheduling.facts import heard_services
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import sqlalchemy as driver
from nova_nodb_scheduler.synchronizer.records import heartbeat_ring, publisher
from nova_nodb_scheduler.synchronizer.replication import ingest
from nova_nodb_scheduler.wire import codec

_CELL = str(uuid.UUID(int=1))
_BEGAN_SECONDS = 1_790_000_000.0
_INTERVAL_SECONDS = 10.0
_MOST_COUNT = 3_000_000
_KEEP_SECONDS = 90.0
_GRACE_SECONDS = 3.0
_DECLARED = {each.name: each for each in known_namespaces.BUILT_IN}


@attrs.frozen
class HeardService:
    """A service as it is known when a run begins.

    :param late_seconds: how far behind the others it says that it lives
    """

    key: str
    count: int
    late_seconds: float


@attrs.define
class FlushCosts:
    """Sums over all rounds; seconds are CPU time of this process."""

    statements: int = 0
    records: int = 0
    payload_bytes: int = 0
    write_seconds: float = 0.0
    read_seconds: float = 0.0


#: Writes the heartbeats of one conductor's services; given its number, these and the round.
_Flush = Callable[[int, Sequence[HeardService], int], None]
#: Takes records that changed.
_Take = Callable[[Sequence[records.Record]], None]


def _heard_at(service: HeardService, number: int) -> float:
    return _BEGAN_SECONDS + number * _INTERVAL_SECONDS + service.late_seconds


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def _client(path: pathlib.Path) -> driver.SQLAlchemySynchronizer:
    made = driver.SQLAlchemySynchronizer(driver.SQLOptions(f"sqlite:///{path}"))
    made.open()
    return made


def _first_state(service: HeardService) -> dict[str, Any]:
    """Return a service's record as a sweep writes it."""
    return {
        "cell": _CELL,
        "report_count": service.count,
        "base": service.count,
        "seen": 0,
        "unreported": 0,
        "last_seen_up": _iso(_BEGAN_SECONDS),
        "counted_at": _BEGAN_SECONDS,
    }


def _seed(client: driver.SQLAlchemySynchronizer, services: Sequence[HeardService]) -> None:
    """Write the services' records."""
    name = known_namespaces.SERVICE_LIVENESS.name
    states = {records.RecordKey(name, each.key): _first_state(each) for each in services}
    publisher.Publisher(client, _DECLARED, known_namespaces.NOVA).publish(
        {key: lambda _, state=state: state for key, state in states.items()}
    )


def _as_records(clients: Sequence[driver.SQLAlchemySynchronizer]) -> tuple[_Flush, _Take]:
    name = known_namespaces.SERVICE_LIVENESS.name
    publishers = [publisher.Publisher(each, _DECLARED, known_namespaces.NOVA) for each in clients]
    implausible = row_publisher.ImplausibleCounts()
    store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
    ingester = ingest.Ingester(store, known_namespaces.BUILT_IN, ingest.Quarantine(100))

    def flush(conductor: int, services: Sequence[HeardService], number: int) -> None:
        updates = {}
        for each in services:
            heard_at = _heard_at(each, number)
            beat = dirty_records.PendingHeartbeats(
                each.key, _CELL, 1, each.count + number, _iso(heard_at), heard_at
            )
            updates[records.RecordKey(name, each.key)] = row_publisher.merge_heartbeats(
                [beat], implausible
            )
        report = publishers[conductor].publish(updates)
        assert report.published == len(services)

    def take(changed: Sequence[records.Record]) -> None:
        for _ in ingester.take(changed):
            pass

    return flush, take


def _in_journals(
    clients: Sequence[driver.SQLAlchemySynchronizer], services: Sequence[HeardService]
) -> tuple[_Flush, _Take]:
    options = heartbeat_ring.RingOptions(_KEEP_SECONDS)
    rings = [
        heartbeat_ring.HeartbeatRing(each, _CELL, lambda: str(uuid.uuid4()), options)
        for each in clients
    ]
    heard = heard_services.HeardServices(_GRACE_SECONDS)
    size = len(services)
    heard.know(
        heard_services.KnownServices(
            [each.key for each in services],
            [_CELL] * size,
            np.array([each.count for each in services]),
            np.full(size, _BEGAN_SECONDS),
        )
    )

    def flush(conductor: int, services: Sequence[HeardService], number: int) -> None:
        rings[conductor].add(
            [
                heartbeat_ring.JournalEntry(each.key, each.count + number, _heard_at(each, number))
                for each in services
            ]
        )
        flushed = rings[conductor].flush()
        assert flushed.written == len(services)

    def take(changed: Sequence[records.Record]) -> None:
        for each in changed:
            slot = heartbeat_journals.read(each.key.key, codec.decode(each.payload).state)
            assert heard.take(slot, each.version, 0.0).unknown == 0

    return flush, take


def _changes(
    client: driver.SQLAlchemySynchronizer, cursor: records.Cursor
) -> Iterator[records.Changes]:
    while True:
        found = client.fetch(cursor)
        assert isinstance(found, records.Changes)
        yield found
        cursor = found.cursor
        if not found.more:
            return


def run(
    services: Sequence[HeardService], conductors: int, rounds: int, *, journals: bool
) -> FlushCosts:
    """Have all services heard of some times, and say what it cost."""
    costs = FlushCosts()

    def sent(*_args: object) -> None:
        costs.statements += 1

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "nodb.sqlite"
        clients = [_client(path) for _ in range(conductors)]
        reader = _client(path)
        _seed(reader, services)
        flush, take = _in_journals(clients, services) if journals else _as_records(clients)
        cursor = reader.head()
        for number in range(rounds + 1):
            if number == 1:
                # What is made at the first time is not what a flush costs.
                costs = FlushCosts()
                sa.event.listen(sa.Engine, "before_cursor_execute", sent)
            began = time.process_time()
            for conductor in range(conductors):
                flush(conductor, services[conductor::conductors], number + 1)
            written = time.process_time()
            for found in _changes(reader, cursor):
                take(found.records)
                cursor = found.cursor
                costs.records += len(found.records)
                costs.payload_bytes += sum(len(each.payload) for each in found.records)
            costs.read_seconds += time.process_time() - written
            costs.write_seconds += written - began
        sa.event.remove(sa.Engine, "before_cursor_execute", sent)
        for each in (*clients, reader):
            each.close()
    return costs


def made_services(count: int) -> list[HeardService]:
    """Return services with random uuids and counts: the worst for zlib."""
    rng = np.random.default_rng(1)
    return [
        HeardService(
            str(uuid.UUID(bytes=rng.bytes(16), version=4)),
            int(rng.integers(1, _MOST_COUNT)),
            float(rng.random()),
        )
        for _ in range(count)
    ]


def main() -> None:
    """Print a line for each way, and how they compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=10_000)
    parser.add_argument("--conductors", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    services = made_services(arguments.services)
    per_1000 = 1000 / (arguments.services * arguments.rounds)
    print("per 1,000 heartbeats: statements; records; kB of payload; ms of CPU to write, to read")
    found = {}
    for name, journals in (("as records", False), ("in journals", True)):
        costs = run(services, arguments.conductors, arguments.rounds, journals=journals)
        found[name] = costs
        print(
            f"{name:>12}: {costs.statements * per_1000:8.2f}; {costs.records * per_1000:8.2f}; "
            f"{costs.payload_bytes * per_1000 / 1000:6.1f} kB; "
            f"{costs.write_seconds * per_1000 * 1000:7.2f}, "
            f"{costs.read_seconds * per_1000 * 1000:7.2f} ms"
        )
    before, after = found.values()
    print(
        f"journals take 1/{before.write_seconds / after.write_seconds:.0f} of the CPU to write, "
        f"1/{before.read_seconds / after.read_seconds:.0f} to read, "
        f"1/{before.payload_bytes / after.payload_bytes:.0f} of the payload"
    )


if __name__ == "__main__":
    main()
