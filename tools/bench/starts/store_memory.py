# SPDX-License-Identifier: Apache-2.0
"""What a store holds of each record, by namespace: resident bytes, and CPU time to take it in.

Namespaces come one after the other, as a snapshot is delivered. Small ones take what the
former one freed.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from pathlib import Path

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import declarations, host_state_store
from nova_nodb_scheduler.wire import codec, payload_packing
from tools.bench.clouds import crowded, feed_records

_NAMESPACES = (
    known_namespaces.COMPUTE_NODES,
    known_namespaces.PROVIDERS,
    known_namespaces.SERVICES,
    known_namespaces.SERVICE_LIVENESS,
    known_namespaces.HOST_MAPPINGS,
    known_namespaces.INSTANCES,
)
_PAGE = 512


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell resident memory")


def _pages(hosts: int, namespace: str) -> Iterator[list[records.Change]]:
    page: list[records.Change] = []
    for version, write in enumerate(feed_records.writes(crowded.CrowdedCluster(hosts)), 1):
        if write.key.namespace == namespace:
            decoded = codec.decode(write.payload)
            record = records.Record(write.key, 1, version, write.payload)
            page.append(records.Change(record, decoded.state, decoded.text))
            if len(page) == _PAGE:
                yield page
                page = []
    if page:
        yield page


def main() -> None:
    """Print a line for each namespace, and one for a host with all that belongs to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=10_000)
    hosts: int = parser.parse_args().hosts
    store = host_state_store.HostStateStore(
        declarations.followed(known_namespaces.BUILT_IN),
        codec.decode_state,
        packing=payload_packing.DictionaryPacking,
    )
    begin = _resident_bytes()
    for namespace in _NAMESPACES:
        count, used_seconds, before = 0, 0.0, _resident_bytes()
        for page in _pages(hosts, namespace.name):
            started = time.process_time()
            store.apply_page(page)
            used_seconds += time.process_time() - started
            count += len(page)
        page = []
        gc.collect()
        print(
            f"{namespace.name:17} {count:8} records, "
            f"{(_resident_bytes() - before) / count:6.0f} bytes and "
            f"{used_seconds / count * 1e6:5.1f} us of CPU each",
            flush=True,
        )
    print(f"all: {(_resident_bytes() - begin) / hosts:.0f} bytes a host")


if __name__ == "__main__":
    main()
