# SPDX-License-Identifier: Apache-2.0
"""Waiting is there where it is configured, and nothing of it anywhere else."""

from __future__ import annotations

from unittest import mock

import nova.conductor.manager

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter import conductor_manager
from nova_nodb_scheduler.nova_adapter.waiting import request_payload, waiting_task_manager
from tests.functional.nova_adapter import cloud


class ConfiguredWaitingTest(cloud.CloudCase):
    def setUp(self) -> None:
        super().setUp()
        # A conductor looks for Placement as it is made; there is none here.
        client = mock.patch("nova.scheduler.client.report.report_client_singleton", autospec=True)
        client.start()
        self.addCleanup(client.stop)

    def let_wait(self, *keys: str) -> None:
        self.override("scheduler_driver", "nodb_queue", None)
        self.override("key", list(keys), "nodb_queue")

    def test_without_it_a_conductor_and_an_api_are_novas(self):
        manager = conductor_manager.ConductorManager()
        self.assertIs(nova.conductor.manager.ComputeTaskManager, type(manager.compute_task_mgr))
        self.assertEqual([manager.compute_task_mgr], manager.additional_endpoints)
        self.assertIsNone(self.plugin.waiting_api())

    def test_with_it_a_conductor_listens_to_schedulers(self):
        self.let_wait(request_payload.new_key())
        manager = conductor_manager.ConductorManager()
        tasks, dispatch = manager.additional_endpoints
        self.assertIs(manager.compute_task_mgr, tasks)
        self.assertIsInstance(tasks, waiting_task_manager.WaitingTaskManager)
        self.assertEqual("nodb_queue", dispatch.target.namespace)

    def refused(self) -> str:
        with self.assertRaises(errors.ConfigurationError) as told:
            self.plugin.check()
        return str(told.exception)

    def test_it_needs_a_key(self):
        self.let_wait()
        self.assertIn("[nodb_queue] key", self.refused())

    def test_it_needs_a_key_that_is_one_and_does_not_show_it(self):
        self.let_wait("s3cret")
        told = self.refused()
        self.assertIn("[nodb_queue] key", told)
        self.assertNotIn("s3cret", told)

    def test_it_needs_a_back_end_that_forgets_nothing(self):
        self.let_wait(request_payload.new_key())
        self.assertIn("[nodb_scheduler] synchronizer", self.refused())

    def test_it_needs_seconds_that_are_numbers(self):
        self.let_wait(request_payload.new_key())
        self.override("project_wait_seconds", {"p": "soon"}, "nodb_queue")
        self.assertIn("project_wait_seconds", self.refused())
