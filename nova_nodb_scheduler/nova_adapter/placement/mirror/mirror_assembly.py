# SPDX-License-Identifier: Apache-2.0
"""Puts the mirror's parts together for a process: its keeper, its facade, its reports of writes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import attrs

from nova_nodb_scheduler.nova_adapter.placement.mirror import (
    chosen_trees,
    mirror_keeper,
    mirror_proof,
    own_writes,
    placement_reader,
    tree_publisher,
    write_hints,
)
from nova_nodb_scheduler.nova_adapter.placement.mirror import mirror_sweep as sweep_module
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import store_snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module
from nova_nodb_scheduler.synchronizer.replication import ingest


class MirrorPlugin(Protocol):
    """What is needed of the process's plugin (see the assembly)."""

    @property
    def conf(self) -> Any: ...

    def make_synchronizer(self) -> contract.Synchronizer: ...

    def publisher(
        self, synchronizer: contract.Synchronizer, owner: str
    ) -> publisher_module.Publisher: ...


@attrs.frozen
class MirrorOptions:
    """The options of the mirror; the meaning is that of the options of the same names.

    :param bound_seconds: age beyond which the mirror is not used
    :param tree_bound_seconds: age of a comparison beyond which the tree of a
        chosen host is compared again
    :param reread_seconds: within which every provider is read again, for what
        no generation shows
    """

    bound_seconds: float = 180.0
    tree_bound_seconds: float = 10.0
    sweep_interval_seconds: float = 60.0
    reread_seconds: float = 24 * 3600.0
    readers: int = 4


class SchedulerMirror:
    """A scheduler worker's share of the mirror: started and stopped with its runtime.

    :param synchronizer: of the worker, opened by its replicator
    :param snapshot: of the worker's store
    :param epoch: of that store; None while it is not proved complete
    :param now_seconds: the back end's time, without I/O
    :param wait_for: blocks until a version is in the worker's store
    :param unreadable: records that this worker's store cannot read now
    """

    def __init__(
        self,
        plugin: MirrorPlugin,
        synchronizer: contract.Synchronizer,
        snapshot: Callable[[], snapshot_module.Snapshot],
        epoch: Callable[[], str | None],
        now_seconds: Callable[[], float],
        options: MirrorOptions | None = None,
        get: placement_reader.Get = placement_reader.get_from_placement,
        *,
        wait_for: Callable[[int], None] = lambda version: None,
        unreadable: Callable[[], ingest.UnreadableRecords] = ingest.all_readable,
    ) -> None:
        options = options or MirrorOptions()
        self._snapshot = snapshot
        publisher = plugin.publisher(synchronizer, known_namespaces.PLACEMENT)
        self.hints = hint_writer(plugin)
        self.own_writes = own_writes.OwnWrites(synchronizer, publisher, snapshot, self.hints.hint)
        proving = placement_reader.PlacementReader(get)
        self.mirror = mirror_proof.PlacementMirror(
            snapshot,
            epoch,
            now_seconds,
            proving,
            tree_publisher.TreePublisher(synchronizer, publisher, proving),
            options.bound_seconds,
            unreadable=unreadable,
        )
        self.chosen = chosen_trees.ChosenTrees(
            snapshot,
            now_seconds,
            proving,
            tree_publisher.TreePublisher(synchronizer, publisher, proving),
            wait_for,
            options.tree_bound_seconds,
            unreadable=unreadable,
        )
        self.keeper = mirror_keeper.MirrorKeeper(
            synchronizer,
            snapshot,
            epoch,
            publisher,
            plugin.publisher(synchronizer, known_namespaces.NODB),
            placement_reader.PlacementReader(get),
            f"{plugin.conf.host}:{os.getpid()}:{uuid.uuid4()}",
            mirror_keeper.KeeperOptions(
                sweep=sweep_module.MirrorSweepOptions(
                    interval_seconds=options.sweep_interval_seconds,
                    again_seconds=options.reread_seconds,
                ),
                readers=options.readers,
            ),
            unreadable=unreadable,
        )

    def figures(self) -> dict[str, float]:
        """Return what the keeper did so far and how old the mirror is; any thread, no I/O."""
        status = self.keeper.status
        found = {
            "keeping": float(status.keeping),
            # Of a keeper that was: nobody looks at them any more.
            "hints_waiting": float(status.hints_waiting if status.keeping else 0),
            "looks": float(status.hinted_reads),
            "sweeps": float(status.sweeps),
            "requests": float(status.requests),
            "failures": float(status.failures),
            "chosen_compared": float(self.chosen.asked),
            "chosen_changed": float(self.chosen.changed),
            "chosen_shown": float(self.chosen.shown),
            "chosen_unreadable": float(self.chosen.read_anew),
        }
        age_seconds = self.mirror.age_seconds(self._snapshot())
        return found if age_seconds is None else {**found, "age_seconds": age_seconds}

    def start(self) -> None:
        """Observe this process's writes and start the threads; after the fork."""
        install(self.own_writes.observe, self.own_writes.before)
        self.own_writes.start()
        self.keeper.start()

    def stop(self) -> None:
        """End the threads, the own writes published; idempotent."""
        write_hints.uninstall(self.own_writes.observe)
        self.keeper.stop()
        self.own_writes.stop()
        self.hints.stop()


def hint_writer(plugin: MirrorPlugin) -> write_hints.HintWriter:
    """Return what publishes this process's hints; no I/O until the first one."""
    synchronizer = plugin.make_synchronizer()
    return write_hints.HintWriter(
        synchronizer,
        plugin.publisher(synchronizer, known_namespaces.NODB),
        f"{plugin.conf.host}:{os.getpid()}",
    )


_make: Callable[[], write_hints.Observer] | None = None


def report_writes(plugin: MirrorPlugin) -> None:
    """Have this process's writes to Placement hinted at; no I/O.

    For conductors, nova-api and nova-manage. A child that a server forks gets
    a writer of its own: the parent's lock may have been held.
    """
    global _make
    _make = lambda: hint_writer(plugin).observe  # noqa: E731 - of this plugin
    write_hints.install(_make())


def install(
    observer: write_hints.Observer | None,
    before: write_hints.Before = write_hints.nothing_known,
) -> None:
    """Have an observer told of this process's writes; None: nobody.

    :param before: see :func:`write_hints.install`
    """
    global _make
    _make = None
    write_hints.install(observer, before)


def _after_fork() -> None:
    if _make is not None:
        write_hints.install(_make())


os.register_at_fork(after_in_child=_after_fork)
