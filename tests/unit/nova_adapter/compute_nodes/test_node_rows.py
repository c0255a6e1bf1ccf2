# SPDX-License-Identifier: Apache-2.0
"""What values become in a row, without a database; with one: tests/functional."""

from __future__ import annotations

import datetime
import ipaddress
import json
import unittest

from oslo_db import exception as db_exception

from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows

_VALUES = {
    "uuid": "u",
    "vcpus": 4,
    "memory_mb": 1,
    "local_gb": 1,
    "vcpus_used": 0,
    "memory_mb_used": 0,
    "local_gb_used": 0,
    "hypervisor_type": "QEMU",
    "hypervisor_version": 1,
    "cpu_info": "",
}
_MOMENT = datetime.datetime.fromisoformat("2026-01-02T03:04:05.000006")


class NodeRowsTest(unittest.TestCase):
    def test_a_state_is_json_and_leads_back_to_the_row(self) -> None:
        row = node_rows.updated(node_rows.inserted(_VALUES, 7), {"host_ip": "::1"}, _MOMENT)
        state = json.loads(json.dumps(node_rows.to_state(row)))
        self.assertEqual(row, node_rows.from_state(state))

    def test_addresses_of_a_driver_s_own_are_text_in_a_state(self) -> None:
        row = {**node_rows.inserted(_VALUES, 7), "host_ip": ipaddress.ip_address("2001:db8::1")}
        self.assertEqual("2001:db8::1", node_rows.to_state(row)["host_ip"])

    def test_none_in_a_creation_leaves_the_default_and_in_an_update_null(self) -> None:
        row = node_rows.inserted({**_VALUES, "mapped": None, "stats": None}, 7)
        self.assertEqual((0, "{}"), (row["mapped"], row["stats"]))
        self.assertIsNone(node_rows.updated(row, {"mapped": None})["mapped"])

    def test_what_may_not_be_null_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(db_exception.DBError, "memory_mb"):
            node_rows.inserted({**_VALUES, "memory_mb": None}, 7)
        with self.assertRaisesRegex(db_exception.DBError, "vcpus"):
            node_rows.updated(node_rows.inserted(_VALUES, 7), {"vcpus": None})

    def test_a_restored_row_is_live_whatever_its_values_say(self) -> None:
        row = node_rows.soft_deleted(node_rows.inserted(_VALUES, 7), _MOMENT, mapped=0)
        self.assertEqual((7, _MOMENT), (row["deleted"], row["deleted_at"]))
        back = node_rows.restored(row, {"deleted": False})
        self.assertEqual((0, None), (back["deleted"], back["deleted_at"]))
        self.assertIs(int, type(back["deleted"]))

    def test_columns_of_another_release_are_kept_and_missing_ones_are_null(self) -> None:
        state = node_rows.to_state(node_rows.inserted(_VALUES, 7))
        del state["mapped"]
        row = node_rows.from_state({**state, "a_later_column": 1})
        self.assertEqual((None, 1), (row["mapped"], row["a_later_column"]))
