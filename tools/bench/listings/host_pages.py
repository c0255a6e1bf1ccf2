# SPDX-License-Identifier: Apache-2.0
"""What a page of list_host_states costs a worker; no bus, no Nova.

Run with ``python -m tools.bench.listings.host_pages [HOSTS [PAGE]]``. Times are CPU time of the
whole process, of the first walk through all pages over a store that nobody has read, and
of the walk again; then of finding one host of the last page, which has everything before
it to pass over: in the same view, and where a host changed before each call.
"""

import json
import sys
import time

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.rpc import host_endpoint, update_validation
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.simulator.scenario import made_hosts
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec, objects, payload_packing

_AT_A_TIME = 1000
_REPEATS = 20
#: What a host with two NUMA nodes reports has some 4 kB.
_NUMA = json.dumps({"cells": [{"id": cell, "cpuset": list(range(600))} for cell in range(2)]})


def filled(hosts: int) -> host_state_store.HostStateStore:
    """Return a store with made hosts and their services."""
    store = host_state_store.HostStateStore(
        known_namespaces.BUILT_IN, codec.decode_state, packing=payload_packing.DictionaryPacking
    )
    version = 0
    page = []
    for host in made_hosts.Cluster(made_hosts.ClusterOptions(hosts=hosts)).hosts:
        node = made_hosts.node(host, {}, 0, 0.0)
        node["row"]["numa_topology"] = _NUMA
        for namespace, key, state in (
            (known_namespaces.COMPUTE_NODES, host.uuid, node),
            (known_namespaces.SERVICES, host.service_uuid, made_hosts.service(host)),
            (known_namespaces.SERVICE_LIVENESS, host.service_uuid, made_hosts.liveness(1, 0.0)),
        ):
            version += 1
            name = records.RecordKey(namespace.name, key)
            payload = codec.encode(state, namespace.schema)
            page.append(records.Change(records.Record(name, 1, version, payload), state))
        if len(page) >= _AT_A_TIME:
            store.apply_page(page)
            page = []
    store.apply_page(page)
    return store


class Worker:
    """What answers, and sends."""

    def __init__(self, hosts: int, page_size: int) -> None:
        self._store = filled(hosts)
        limits = update_validation.UpdateLimits(1000, 1 << 23, 50.0, page_size, 1 << 26)
        self._endpoint = host_endpoint.HostEndpoint(
            self._taken, known_namespaces.HOST_TABLES, limits
        )
        self._serializer = objects.Serializer()

    def _taken(self) -> host_endpoint.JudgedSnapshot:
        cell = objects.ScopeStatus(
            scope=made_hosts.CELL, hosts=1, proved=True, reason="", fallbacks={}
        )
        return host_endpoint.JudgedSnapshot(
            self._store.snapshot(), "epoch", 1, 0.0, "host", "following", [cell]
        )

    def change(self, number: int) -> None:
        """Have a host report something new."""
        view = self._store.snapshot().namespace(known_namespaces.COMPUTE_NODES.name)
        key = view.row_keys()[number]
        record = view.get(key)
        assert record is not None
        state = {**record.state, "row": {**record.state["row"], "running_vms": number}}
        name = records.RecordKey(known_namespaces.COMPUTE_NODES.name, key)
        payload = codec.encode(state, known_namespaces.COMPUTE_NODES.schema)
        written = records.Record(name, record.revision + 1, record.version + 10**6, payload)
        self._store.apply(records.Change(written, state))

    def page(self, marker: str | None, **query: object) -> objects.HostListPage:
        """Answer one call."""
        page: objects.HostListPage = self._endpoint.list_host_states({}, marker=marker, **query)
        return page

    def send(self, page: objects.HostListPage) -> int:
        """Make of a page what goes to the bus; returns its bytes."""
        primitive = self._serializer.serialize_entity({}, page)
        return len(json.dumps({"oslo.message": json.dumps(primitive)}))


def walk(worker: Worker, **query: object) -> tuple[int, float, float, int, str | None]:
    """Read all pages: their number, CPU seconds of answering and of sending, bytes, last marker."""
    marker = last = None
    pages = size_bytes = 0
    answering = sending = 0.0
    while True:
        began = time.process_time()
        page = worker.page(marker, **query)
        answered = time.process_time()
        size_bytes += worker.send(page)
        answering += answered - began
        sending += time.process_time() - answered
        pages += 1
        last, marker = marker, page.next_marker
        if marker is None:
            return pages, answering, sending, size_bytes, last


def main(hosts: int = 10_000, page_size: int = 1000) -> None:
    """Print the figures, one line each."""
    worker = Worker(hosts, page_size)
    last = None
    joined = {"namespaces": ["services", "service_liveness"]}
    for name, query in (
        ("first walk", {}),
        ("again", {}),
        ("with services", joined),
        ("search for 1%", {"search": "00%7_"}),
    ):
        pages, answering, sending, size_bytes, marker = walk(worker, **query)
        last = marker if name == "again" else last
        print(
            f"{name}: {pages} pages, {1000 * answering / pages:.1f} ms to answer and "
            f"{1000 * sending / pages:.1f} ms to encode each, {size_bytes / pages / 1e6:.2f} MB"
        )
    for name, between in (("nothing changed", lambda _: None), ("a host changed", worker.change)):
        worker.page(last, limit=1)
        seconds = 0.0
        for number in range(_REPEATS):
            between(number)
            began = time.process_time()
            worker.page(last, limit=1)
            seconds += time.process_time() - began
        print(f"one host behind all others, {name}: {1000 * seconds / _REPEATS:.2f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
