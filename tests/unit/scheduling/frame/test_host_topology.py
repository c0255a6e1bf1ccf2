# SPDX-License-Identifier: Apache-2.0
"""Columns of NUMA cells and PCI pools: when they are read, and whom they spare a question."""

import json
import random

import attrs
import testtools

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import decision_settings
from nova_nodb_scheduler.scheduling.filters import topology_filters
from nova_nodb_scheduler.scheduling.frame import host_frame, host_topology
from nova_nodb_scheduler.scheduling.pipeline import engine
from tests.unit.scheduling import toys
from tests.unit.scheduling.pipeline import test_lazy_filters


def topology(*free, cpus=8):
    """Return the text of a topology whose cells have so many CPUs left to pin."""
    cells = [
        {
            "id": number,
            "cpuset": [],
            "pcpuset": list(range(cpus)),
            "memory": 4096,
            "memory_usage": 0,
            "cpu_usage": 0,
            "pinned_cpus": list(range(cpus - left)),
            "siblings": [[cpu] for cpu in range(cpus)],
            "mempages": [{"nova_object.data": {"size_kb": 4, "total": 2**20, "used": 0}}],
            "socket": 0,
        }
        for number, left in enumerate(free)
    ]
    data = {"cells": [{"nova_object.data": cell} for cell in cells]}
    return json.dumps({"nova_object.name": "NUMATopology", "nova_object.data": data})


def pools(count, **tags):
    return json.dumps([{"vendor_id": "8086", "product_id": "1520", "count": count, **tags}])


def wanting(pinned=0, devices=0, **known):
    cell = requests.NumaCell(0, pinned, 64, policy="dedicated")
    spec = frozenset({"vendor_id": "8086", "product_id": "1520"}.items())
    return toys.request(
        image=requests.Image(),
        needs_numa=bool(pinned),
        needs_pci=bool(devices),
        numa_cells=(cell,) if pinned else (),
        devices=(requests.DeviceRequest(devices, (spec,)),) if devices else (),
        **known,
    )


class Cloud:
    """An engine over hosts with texts, and how often these were read."""

    def __init__(self, count, text):
        self.texts = {f"uuid-{number}": (text(number), pools(1)) for number in range(count)}
        self.read = []
        settings = decision_settings.SchedulingOptions()
        own = (topology_filters.NUMATopologyFilter, topology_filters.PciPassthroughFilter)
        self.engine = engine.Engine(
            settings,
            [each(settings) for each in (*toys.FILTERS, *own)],
            [each(settings) for each in toys.WEIGHERS],
            frame=host_frame.HostFrame(attribute=self.attribute),
            rng=random.Random(1),
        )
        self.engine.tick(1000.0)
        for number in range(count):
            self.put(number)

    def attribute(self, uuid, path):
        assert path == host_topology.TEXTS
        self.read.append(uuid)
        return self.texts[uuid]

    def put(self, number, numa=None):
        """Have a host report; with another topology if one is given."""
        uuid = f"uuid-{number}"
        if numa is not None:
            self.texts[uuid] = (numa, self.texts[uuid][1])
        self.engine.put(toys.facts(number, free_ram_mb=1024 + 8 * number))

    def best(self, request, count=1, refused=()):
        """Return the best hosts by number, and how many were asked about."""
        objects = test_lazy_filters.Objects(refused)
        found = self.engine.plan(request, objects).best(count)
        return [int(each.uuid[5:]) for each in found], len(objects.asked)


