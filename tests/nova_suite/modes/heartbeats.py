# SPDX-License-Identifier: Apache-2.0
"""Store the heartbeats of a test's compute services, if the run is for it.

A test has one process for all conductors: its heartbeats go one way, whatever the
cell, and the mode of every cell is what its conductors would have recorded.
"""

from __future__ import annotations

import os

import fixtures

from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.liveness import heartbeat_modes, service_heartbeats
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.records import publisher as publisher_module

#: ``store`` or ``both``; unset: ``database``.
MODE_VARIABLE = "NOVA_SUITE_HEARTBEATS"


class _EveryCell(heartbeat_modes.ModeKeeper):
    """A conductor of all cells, which needs to ask nobody."""

    def may_store(self, cell: str) -> bool:
        return self.wanted is heartbeat_modes.HeartbeatMode.STORE


class HeartbeatsFixture(fixtures.Fixture):
    """What an operator's conductors and APIs do in the mode that the run is for."""

    def __init__(self, plugin: assembly.Plugin, synchronizer: contract.Synchronizer) -> None:
        super().__init__()
        self._plugin = plugin
        self._synchronizer = synchronizer

    def _setUp(self) -> None:
        mode = os.environ.get(MODE_VARIABLE, "database")
        self._plugin.conf.set_override("service_heartbeats", mode, "nodb_scheduler")
        self._plugin.conf.set_override("heartbeat_flush_interval_seconds", 0.05, "nodb_scheduler")
        if mode == "database":
            return
        publisher = self._plugin.publisher(self._synchronizer, known_namespaces.NODB)
        # Long ago: nobody waits for records that conductors are about to write.
        since = self._synchronizer.now_seconds() - 3_600
        states = {
            heartbeat_modes.mode_key(cell): {"cell": cell, "mode": mode, "since": since}
            for cell in self._plugin.scopes.all_cells()
        }
        publisher.publish({key: _always(state) for key, state in states.items()})
        made = self._plugin.heartbeat_storage()
        self.addCleanup(made.writer.stop)
        made.keeper.__class__ = _EveryCell
        service_heartbeats.install_storage(made)
        self.addCleanup(service_heartbeats.install_storage, None)
        service_heartbeats.install_reader(self._plugin.heartbeat_reader)
        self.addCleanup(service_heartbeats.install_reader, None)


def _always(state: publisher_module.State) -> publisher_module.Compute:
    return lambda current: state
