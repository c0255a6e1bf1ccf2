# SPDX-License-Identifier: Apache-2.0
"""What drivers have in common is configured by the same names."""

import testscenarios
import testtools

from nova_nodb_scheduler.synchronizer import loader

#: What options for credentials, TLS files and clouds are called.
NAMES = frozenset(
    ("username", "password", "tls_enabled", "tls_cafile", "tls_certfile", "tls_keyfile")
)
CLOUD = ("key_prefix", "cloud_name")


class DriverOptionsTest(testscenarios.WithScenarios, testtools.TestCase):
    scenarios = [(name, {"driver": name}) for name in ("redis", "etcd", "memcached")]

    def setUp(self):
        super().setUp()
        [(self.group, options)] = loader.load_class(self.driver).list_opts()
        self.options = {option.name: option for option in options}

    def test_the_group_is_named_after_the_driver(self):
        self.assertEqual(f"nodb_{self.driver}", self.group)

    def test_credentials_and_files_have_one_name_each(self):
        about = {
            name
            for name in self.options
            if name.startswith(("tls", "ssl", "user", "pass")) or name.endswith("file")
        }
        self.assertLessEqual(about, NAMES)

    def test_clouds_are_told_apart_by_prefix_and_name(self):
        for name in CLOUD:
            self.assertIn(name, self.options)
        self.assertEqual(("nodb", ""), tuple(self.options[name].default for name in CLOUD))
