# SPDX-License-Identifier: Apache-2.0
"""What a scheduler with a queue does with a request that the queue has; without a cloud."""

from __future__ import annotations

import types
from typing import Any
from unittest import mock

import testtools
from nova.objects import request_spec

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter import manager, queue_manager
from nova_nodb_scheduler.synchronizer.settlement import pending_waits
from nova_nodb_scheduler.synchronizer.waking import newcomer_gate


class QueuedRequestTest(testtools.TestCase):
    def waits(self, hints: dict[str, Any], full: str = "") -> bool:
        """Say whether a request with hints waits for claims before it is refused."""
        index = mock.Mock()
        index.pending.return_value = {("host", "consumer", "claim"): 60.0}
        index.stands.return_value = True
        waits = pending_waits.PendingWaits(
            index,
            pending_waits.WaitBounds(0.15, 60.0),
            lambda: 0.0,
            tell := mock.Mock(),
            most_waiting=1,
        )

        def select(*args: Any, **kwargs: Any) -> None:
            waits.begin().is_worth_another_look({"host"}, frozenset, "server")

        admission = newcomer_gate.Admission("admitted", full=full)
        queue = types.SimpleNamespace(gate=mock.Mock(), meter=mock.Mock())
        queue.gate.ask.return_value = admission
        scheduler = object.__new__(queue_manager.QueueSchedulerManager)
        scheduler.nodb = types.SimpleNamespace(queue=queue)
        with mock.patch.object(manager.SchedulerManager, "select_destinations", select):
            scheduler.select_destinations(
                None, spec_obj=request_spec.RequestSpec(scheduler_hints=hints)
            )
        return bool(tell.called)

    def test_a_request_that_the_queue_has_waits_there_and_nowhere_else(self) -> None:
        self.assertFalse(self.waits({pending.HINT: pending.hint("key", 2)}))

    def test_one_that_finds_no_place_in_the_queue_waits(self) -> None:
        self.assertTrue(self.waits({pending.HINT: pending.hint("key", 1)}, "the queue is full"))

    def test_any_other_request_waits(self) -> None:
        self.assertTrue(self.waits({}))