class ReadingTest(testtools.TestCase):
    def test_a_request_for_neither_reads_nothing(self):
        cloud = Cloud(10, lambda number: topology(8))
        cloud.best(attrs.evolve(wanting(), image=requests.Image()))
        cloud.put(3)
        self.assertEqual([], cloud.read)

    def test_a_report_is_read_when_somebody_asks_and_once(self):
        cloud = Cloud(10, lambda number: topology(8))
        cloud.best(wanting(pinned=2))
        self.assertEqual(10, len(cloud.read))
        cloud.best(wanting(pinned=4))
        self.assertEqual(10, len(cloud.read))
        for _ in range(3):
            cloud.put(4)
        self.assertEqual(10, len(cloud.read))
        cloud.best(wanting(pinned=2, devices=1))
        self.assertEqual("uuid-4", cloud.read[10])
        self.assertEqual(11, len(cloud.read))

    def test_texts_that_are_as_before_change_nothing(self):
        cloud = Cloud(10, lambda number: topology(8))
        cloud.best(wanting(pinned=2))
        before = cloud.engine.frame.log.sequence
        cloud.put(4)
        cloud.best(wanting(pinned=2))
        self.assertEqual(before, cloud.engine.frame.log.sequence)

    def test_who_reports_nothing_but_room_in_a_cell_is_found(self):
        """The same request asked before: what was made of it for all hosts is kept."""
        cloud = Cloud(10, lambda number: topology(0))
        self.assertEqual(([], 0), cloud.best(wanting(pinned=2)))
        cloud.put(4, topology(2))
        self.assertEqual(([4], 1), cloud.best(wanting(pinned=2)))
        cloud.put(4, topology(0))
        self.assertEqual(([], 0), cloud.best(wanting(pinned=2)))

    def test_another_node_in_the_row_of_one_that_went_is_read(self):
        cloud = Cloud(4, lambda number: topology(0))
        self.assertEqual(([], 0), cloud.best(wanting(pinned=2)))
        cloud.engine.frame.remove("uuid-2")
        cloud.texts["uuid-9"] = (topology(8), pools(1))
        cloud.put(9)
        self.assertEqual(([9], 1), cloud.best(wanting(pinned=2)))

    def test_hosts_beyond_those_read_at_once_are_refused_nothing(self):
        most = host_topology._ROWS_AT_ONCE
        cloud = Cloud(most + 300, lambda number: topology(0))
        # All that were not read are asked about, for these are full, too.
        _found, asked = cloud.best(wanting(pinned=2), refused=range(most + 300))
        self.assertEqual(300, asked)
        self.assertEqual(([], 0), cloud.best(wanting(pinned=2)))
        for number in range(most + 300):
            cloud.put(number, topology(8))
        found, _asked = cloud.best(wanting(pinned=2))
        self.assertEqual([most + 299], found)

    def test_columns_grow_with_hosts_cells_and_pools(self):
        cloud = Cloud(3, lambda number: topology(0))
        self.assertEqual(([], 0), cloud.best(wanting(pinned=2, devices=1)))
        for number in range(3, 700):
            cloud.texts[f"uuid-{number}"] = (topology(*([0] * (number % 5)), 2), pools(1))
            cloud.put(number)
        self.assertEqual([699], cloud.best(wanting(pinned=2, devices=1))[0])
        self.assertEqual(([], 0), cloud.best(wanting(pinned=3)))
        self.assertEqual(([], 0), cloud.best(wanting(devices=2)))


class SparingTest(testtools.TestCase):
    """How many hosts Nova's own code is asked about: a guard by counts."""

    def test_where_nearly_all_are_full_few_are_asked(self):
        cloud = Cloud(1000, lambda number: topology(4 if number % 50 == 7 else 1, 1))
        found, asked = cloud.best(wanting(pinned=4))
        self.assertEqual([957], found)
        # Four ahead, and one at each end of each weigher.
        self.assertLessEqual(asked, 8)

    def test_where_the_two_ends_are_full_few_are_asked(self):
        cloud = Cloud(1000, lambda number: topology(8 if 250 <= number < 750 else 0))
        found, asked = cloud.best(wanting(pinned=4))
        self.assertEqual([749], found)
        self.assertLessEqual(asked, 8)

    def test_where_columns_cannot_tell_the_ends_are_walked_inward(self):
        cloud = Cloud(1000, lambda number: topology(8))
        ends = {*range(60), *range(940, 1000)}
        found, asked = cloud.best(wanting(pinned=4), refused=ends)
        self.assertEqual([939], found)
        self.assertLess(asked, 4 * 60 + 32)

    def test_without_the_devices_nobody_is_asked(self):
        cloud = Cloud(300, lambda number: topology(8))
        self.assertEqual(([], 0), cloud.best(wanting(devices=2)))
        self.assertEqual([299], cloud.best(wanting(devices=1))[0])

    def test_devices_far_from_the_only_free_cell_are_none(self):
        cloud = Cloud(300, lambda number: topology(0, 8))
        near = wanting(pinned=2, devices=1)
        required = attrs.evolve(near.devices[0], numa_policy="required")
        for numa_node, expected in ((0, []), (1, [299])):
            for number in range(300):
                cloud.texts[f"uuid-{number}"] = (
                    topology(0, 8),
                    pools(1, numa_node=numa_node),
                )
                cloud.put(number)
            found, _asked = cloud.best(attrs.evolve(near, devices=(required,)))
            self.assertEqual(expected, found)
