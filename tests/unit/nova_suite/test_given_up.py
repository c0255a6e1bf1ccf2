# SPDX-License-Identifier: Apache-2.0
"""Which failures of Nova's tests are of patience: told by tracebacks as testtools gave them."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import unittest

from tests.nova_suite import given_up

_HELPERS = "nova/tests/functional/integrated_helpers.py"

_POLL = """\
Traceback (most recent call last):
  File "nova/tests/functional/libvirt/test_pci_in_placement.py", line 2411, in \
test_one_time_use_workflow
    server = self._create_server(flavor_id=flavor_id, networks=[])
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "nova/tests/functional/integrated_helpers.py", line 155, in _wait_for_server_parameter
    self.fail('Wait for state change failed, '
  File "unittest/case.py", line 703, in fail
    raise self.failureException(msg)
AssertionError: {}
"""
_NO_ROOM = (
    "'fault': {'code': 500, 'created': '2026-11-29T07:27:34Z', 'message': 'No valid host was "
    "found. There are not enough hosts available.', 'details': 'Traceback (most recent call "
    'last):\\n  File "nova/conductor/manager.py", line 1683, in schedule_and_build_instances\\n'
    "    host_lists = self._schedule_instances(context, request_specs[0],\\n'}"
)
_SERVER = (
    "Wait for state change failed, expected_params={{'status': '{wanted}'}}, server={{"
    "'accessIPv4': '', 'flavor': {{'links': [{{'rel': 'bookmark', 'href': 'http://8fec6e9f'}}]}}, "
    "'status': '{status}', 'OS-EXT-STS:task_state': {task}, {fault}}}, wait_for_fault=False"
)
_EVENT = (
    "Timed out waiting for conductor_migrate_server instance action event. Current instance "
    "actions: [{{'action': 'migrate', 'request_id': 'r'}}]. Events in the last matching action: "
    "[{}]"
)
_MIGRATION = (
    "Timed out waiting for migration with status for instance eda2960d-69e0 (expected \"['completed"
    "', 'done']\", got \"{}\")"
)
_SERVICE = (
    "Wait for service parameter change failed, expected_params={{'state': 'down', 'status': "
    "'enabled'}}, service={{'id': 2, 'state': '{}', 'status': '{}', 'disabled_reason': None}}"
)
_LEFT = """\
Traceback (most recent call last):
  File "tests/nova_suite/endings.py", line 91, in torn_down
    self.check()
tests.nova_suite.endings.ClaimsLeft: Claims left: {'host': 'planted'}
"""
_NO_ANSWER = """\
Traceback (most recent call last):
  File "oslo_messaging/_drivers/impl_fake.py", line 211, in _send
    reply, failure = reply_q.get(timeout=timeout)
                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "queue.py", line 179, in get
    raise Empty
_queue.Empty

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "oslo_messaging/_drivers/impl_fake.py", line 217, in _send
    raise oslo_messaging.MessagingTimeout(
oslo_messaging.exceptions.MessagingTimeout: No reply on topic conductor
"""
_TIME_IS_OVER = """\
Traceback (most recent call last):
  File "nova/tests/functional/test_servers.py", line 36, in test_create
    time.sleep(0.5)
  File "fixtures/_fixtures/timeout.py", line 57, in signal_handler
    raise TimeoutException()
fixtures._fixtures.timeout.TimeoutException
"""
_POLLED_ASSERTION = """\
Traceback (most recent call last):
  File "nova/tests/functional/integrated_helpers.py", line 340, in _wait_for_assert
    raise last_error
  File "testtools/testcase.py", line 704, in assertThat
    raise mismatch_error
testtools.matchers._impl.MismatchError: 1 != 2
"""
_LOCKED = """\
Traceback (most recent call last):
  File "sqlalchemy/engine/default.py", line 952, in do_execute
    cursor.execute(statement, parameters)
sqlite3.OperationalError: database is locked

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "sqlalchemy/engine/base.py", line 2363, in _handle_dbapi_exception
    raise newraise.with_traceback(exc_info[2]) from e
oslo_db.exception.DBError: (sqlite3.OperationalError) database is locked
[SQL: UPDATE instances SET updated_at=? WHERE instances.id = ?]
"""


class GivenUpTest(unittest.TestCase):
    def assert_patience(self, wanted: bool, words: str) -> None:
        with self.subTest(words[:120]):
            told = _POLL.replace("{}", words)
            self.assertIs(wanted, given_up.ran_out_of_patience([told]))

    def server(self, wanted: str, status: str, task: str = "None", fault: str = "") -> str:
        return _SERVER.format(wanted=wanted, status=status, task=task, fault=fault)

    def test_a_server_on_its_way_is_waited_for(self) -> None:
        self.assert_patience(True, self.server("ACTIVE", "BUILD"))
        self.assert_patience(True, self.server("ACTIVE", "BUILD", "'spawning'"))
        self.assert_patience(True, self.server("VERIFY_RESIZE", "RESIZE", "'resize_migrated'"))

    def test_a_server_that_came_to_another_end_is_a_state(self) -> None:
        self.assert_patience(False, self.server("ACTIVE", "ERROR", fault=_NO_ROOM))
        self.assert_patience(False, self.server("ACTIVE", "ERROR", "'spawning'", _NO_ROOM))
        self.assert_patience(False, self.server("ERROR", "ACTIVE"))
        self.assert_patience(False, self.server("VERIFY_RESIZE", "ACTIVE"))

    def test_a_server_that_cannot_be_read_is_a_state(self) -> None:
        words = "Wait for state change failed, expected_params={'a': 1}, server={<Server>}"
        self.assert_patience(False, words)

    def test_an_action_that_has_not_ended_is_waited_for(self) -> None:
        self.assert_patience(True, _EVENT.format(""))
        self.assert_patience(True, _EVENT.format("{'event': 'a', 'result': None}"))
        self.assert_patience(False, _EVENT.format("{'event': 'a', 'result': 'Success'}"))

    def test_a_migration_on_its_way_is_waited_for(self) -> None:
        for status, wanted in (("running", True), ("None", True), ("error", False)):
            self.assert_patience(wanted, _MIGRATION.format(status))
        self.assert_patience(False, _MIGRATION.format("failed"))
        self.assert_patience(False, _MIGRATION.format("finished"))

    def test_heartbeats_are_waited_for_and_nothing_else_of_a_service(self) -> None:
        self.assert_patience(True, _SERVICE.format("up", "enabled"))
        self.assert_patience(False, _SERVICE.format("up", "disabled"))
        self.assert_patience(False, _SERVICE.format("down", "disabled"))

    def test_what_is_to_go_or_to_be_attached_is_waited_for(self) -> None:
        volume = "Timed out waiting for volume v to be {} server s. Currently attached volumes: []"
        self.assert_patience(True, volume.format("attached to"))
        self.assert_patience(True, volume.format("detached from"))
        self.assert_patience(True, "Server failed to delete.")
        self.assert_patience(False, "Server went to error state instead ofdisappearing.")

    def test_other_words_are_a_state(self) -> None:
        self.assert_patience(False, "1 != 2")
        self.assert_patience(False, "Wait for server allocations failed, server=s")
        self.assert_patience(False, 'The line "%(log_line)s" did not appear in the log')
        self.assert_patience(False, "Timed out waiting for server s to have status: ACTIVE.")

    def test_waits_that_say_so_by_their_type_are_of_patience(self) -> None:
        self.assertTrue(given_up.ran_out_of_patience([_NO_ANSWER]))
        self.assertTrue(given_up.ran_out_of_patience([_TIME_IS_OVER]))
        for name in given_up.TYPES:
            self.assertTrue(given_up.ran_out_of_patience([f"{name}: not within 3 s"]), name)

    def test_assertions_errors_and_claims_that_are_left_are_not(self) -> None:
        for told in (_LEFT, _POLLED_ASSERTION, _LOCKED, "", "process returncode -9"):
            self.assertFalse(given_up.ran_out_of_patience([told]), told)
        self.assertFalse(given_up.ran_out_of_patience([]))

    def test_patience_excuses_nothing_else_of_the_same_test(self) -> None:
        self.assertFalse(given_up.ran_out_of_patience([_TIME_IS_OVER, _LEFT]))
        self.assertFalse(given_up.ran_out_of_patience([_NO_ANSWER, _LOCKED]))
        lost = _TIME_IS_OVER.replace("Traceback", "KeyError: 'lost'\n\nTraceback", 1)
        self.assertFalse(given_up.ran_out_of_patience([lost]))

    def test_types_are_those_that_are_installed(self) -> None:
        for name in given_up.TYPES:
            module, _, attribute = name.rpartition(".")
            self.assertTrue(hasattr(importlib.import_module(module), attribute), name)

    def test_novas_helpers_say_these_words(self) -> None:
        found = importlib.util.find_spec("nova")
        assert found is not None and found.origin is not None
        text = (pathlib.Path(found.origin).parents[1] / _HELPERS).read_text()
        for words in (
            "'Wait for state change failed, '\n",
            "'expected_params=%s, server=%s, wait_for_fault=%s'\n",
            "f'Wait for service parameter change failed, '\n",
            "f'expected_params={expected_params}, service={service}'",
            "'Timed out waiting for %s instance action event. Current instance '\n",
            "'actions: %s. Events in the last matching action: %s'\n",
            "'Timed out waiting for migration with status for instance %s '\n",
            """'(expected "%s", got "%s")'""",
            "'Timed out waiting for volume %s to be attached to '\n",
            "'Timed out waiting for volume %s to be detached from '\n",
            "'server %s. Currently attached volumes: %s'",
            "self.fail('Server failed to delete.')",
        ):
            self.assertIn(words, text)
