# SPDX-License-Identifier: Apache-2.0
"""A plain model of Placement's generations, and processes that mirror it: to be interleaved.

Of Placement it has what its own tests show of it (``PlacementGenerationTest``): a call that
allocates moves each provider by one, a description that is set by one, and a server that is
deleted, or moves away, by nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    chosen_trees,
    mirror_sweep,
    own_writes,
    placement_reader,
    tree_publisher,
)
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store, store_snapshot
from nova_nodb_scheduler.synchronizer.drivers import memory
from nova_nodb_scheduler.synchronizer.records import publisher
from nova_nodb_scheduler.synchronizer.replication import replicator, replicator_contract
from nova_nodb_scheduler.wire import codec

BOUND_SECONDS = 10.0
_DECLARED = {namespace.name: namespace for namespace in known_namespaces.BUILT_IN}
_ONE = re.compile(r"/resource_providers/(?P<root>[^/]+)/(?P<part>\w+)")
_INVENTORY = {
    "total": 1000,
    "reserved": 0,
    "min_unit": 1,
    "max_unit": 1000,
    "step_size": 1,
    "allocation_ratio": 1.0,
}


class Clocks:
    """The true time, which every look at it moves on, and the back end's, which may be set back."""

    def __init__(self) -> None:
        self.true = 1000.0
        self.ahead = 5000.0

    def monotonic(self) -> float:
        self.true += 0.001
        return self.true

    def backend(self) -> float:
        return self.monotonic() + self.ahead


@attrs.frozen
class Answer:
    """An answer over HTTP."""

    body: Any
    status_code: int = 200

    @property
    def content(self) -> bytes:
        return json.dumps(self.body).encode()


@attrs.define
class _Provider:
    """A provider, and until when each of its descriptions was its own."""

    generation: int = 0
    trait: str = "CUSTOM_0"
    servers: dict[str, Mapping[str, int]] = attrs.field(factory=dict)
    ended: dict[str, float] = attrs.field(factory=dict)


class PlainPlacement:
    """Providers, each described by one trait that it never had before; servers stand on roots.

    :param meanwhile: called before each answer: what others do as somebody reads
    """

    def __init__(self, clocks: Clocks, roots: Sequence[str]) -> None:
        self._clocks = clocks
        self.providers = {root: _Provider() for root in roots}
        #: Roots of those that are none, by child.
        self.roots: dict[str, str] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        #: Requests, by kind.
        self.asked: list[str] = []

    # -- what is written ------------------------------------------------------------

    def allocate(self, placed: Mapping[str, own_writes.Placed]) -> None:
        for root, servers in placed.items():
            self.providers[root].servers.update(servers)
            self.providers[root].generation += 1

    def delete(self, server: str) -> None:
        for provider in self.providers.values():
            provider.servers.pop(server, None)

    def move(self, server: str, root: str) -> None:
        self.delete(server)
        self.allocate({root: {server: {"VCPU": 1}}})

    def describe(self, root: str) -> None:
        provider = self.providers[root]
        provider.generation += 1
        provider.ended[provider.trait] = self._clocks.monotonic()
        provider.trait = f"CUSTOM_{len(provider.ended)}"

    def adopt(self, root: str, child: str) -> None:
        """Make a provider below a root, which shows nothing of it."""
        self.providers[child] = _Provider()
        self.roots[child] = root

    # -- what is read -----------------------------------------------------------------

    def get(self, path: str) -> Answer:
        self.meanwhile()
        found = _ONE.fullmatch(path)
        if found is None:
            self.asked.append("list")
            asked = path.partition("in_tree=")[2]
            return Answer(
                {
                    "resource_providers": [
                        {
                            "uuid": name,
                            "name": name,
                            "generation": provider.generation,
                            "root_provider_uuid": self.roots.get(name, name),
                            "parent_provider_uuid": self.roots.get(name),
                        }
                        for name, provider in self.providers.items()
                        if asked in ("", self.roots.get(name, name))
                    ]
                }
            )
        self.asked.append(found["part"])
        provider = self.providers.get(found["root"])
        if provider is None:
            return Answer({}, 404)
        parts: dict[str, Any] = {
            "inventories": {"VCPU": _INVENTORY},
            "traits": [provider.trait],
            "aggregates": [],
            "allocations": {
                server: {"resources": dict(amounts)} for server, amounts in provider.servers.items()
            },
        }
        return Answer(
            {
                "resource_provider_generation": provider.generation,
                found["part"]: parts[found["part"]],
            }
        )


