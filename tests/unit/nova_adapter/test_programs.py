# SPDX-License-Identifier: Apache-2.0
"""Which programs the plugin goes into."""

import unittest
from unittest import mock

from oslo_config import cfg
from stevedore import extension

from nova_nodb_scheduler.nova_adapter import activation
from nova_nodb_scheduler.store import declarations

API = ("nova.api.openstack.wsgi_app",)


class ProgramsTest(unittest.TestCase):
    def test_services_are_known_by_their_names_wherever_they_lie(self) -> None:
        for name, role in (("nova-scheduler", "scheduler"), ("nova-conductor", "conductor")):
            for path in (name, f"/usr/bin/{name}", f"/opt/venv/bin/{name}"):
                found = activation.program_of(path, ())
                assert found is not None
                self.assertEqual((role, True), (found.role, found.is_strict))

    def test_every_form_of_the_api_is_the_api(self) -> None:
        for name in ("nova-api", "nova-api-metadata", "nova-api-wsgi", "uwsgi", "mod_wsgi"):
            self.assertEqual(
                activation.Program("api", is_strict=True), activation.program_of(name, ())
            )
        for name in ("uwsgi_python3", "granian", "", "-c", "apache2"):
            self.assertEqual(
                activation.Program("api", is_strict=True), activation.program_of(name, API)
            )

    def test_strangers_are_left_alone(self) -> None:
        for name in ("nova-novncproxy", "nova-compute", "nova-policy", "nova-nodb-manage", "x"):
            self.assertIsNone(activation.program_of(name, ()))

    def test_a_program_of_nova_is_what_its_name_says_whatever_it_imports(self) -> None:
        for name in ("nova-compute", "nova-novncproxy", "nova-nodb-status"):
            self.assertIsNone(activation.program_of(name, API))


class FormerEntryPointsTest(unittest.TestCase):
    """The code is this release's, the installed entry points are those of one before it."""

    def test_a_service_refuses_to_start_and_names_what_they_do_not_declare(self) -> None:
        found = extension.ExtensionManager(declarations.GROUP).list_entry_points()
        former = [each for each in found if each.name not in ("claim_floors", "pending")]
        self.assertEqual(len(found) - 2, len(former))
        cache = {declarations.GROUP: former}
        for name in ("nova-scheduler", "nova-conductor", "nova-api"):
            conf = cfg.ConfigOpts()
            conf([], project="nova", default_config_files=[], default_config_dirs=[])
            with (
                mock.patch.object(extension.ExtensionManager, "ENTRY_POINT_CACHE", cache),
                mock.patch("sys.argv", [name]),
                self.assertRaisesRegex(
                    SystemExit, "refuses to start: .*not declare claim_floors, pending, .* anew"
                ),
            ):
                activation.ActivationDriver(conf, None, None)
