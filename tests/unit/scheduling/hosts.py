# SPDX-License-Identifier: Apache-2.0
"""Records of hosts as the reporters write them, and a store to put them into."""

import json
import threading

import attrs

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.facts import fact_source, frame_keeper
from nova_nodb_scheduler.scheduling.frame import frame_columns, host_frame
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, node_facts
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec

CELL = "c0000000-0000-0000-0000-000000000001"
OTHER_CELL = "c0000000-0000-0000-0000-000000000002"


def node(uuid, host="h1", cell=CELL, *, object_version="1.19", **row):
    return {
        "cell": cell,
        "object_version": object_version,
        "row": {
            "id": 1,
            "uuid": uuid,
            "host": host,
            "hypervisor_hostname": f"node-{uuid}",
            "hypervisor_type": "QEMU",
            "hypervisor_version": 8002000,
            "host_ip": "192.0.2.1",
            "vcpus": 16,
            "vcpus_used": 2,
            "memory_mb": 65536,
            "memory_mb_used": 2048,
            "free_ram_mb": 63488,
            "local_gb": 1000,
            "local_gb_used": 10,
            "free_disk_gb": 990,
            "disk_available_least": 900,
            "running_vms": 2,
            "current_workload": 0,
            "cpu_info": '{"arch": "x86_64"}',
            "numa_topology": None,
            "pci_stats": None,
            "metrics": "[]",
            "supported_instances": '[["x86_64", "kvm", "hvm"]]',
            "stats": json.dumps({"num_instances": "2", "io_workload": "1"}),
            "cpu_allocation_ratio": 16.0,
            "ram_allocation_ratio": 1.5,
            "disk_allocation_ratio": None,
            "created_at": "2026-01-01T00:00:00",
            "updated_at": "2026-01-02T03:04:05",
            "deleted_at": None,
            "deleted": 0,
            **row,
        },
    }


def service(uuid, host="h1", cell=CELL, *, object_version="1.22", **row):
    return {
        "cell": cell,
        "object_version": object_version,
        "row": {
            "id": 1,
            "uuid": uuid,
            "host": host,
            "binary": "nova-compute",
            "topic": "compute",
            "disabled": False,
            "forced_down": False,
            "version": 70,
            "created_at": "1970-01-01T00:00:10",
            "deleted_at": None,
            "deleted": 0,
            "disabled_reason": None,
            **row,
        },
    }


def liveness(seconds, cell=CELL):
    text = None if seconds is None else f"1970-01-01T00:{seconds // 60:02}:{seconds % 60:02}"
    return {"cell": cell, "report_count": 1, "last_seen_up": text}


def aggregate(uuid, number, hosts=(), *, object_version="1.3", **metadata):
    return {
        "cell": "",
        "object_version": object_version,
        "row": {
            "id": number,
            "uuid": uuid,
            "name": f"name-{uuid}",
            "hosts": list(hosts),
            "metadata": metadata,
        },
    }


def inventory(total, **more):
    return {
        "total": total,
        "reserved": 0,
        "min_unit": 1,
        "max_unit": total,
        "step_size": 1,
        "allocation_ratio": 1.0,
        **more,
    }


def provider(generation=1, **more):
    return {
        "name": "p",
        "generation": generation,
        "inventories": {"VCPU": inventory(16, allocation_ratio=4.0), "MEMORY_MB": inventory(65536)},
        "traits": ["HW_CPU_X86_AVX"],
        "aggregates": [],
        "allocations": {"consumer": {"VCPU": 2, "MEMORY_MB": 2048}},
        "children": {},
        "read_at": 1.0,
        **more,
    }


class Hosts:
    """A store that counts revisions by itself."""

    def __init__(self):
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, self.decode)
        #: How many payloads were decoded.
        self.decoded = 0
        self.version = 0

    def decode(self, payload):
        self.decoded += 1
        return codec.decode_state(payload)

    def put(self, namespace, key, state):
        """Write a state, or a tombstone for None."""
        self.version += 1
        payload = b"" if state is None else codec.encode(state, namespace.schema)
        record = records.Record(
            records.RecordKey(namespace.name, key),
            self.version,
            self.version,
            payload,
            deleted=state is None,
        )
        self.store.apply(records.Change(record, state))

    def host(self, uuid="n1", host="h1", cell=CELL):
        """Write all records of a host."""
        self.put(known_namespaces.COMPUTE_NODES, uuid, node(uuid, host, cell))
        self.put(known_namespaces.SERVICES, f"s-{uuid}", service(f"s-{uuid}", host, cell))
        self.put(known_namespaces.SERVICE_LIVENESS, f"s-{uuid}", liveness(60, cell))
        self.put(known_namespaces.PROVIDERS, uuid, provider())

    def keeper(self, *, ratios=node_facts.DefaultRatios(4.0, 1.0, 1.0), **more):  # noqa: B008
        present = fact_source.Present()
        frame = FedFrame(present.locate, present.attribute)
        feed = Feed(frame)
        keeper = frame_keeper.FrameKeeper(self.store, feed, present, ratios=ratios, **more)
        return keeper, feed


class FedFrame(host_frame.HostFrame):
    """A frame with a list of what it was fed."""

    def __init__(self, *callbacks):
        super().__init__(*callbacks)
        self.fed = []
        #: How many pages of hosts came.
        self.pages = 0

    def take(self, page):
        self.pages += 1
        self.fed.extend(place.uuid for place in page.places)
        return super().take(page)

    def amend(self, row, aggregates, **news):
        self.fed.append(self.place(row).uuid)
        super().amend(row, aggregates, **news)

    def remove(self, uuid):
        self.fed.append(uuid)
        return super().remove(uuid)

    def set_aggregates(self, aggregates):
        self.fed.append("aggregates")
        return super().set_aggregates(aggregates)


class Feed:
    """The feed side of an engine over a bare frame."""

    def __init__(self, frame):
        self.lock = threading.RLock()
        self.frame = frame

    @property
    def fed(self):
        return self.frame.fed

    @property
    def pages(self):
        return self.frame.pages

    def tick(self, now_seconds):
        self.frame.tick(now_seconds, 60.0)


def described(frame):
    """Return all that a frame says, by uuid and not by row."""
    rows = [int(row) for row in frame.alive.nonzero()[0]]
    hosts = {
        frame.facts(row).uuid: (
            # Heartbeats go to the column alone.
            attrs.evolve(frame.facts(row), last_seen_seconds=0.0),
            bool(frame.up[row]),
            {name: getattr(frame, name)[row].item() for name in frame_columns.PLAIN_COLUMNS},
            {
                name: int(frame.resource(name).used[row])
                for name in ("VCPU", "MEMORY_MB", "DISK_GB")
                if frame.resource(name) is not None
            },
            [
                getattr(frame, name).values[getattr(frame, name).codes[row]]
                for name in ("cell", "aggregate_sets", "traits", "provider_aggregates")
            ],
        )
        for row in rows
    }
    return hosts, dict(frame.aggregates), frame.sharing
