# SPDX-License-Identifier: Apache-2.0
"""Drivers are found by name; a name that cannot work is refused with a remedy."""

import importlib.metadata
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

from oslo_config import cfg
from stevedore import extension

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import loader
from nova_nodb_scheduler.synchronizer.drivers import memory

_FOREIGN = """
import {module}

class Driver:
    pass
"""


class TestLoader(unittest.TestCase):
    def test_our_own_drivers_are_available_by_name(self):
        self.assertLessEqual({"memcached", "memory", "sqlalchemy"}, set(loader.available()))
        self.assertEqual(sorted(loader.available()), list(loader.available()))

    def test_a_driver_is_constructed_from_its_own_option_group(self):
        conf = cfg.ConfigOpts()
        conf([])
        self.assertIsInstance(loader.load("memory", conf), memory.MemorySynchronizer)
        conf.set_override("hub_name", "configured", group="nodb_memory")
        self.addCleanup(memory.MemoryHub.forget, "configured")
        synchronizer = loader.load("memory", conf)
        self.assertIs(memory.MemoryHub.named("configured"), synchronizer.hub)

    def test_the_metadata_of_what_is_installed_is_read_once_however_often_drivers_are_asked_for(
        self,
    ):
        loader.load_class("memory")
        with mock.patch.object(
            importlib.metadata,
            "entry_points",
            autospec=True,
            side_effect=AssertionError("read again"),
        ):
            loader.load("memory", cfg.ConfigOpts())
            self.assertIn("memory", loader.available())

    def test_an_unknown_name_is_refused_with_option_and_choices(self):
        with self.assertRaises(errors.ConfigurationError) as caught:
            loader.load("memcache", cfg.ConfigOpts())
        text = str(caught.exception)
        self.assertIn("[nodb_scheduler] synchronizer = 'memcache'", text)
        for name in loader.available():
            self.assertIn(name, text)


class TestForeignDrivers(unittest.TestCase):
    """Drivers that another package installs, as stevedore finds them."""

    def setUp(self):
        super().setUp()
        self.site = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        sys.path.insert(0, str(self.site))
        self.addCleanup(sys.path.remove, str(self.site))

    def install(self, name, imports):
        module = f"nodb_test_driver_{name}"
        (self.site / f"{module}.py").write_text(_FOREIGN.format(module=imports))
        info = self.site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{loader.NAMESPACE}]\n{name} = {module}:Driver\n")
        self.addCleanup(sys.modules.pop, module, None)
        # stevedore keeps what it found per process, and per namespace.
        extension.ExtensionManager.ENTRY_POINT_CACHE.pop(loader.NAMESPACE, None)
        self.addCleanup(extension.ExtensionManager.ENTRY_POINT_CACHE.pop, loader.NAMESPACE, None)

    def test_a_missing_client_library_names_the_extra_to_install(self):
        self.install("needy", "a_module_that_is_not_there")
        with self.assertRaises(errors.ConfigurationError) as caught:
            loader.load_class("needy")
        text = str(caught.exception)
        self.assertIn("'a_module_that_is_not_there'", text)
        self.assertIn("pip install nova-nodb-scheduler[needy]", text)
        self.assertIsInstance(caught.exception.__cause__, ImportError)

    def test_what_is_no_driver_is_refused(self):
        self.install("stranger", "os")
        (self.site / "nodb_test_driver_stranger.py").write_text(
            "class Driver:\n"
            "    @staticmethod\n"
            "    def register_opts(conf): pass\n"
            "    @classmethod\n"
            "    def from_config(cls, conf): return cls()\n"
        )
        with self.assertRaises(errors.ConfigurationError) as caught:
            loader.load("stranger", cfg.ConfigOpts())
        self.assertIn("does not implement the driver contract", str(caught.exception))
