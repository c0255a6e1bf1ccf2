# SPDX-License-Identifier: Apache-2.0
"""What a scheduler and a conductor tell by their own configuration, in a real Zaqar."""

from __future__ import annotations

from nova_nodb_scheduler.nova_adapter import assembly
from nova_nodb_scheduler.nova_adapter.waiting import request_payload
from nova_nodb_scheduler.testing import patience
from tests.functional.nova_adapter.waiting import queue_cloud
from tests.functional.zaqar import zaqar_server
from tests.own_process import cases

_QUEUE = "of-a-scheduler"
_NAMES = ("event", "servers", "attempt")


class DispatchTest(queue_cloud.QueueCase):
    def begin(self) -> None:
        self.zaqar = zaqar_server.Zaqar()
        self.zaqar.setUp()
        self.addCleanup(self.zaqar.cleanUp)
        self.override("zaqar_queue", _QUEUE, "nodb_queue")
        self.override("signing_key", zaqar_server.SECRET, "nodb_queue_zaqar")
        self.override("endpoint_override", self.zaqar.url, "nodb_queue_zaqar")
        super().begin()

    def test_a_request_that_waited_is_told_to_be_dispatched(self) -> None:
        first = self.fill()
        key = self.conductor.ask()
        self.turn()
        self.delete(first[0])
        self.until(lambda: key in self.placed())
        told = self.zaqar.tenant("project", _QUEUE)
        patience.wait_until(told.messages, queue_cloud.WAIT_SECONDS, "the event is posted")
        [event] = told.messages()
        self.assertEqual(("dispatched", [key], 2), tuple(event[name] for name in _NAMES))
        registry = self.runtime.metrics.registry
        self.assertEqual(1.0, registry.get_sample_value("nodb_tenant_events_posted_total"))

    def test_a_conductor_tells_through_the_same_sink(self) -> None:
        self.override("key", [request_payload.new_key()], "nodb_queue")
        waiting = assembly.get().waiting_conductor()
        assert waiting is not None
        self.assertIs(assembly.get().tenant_events, waiting._events)


class ConductorTest(cases.OwnProcessCase):
    module = f"{__package__}.told_servers"

    def setUp(self) -> None:
        super().setUp()
        zaqar_server.program("zaqar-server")
