#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what keeping the mirror of Placement costs, in requests and CPU seconds.

A real Placement, called in this process on a SQLite file, and the memory
driver as the back end. CPU time is each thread's own, so that other load on
the machine does not count; Placement's contains SQLite's. Time is made: what
is counted over 10 seconds of load takes as long as it takes.

    python tools/measure_mirror.py --providers 10000
"""

from __future__ import annotations

import argparse
import collections
import gc
import itertools
import json
import pathlib
import random
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
import webob
from oslo_config import cfg
from placement import conf as placement_conf
from placement import db_api, deploy
from placement.db.sqlalchemy import models

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    chosen_trees,
    mirror_keeper,
    mirror_sweep,
    own_writes,
    placement_reader,
    tree_publisher,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.drivers.memory import hub
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.wire import codec

CELL = str(uuid.uuid4())
PROJECT = str(uuid.uuid4())
#: Records that are published at once.
PAGE = 2000
HEADERS = {
    "x-auth-token": "admin",
    "accept": "application/json",
    "openstack-api-version": "placement 1.36",
}


class Placement:
    """Placement's application with its cost by kind of request."""

    def __init__(self, directory: pathlib.Path) -> None:
        conf = cfg.ConfigOpts()
        placement_conf.register_opts(conf)
        url = f"sqlite:///{directory / 'placement.sqlite'}"
        conf.set_override("connection", url, group="placement_database")
        conf.set_override("auth_strategy", "noauth2", group="api")
        conf([], default_config_files=[])
        db_api.configure(conf)
        models.BASE.metadata.create_all(db_api.get_placement_engine())
        self.app = deploy.loadapp(conf)
        self.cpu_seconds: dict[str, float] = collections.defaultdict(float)
        self.requests: collections.Counter[str] = collections.Counter()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = webob.Request.blank(path, method=method, headers=HEADERS)
        if body is not None:
            request.content_type = "application/json"
            request.body = json.dumps(body).encode()
        kind = f"{method} {path.rsplit('/', 1)[-1] if path.count('/') > 2 else 'list'}"
        began = time.thread_time()
        response = request.get_response(self.app)
        self.cpu_seconds[kind] += time.thread_time() - began
        self.requests[kind] += 1
        if response.status_int >= 300:
            raise SystemExit(f"{method} {path}: {response.status} {response.text}")
        return Answer(response.status_int, response.body)

    def taken(self) -> tuple[int, float]:
        """Return requests and CPU seconds of GETs since the last call."""
        gets = [kind for kind in self.requests if kind.startswith("GET")]
        found = (
            sum(self.requests[kind] for kind in gets),
            sum(self.cpu_seconds[kind] for kind in gets),
        )
        self.requests.clear()
        self.cpu_seconds.clear()
        return found


class Answer:
    def __init__(self, status_code: int, content: bytes) -> None:
        self.status_code, self.content = status_code, content


