# SPDX-License-Identifier: Apache-2.0
"""Operators see what waits, why it does not fit and what would have to be freed."""

from __future__ import annotations

import argparse
import contextlib
import io
import json

import attrs
import nova.rpc

from nova_nodb_scheduler.cmd import application
from nova_nodb_scheduler.cmd.commands import queue_commands
from nova_nodb_scheduler.cmd.framework import terminal
from nova_nodb_scheduler.nova_adapter import rpc_server
from nova_nodb_scheduler.nova_adapter.waiting.waking import queue_notifications
from tests.functional.nova_adapter.waiting import queue_cloud


class TellingTest(queue_cloud.QueueCase):
    def setUp(self):
        super().setUp()
        transport, nova.rpc.TRANSPORT = nova.rpc.TRANSPORT, None
        self.addCleanup(setattr, nova.rpc, "TRANSPORT", transport)
        nova.rpc.TRANSPORT = nova.rpc.create_transport(nova.rpc.get_transport_url())
        self.addCleanup(nova.rpc.TRANSPORT.cleanup)
        server = rpc_server.RpcServer(self.plugin, self.runtime)
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)
        self.first = self.fill()
        self.large = self.conductor.ask(vcpus=3)
        self.small = self.conductor.ask()
        self.turn()

    def run_command(self, kind, *arguments):
        command = kind(
            application.ManageApp(), argparse.Namespace(config_file=[], config_dir=[]), "queue"
        )
        command.plugin = lambda: self.plugin
        parsed = command.get_parser("queue").parse_args(arguments)
        self.beat()
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = command.take_action(parsed)
        self.follow()
        if "--wide" not in arguments and "--json" not in arguments:
            for line in out.getvalue().splitlines():
                self.assertLessEqual(len(line), terminal.WIDTH, out.getvalue())
        return status, out.getvalue()

    def test_the_list_tells_who_waits_and_how_many(self):
        status, text = self.run_command(queue_commands.QueueList)
        self.assertEqual(0, status)
        self.assertTrue(text.startswith("2 requests for 2 servers."), text)
        for key in (self.large, self.small):
            self.assertIn(key, text)
        _, text = self.run_command(queue_commands.QueueList, "--flavor", "m3", "--json")
        self.assertEqual([self.large], [each["key"] for each in json.loads(text)["requests"]])
        _, text = self.run_command(queue_commands.QueueList, "--class", "low")
        self.assertEqual("Nobody waits.\n", text)

    def test_one_is_shown_with_what_refuses_it_and_where_the_least_is_to_be_freed(self):
        status, text = self.run_command(queue_commands.QueueShow, self.large, "--json")
        self.assertEqual(0, status)
        found = json.loads(text)
        self.assertEqual((0, 0, 1), (found["ahead"], found["fits"], found["possible"]))
        self.assertEqual("", found["why_unknown"])
        # h2 has two processors in all.
        self.assertEqual(["h1"], [each["host"] for each in found["hosts"]])
        self.assertEqual({"VCPU": 3}, found["hosts"][0]["missing"])
        self.assertEqual(0, found["counts"][-1]["after"])
        _, text = self.run_command(queue_commands.QueueShow, self.large)
        self.assertIn("Where the least would have to be freed", text)
        self.assertIn("3 VCPU", text)

    def test_how_many_go_before_one_is_told(self):
        _, text = self.run_command(queue_commands.QueueShow, self.small, "--json")
        self.assertEqual(1, json.loads(text)["ahead"])
        self.run_command(queue_commands.QueuePromote, self.small)
        self.turn()
        _, text = self.run_command(queue_commands.QueueShow, self.small, "--json")
        self.assertEqual(0, json.loads(text)["ahead"])

    def test_while_hosts_are_not_proved_nothing_is_told_of_them(self):
        self.runtime.judge._feed_alive = lambda bound: False
        _, text = self.run_command(queue_commands.QueueShow, self.large)
        self.assertIn("not proved", text)

    def test_what_is_cancelled_and_drained_is_given_to_conductors_to_end(self):
        status, text = self.run_command(queue_commands.QueueCancel, self.large)
        self.assertEqual((0, "1 request taken out of the queue.\n"), (status, text))
        status, text = self.run_command(queue_commands.QueueDrain, "--all")
        self.assertEqual(0, status, text)
        self.conductor.work()
        self.assertEqual({self.large, self.small}, {key for key, _ in self.conductor.ended})
        self.turn()
        self.assertEqual([], self.waiting())

    def test_a_drain_of_nobody_in_particular_is_refused(self):
        status, _ = self.run_command(queue_commands.QueueDrain)
        self.assertEqual(3, status)
        self.assertEqual(2, len(self.waiting()))

    def test_what_does_not_wait_is_an_error(self):
        status, _ = self.run_command(queue_commands.QueueShow, self.first[0])
        self.assertEqual(3, status)

    def test_a_key_is_printed(self):
        status, text = self.run_command(queue_commands.QueueNewKey)
        self.assertEqual((0, 45), (status, len(text)))

    def test_notifications_tell_each_step_once(self):
        told = []
        sink = queue_notifications.QueueNotifications(_Notifier(told))
        worker = self.queue.worker
        worker._parts = attrs.evolve(worker._parts, observed=(sink,))
        third = self.conductor.ask(wait_seconds=2.0)
        self.turn()
        self.delete(self.first[0])
        self.until(lambda: self.small in self.placed())
        self.until(lambda: self.conductor.ended)
        self.turn()
        kinds = [(kind.rpartition(".")[2], payload["request"]) for kind, payload in told]
        self.assertIn(("parked", third), kinds)
        self.assertIn(("dispatched", self.small), kinds)
        self.assertIn(("expired", third), kinds)
        self.assertEqual(len(kinds), len(set(kinds)), kinds)


class _Notifier:
    """Notes what it is to send."""

    def __init__(self, told):
        self._told = told

    def info(self, context, kind, payload):
        self._told.append((kind, payload))
