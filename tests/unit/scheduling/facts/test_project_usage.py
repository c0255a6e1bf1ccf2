# SPDX-License-Identifier: Apache-2.0
"""What a project has is the sum over its servers that hold room."""

import collections

import testtools
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.facts import project_usage
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.store import host_state_store
from nova_nodb_scheduler.wire import codec

INSTANCES = known_namespaces.INSTANCES

servers = st.lists(
    st.fixed_dictionaries(
        {
            "project_id": st.sampled_from(["a", "b", "c"]),
            "host": st.sampled_from(["h1", "h2", ""]),
            "vm_state": st.sampled_from(["active", "building", "shelved_offloaded", "stopped"]),
            "vcpus": st.integers(0, 8),
            "memory_mb": st.integers(0, 2**40),
            "root_gb": st.integers(0, 100),
            "ephemeral_gb": st.integers(0, 3),
        }
    ),
    max_size=30,
)


def view_of(rows):
    store = host_state_store.HostStateStore([INSTANCES], codec.decode_state)
    for number, row in enumerate(rows, start=1):
        state = {"cell": "c", "row": row}
        payload = codec.encode(state, INSTANCES.schema, record="")
        key = records.RecordKey(INSTANCES.name, f"server-{number}@c")
        store.apply(records.Change(records.Record(key, number, number, payload), state))
    return store.snapshot().namespace(INSTANCES.name)


class UsageTest(testtools.TestCase):
    def test_without_servers_nobody_has_anything(self):
        self.assertEqual({}, project_usage.of_instances(view_of([])))

    @settings(deadline=None)
    @given(servers)
    def test_it_is_what_a_loop_adds_up(self, rows):
        expected = collections.defaultdict(collections.Counter)
        for row in rows:
            if row["host"] and row["vm_state"] != "shelved_offloaded":
                expected[row["project_id"]].update(
                    VCPU=row["vcpus"],
                    MEMORY_MB=row["memory_mb"],
                    DISK_GB=row["root_gb"] + row["ephemeral_gb"],
                )
        plain = {name: {k: v for k, v in sums.items() if v} for name, sums in expected.items()}
        self.assertEqual(plain, project_usage.of_instances(view_of(rows)))
