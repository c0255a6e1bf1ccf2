# SPDX-License-Identifier: Apache-2.0
"""What a heartbeat would cost in a slot of a conductor's journal: bytes, and CPU on both ends.

Run with ``python -m tools.bench.heartbeats.slot_sizes [--services N]``. Slots are written and read
by the plugin's own codec and taken into its arrays of all services, as a scheduler would; there is
no back end, no bus and no conductor. Services and their first counts are random, which is the worst
for zlib. See ``doc/source/contributor/heartbeat-journals.rst``.
"""

from __future__ import annotations

import argparse
import time
import uuid

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.facts import heard_services
from nova_nodb_scheduler.scheduling.namespaces import heartbeat_journals, known_namespaces
from nova_nodb_scheduler.wire import codec

_SLOTS = 60
_MOST_COUNT = 3_000_000
_GRACE_SECONDS = 3.0
_BEGAN_SECONDS = 1_790_000_000.0
_CELL = str(uuid.UUID(int=1))
#: Conductor processes that share 10,000 heartbeats a second, or 50, a flush a second.
_HEARTBEATS = {"10,000/s": (10_000, (1, 8, 24)), "50/s": (50, (1, 8))}


@attrs.define
class _Costs:
    """Sums over all slots of a run; seconds are CPU time of this process."""

    heartbeats: int = 0
    slots: int = 0
    payload_bytes: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    take_seconds: float = 0.0


@attrs.define
class _Cloud:
    """Services with their counts, and what a scheduler knows of them."""

    ids: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]
    heard: heard_services.HeardServices


def _cloud(services: int, rng: np.random.Generator) -> _Cloud:
    keys = [str(uuid.UUID(bytes=rng.bytes(16), version=4)) for _ in range(services)]
    counts = rng.integers(1, _MOST_COUNT, services)
    heard = heard_services.HeardServices(_GRACE_SECONDS)
    heard.know(
        heard_services.KnownServices(
            keys, [_CELL] * services, counts, np.full(services, _BEGAN_SECONDS)
        )
    )
    ids = np.array([heartbeat_journals.service_id(key) or 0 for key in keys], np.uint64)
    return _Cloud(ids, counts, heard)


def _flush(
    cloud: _Cloud,
    chosen: npt.NDArray[np.intp],
    number: int,
    rng: np.random.Generator,
    costs: _Costs,
) -> None:
    """Write a flush's heartbeats to slots, read them, and take them in."""
    cloud.counts[chosen] += 1
    newest = heartbeat_journals.tick_of(_BEGAN_SECONDS + number)
    ticks = newest - rng.integers(0, heartbeat_journals.TICKS_PER_SECOND, len(chosen))
    for first in range(0, len(chosen), heartbeat_journals.MOST_HEARTBEATS):
        part = slice(first, first + heartbeat_journals.MOST_HEARTBEATS)
        those = chosen[part]
        began = time.process_time()
        slot = heartbeat_journals.slot_of(
            _CELL, costs.slots, cloud.ids[those], cloud.counts[those], ticks[part]
        )
        schema = known_namespaces.HEARTBEAT_JOURNALS.schema
        payload = codec.encode(heartbeat_journals.state_of(slot), schema)
        encoded = time.process_time()
        slot = heartbeat_journals.read("bench.0", codec.decode(payload).state)
        decoded = time.process_time()
        cloud.heard.take(slot, number, float(number))
        costs.take_seconds += time.process_time() - decoded
        costs.decode_seconds += decoded - encoded
        costs.encode_seconds += encoded - began
        costs.payload_bytes += len(payload)
        costs.heartbeats += len(slot)
        costs.slots += 1


def _run(services: int, heartbeats: int) -> _Costs:
    rng = np.random.default_rng(1)
    cloud = _cloud(services, rng)
    # A scheduler that runs has heard of all of them before.
    _flush(cloud, np.arange(services), 0, rng, _Costs())
    costs = _Costs()
    for number in range(1, _SLOTS + 1):
        chosen = rng.choice(services, heartbeats, replace=False)
        _flush(cloud, chosen, number, rng, costs)
    return costs


def main() -> None:
    """Print a line for each number of conductor processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=100_000)
    services = parser.parse_args().services
    print("per 1,000 heartbeats: slots; kB of payload; ms of CPU to encode, to decode, into arrays")
    for rate, (heartbeats, processes) in _HEARTBEATS.items():
        for each in processes:
            costs = _run(services, min(services, max(1, heartbeats // each)))
            per_1000 = 1000 / costs.heartbeats
            print(
                f"{rate:>9} {each:3} processes: {costs.payload_bytes / costs.slots:8.0f} B a slot; "
                f"{costs.slots * per_1000:6.2f}; "
                f"{costs.payload_bytes * per_1000 / 1000:5.1f} kB; "
                f"{costs.encode_seconds * per_1000 * 1000:.2f}, "
                f"{costs.decode_seconds * per_1000 * 1000:.2f}, "
                f"{costs.take_seconds * per_1000 * 1000:.2f} ms"
            )


if __name__ == "__main__":
    main()
