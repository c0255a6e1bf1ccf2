# SPDX-License-Identifier: Apache-2.0
"""What a heartbeat would cost in a slot of a conductor's journal: bytes, and CPU on both ends.

Run with ``python -m tools.bench.heartbeats.slot_sizes [--services N]``. Slots are written and read
by the plugin's own codec and taken into arrays of all services, as a scheduler would; there is no
back end, no bus and no conductor. Services and counts are random, which is the worst for zlib. See
``doc/source/contributor/heartbeat-journals.rst``.
"""

from __future__ import annotations

import argparse
import base64
import time

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.wire import codec

_SCHEMA = namespaces.SchemaVersion(1, 0)
_SLOTS = 60
_MOST_COUNT = 3_000_000
_ID_BYTES, _COUNT_BYTES = 8, 4
#: Conductor processes that share 10,000 heartbeats a second, or 50, a slot a second.
_HEARTBEATS = {"10,000/s": (10_000, (1, 8, 24)), "50/s": (50, (1, 8))}


@attrs.define
class _Costs:
    """Sums over all slots of a run; seconds are CPU time of this process."""

    heartbeats: int = 0
    payload_bytes: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    take_seconds: float = 0.0


def _slot(services: npt.NDArray[np.uint64], rng: np.random.Generator) -> bytes:
    """Return a slot's payload: ids, counts byte by byte, and ages, of one heartbeat each."""
    size = len(services)
    counts = rng.integers(1, _MOST_COUNT, size).astype("<u4")
    planes = counts.view("u1").reshape(-1, _COUNT_BYTES).T
    ages = rng.integers(0, 12, size).astype("u1")
    numbers = np.sort(services).astype("<u8").tobytes() + planes.tobytes() + ages.tobytes()
    state = {"cell": "c", "newest": 1, "numbers": base64.b64encode(numbers).decode("ascii")}
    return codec.encode(state, _SCHEMA)


def _read(payload: bytes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return the ids and counts of a slot."""
    numbers = base64.b64decode(codec.decode(payload).state["numbers"], validate=True)
    size = len(numbers) // (_ID_BYTES + _COUNT_BYTES + 1)
    ids = np.frombuffer(numbers, "<u8", size)
    planes = np.frombuffer(numbers, "u1", size * _COUNT_BYTES, size * _ID_BYTES)
    counts = np.ascontiguousarray(planes.reshape(_COUNT_BYTES, -1).T).view("<u4").reshape(-1)
    return ids, counts.astype(np.int64)


def _run(services: int, heartbeats: int) -> _Costs:
    rng = np.random.default_rng(1)
    known = np.sort(rng.integers(0, 2**63, services).astype(np.uint64))
    highest, heard = np.zeros(services, np.int64), np.zeros(services)
    costs = _Costs()
    for number in range(_SLOTS):
        heard_now = rng.choice(known, heartbeats, replace=False)
        began = time.process_time()
        payload = _slot(heard_now, rng)
        encoded = time.process_time()
        ids, counts = _read(payload)
        decoded = time.process_time()
        rows = np.searchsorted(known, ids)
        later = counts > highest[rows]
        highest[rows[later]] = counts[later]
        heard[rows[later]] = number
        costs.take_seconds += time.process_time() - decoded
        costs.decode_seconds += decoded - encoded
        costs.encode_seconds += encoded - began
        costs.payload_bytes += len(payload)
        costs.heartbeats += heartbeats
    return costs


def main() -> None:
    """Print a line for each number of conductor processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=100_000)
    services = parser.parse_args().services
    print("per 1,000 heartbeats: kB of payload; ms of CPU to encode, to decode, into arrays")
    for rate, (heartbeats, processes) in _HEARTBEATS.items():
        for each in processes:
            costs = _run(services, max(1, heartbeats // each))
            per_1000 = 1000 / costs.heartbeats
            print(
                f"{rate:>9} {each:3} processes: {costs.payload_bytes / _SLOTS:8.0f} B a slot, "
                f"{costs.payload_bytes * per_1000 / 1000:5.1f} kB; "
                f"{costs.encode_seconds * per_1000 * 1000:.2f}, "
                f"{costs.decode_seconds * per_1000 * 1000:.2f}, "
                f"{costs.take_seconds * per_1000 * 1000:.2f} ms"
            )


if __name__ == "__main__":
    main()
