# SPDX-License-Identifier: Apache-2.0
"""Parts of a request that are copied before Nova changes it: of none is a change seen."""

from __future__ import annotations

import uuid
from typing import Any

from nova import objects
from oslotest import base

from nova_nodb_scheduler.nova_adapter.reads import prepared_requests


class CopiedPartsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()

    def _parts(self) -> dict[str, Any]:
        group = objects.RequestGroup(resources={"VCPU": 1}, required_traits={"HW_A"})
        return {
            "parameters": objects.RequestLevelParams(
                root_required={"HW_A"}, root_forbidden=set(), same_subtree=[]
            ),
            "subtrees": objects.RequestLevelParams(same_subtree=[["a", "b"]]),
            "destination": objects.Destination(host="h", aggregates=["agg-1"]),
            "destination in a cell": objects.Destination(
                cell=objects.CellMapping(uuid=str(uuid.uuid4()), name="c")
            ),
            "group": objects.InstanceGroup(
                uuid=str(uuid.uuid4()), policy="affinity", members=["m"], hosts=["h"]
            ),
            "resources": [group],
        }

    def test_a_copy_says_what_its_part_said(self) -> None:
        for name, part in self._parts().items():
            made = prepared_requests.copied(part)
            self.assertEqual(_described(part), _described(made), name)
            self.assertIsNot(part, made, name)

    def test_what_is_changed_of_one_is_not_changed_of_the_other(self) -> None:
        for name, part in self._parts().items():
            before = _described(part)
            made = prepared_requests.copied(part)
            _change(made)
            self.assertNotEqual(before, _described(made), name)
            self.assertEqual(before, _described(part), name)


def _described(part: Any) -> Any:
    if isinstance(part, list):
        return [_described(each) for each in part]
    return part.obj_to_primitive(), sorted(part.obj_what_changed())


def _change(part: Any) -> None:
    """Change a part in place, as Nova's request filters and host states do."""
    if isinstance(part, list):
        part[0].required_traits.add("HW_B")
        part.append(part[0])
    elif isinstance(part, objects.InstanceGroup):
        part.hosts.append("other")
        part.members.append("n")
    elif isinstance(part, objects.Destination):
        part.obj_reset_changes()
        if "cell" in part:
            part.cell.name = "other"
        else:
            part.require_aggregates(["agg-2"])
    elif part.same_subtree:
        part.same_subtree[0].append("c")
    else:
        part.root_required.add("HW_B")
        part.root_forbidden.add("HW_C")
