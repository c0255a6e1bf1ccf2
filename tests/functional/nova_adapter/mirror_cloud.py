# SPDX-License-Identifier: Apache-2.0
"""A real Placement in this process, a store that follows, and a keeper taken turn by turn."""

from __future__ import annotations

import collections
import uuid
from typing import Any

import fixtures
from keystoneauth1 import exceptions as ks_exc
from nova.scheduler.client import report
from nova.tests.functional import fixtures as nova_fixtures
from placement import db_api as placement_db

from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    mirror_keeper,
    mirror_proof,
    mirror_sweep,
    placement_reader,
    tree_publisher,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.wire import codec
from tests.functional.nova_adapter import cloud
from tests.functional.nova_adapter.placement import prepared_placement

VERSION = "1.36"
PROJECT = str(uuid.uuid4())


class Clock:
    """Monotonic seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class MirrorCase(cloud.CloudCase):
    """Nova's databases, the memory driver's hub, and Placement behind Nova's report client."""

    def setUp(self) -> None:
        super().setUp()
        self.use(prepared_placement.PreparedPlacement())
        self.placement = self.use(nova_fixtures.PlacementFixture())
        self.use(fixtures.MonkeyPatch("nova.scheduler.client.report.PLACEMENTCLIENT", None))
        self.client = report.SchedulerReportClient(adapter=NoAdapter())
        self.calls: collections.Counter[str] = collections.Counter()
        self.down = False
        self.clock = Clock()
        # The back end's seconds pass with ours.
        now = self.hub._clock
        began = self.clock.now
        self.hub._clock = lambda: now() + self.clock.now - began
        self.store_ = host_state_store.HostStateStore(self.plugin.declared, codec.decode_state)
        self.replicator = replicator.Replicator(
            self.synchronizer, self.store_, self.plugin.declared, identity="mirror-test"
        )

    def use(self, fixture: Any) -> Any:
        fixture.setUp()
        self.addCleanup(fixture.cleanUp)
        return fixture

    # -- Placement ------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """GET as the reader does, counted by kind; fails while Placement is down."""
        kind = path.rsplit("/", 1)[-1] if path.count("/") > 2 else "list"
        self.calls[kind] += 1
        if self.down:
            raise ks_exc.ConnectFailure("no route to host")
        return self.client.get(path, version=VERSION)

    def ask(self, method: str, path: str, body: Any = None, version: str = VERSION) -> Any:
        arguments = {} if method in ("get", "delete") else {"data": body}
        # The fixture's DELETE knows no versions.
        versioned = {} if method == "delete" else {"version": version}
        done = getattr(self.client, method)(path, **arguments, **versioned)
        self.assertLess(done.status_code, 300, done.text)
        return done.json() if done.content else None

    def provider(self, parent: str | None = None, vcpus: int = 8, key: str | None = None) -> str:
        """Create a provider with VCPU and MEMORY_MB, or a child with VGPU."""
        key = key or str(uuid.uuid4())
        body: dict[str, Any] = {"name": f"node-{key}", "uuid": key}
        if parent is not None:
            body["parent_provider_uuid"] = parent
        self.ask("post", "/resource_providers", body)
        classes = {"VCPU": vcpus, "MEMORY_MB": 4096} if parent is None else {"VGPU": 2}
        self.inventories(key, classes)
        return key

    def generation(self, key: str) -> int:
        found: int = self.ask("get", f"/resource_providers/{key}")["generation"]
        return found

    def inventories(self, key: str, classes: dict[str, int]) -> None:
        body = {
            "resource_provider_generation": self.generation(key),
            "inventories": {name: {"total": total} for name, total in classes.items()},
        }
        self.ask("put", f"/resource_providers/{key}/inventories", body)

    def traits(self, key: str, *names: str) -> None:
        body = {"resource_provider_generation": self.generation(key), "traits": list(names)}
        self.ask("put", f"/resource_providers/{key}/traits", body)

    def aggregates(self, key: str, *uuids: str) -> None:
        body = {"resource_provider_generation": self.generation(key), "aggregates": list(uuids)}
        self.ask("put", f"/resource_providers/{key}/aggregates", body)

    def new_consumers(self, placed: dict[str, str]) -> dict[str, Any]:
        """Return the body of a POST that puts new consumers of 1 VCPU on providers."""
        return {
            consumer: {
                "allocations": {key: {"resources": {"VCPU": 1}}},
                "project_id": PROJECT,
                "user_id": PROJECT,
                "consumer_generation": None,
            }
            for consumer, key in placed.items()
        }

    def allocate(self, key: str, consumer: str | None = None) -> str:
        """Have a new consumer take 1 VCPU of a provider."""
        consumer = consumer or str(uuid.uuid4())
        self.ask("put", f"/allocations/{consumer}", self.new_consumers({consumer: key})[consumer])
        return consumer

    def free(self, consumer: str) -> None:
        """Free a consumer's resources as nova-compute does for a deleted server."""
        self.ask("delete", f"/allocations/{consumer}")

    # -- the mirror -------------------------------------------------------------------

    def follow(self) -> None:
        """Bring the store to the back end's present."""
        outcome = self.replicator.step()
        while outcome is not replicator_contract.StepOutcome.IDLE:
            outcome = self.replicator.step()

    def keeper(
        self,
        holder: str = "one",
        synchronizer: contract.Synchronizer | None = None,
        **options: Any,
    ) -> mirror_keeper.MirrorKeeper:
        """Make a keeper over this case's store, taken by :meth:`turns`."""
        synchronizer = synchronizer or self.synchronizer
        return mirror_keeper.MirrorKeeper(
            synchronizer,
            self.store_.snapshot,
            lambda: self.replicator.status().epoch or None,
            self.plugin.publisher(synchronizer, known_namespaces.PLACEMENT),
            self.plugin.publisher(synchronizer, known_namespaces.NODB),
            placement_reader.PlacementReader(self.get),
            holder,
            mirror_keeper.KeeperOptions(
                **{"readers": 1, "sweep": mirror_sweep.MirrorSweepOptions(), **options}
            ),
            self.clock,
        )

    def mirror(self, bound_seconds: float = 180.0, **options: Any) -> mirror_proof.PlacementMirror:
        """Return what a scheduler asks, over this case's store."""
        reader = placement_reader.PlacementReader(self.get)
        publisher = self.plugin.publisher(self.synchronizer, known_namespaces.PLACEMENT)
        return mirror_proof.PlacementMirror(
            self.store_.snapshot,
            lambda: self.replicator.status().epoch or None,
            self.synchronizer.now_seconds,
            reader,
            tree_publisher.TreePublisher(self.synchronizer, publisher, reader),
            bound_seconds,
            clock=self.clock,
            **options,
        )

    def sql(self, statement: str) -> None:
        """Run a statement on Placement's database, behind its back."""
        with placement_db.get_placement_engine().begin() as connection:
            connection.exec_driver_sql(statement)

    def turns(self, kept: mirror_keeper.MirrorKeeper, seconds: float = 0.0) -> None:
        """Let seconds pass, then take turns until nothing is left to do."""
        self.clock.now += seconds
        self.follow()
        while kept.turn():
            self.follow()
        self.follow()

    def real(self) -> dict[str, Any]:
        """Read all of Placement, provider by provider, without the code under test."""
        found: dict[str, Any] = {}
        for item in self.ask("get", "/resource_providers")["resource_providers"]:
            base = f"/resource_providers/{item['uuid']}"
            part = {
                "generation": item["generation"],
                "inventories": self.ask("get", f"{base}/inventories")["inventories"],
                "traits": sorted(self.ask("get", f"{base}/traits")["traits"]),
                "aggregates": sorted(self.ask("get", f"{base}/aggregates")["aggregates"]),
            }
            root = found.setdefault(item["root_provider_uuid"], {"children": {}})
            if item["uuid"] != item["root_provider_uuid"]:
                root["children"][item["uuid"]] = {"parent": item["parent_provider_uuid"], **part}
                continue
            allocations = self.ask("get", f"{base}/allocations")["allocations"]
            root |= {
                "name": item["name"],
                **part,
                "allocations": {c: a["resources"] for c, a in allocations.items()},
            }
        return found

    def mirrored(self) -> dict[str, Any]:
        """Return the mirror's records, without their times."""
        times = ("read_at", "read_until", "written_at", "whole_at", "tree_size")
        return {
            key: {name: value for name, value in state.items() if name not in times}
            for key, state in self.states(known_namespaces.PROVIDERS).items()
        }

    def assert_mirrored(self) -> None:
        self.assertEqual(self.real(), self.mirrored())


class NoAdapter:
    """Nova's report client makes no session while it has one; the fixture replaces its calls."""

    additional_headers: dict[str, str] = {}