def populate(count: int, traits_each: int, consumers_each: int) -> dict[str, list[str]]:
    """Fill Placement's tables with equal hosts; return their uuids, each with its servers'."""
    keys = [str(uuid.UUID(int=random.getrandbits(128))) for _ in range(count)]
    with db_api.get_placement_engine().begin() as connection:

        def ids(table: str, *names: str) -> list[int]:
            named = sa.table(table, sa.column("id"), sa.column("name"))
            query = sa.select(named.c.id).order_by(named.c.id)
            if names:
                query = query.where(named.c.name.in_(names))
            return [row[0] for row in connection.execute(query)]

        classes = ids("resource_classes", "VCPU", "MEMORY_MB", "DISK_GB")
        traits = ids("traits")[:traits_each]

        def fill(table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
            names = columns.split(",")
            # The model's own table: it fills the times that answers need.
            into = models.BASE.metadata.tables[table]
            values = [dict(zip(names, row, strict=True)) for row in rows]
            connection.execute(sa.insert(into), values)

        fill("projects", "id,external_id", [(1, PROJECT)])
        fill("users", "id,external_id", [(1, PROJECT)])
        fill("placement_aggregates", "id,uuid", [(1, PROJECT)])
        numbers = range(1, count + 1)
        fill(
            "resource_providers",
            "id,uuid,name,generation,root_provider_id",
            [(n, keys[n - 1], f"node-{n}", consumers_each, n) for n in numbers],
        )
        fill(
            "inventories",
            "resource_provider_id,resource_class_id,total,reserved,min_unit,max_unit,step_size,"
            "allocation_ratio",
            [(n, c, 100_000, 0, 1, 100_000, 1, 1.0) for n in numbers for c in classes],
        )
        fill(
            "resource_provider_traits",
            "resource_provider_id,trait_id",
            [(n, trait) for n in numbers for trait in traits],
        )
        fill(
            "resource_provider_aggregates",
            "resource_provider_id,aggregate_id",
            [(n, 1) for n in numbers],
        )
        servers = {key: [str(uuid.uuid4()) for _ in range(consumers_each)] for key in keys}
        consumers = [(n, consumer) for n in numbers for consumer in servers[keys[n - 1]]]
        fill(
            "consumers",
            "uuid,project_id,user_id,generation",
            [(consumer, 1, 1, 1) for _n, consumer in consumers],
        )
        fill(
            "allocations",
            "resource_provider_id,consumer_id,resource_class_id,used",
            [(n, consumer, c, 1) for n, consumer in consumers for c in classes],
        )
    return servers


class World:
    """A store that follows the hub, and the keeper over both."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.now = 1000.0
        shared = hub.MemoryHub(clock=lambda: self.now)
        self.synchronizer = memory.MemorySynchronizer(shared_hub=shared)
        self.synchronizer.open()
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self.replicator = replicator.Replicator(
            self.synchronizer, self.store, known_namespaces.BUILT_IN, identity="measured"
        )
        self.reader = placement_reader.PlacementReader(lambda path: placement.call("GET", path))
        self.keeper = mirror_keeper.MirrorKeeper(
            self.synchronizer,
            self.store.snapshot,
            lambda: self.replicator.status().epoch or None,
            self.publisher(known_namespaces.PLACEMENT),
            self.publisher(known_namespaces.NODB),
            self.reader,
            "measured",
            mirror_keeper.KeeperOptions(readers=1),
            lambda: self.now,
        )
        self.own = own_writes.OwnWrites(
            self.synchronizer,
            self.publisher(known_namespaces.PLACEMENT),
            self.store.snapshot,
            lambda names: None,
        )

    def publisher(self, owner: str) -> publisher.Publisher:
        declared = {namespace.name: namespace for namespace in known_namespaces.BUILT_IN}
        return publisher.Publisher(self.synchronizer, declared, owner)

    def follow(self) -> None:
        outcome = self.replicator.step()
        while outcome is not replicator_contract.StepOutcome.IDLE:
            outcome = self.replicator.step()

    def turns(self) -> float:
        """Take turns until nothing is to do; return the keeper's own CPU seconds."""
        self.follow()
        spent = 0.0
        more = True
        while more:
            before = sum(self.placement.cpu_seconds.values())
            began = time.thread_time()
            more = self.keeper.turn()
            spent += time.thread_time() - began
            spent -= sum(self.placement.cpu_seconds.values()) - before
            self.follow()
        return spent

    def publish(self, namespace: Any, states: dict[str, Any]) -> None:
        left = iter(states)
        while some := list(itertools.islice(left, PAGE)):
            found = self.publisher(namespace.owner).publish(
                {records.RecordKey(namespace.name, key): _to(states[key]) for key in some}
            )
            if found.failed or found.rejected:
                raise SystemExit(f"not published: {found}")


def _to(state: Any) -> publisher.Compute:
    """Return what publishes a state whatever was there."""
    return lambda current: state


def measure_import(world: World, keys: Sequence[str], sample: int) -> dict[str, float]:
    """Read some trees as the import does; figures for all of them are scaled."""
    trees = tree_publisher.TreePublisher(
        world.synchronizer, world.publisher(known_namespaces.PLACEMENT), world.reader
    )
    listed_from = trees.now_seconds()
    listing = world.reader.listing()
    world.placement.taken()
    began = time.thread_time()
    step = mirror_sweep.MirrorSweepOptions().step_trees
    for first in range(0, sample, step):
        trees.whole([(key, listing.trees[key]) for key in keys[first : first + step]], listed_from)
    own = time.thread_time() - began
    requests, cpu = world.placement.taken()
    scale = len(keys) / sample
    return {
        "import requests": requests * scale,
        "import Placement CPU s": cpu * scale,
        "import keeper CPU s": (own - cpu) * scale,
    }


def copy_records(world: World, servers: Mapping[str, Sequence[str]], sample: int) -> None:
    """Give every provider a record, from those read: the populated hosts are alike."""
    keys = list(servers)
    world.follow()
    view = world.store.snapshot().namespace(known_namespaces.PROVIDERS.name)
    made = {}
    for number, key in enumerate(keys):
        if key in view:
            continue
        record = view.get(keys[number % sample])
        assert record is not None
        state = dict(record.state)
        amounts = state["allocations"].values()
        made[key] = {
            **state,
            "name": f"node-{number + 1}",
            "allocations": dict(zip(servers[key], amounts, strict=True)),
        }
    world.publish(known_namespaces.PROVIDERS, made)
    world.follow()


def publish_hosts(world: World, servers: Mapping[str, Sequence[str]]) -> None:
    """Give every provider its compute node and its servers: without them they are orphans."""
    world.publish(
        known_namespaces.COMPUTE_NODES,
        {key: {"cell": CELL, "row": _node(key)} for key in servers},
    )
    world.publish(
        known_namespaces.INSTANCES,
        {
            f"{server}@{CELL}": {"cell": CELL, "row": _instance(server, key)}
            for key, there in servers.items()
            for server in there
        },
    )
    world.follow()


def _node(key: str) -> dict[str, str]:
    return {"uuid": key, "host": f"h-{key}", "hypervisor_hostname": f"n-{key}"}


def _instance(server: str, key: str) -> dict[str, str]:
    return {"uuid": server, "host": f"h-{key}", "node": f"n-{key}"}


def measure_idle(world: World) -> dict[str, float]:
    """Sweep a mirror that is current."""
    world.turns()
    world.placement.taken()
    world.now += 60
    began = time.monotonic()
    own = world.turns()
    wall = time.monotonic() - began
    requests, cpu = world.placement.taken()
    return {
        "idle sweep requests": requests,
        "idle sweep Placement CPU s": cpu,
        "idle sweep keeper CPU s": own,
        "idle sweep wall s": wall,
    }


def measure_chosen(world: World, keys: Sequence[str], decisions: int = 200) -> dict[str, float]:
    """Compare a chosen host for each decision, none of which was compared lately."""
    chosen = chosen_trees.ChosenTrees(
        world.store.snapshot,
        lambda: world.now,
        world.reader,
        tree_publisher.TreePublisher(
            world.synchronizer, world.publisher(known_namespaces.PLACEMENT), world.reader
        ),
        lambda version: world.follow(),
        bound_seconds=10.0,
    )
    world.now += 30
    snapshot = world.store.snapshot()
    world.placement.taken()
    began = time.thread_time()
    for key in random.sample(keys, min(decisions, len(keys))):
        assert not chosen.behind([key], snapshot)
    whole = time.thread_time() - began
    requests, cpu = world.placement.taken()
    return {
        "chosen host requests": requests / chosen.asked,
        "chosen host Placement CPU ms": 1000 * cpu / chosen.asked,
        "chosen host own CPU ms": 1000 * (whole - cpu) / chosen.asked,
    }


def measure_load(world: World, keys: Sequence[str], seconds: int, rate: int) -> dict[str, float]:
    """Boot and delete servers for some made seconds; the sweeps between are not in it."""
    world.turns()
    live: collections.deque[tuple[str, str]] = collections.deque()
    world.placement.taken()
    own = 0.0
    for second in range(seconds + 30):
        world.now += 1
        if second < seconds:
            _boot(world, keys, live, rate)
        # Servers live for ten seconds, then go at the rate at which they came.
        if second >= 10:
            _delete(world, live, rate)
        own += world.turns()
    requests, cpu = world.placement.taken()
    return {
        "load requests/s": requests / seconds,
        "load Placement CPU s/s": cpu / seconds,
        "load keeper CPU s/s": own / seconds,
    }


def _boot(world: World, keys: Sequence[str], live: Any, rate: int) -> None:
    rows = {}
    for _ in range(rate):
        key, consumer = random.choice(keys), str(uuid.uuid4())
        body = {
            "allocations": {key: {"resources": {"VCPU": 1}}},
            "project_id": PROJECT,
            "user_id": PROJECT,
            "consumer_generation": None,
        }
        before = world.own.before()
        world.placement.call("PUT", f"/allocations/{consumer}", body)
        world.own.wrote({key: {consumer: {"VCPU": 1}}}, before)
        rows[f"{consumer}@{CELL}"] = {"cell": CELL, "row": _instance(consumer, key)}
        live.append((consumer, key))
    world.own.flush()
    world.publish(known_namespaces.INSTANCES, rows)


def _delete(world: World, live: Any, rate: int) -> None:
    gone = [live.popleft() for _ in range(min(rate, len(live)))]
    world.publisher(known_namespaces.NOVA).publish(
        {
            records.RecordKey("instances", f"{consumer}@{CELL}"): lambda current: publisher.DELETE
            for consumer, _key in gone
        }
    )
    for consumer, _key in gone:
        world.placement.call("DELETE", f"/allocations/{consumer}")


def main() -> None:
    """Measure and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--providers", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=256, help="trees read as the import does")
    parser.add_argument("--seconds", type=int, default=20, help="of load; 0 for none")
    parser.add_argument("--rate", type=int, default=100, help="boots, and deletes, a second")
    parser.add_argument("--traits", type=int, default=40, help="of each provider, at least 1")
    parser.add_argument("--consumers", type=int, default=10, help="on each, at least 1")
    given = parser.parse_args()
    random.seed(3)
    with tempfile.TemporaryDirectory(prefix="nodb-mirror-") as directory:
        placement = Placement(pathlib.Path(directory))
        servers = populate(given.providers, given.traits, given.consumers)
        keys = list(servers)
        world = World(placement)
        sample = min(given.sample, len(keys))
        _show(given.providers, measure_import(world, keys, sample))
        copy_records(world, servers, sample)
        publish_hosts(world, servers)
        # A Placement of its own has no store that its collector walks; schedulers freeze theirs.
        gc.collect()
        gc.freeze()
        _show(given.providers, measure_idle(world))
        _show(given.providers, measure_chosen(world, keys))
        if given.seconds:
            _show(given.providers, measure_load(world, keys, given.seconds, given.rate))


def _show(providers: int, figures: dict[str, float]) -> None:
    """Print a line for each figure, as soon as it is known: the next ones take minutes."""
    for name, figure in figures.items():
        print(f"{providers:>7} providers  {name:<28} {figure:>12.3f}", flush=True)


if __name__ == "__main__":
    main()
