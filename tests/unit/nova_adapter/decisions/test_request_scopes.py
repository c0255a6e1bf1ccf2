# SPDX-License-Identifier: Apache-2.0
"""A request is judged by the cells it may go to: by all of them, and by no others."""

from __future__ import annotations

import types
import uuid
from collections.abc import Collection
from typing import Any

from nova import objects
from oslotest import base

from nova_nodb_scheduler.nova_adapter import manager
from nova_nodb_scheduler.nova_adapter.conversion import request_conversion
from nova_nodb_scheduler.nova_adapter.decisions import request_decider
from nova_nodb_scheduler.nova_adapter.reads import request_views
from nova_nodb_scheduler.nova_adapter.reporting import scopes, state_proof

A, B, C = (f"0000000{number}-0000-0000-0000-000000000000" for number in range(1, 4))


class _Nothing(request_views.MemoryReads):
    """Reads of an empty store."""

    def __init__(self) -> None:
        """Nothing is read here."""


def _spec(cell: str | None = None, *, leaves: bool = False, **known: Any) -> Any:
    destination = None
    if cell is not None:
        destination = objects.Destination(
            cell=objects.CellMapping(uuid=cell), allow_cross_cell_move=leaves
        )
    return objects.RequestSpec(requested_destination=destination, **known)


class RequestScopesTest(base.BaseTestCase):
    """A and C are enabled, B is disabled."""

    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.fell_back: list[tuple[str, state_proof.UnprovedReason]] = []
        self.proved_later: set[str] = {A, B, C, scopes.API}

    def _view(
        self, *unproved: str, cells: tuple[str, ...] = (A, B, C)
    ) -> request_views.RequestView:
        missing = dict.fromkeys(unproved, state_proof.UnprovedReason.NO_REPORTER)
        return request_views.RequestView(
            _Nothing(),
            state_proof.StateProof(missing),
            cells,
            lambda *told: self.fell_back.append(told),
        )

    def _manager(self) -> manager.SchedulerManager:
        made = object.__new__(manager.SchedulerManager)
        made.host_manager = types.SimpleNamespace(
            enabled_cells=[objects.CellMapping(uuid=A), objects.CellMapping(uuid=C)]
        )
        mirror = types.SimpleNamespace(refusal=lambda: None)
        made.nodb = types.SimpleNamespace(decisions=types.SimpleNamespace(placement_mirror=mirror))
        made._nodb_views = types.SimpleNamespace(
            still_proved=lambda view: view.served <= self.proved_later
        )
        return made

    def _decides(self, spec: Any, *unproved: str) -> bool:
        return self._manager()._memory_decides(self._view(*unproved), spec)

    def test_a_move_within_a_disabled_cell_is_not_decided_from_its_unproved_states(self) -> None:
        self.assertFalse(self._decides(_spec(B), B))
        self.assertEqual([(B, state_proof.UnprovedReason.NO_REPORTER)], self.fell_back)
        self.assertTrue(self._decides(_spec(B)))

    def test_its_refusal_is_doubted_once_the_cell_lost_its_proof(self) -> None:
        own, view = self._manager(), self._view()
        self.assertTrue(own._memory_decides(view, _spec(B)))
        self.assertFalse(own._in_doubt(view))
        self.proved_later -= {B}
        self.assertTrue(own._in_doubt(view))
        self.assertIn(B, view.missed)

    def test_an_unproved_cell_sends_only_requests_that_may_go_there_to_placement(self) -> None:
        self.assertTrue(self._decides(_spec(A), B, C))
        self.assertEqual([], self.fell_back)
        self.assertFalse(self._decides(_spec(), C))
        self.assertTrue(self._decides(_spec(), B))

    def test_a_server_that_may_leave_its_cell_rests_on_its_own_and_on_all_enabled(self) -> None:
        for unproved in (A, B, C):
            self.assertFalse(self._decides(_spec(B, leaves=True), unproved))
        self.assertTrue(self._decides(_spec(A, leaves=True), B))

    def test_every_request_rests_on_the_api_database(self) -> None:
        self.assertFalse(self._decides(_spec(A), scopes.API))

    def test_a_request_that_is_not_known_may_go_anywhere(self) -> None:
        self.assertFalse(self._decides(None, B))
        self.assertTrue(self._decides(None))

    def test_a_cell_that_nobody_judged_is_not_proved(self) -> None:
        """It was made after the scheduler last read its cells."""
        view = self._view(cells=(A, C))
        self.assertFalse(self._manager()._memory_decides(view, _spec(B)))
        self.assertEqual([(B, state_proof.UnprovedReason.COLD)], self.fell_back)

    def test_what_is_judged_holds_every_cell_that_columns_are_asked_for(self) -> None:
        for spec in (_spec(), _spec(A), _spec(B), _spec(B, leaves=True), _spec(A, leaves=True)):
            wanted = request_conversion.destination(spec)
            cells: Collection[str] = request_conversion.cells(wanted, [A, C])
            judged = request_decider.scopes_of_request(spec, [A, C], [A, B, C])
            self.assertLessEqual(set(cells), set(judged))


class AboutTest(base.BaseTestCase):
    def test_the_server_that_is_asked_about_is_named_and_no_change_of_the_request(self) -> None:
        objects.register_all()
        first, second = str(uuid.uuid4()), str(uuid.uuid4())
        spec = objects.RequestSpec(instance_uuid=first)
        planner = object.__new__(request_decider.RequestPlanner)
        planner._spec = spec
        for server in (first, first, second, first):
            planner.about(server)
            self.assertEqual((server, server), (spec.instance_uuid, planner.server))
            self.assertNotIn("instance_uuid", spec.obj_what_changed())
