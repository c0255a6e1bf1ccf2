# SPDX-License-Identifier: Apache-2.0
"""Conductors that die or sleep as tests say."""

from tests.functional.nova_adapter.waiting import waiting_cloud  # noqa: I001 - Nova's first

import contextlib
import threading
from unittest import mock

from nova.compute import api as compute_api
from nova.compute import rpcapi as compute_rpcapi
from nova.scheduler.client import report

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.waiting import abandoned_requests


class Died(BaseException):
    """The process ended here; nothing in it runs any more."""


class MortalConductors(waiting_cloud.WaitingCloud):
    """:ivar sent: servers for which a message was sent to a compute, in order"""

    def setUp(self):
        super().setUp()
        self.sent = []
        self.have_the_api_see_no_cell_by_default()
        send = compute_rpcapi.ComputeAPI.build_and_run_instance

        def counted(api, context, instance, *args, **kwargs):
            send(api, context, instance, *args, **kwargs)
            self.sent.append(instance.uuid)

        patch = mock.patch.object(compute_rpcapi.ComputeAPI, "build_and_run_instance", counted)
        patch.start()
        self.addCleanup(patch.stop)

    def have_the_api_see_no_cell_by_default(self):
        """Let it find no instance that is mapped to no cell, as where its own database is cell0's.

        Nova's fixture has it look in cell1, and delete there what is a conductor's to clear.
        """
        look = compute_api.API._lookup_instance

        def look_where_mapped(api, context, server):
            if not abandoned_requests.is_mapped(context, server):
                return None, None
            return look(api, context, server)

        patch = mock.patch.object(compute_api.API, "_lookup_instance", look_where_mapped)
        patch.start()
        self.addCleanup(patch.stop)

    @contextlib.contextmanager
    def dying(self, owner, name, *, behind=False):
        """Let the next conductor that comes to a function end before it, or behind it."""
        died = threading.Event()
        function = getattr(owner, name)
        is_static = isinstance(
            vars(owner).get(name) if isinstance(owner, type) else None, staticmethod
        )

        def die(*args, **kwargs):
            if died.is_set():
                return function(*args, **kwargs)
            if behind:
                function(*args, **kwargs)
            died.set()
            raise Died

        patched = staticmethod(die) if is_static else die
        with mock.patch.object(owner, name, patched):
            yield died
        self.assertTrue(died.is_set(), f"nobody came to {name}")

    @contextlib.contextmanager
    def away_at(self, name, *, behind):
        """Let the back end give no answer to the next call of a step, carried out or not."""
        step = getattr(self.waiting._ledger, name)
        calls = []

        def call(*args, **kwargs):
            calls.append(args)
            if len(calls) > 1:
                return step(*args, **kwargs)
            if behind:
                step(*args, **kwargs)
            raise errors.BackendUnavailable("sqlalchemy", "made")

        with mock.patch.object(self.waiting._ledger, name, call):
            yield
        self.assertTrue(calls, f"nobody came to {name}")

    def ask_of_a_dying_one(self, owner, name, *, behind=False, servers=1):
        with self.dying(owner, name, behind=behind) as died:
            asked = self.ask(servers=servers)
            self.assertTrue(died.wait(waiting_cloud.PATIENCE_SECONDS))
        return asked

    def take_over(self, server):
        self.pass_time(waiting_cloud.LEASE_SECONDS + 1)
        self.grant(server)

    def take_over_and_die(self, server, owner, name, *, behind=False):
        """Have another conductor take over, which ends before a function, or behind it."""
        with self.dying(owner, name, behind=behind) as died:
            self.take_over(server)
            self.assertTrue(died.wait(waiting_cloud.PATIENCE_SECONDS))

    def assert_built_once(self, *servers):
        for server in servers:
            self.active(server)
            self.ended(server)
            self.assertEqual(1, self.sent.count(server), self.sent)
            self.assertEqual(["cell1"], [cell for cell, _ in self.instances(server)])
            [allocated] = self.allocations(server).values()
            self.assertEqual(1, allocated["resources"]["VCPU"])

    def make_room_of_allocations(self, server):
        report.report_client_singleton().delete_allocation_for_instance(
            self.context, server, force=True
        )

    def assert_fails(self, server, text, *, holds=False):
        self.comes_to(server, "ERROR")
        self.ended(server)
        self.assertIn(text, self.fault(server))
        self.assertEqual([], self.sent)
        # What may arrive after all has its room until its user deletes it.
        self.assertEqual(holds, bool(self.allocations(server)))
        self.admin_api.delete_server(server)
        self.assertEqual({}, self.allocations(server))

    def all_being_still(self, seconds=abandoned_requests.SENT_SECONDS + 1):
        return mock.patch.object(
            abandoned_requests, "_still_seconds", autospec=True, return_value=seconds
        )

    @contextlib.contextmanager
    def sleeping(self, owner, name, *, behind=False):
        """Let the next conductor that comes to a function sleep before or behind it."""
        asleep, awake, over = threading.Event(), threading.Event(), threading.Event()
        function = getattr(owner, name)

        def sleep(*args, **kwargs):
            if asleep.is_set():
                return function(*args, **kwargs)
            came_to = function(*args, **kwargs) if behind else None
            asleep.set()
            awake.wait(waiting_cloud.PATIENCE_SECONDS)
            try:
                return came_to if behind else function(*args, **kwargs)
            finally:
                over.set()

        with mock.patch.object(owner, name, sleep):
            yield asleep
            awake.set()
            self.assertTrue(over.wait(waiting_cloud.PATIENCE_SECONDS))

    def wait_for_overtaken(self):
        """Give one that was overtaken time to find out; what it did is for the test to tell."""
        with contextlib.suppress(waiting_cloud.patience.OutOfPatience):
            waiting_cloud.patience.wait_until(
                lambda: self.waiting.counts["overtaken"], 5.0, lambda: str(self.waiting.counts)
            )
