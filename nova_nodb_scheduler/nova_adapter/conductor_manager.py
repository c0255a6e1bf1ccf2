# SPDX-License-Identifier: Apache-2.0
"""Nova's ConductorManager with the duties of a cell's reporter.

The reporter must say from the start that it lives, not from its first write:
schedulers trust a cell only while one of its conductors says so.
"""

from __future__ import annotations

import logging
from typing import Any

import nova.conductor.manager

from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.claims import alternate_hosts, outside_claims
from nova_nodb_scheduler.nova_adapter.liveness import service_heartbeats
from nova_nodb_scheduler.nova_adapter.reads import unread_cells
from nova_nodb_scheduler.nova_adapter.reporting import change_reporter
from nova_nodb_scheduler.nova_adapter.reporting import sweep_duty as sweep_duty_module
from nova_nodb_scheduler.nova_adapter.service import process_hooks
from nova_nodb_scheduler.nova_adapter.waiting import waiting_conductor, waiting_task_manager
from nova_nodb_scheduler.synchronizer import contract

LOG = logging.getLogger(__name__)


class ConductorManager(
    process_hooks.EndsWithService,
    nova.conductor.manager.ConductorManager,  # type: ignore[misc]
):
    """Conducts as Nova's does, and reports. Constructor as Nova's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._nodb_reporter: change_reporter.ChangeReporter | None = None
        self._nodb_duty: sweep_duty_module.SweepDuty | None = None
        self._nodb_heartbeats: service_heartbeats.HeartbeatStorage | None = None
        self._nodb_claims: outside_claims.StoppableClaimer | None = None
        self._nodb_waiting: waiting_conductor.WaitingConductor | None = None
        waiting = assembly.get().waiting_conductor()
        if waiting is not None:
            waiting_task_manager.install(self, waiting)
            self._nodb_waiting = waiting
        tasks = self.compute_task_mgr
        tasks.build_instances = alternate_hosts.remembering(tasks.build_instances)

    def init_host(self, service_ref: Any) -> None:
        """Start to report; called in each worker.

        :raises ConfigurationError: this conductor cannot tell which cell it serves, or its
            back end may not answer for compute nodes
        :raises ModeDiffers: it is configured for another mode than its cell's compute nodes are in
        :raises CellNotHeld: the back end does not hold them
        """
        super().init_host(service_ref)
        plugin = assembly.get()
        plugin.compute_nodes.check_start([plugin.scopes.own_cell()])
        reporter = plugin.reporter(
            "conductor", plugin.scopes.own_cell, lambda: (plugin.scopes.own_cell(),)
        )
        duty = plugin.sweep_duty()
        reporter.on_lost = duty.ask
        reporter.unsettled = duty.behind
        duty.on_turn = reporter.speak_while_hung
        heartbeats = plugin.heartbeat_storage()
        look = reporter.on_beat

        def on_beat(synchronizer: contract.Synchronizer, name: str) -> None:
            look(synchronizer, name)
            heartbeats.keeper.keep(synchronizer, name)

        reporter.on_beat = on_beat
        self._nodb_heartbeats = heartbeats
        self._nodb_reporter, self._nodb_duty = reporter, duty
        change_reporter.install(reporter, plugin.scopes)
        unread_cells.install_in_conductor()
        service_heartbeats.install_storage(heartbeats)
        reporter.ensure_started()
        duty.start()
        self._nodb_claims = plugin.checked_alternates(plugin.outside_claims())
        if self._nodb_claims is not None:
            outside_claims.install(self._nodb_claims)
        if self._nodb_waiting is not None:
            self._nodb_waiting.start()
        process_hooks.tell_of_reporter(reporter)

    def nodb_stop(self) -> None:
        """Publish what is left and stop; idempotent."""
        claims, self._nodb_claims = self._nodb_claims, None
        duty, self._nodb_duty = self._nodb_duty, None
        reporter, self._nodb_reporter = self._nodb_reporter, None
        heartbeats, self._nodb_heartbeats = self._nodb_heartbeats, None
        if self._nodb_waiting is not None:
            self._nodb_waiting.stop()
        if claims is not None:
            outside_claims.uninstall(claims)
            claims.stop()
        if heartbeats is not None:
            # What comes later is written to the database.
            service_heartbeats.install_storage(None)
            heartbeats.writer.stop()
        if duty is not None:
            duty.stop()
        if reporter is not None:
            reporter.stop()
