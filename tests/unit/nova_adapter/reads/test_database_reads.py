# SPDX-License-Identifier: Apache-2.0
"""What Nova's request filters read of aggregates, without a call for each host in them."""

from __future__ import annotations

import uuid
from typing import Any

from nova import context, objects
from oslotest import base

from nova_nodb_scheduler.nova_adapter.reads import database_reads, request_views
from nova_nodb_scheduler.nova_adapter.reporting import state_proof
from tests import counted_calls


class _Reads(request_views.MemoryReads):
    """Aggregates without a store."""

    def __init__(self, aggregates: list[Any]) -> None:
        self._all = aggregates

    def aggregates(self) -> list[Any]:
        return self._all


class ZonesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        database_reads.install()
        self.context = context.get_admin_context()

    def _view(self, hosts: int) -> request_views.RequestView:
        zone = objects.Aggregate(
            self.context,
            id=7,
            uuid=str(uuid.uuid4()),
            name="zone",
            hosts=[f"host{number}" for number in range(hosts)],
            metadata={"availability_zone": "east", "ssd": "true"},
            created_at=None,
            updated_at=None,
        )
        return request_views.RequestView(
            _Reads([zone]), state_proof.StateProof({}), (), lambda *_: None
        )

    def _found(self) -> Any:
        (found,) = objects.AggregateList.get_by_metadata(
            self.context, key="availability_zone", value="east"
        )
        return found

    def test_a_zone_has_all_its_hosts_and_the_metadata_that_was_asked_for(self) -> None:
        with request_views.working_on(self._view(3)):
            found = self._found()
        self.assertEqual(["host0", "host1", "host2"], found.hosts)
        self.assertEqual({"availability_zone": "east"}, found.metadata)
        self.assertEqual(set(), found.obj_what_changed())
        self.assertEqual(
            ["host0", "host1", "host2"], found.obj_to_primitive()["nova_object.data"]["hosts"]
        )

    def test_its_hosts_are_its_own_and_of_the_type_that_nova_makes(self) -> None:
        with request_views.working_on(self._view(2)):
            one, other = self._found(), self._found()
        made = objects.Aggregate(hosts=["a"])
        self.assertIs(type(made.hosts), type(one.hosts))
        one.hosts.append(5)
        self.assertEqual(["host0", "host1", "5"], one.hosts)
        self.assertEqual(["host0", "host1"], other.hosts)

    def test_the_calls_do_not_grow_with_the_hosts_of_a_zone(self) -> None:
        self._calls(10)
        self.assertEqual(self._calls(10), self._calls(1000))

    def _calls(self, hosts: int) -> int:
        with request_views.working_on(self._view(hosts)):
            return counted_calls.count(self._found)
