# SPDX-License-Identifier: Apache-2.0
"""An opening that fails takes nothing from who opened the client before or beside it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

import hypothesis
import testtools
from hypothesis import stateful
from hypothesis import strategies as st

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.support import opening

PATIENCE_SECONDS = 60.0


class Refused(Exception):
    """What a check meets."""


class Client:
    """Counts connections and disconnections."""

    def __init__(self) -> None:
        self.is_connected = False
        self.connections = 0
        self.opening = opening.Opening(
            self._connect,
            self._disconnect,
            lambda reason: errors.BackendUnavailable("client", reason),
        )

    def _connect(self) -> None:
        self.connections += not self.is_connected
        self.is_connected = True

    def _disconnect(self) -> None:
        self.is_connected = False

    def open(self, meanwhile: Callable[[], object] = lambda: None, *, fails: bool = False) -> None:
        """Open it; ``meanwhile`` happens while the check is under way."""

        def check() -> None:
            meanwhile()
            if fails:
                raise Refused

        self.opening.open(check)


class TestOpening(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = Client()

    def refused(self) -> None:
        self.assertRaises(Refused, lambda: self.client.open(fails=True))

    def assert_open(self, expected: bool) -> None:
        self.assertEqual(
            (expected, expected), (self.client.opening.is_open, self.client.is_connected)
        )

    def test_it_is_checked_once_until_it_is_closed(self) -> None:
        checks: list[int] = []
        for _ in range(2):
            self.client.open(lambda: checks.append(1))
        self.assert_open(True)
        self.assertEqual(1, len(checks))
        self.client.opening.close()
        self.client.opening.close()
        self.assert_open(False)
        self.client.open(lambda: checks.append(1))
        self.assertEqual((2, 2), (len(checks), self.client.connections))

    def test_one_that_fails_alone_disconnects(self) -> None:
        self.refused()
        self.assert_open(False)
        self.client.open()
        self.assert_open(True)

    def test_one_that_fails_beside_one_that_succeeds_leaves_it_connected(self) -> None:
        self.client.open(self.refused)
        self.assert_open(True)
        self.assertEqual(1, self.client.connections)

    def test_one_that_fails_after_another_succeeded_leaves_it_open(self) -> None:
        self.assertRaises(Refused, lambda: self.client.open(self.client.open, fails=True))
        self.assert_open(True)

    def test_the_last_of_those_that_fail_disconnects(self) -> None:
        self.assertRaises(Refused, lambda: self.client.open(self.refused, fails=True))
        self.assert_open(False)

    def test_one_that_is_overtaken_by_a_close_fails_and_leaves_nothing(self) -> None:
        self.assertRaises(
            errors.BackendUnavailable, lambda: self.client.open(self.client.opening.close)
        )
        self.assert_open(False)

    def test_one_that_is_overtaken_by_a_close_and_an_opening_is_open_with_it(self) -> None:
        def closed_and_opened() -> None:
            self.client.opening.close()
            self.client.open()

        self.client.open(closed_and_opened)
        self.assert_open(True)


class Held(threading.Thread):
    """An opening whose check stands still until it is told how to end."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._arrived = threading.Event()
        self._ending: queue.Queue[bool] = queue.Queue()
        self.is_checking = False
        self.succeeded = False
        self.start()
        assert self._arrived.wait(PATIENCE_SECONDS)

    def run(self) -> None:
        with contextlib.suppress(Refused, errors.BackendUnavailable):
            self._client.opening.open(self._check)
            self.succeeded = True
        self._arrived.set()

    def _check(self) -> None:
        self.is_checking = True
        self._arrived.set()
        if not self._ending.get(timeout=PATIENCE_SECONDS):
            raise Refused

    def end(self, *, succeeds: bool) -> None:
        self._ending.put(succeeds)
        self.join(PATIENCE_SECONDS)


class Interleavings(stateful.RuleBasedStateMachine):
    """Openings that overlap in any order, and closings between."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client()
        self.held: list[Held] = []
        #: Whether an opening succeeded since the client was closed last.
        self.was_opened = False
        #: Those under way since then.
        self.undisturbed: set[Held] = set()

    @stateful.rule()
    def begin(self) -> None:
        begun = Held(self.client)
        if begun.is_checking:
            assert not self.was_opened
            self.held.append(begun)
            self.undisturbed.add(begun)

    @stateful.precondition(lambda self: self.held)
    @stateful.rule(data=st.data(), succeeds=st.booleans())
    def end(self, data: st.DataObject, succeeds: bool) -> None:
        ended = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        ended.end(succeeds=succeeds)
        if ended in self.undisturbed:
            assert ended.succeeded == succeeds
        # Closed meanwhile, it succeeds where others have opened the client again.
        assert succeeds or not ended.succeeded
        self.was_opened |= ended.succeeded

    @stateful.rule()
    def close(self) -> None:
        self.client.opening.close()
        self.was_opened = False
        self.undisturbed.clear()

    @stateful.invariant()
    def it_is_open_from_a_success_to_a_close(self) -> None:
        assert self.client.opening.is_open == self.was_opened
        assert self.client.is_connected or not self.was_opened

    @stateful.invariant()
    def nothing_is_left_connected(self) -> None:
        assert self.held or self.client.is_connected == self.was_opened

    def teardown(self) -> None:
        while self.held:
            self.held.pop().end(succeeds=False)


class TestInterleavings(testtools.TestCase):
    def test_a_client_is_open_from_a_success_to_a_close_whatever_overlaps(self) -> None:
        stateful.run_state_machine_as_test(
            Interleavings, settings=hypothesis.settings(deadline=None, max_examples=60)
        )
