# SPDX-License-Identifier: Apache-2.0
"""Our Selections beside those that Nova makes of a host state."""

from __future__ import annotations

import types
import uuid
from typing import Any

import nova.conf
from nova import context, objects
from oslotest import base

from nova_nodb_scheduler.nova_adapter.conversion import request_conversion
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts

_NODE, _CELL = str(uuid.uuid4()), str(uuid.uuid4())
_REQUEST = {"allocations": {_NODE: {"resources": {"VCPU": 2, "MEMORY_MB": 512}}}}


class SelectionsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()

    def _aggregates(self, **metadata: str) -> list[Any]:
        return [objects.Aggregate(context.get_admin_context(), metadata=metadata, hosts=["h"])]

    def _both(
        self, allocation_request: Any, limits: dict[str, Any], aggregates: list[Any]
    ) -> tuple[Any, Any]:
        chosen = chosen_hosts.Choice(0, _NODE, _CELL, "h", "n", 1.0, ())
        ours = request_conversion.selection(
            chosen, allocation_request, "1.36", limits, lambda _: aggregates
        )
        state = types.SimpleNamespace(
            host="h",
            nodename="n",
            uuid=_NODE,
            cell_uuid=_CELL,
            limits=dict(limits),
            aggregates=aggregates,
        )
        theirs = objects.Selection.from_host_state(
            state, allocation_request=allocation_request, allocation_request_version="1.36"
        )
        return ours, theirs

    def _assert_same(self, *given: Any) -> None:
        ours, theirs = self._both(*given)
        self.assertEqual(theirs.obj_to_primitive(), ours.obj_to_primitive())
        self.assertEqual(theirs.obj_what_changed(), ours.obj_what_changed())
        self.assertEqual(theirs.to_dict(), ours.to_dict())

    def test_a_selection_is_what_nova_makes_of_the_host(self) -> None:
        self._assert_same(_REQUEST, {}, [])
        self._assert_same(None, {}, [])

    def test_it_names_the_zone_of_the_host(self) -> None:
        self._assert_same(_REQUEST, {}, self._aggregates(availability_zone="east"))
        self._assert_same(_REQUEST, {}, self._aggregates(ssd="true"))

    def test_it_follows_the_default_zone(self) -> None:
        conf = nova.conf.CONF
        conf.set_override("default_availability_zone", "elsewhere")
        self.addCleanup(conf.clear_override, "default_availability_zone")
        self._assert_same(_REQUEST, {}, [])

    def test_it_carries_the_limits_that_filters_set(self) -> None:
        limits = {"memory_mb": 4096, "disk_gb": 20}
        self._assert_same(_REQUEST, limits, [])

    def test_selections_share_nothing_that_can_change(self) -> None:
        first, second = (self._both(_REQUEST, {}, [])[0] for _ in range(2))
        first.service_host = "another"
        first.limits.memory_mb = 1
        first.obj_reset_changes(recursive=True)
        self.assertEqual("h", second.service_host)
        self.assertIsNone(second.limits.memory_mb)
        self.assertIn("service_host", second.obj_what_changed())
        self.assertEqual(
            objects.SchedulerLimits.from_dict({}).obj_what_changed(),
            second.limits.obj_what_changed(),
        )
