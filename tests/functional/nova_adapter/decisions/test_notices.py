# SPDX-License-Identifier: Apache-2.0
"""Nova's notifications of a request: the same as stock Nova's, and made only for somebody."""

from __future__ import annotations

import collections
from typing import Any

import fixtures
import nova.scheduler.manager
import oslo_messaging
from nova import conf, objects, rpc
from oslo_messaging.notify import _impl_test

from nova_nodb_scheduler.nova_adapter import activation
from tests.functional.nova_adapter.decisions import test_memory_decisions

EVENTS = [f"scheduler.select_destinations.{phase}" for phase in ("start", "end")]
VERSIONED = [f"scheduler.select_destinations.{phase}" for phase in ("start", "end")]


class NoticesTest(test_memory_decisions.MemoryDecisionsCase):
    def setUp(self) -> None:
        super().setUp()
        self.transport = oslo_messaging.get_notification_transport(conf.CONF, url="fake://")
        self.made: collections.Counter[str] = collections.Counter()
        own = objects.RequestSpec.to_legacy_request_spec_dict

        def counted(spec: Any) -> Any:
            self.made["legacy"] += 1
            return own(spec)

        self.use(
            fixtures.MonkeyPatch("nova.objects.RequestSpec.to_legacy_request_spec_dict", counted)
        )
        _impl_test.reset()
        self.addCleanup(_impl_test.reset)

    def notify_by(self, legacy: str, versioned: str = "noop", form: str = "unversioned") -> None:
        """Have Nova's notifiers as its rpc.init makes them, with these drivers."""
        self.override("notification_format", form, "notifications")
        for name, driver in (("LEGACY_NOTIFIER", legacy), ("NOTIFIER", versioned)):
            self.use(fixtures.MonkeyPatch(f"nova.rpc.{name}", self.notifier(driver)))
        self.manager.notifier = rpc.get_notifier("scheduler")

    def notifier(self, driver: str) -> Any:
        serializer = rpc.RequestContextSerializer(rpc.JsonPayloadSerializer())
        ours = driver == activation.DRIVER_NAME
        made = oslo_messaging.Notifier(
            self.transport, serializer=serializer, driver="noop" if ours else driver
        )
        if ours:
            (extension,) = made._driver_mgr.extensions
            # Making one would switch the plugin on once more.
            extension.obj = object.__new__(activation.ActivationDriver)
        return made

    def sent(self) -> list[tuple[str, Any]]:
        found = [(each[1]["event_type"], each[1]["payload"]) for each in _impl_test.NOTIFICATIONS]
        _impl_test.reset()
        return found

    def test_nobody_is_sent_what_nobody_hears_and_nothing_is_made_for_it(self):
        for legacy in ("noop", activation.DRIVER_NAME):
            self.notify_by(legacy)
            self.assertFalse(activation.notifications_are_heard(self.manager.notifier))
            self.select()
        self.assertEqual(({}, []), (dict(self.made), self.sent()))

    def test_a_driver_gets_what_stock_nova_sends_it(self):
        self.notify_by("test")
        self.select()
        ours = self.sent()
        with fixtures.MonkeyPatch(
            "nova_nodb_scheduler.nova_adapter.manager.SchedulerManager._select_destinations",
            nova.scheduler.manager.SchedulerManager._select_destinations,
        ):
            self.select()
        stocks = self.sent()
        self.assertEqual(EVENTS, [event for event, _ in ours])
        self.assertEqual(EVENTS, [event for event, _ in stocks])
        for (_, mine), (_, novas) in zip(ours, stocks, strict=True):
            for payload in (mine, novas):
                # Two requests are for two servers.
                payload["request_spec"]["instance_properties"].pop("uuid")
            self.assertEqual(novas, mine)

    def test_versioned_notifications_are_heard_without_the_others(self):
        self.notify_by("noop", "test", "versioned")
        self.select()
        self.assertEqual(VERSIONED, [event for event, _ in self.sent()])

    def test_a_notifier_that_is_not_known_is_taken_to_be_heard(self):
        class Own(oslo_messaging.Notifier):  # type: ignore[misc]
            pass

        self.notify_by("noop")
        self.manager.notifier.notifier.__class__ = Own
        self.assertTrue(activation.notifications_are_heard(self.manager.notifier))
        self.assertTrue(activation.notifications_are_heard(object()))
        self.notify_by("log")
        self.assertTrue(activation.notifications_are_heard(self.manager.notifier))
