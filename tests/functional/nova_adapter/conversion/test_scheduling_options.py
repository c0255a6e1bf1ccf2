# SPDX-License-Identifier: Apache-2.0
"""The core's settings, filters and weighers are those that Nova's HostManager chose."""

from __future__ import annotations

import tempfile

import attrs
from nova import conf as nova_conf
from nova import exception
from nova.conf import scheduler as nova_scheduler_conf
from nova.conf import service as nova_service_conf
from nova.scheduler import filters as nova_filters
from nova.scheduler import host_manager as nova_host_manager
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.conversion import scheduling_options
from nova_nodb_scheduler.scheduling import decision_settings, weighers
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract
from tests.functional.nova_adapter import cloud
from tests.unit.scheduling import installed

CONF = nova_conf.CONF
OWN = "tests.functional.nova_adapter.own_plugins"
EVEN = """
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

class EvenHostsFilter(plugin_contract.Filter):
    def key(self, request, frame):
        return "even"

    def mask(self, request, frame, rows):
        return frame.num_instances[rows] % 2 == 0
"""


class SettingsTest(cloud.CloudCase):
    def test_the_defaults_are_this_release_s(self) -> None:
        manager = nova_host_manager.HostManager()
        found = scheduling_options.settings(CONF, manager)
        expected = decision_settings.SchedulingOptions(
            enabled_filters=tuple(CONF.filter_scheduler.enabled_filters),
            weighers=tuple(type(each).__name__ for each in manager.weighers),
            service_down_time=CONF.service_down_time,
        )
        self.assertEqual(expected, found)
        self.assertEqual(set(weighers.BUILT_IN), set(found.weighers))

    def test_every_setting_follows_its_option(self) -> None:
        before = scheduling_options.settings(CONF, nova_host_manager.HostManager())
        changed = {
            "host_subset_size": 7,
            "shuffle_best_same_weighed_hosts": True,
            "max_io_ops_per_host": 3,
            "max_instances_per_host": 4,
            "isolated_images": ["i"],
            "isolated_hosts": ["h"],
            "restrict_isolated_hosts_to_isolated_images": False,
            "aggregate_image_properties_isolation_namespace": "n",
            "aggregate_image_properties_isolation_separator": "-",
            "image_properties_default_architecture": "aarch64",
            "image_props_weight_setting": ["hw_machine_type=2", "nonsense", "os_type=x"],
            **{
                field.name: 0.25
                for field in attrs.fields(decision_settings.SchedulingOptions)
                if field.name.endswith("_weight_multiplier")
                and field.name != "metrics_weight_multiplier"
            },
        }
        for name, value in changed.items():
            self.override(name, value, "filter_scheduler")
        self.override("max_attempts", 9, "scheduler")
        self.override("host_objects", "lazy", "nodb_scheduler")
        self.override("choice", "two", "nodb_scheduler")
        self.override("service_down_time", 77, None)
        for name, value in {
            "weight_multiplier": 0.5,
            "weight_setting": ["cpu.percent=-1", "cpu.percent=2"],
            "required": False,
            "weight_of_unavailable": -3.0,
        }.items():
            self.override(name, value, "metrics")
        found = scheduling_options.settings(CONF, nova_host_manager.HostManager())
        self.assertEqual((("hw_machine_type", 2.0),), found.image_props_weight_setting)
        self.assertEqual(
            (("cpu.percent", -1.0), ("cpu.percent", 2.0)), found.metrics_weight_setting
        )
        self.assertEqual(("i",), found.isolated_images)
        self.assertEqual(9, found.max_attempts)
        unchanged = {
            field.name
            for field in attrs.fields(decision_settings.SchedulingOptions)
            if getattr(before, field.name) == getattr(found, field.name)
        }
        self.assertEqual({"enabled_filters", "weighers"}, unchanged)

    def test_a_multiplier_that_is_no_number_is_refused_at_start(self) -> None:
        conf = cfg.ConfigOpts()
        nova_scheduler_conf.register_opts(conf)
        nova_service_conf.register_opts(conf)
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as stream:
            stream.write("[filter_scheduler]\nram_weight_multiplier = much\n")
            stream.flush()
            conf(["--config-file", stream.name])
            with self.assertRaises(ValueError) as caught:
                scheduling_options.settings(conf, nova_host_manager.HostManager())
        self.assertIn("ram_weight_multiplier", str(caught.exception))


class ChoiceTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        self.override(
            "available_filters",
            ["nova.scheduler.filters.all_filters", f"{OWN}.EvenHostsFilter"],
            "filter_scheduler",
        )

    def filters(self, *enabled: str) -> list[object]:
        self.override("enabled_filters", list(enabled), "filter_scheduler")
        manager = nova_host_manager.HostManager()
        chosen = scheduling_options.settings(CONF, manager)
        self.assertEqual(enabled, chosen.enabled_filters)
        return list(scheduling_options.enabled_filters(chosen, manager))

    def weighers(self, *classes: str) -> list[object]:
        self.override("weight_classes", list(classes), "filter_scheduler")
        manager = nova_host_manager.HostManager()
        chosen = scheduling_options.settings(CONF, manager)
        return list(scheduling_options.enabled_weighers(chosen, manager))

    def test_novas_filters_are_vectorised_and_an_operator_s_own_is_named_in_its_place(self) -> None:
        first, second, third = self.filters(
            "ComputeFilter", "EvenHostsFilter", "ImagePropertiesFilter"
        )
        self.assertIsInstance(first, plugin_contract.Filter)
        self.assertEqual("EvenHostsFilter", second)
        self.assertIsInstance(third, plugin_contract.Filter)

    def test_an_operator_s_own_is_vectorised_by_an_installed_package(self) -> None:
        package = installed.InstalledPackage(
            "even_hosts",
            EVEN,
            {plugin_contract.FILTERS: "EvenHostsFilter = even_hosts:EvenHostsFilter"},
        )
        package.setUp()
        self.addCleanup(package.cleanUp)
        first, second = self.filters("EvenHostsFilter", "ComputeFilter")
        assert isinstance(first, plugin_contract.Filter)
        self.assertEqual(("EvenHostsFilter", "even_hosts"), (first.name, type(first).__module__))
        self.assertIsInstance(second, plugin_contract.Filter)

    def test_every_filter_of_novas_is_vectorised(self) -> None:
        names = sorted(each.__name__ for each in nova_filters.all_filters())
        for each in self.filters(*names):
            self.assertIsInstance(each, plugin_contract.Filter, each)

    def test_a_class_derived_from_novas_runs_as_the_operator_wrote_it(self) -> None:
        self.override("available_filters", [f"{OWN}.ComputeFilter"], "filter_scheduler")
        self.assertEqual(["ComputeFilter"], self.filters("ComputeFilter"))
        self.assertEqual(["RAMWeigher"], self.weighers(f"{OWN}.RAMWeigher"))

    def test_all_of_novas_weighers_are_vectorised_in_the_order_of_its_handler(self) -> None:
        found = self.weighers("nova.scheduler.weights.all_weighers", f"{OWN}.OddWeigher")
        manager = nova_host_manager.HostManager()
        names = [each if isinstance(each, str) else type(each).__name__ for each in found]
        self.assertEqual([type(each).__name__ for each in manager.weighers], names)
        self.assertEqual(["OddWeigher"], [each for each in found if isinstance(each, str)])

    def test_novas_own_class_by_another_name_is_novas_own(self) -> None:
        (found,) = self.weighers(f"{OWN}.Disk")
        self.assertIsInstance(found, weighers.BUILT_IN["DiskWeigher"])

    def test_two_weighers_of_one_name_are_refused(self) -> None:
        with self.assertRaises(errors.ConfigurationError) as caught:
            self.weighers("nova.scheduler.weights.ram.RAMWeigher", f"{OWN}.RAMWeigher")
        self.assertIn("RAMWeigher", str(caught.exception))
        self.assertIn(OWN, str(caught.exception))

    def test_one_weigher_listed_twice_weighs_twice_as_in_nova(self) -> None:
        name = "nova.scheduler.weights.ram.RAMWeigher"
        self.assertEqual(2, len(self.weighers(name, name)))

    def test_nova_refuses_a_filter_that_it_does_not_know(self) -> None:
        with self.assertRaises(exception.SchedulerHostFilterNotFound):
            self.filters("NoSuchFilter")

    def test_nova_refuses_a_weigher_that_it_does_not_know(self) -> None:
        with self.assertRaises(ImportError):
            self.weighers("nova.scheduler.weights.ram.NoSuchWeigher")
