# SPDX-License-Identifier: Apache-2.0
"""The Guru Meditation Report says where replicator and reporter stand."""

import json

import testtools
from oslo_reports import guru_meditation_report

from nova_nodb_scheduler.observe import guru_report
from tests.unit.synchronizer.replication import replicas


class Version:
    def vendor_string(self):
        return "vendor"

    def product_string(self):
        return "product"

    def version_string_with_package(self):
        return "1"


def broken():
    raise RuntimeError("no status")


class TestGuru(testtools.TestCase):
    def setUp(self):
        super().setUp()

        class Report(guru_meditation_report.TextGuruMeditation):
            persistent_sections = []

        self.report = Report

    def _printed(self):
        return self.report(Version()).run()

    def test_the_report_prints_the_replicators_status(self):
        world = replicas.World()
        replica = world.replica()
        replica.catch_up()
        guru_report.register({"Replicator": replica.replicator.status}, self.report)
        printed = self._printed()
        self.assertIn(guru_report.TITLE, printed)
        self.assertIn("state = following", printed)
        self.assertIn(f"epoch = {world.hub.head().epoch}", printed)

    def test_a_second_registration_replaces_the_first(self):
        guru_report.register({"Replicator": lambda: {"number": "first"}}, self.report)
        guru_report.register({"Replicator": lambda: {"number": "second"}}, self.report)
        printed = self._printed()
        self.assertEqual(1, printed.count(guru_report.TITLE))
        self.assertIn("number = second", printed)
        self.assertNotIn("number = first", printed)

    def test_a_source_that_raises_leaves_the_others_in_the_report(self):
        guru_report.register(
            {"Reporter": broken, "Replicator": lambda: {"state": "following"}}, self.report
        )
        printed = self._printed()
        self.assertIn("RuntimeError: no status", printed)
        self.assertIn("state = following", printed)

    def test_the_model_is_json_too(self):
        world = replicas.World()
        model = guru_report.model_of(
            {"Replicator": world.replica().replicator.status, "None": lambda: None}
        )
        model.set_current_view_type("json")
        self.assertEqual("starting", json.loads(str(model))["Replicator"]["state"])