class Process:
    """A scheduler worker: its store, its own writes, and its comparisons of chosen trees."""

    def __init__(self, placement: PlainPlacement, hub: memory.MemoryHub, clocks: Clocks) -> None:
        self._clocks = clocks
        self.placement = placement
        self.synchronizer = memory.MemorySynchronizer(None, hub)
        self.synchronizer.open()
        self.store = host_state_store.HostStateStore(known_namespaces.BUILT_IN, codec.decode_state)
        self._replicator = replicator.Replicator(
            self.synchronizer, self.store, known_namespaces.BUILT_IN, identity="plain"
        )
        self._publisher = publisher.Publisher(
            self.synchronizer, _DECLARED, known_namespaces.PLACEMENT
        )
        self.reader = placement_reader.PlacementReader(placement.get)
        self.trees = tree_publisher.TreePublisher(self.synchronizer, self._publisher, self.reader)
        self.hinted: set[str] = set()
        self.own = own_writes.OwnWrites(
            self.synchronizer, self._publisher, self.store.snapshot, self._hint
        )
        self.chosen = chosen_trees.ChosenTrees(
            self.store.snapshot,
            clocks.backend,
            self.reader,
            self.trees,
            lambda version: self.follow(),
            BOUND_SECONDS,
            sleep=lambda seconds: None,
            clock=clocks.monotonic,
            unreadable=self._replicator.quarantine.at_this_moment,
        )

    def _hint(self, roots: Any, consumers: Any = ()) -> None:
        self.hinted.update(roots)

    def follow(self) -> None:
        while self._replicator.step() is not replicator_contract.StepOutcome.IDLE:
            pass

    def epoch(self) -> str | None:
        return self._replicator.status().epoch

    def record(self, root: str) -> Mapping[str, Any] | None:
        return self.snapshot().namespace(known_namespaces.PROVIDERS.name).state(root)

    def snapshot(self) -> store_snapshot.Snapshot:
        return self.store.snapshot()

    def read(self, root: str) -> None:
        """Read a tree and publish it, as a keeper does."""
        began_at = self.trees.now_seconds()
        self.trees.whole([(root, self.reader.tree(root))], began_at)

    def look(self, root: str) -> None:
        """Look at a provider that was hinted at, as a keeper does."""
        seen = self.trees.allocations([root])
        if seen.whole:
            self.read(root)

    def view(self) -> store_snapshot.NamespaceView:
        return self.snapshot().namespace(known_namespaces.PROVIDERS.name)

    def new_sweep(self) -> mirror_sweep.MirrorSweep:
        epoch = self.epoch()
        assert epoch is not None
        return mirror_sweep.MirrorSweep(
            self.synchronizer,
            self._publisher,
            self.trees,
            self.reader,
            self.view(),
            epoch,
            mirror_sweep.MirrorSweepOptions(),
            "plain",
            self._clocks.monotonic,
            unread=self._replicator.quarantine.keys(known_namespaces.PROVIDERS.name),
        )

    def sweep(self) -> None:
        """Compare all trees at once; what schedulers write to just now is looked at later."""
        swept = self.new_sweep()
        self.hinted.update(swept.begin())
        while swept.left:
            self.hinted.update(swept.step(self.view()))
        swept.finish(self.view())

    def flush(self) -> None:
        """Publish own writes, if the back end answers."""
        try:
            self.own.flush()
        except errors.BackendUnavailable:
            pass

    def decide(self, root: str) -> float | None:
        """Compare a tree that was chosen; return how long ago it was what it is taken for.

        None where the request is Placement's to decide.
        """
        asked_at = self._clocks.monotonic()
        try:
            self.chosen.behind([root], self.snapshot())
        except errors.NodbError:
            return None
        record = self.record(root)
        if record is None or "broken" in record:
            return None
        [trait] = record["traits"]
        return asked_at - self.placement.providers[root].ended.get(trait, asked_at)


class Held:
    """A reading of a process that stands still before it publishes, and wakes late."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._published: Callable[[], Any] = lambda: None
        #: Roots that are to be read once more.
        self.again: set[str] = set()

    def read(self, root: str) -> None:
        trees = self._process.trees
        own = trees._publish

        def stand_still(*arguments: Any) -> Any:
            self._published = lambda: own(*arguments)
            return tree_publisher.PublishedTrees()

        trees._publish = stand_still  # type: ignore[method-assign]
        try:
            self._process.read(root)
        finally:
            trees._publish = own  # type: ignore[method-assign]

    def let_go(self) -> None:
        self.again |= self._published().again
