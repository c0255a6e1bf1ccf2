# SPDX-License-Identifier: Apache-2.0
"""Which of Nova's filters, and of the operator's, may be asked about some hosts only."""

from __future__ import annotations

import types

import testtools
from nova.scheduler import filters
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter

from nova_nodb_scheduler.nova_adapter import host_objects


class OwnFilter(filters.BaseHostFilter):  # type: ignore[misc]
    def host_passes(self, host_state, filter_properties):
        return True


class LimitFilter(filters.BaseHostFilter):  # type: ignore[misc]
    def filter_all(self, filter_obj_list, spec_obj):
        return list(filter_obj_list)[:2]


class HostObjectsTest(testtools.TestCase):
    def test_novas_own_look_at_each_host_an_operators_only_if_that_is_chosen(self):
        enabled = [
            numa_topology_filter.NUMATopologyFilter(),
            pci_passthrough_filter.PciPassthroughFilter(),
            OwnFilter(),
            LimitFilter(),
        ]
        manager = types.SimpleNamespace(enabled_filters=enabled, weighers=[])
        own = host_objects.HostObjects(manager, None, dict, list)
        for is_chosen, apart in (
            (False, [True, True, False, False]),
            (True, [True, True, True, False]),
        ):
            found = [own.is_apart(type(each).__name__, is_chosen=is_chosen) for each in enabled]
            self.assertEqual(apart, found)
