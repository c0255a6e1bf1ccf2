# SPDX-License-Identifier: Apache-2.0
"""Hosts taken in together are what they are taken one by one; so are facts that are kept."""

import os

import fixtures
import numpy as np
import testtools
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces
from nova_nodb_scheduler.scheduling.facts import fact_source, frame_keeper
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces, node_facts, provider_facts
from tests.unit.scheduling import hosts

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", "100"))

UUIDS = [f"n{number}" for number in range(6)]
NAMES = st.sampled_from(["h1", "h2", "H2", "h3"])
CELLS = st.sampled_from([hosts.CELL, hosts.OTHER_CELL, ""])
VERSIONS = st.sampled_from(["1.22", "1.22", "2.0"])
BINARIES = st.sampled_from(["nova-compute", "nova-api"])
NUMBERS = st.integers(-(2**63), 2**63 - 1)

NODES = st.fixed_dictionaries(
    {},
    optional={
        "host": NAMES | st.none(),
        "free_ram_mb": NUMBERS,
        "free_disk_gb": st.sampled_from([None, -3, 990, 2**60]),
        "vcpus": st.sampled_from([16, "7", 2.0]),
        "cpu_allocation_ratio": st.sampled_from([None, 0.0, 16.0]),
        "disk_allocation_ratio": st.sampled_from([None, 1.0]),
        "supported_instances": st.sampled_from(
            [None, "", "[]", '[["x86_64", "kvm", "hvm"]]', '[["i686", "qemu", "hvm"]]']
        ),
        "stats": st.sampled_from([None, "{}", '{"num_instances": "2"}', "null", [], "[]"]),
        "pci_stats": st.sampled_from(
            [None, "[]", "no", [], '[{"vendor_id": "1", "product_id": "2", "count": 3}]', "[{}]"]
        ),
        "uuid": st.sampled_from(["another"]),
    },
)

CHILDREN = st.sampled_from(
    [
        {},
        {"child": {"parent": None, "inventories": {"VGPU": hosts.inventory(4)}}},
        {"orphan": {"parent": "nobody", "inventories": {}}},
    ]
)

#: What no column of Nova's table holds, though a record may.
ODD_NODES = st.fixed_dictionaries(
    {},
    optional={
        "running_vms": st.sampled_from([None, 3, "4", 2.0, 2.5, True]),
        "memory_mb_used": st.sampled_from([7, "8", 9.0, 2.5, None]),
        "disk_available_least": st.none() | NUMBERS,
        "ram_allocation_ratio": st.sampled_from([None, 0, 2, 1.5, "3.5"]),
        "free_disk_gb": st.none() | NUMBERS,
        "stats": st.sampled_from(["{}", "no"]),
        "local_gb_used": NUMBERS,
    },
)


def _node(uuid, row, cell):
    state = hosts.node(uuid, cell=cell)
    state["row"].update(row)
    return state


def _provider(uuid, children, used, total):
    own = {name: {**child, "parent": child["parent"] or uuid} for name, child in children.items()}
    return hosts.provider(
        5,
        inventories={} if total is None else {"VCPU": hosts.inventory(total)},
        allocations={"c": {"VCPU": used}},
        children={f"{name}-{uuid}": child for name, child in own.items()},
    )


class OneByOne(frame_keeper.FrameKeeper):
    """Takes no hosts in together."""

    def _take_hosts(self, source, uuids=None):
        for uuid in (
            list(source.snapshot.namespace("compute_nodes").keys()) if uuids is None else uuids
        ):
            super()._take_hosts(source, [uuid])


def keeper_of(kind, store):
    present = fact_source.Present()
    frame = hosts.FedFrame(present.locate, present.attribute)
    frame.attribute("supported_instances")
    frame.attribute("stats", "num_instances")
    feed = hosts.Feed(frame)
    return kind(store, feed, present, ratios=node_facts.DefaultRatios(4.0, 1.5, 1.0)), feed


def described(frame):
    """Return all that a frame tells, without the numbers of rows."""

    def uuid(row):
        return None if row is None else frame.place(row).uuid

    rows = np.flatnonzero(frame.alive).tolist()
    trees = [*UUIDS, *(f"child-{each}" for each in UUIDS)]
    return (
        {
            uuid(row): (
                frame.facts(row),
                {
                    name: found.row(row) if (found := frame.resource(name)) else None
                    for name in ("VCPU", "MEMORY_MB", "VGPU")
                },
                frame.tenure.item(row),
                bool(frame.up[row]),
                frame.attribute("supported_instances").value(row),
                frame.attribute("stats", "num_instances").value(row),
            )
            for row in rows
        },
        {name: number for name, number in frame.nested.items() if number},
        {uuid(row) for row in frame.broken},
        {tree: uuid(frame.row_of_tree(tree)) for tree in trees},
        {
            (cell, name): sorted(map(uuid, frame.rows_of_host(cell, name)))
            for cell in (hosts.CELL, hosts.OTHER_CELL, "")
            for name in ("h1", "h2", "H2", "h3", "")
        },
        {name: sorted(map(uuid, frame.rows_of_name(name))) for name in ("h1", "h2", "h3", "")},
        dict(frame.aggregates),
        frame.sharing,
    )


class TogetherTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.FakeLogger())  # of hosts that are left out
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_nodb_scheduler.scheduling.facts.fact_source._HOSTS_AT_A_TIME", 4
            )
        )

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_hosts_taken_together_equal_hosts_taken_one_by_one(self, data):
        cloud = hosts.Hosts()
        for uuid in UUIDS:
            node = _node(uuid, data.draw(NODES), data.draw(CELLS))
            cloud.put(known_namespaces.COMPUTE_NODES, uuid, node)
            if data.draw(st.booleans()):
                children = data.draw(CHILDREN)
                used, total = data.draw(st.integers(0, 2**64)), data.draw(st.none() | NUMBERS)
                state = _provider(uuid, children, used % 2**63, total)
                cloud.put(known_namespaces.PROVIDERS, uuid, state)
        for name in data.draw(st.sets(NAMES)):
            cell = data.draw(CELLS)
            service = hosts.service(name, name, cell, object_version=data.draw(VERSIONS))
            if not cell and data.draw(st.booleans()):
                del service["cell"]
            cloud.put(known_namespaces.SERVICES, name, service)
            more = hosts.service(f"{name}-2", name, cell, binary=data.draw(BINARIES))
            cloud.put(known_namespaces.SERVICES, f"{name}-2", more)
            cloud.put(
                known_namespaces.SERVICE_LIVENESS,
                name,
                hosts.liveness(data.draw(st.sampled_from([None, 20, 60]))),
            )
        names = data.draw(st.sets(NAMES))
        cloud.put(known_namespaces.AGGREGATES, "a", hosts.aggregate("a", 1, names, zone="z"))
        made = {}
        for kind in (frame_keeper.FrameKeeper, OneByOne):
            keeper, feed = keeper_of(kind, cloud.store)
            keeper.catch_up(100.0)
            made[kind] = described(feed.frame), keeper.unreadable

        self.assertEqual(made[OneByOne], made[frame_keeper.FrameKeeper])

    def test_hosts_whose_records_are_sound_are_all_taken_together(self):
        cloud = hosts.Hosts()
        for number in range(700):
            cloud.host(f"n{number}", f"h{number}")
        keeper, feed = keeper_of(frame_keeper.FrameKeeper, cloud.store)
        decoded = cloud.decoded
        keeper.catch_up(100.0)

        self.assertEqual((700, 700 / 4), (len(feed.frame), feed.pages))
        # For stats; what is asked of every host stands with its facts.
        self.assertEqual(700, cloud.decoded - decoded)

    def test_hosts_that_come_later_go_to_rows_that_others_left(self):
        cloud = hosts.Hosts()
        for number in range(300):
            cloud.host(f"n{number}", f"h{number}")
        keeper, feed = keeper_of(frame_keeper.FrameKeeper, cloud.store)
        keeper.catch_up(100.0)
        before = feed.frame.log.sequence
        cloud.store.begin_epoch()
        for number in range(200, 600):
            cloud.host(f"n{number}", f"h{number}")
        keeper.catch_up(100.0)
        other, other_feed = keeper_of(OneByOne, cloud.store)
        other.catch_up(100.0)

        self.assertEqual(400, len(feed.frame))
        self.assertGreaterEqual(feed.frame.log.sequence - before, 500)
        for frame in (feed.frame, other_feed.frame):
            frame.tenure[:] = 1
        self.assertEqual(described(other_feed.frame), described(feed.frame))


class KeptTest(testtools.TestCase):
    @settings(deadline=None)
    @given(rows=st.lists(NODES | ODD_NODES, max_size=8))
    def test_columns_of_the_store_hold_what_the_rows_hold(self, rows):
        cloud = hosts.Hosts()
        fresh = {}
        for number, row in enumerate(rows):
            uuid = f"n{number}"
            state = _node(uuid, row, hosts.CELL)
            fresh[uuid] = state["row"]
            try:
                cloud.put(known_namespaces.COMPUTE_NODES, uuid, state)
            except errors.InvalidRecord:
                # A column of whole numbers takes no other.
                self.assertIn(2.5, row.values())
        nodes = cloud.store.snapshot().namespace("compute_nodes")
        held = {uuid: fresh[uuid] for uuid in nodes.row_keys()}
        for column in known_namespaces.COMPUTE_NODES.columns:
            if column.kind not in (namespaces.Kind.INT, namespaces.Kind.FLOAT):
                continue
            number = int if column.kind is namespaces.Kind.INT else float
            wanted = [number(row.get(column.name) or 0) for row in held.values()]
            self.assertEqual(wanted, nodes.column(column.name).tolist())

    def test_a_disk_too_large_to_be_told_in_mib_leaves_its_host_out_and_no_other(self):
        cloud = hosts.Hosts()
        cloud.host("n1", "h1")
        large = {"free_disk_gb": 2**60, "disk_available_least": None}
        cloud.put(known_namespaces.COMPUTE_NODES, "n2", hosts.node("n2", "h2", **large))
        keeper, feed = cloud.keeper()
        keeper.catch_up(100.0)

        self.assertEqual(["n2"], list(keeper.unreadable))
        self.assertEqual([0], feed.frame.alive.nonzero()[0].tolist())

    @settings(deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from(["VCPU", "DISK_GB", "CUSTOM_X"]),
            st.integers(-(2**63), 2**63 - 1) | st.just(2**63) | st.just(0.5),
        )
    )
    def test_amounts_are_a_mapping_equal_to_what_they_were_made_of(self, made):
        kept = provider_facts.packed_amounts(made)

        self.assertEqual(made, dict(kept))
        self.assertTrue(made == kept and kept == made)
        self.assertEqual(repr(made), repr(kept))
        self.assertIsNone(kept.get("PCPU"))
        self.assertRaises(KeyError, kept.__getitem__, "PCPU")
