# SPDX-License-Identifier: Apache-2.0
"""The upgrade check tells whether the Placement in use is guarded, and fails for neither."""

from typing import Any
from unittest import mock

import requests
import testtools
from nova.scheduler.client import report

from nova_nodb_scheduler import tree_conditions
from nova_nodb_scheduler.cmd.upgrade_check import check_command
from nova_nodb_scheduler.placement_adapter import guard_header


def _answer(status: int = 200, **headers: str) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    return response


class PlacementGuardTest(testtools.TestCase):
    def checked(self, get: Any) -> tuple[Any, str]:
        client = mock.create_autospec(report.SchedulerReportClient, instance=True)
        client.get.side_effect = get
        with mock.patch.object(
            report, "report_client_singleton", autospec=True, return_value=client
        ):
            result = check_command.UpgradeChecks().check_placement_guard()
        return result.code, result.details

    def test_a_guarded_one_is_known_by_its_answers(self) -> None:
        code, text = self.checked([_answer(**{guard_header.NAME: guard_header.VALUE})])
        self.assertEqual(check_command.Code.SUCCESS, code)
        self.assertIn("do not over-commit", text)
        self.assertIn("they ask it before", text)

    def test_of_a_guarded_one_it_is_said_that_it_compares_chosen_hosts(self) -> None:
        known = {tree_conditions.ANSWER: tree_conditions.answered(None)}
        code, text = self.checked([_answer(**{guard_header.NAME: guard_header.VALUE}, **known)])
        self.assertEqual(check_command.Code.SUCCESS, code)
        self.assertIn("compare the hosts they chose as it writes", text)

    def test_of_another_one_it_is_said_what_guards_it(self) -> None:
        code, text = self.checked([_answer()])
        self.assertEqual(check_command.Code.SUCCESS, code)
        self.assertIn("is not guarded", text)
        self.assertIn("nova_nodb_scheduler.placement_adapter.wsgi:application", text)

    def test_one_that_does_not_answer_is_not_known(self) -> None:
        for get in ([_answer(503)], [None], requests.ConnectionError("refused")):
            code, text = self.checked(get)
            self.assertEqual(check_command.Code.SUCCESS, code)
            self.assertTrue(text.startswith("Not known: "), text)
