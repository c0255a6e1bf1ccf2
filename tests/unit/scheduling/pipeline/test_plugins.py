# SPDX-License-Identifier: Apache-2.0
"""A package's vectorised classes are found by entry point, or refused by name."""

from __future__ import annotations

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling import aggregate_values
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from nova_nodb_scheduler.scheduling.weighers import option_weigher
from tests.unit.scheduling import installed

FILTER = """
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

class GpuFilter(plugin_contract.Filter):
    def key(self, request, frame):
        return None

    def mask(self, request, frame, rows):
        return frame.alive[rows]

class Half(plugin_contract.Filter):
    def key(self, request, frame):
        return None

class NoFilter:
    pass
"""

NEW_PATH = "from nova_nodb_scheduler.scheduling.pipeline import plugin_contract"
OLD_PATH = "from nova_nodb_scheduler.scheduling import contract as plugin_contract"


class PluginsTest(testtools.TestCase):
    def install(self, target: str, *, name: str = "GpuFilter", text: str = FILTER) -> None:
        """Put a package there that brings a filter."""
        module = target.split(":")[0]
        points = {plugin_contract.FILTERS: f"{name} = {target}"}
        self.useFixture(installed.InstalledPackage(module, text, points))

    def refusal(self, name: str = "GpuFilter") -> str:
        return str(self.assertRaises(errors.ConfigurationError, plugin_contract.filter_class, name))

    def test_a_package_s_class_is_found_by_its_name(self) -> None:
        self.install("gpu_site:GpuFilter")
        found = plugin_contract.filter_class("GpuFilter")
        assert found is not None
        self.assertEqual("gpu_site", found.__module__)
        self.assertIn("GpuFilter", plugin_contract.available(plugin_contract.FILTERS))

    def test_a_package_written_for_the_contract_s_old_path_is_found(self) -> None:
        self.install("gpu_old:GpuFilter", text=FILTER.replace(NEW_PATH, OLD_PATH))
        self.assertIsNotNone(plugin_contract.filter_class("GpuFilter"))
        self.assertIs(option_weigher.OverriddenNumber, aggregate_values.OverriddenNumber)

    def test_a_name_that_nobody_brings_is_left_to_host_objects(self) -> None:
        self.assertIsNone(plugin_contract.filter_class("GpuFilter"))
        self.assertIsNone(plugin_contract.weigher_class("GpuWeigher"))

    def test_a_built_in_does_not_answer_for_an_operator_s_class_of_its_name(self) -> None:
        self.assertIn("RAMWeigher", plugin_contract.available(plugin_contract.WEIGHERS))
        self.assertIsNone(plugin_contract.weigher_class("RAMWeigher"))

    def test_a_class_that_is_no_filter_is_refused(self) -> None:
        self.install("gpu_none:NoFilter")
        text = self.refusal()
        self.assertIn("gpu_none:NoFilter is no subclass of", text)
        self.assertIn("contract.Filter", text)

    def test_a_class_that_lacks_a_method_is_refused_with_the_method(self) -> None:
        self.install("gpu_half:Half", name="Half")
        self.assertIn("does not implement mask", self.refusal("Half"))

    def test_a_class_of_another_name_is_refused(self) -> None:
        self.install("gpu_named:GpuFilter", name="BigGpuFilter")
        self.assertIn("is called GpuFilter", self.refusal("BigGpuFilter"))

    def test_a_module_that_cannot_be_imported_is_refused_with_the_cause(self) -> None:
        self.install("gpu_broken:GpuFilter", text="import no_such_library\n")
        text = self.refusal()
        self.assertIn("entry point nova_nodb_scheduler.filter = 'GpuFilter'", text)
        self.assertIn("No module named 'no_such_library'", text)

    def test_two_packages_with_one_name_are_refused_by_both_targets(self) -> None:
        self.install("gpu_one:GpuFilter")
        self.install("gpu_two:GpuFilter")
        text = self.refusal()
        self.assertIn("gpu_one:GpuFilter, gpu_two:GpuFilter", text)
