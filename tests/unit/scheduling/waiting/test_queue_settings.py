# SPDX-License-Identifier: Apache-2.0
"""What the order of requests obeys, read and checked."""

from __future__ import annotations

import math

import testtools

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.conf import queue_options
from nova_nodb_scheduler.scheduling.waiting import queue_settings

PriorityClass = queue_settings.PriorityClass


class ParsingTest(testtools.TestCase):
    def test_classes_are_names_and_numbers(self):
        found = queue_settings.parse_classes(["high:100", " low : -5 "])

        self.assertEqual((PriorityClass("high", 100), PriorityClass("low", -5)), found)

    def test_what_is_no_class_is_named_with_what_to_write(self):
        for text in ("high", "high:", "high:many", ":1", "high:1.5", ""):
            error = self.assertRaises(
                errors.ConfigurationError, queue_settings.parse_classes, [text]
            )
            self.assertIn(repr(text), str(error))
            self.assertIn("NAME:NUMBER", str(error))

    def test_weights_are_numbers_above_zero(self):
        self.assertEqual({"p": 2.5}, queue_settings.parse_weights({"p": "2.5"}))
        self.assertRaises(errors.ConfigurationError, queue_settings.parse_weights, {"p": "x"})
        for weight in (0.0, -1.0, math.inf, math.nan):
            self.assertRaises(
                errors.ConfigurationError,
                queue_settings.QueueSettings,
                project_weights={"p": weight},
            )

    def test_classes_that_cannot_be_told_apart_are_refused(self):
        for classes in ((), (("a", 1), ("a", 2)), (("a", 1), ("b", 1))):
            self.assertRaises(
                errors.ConfigurationError,
                queue_settings.QueueSettings,
                classes=tuple(PriorityClass(*each) for each in classes),
                default_class="a",
            )

    def test_the_default_class_is_one_of_them(self):
        error = self.assertRaises(
            errors.ConfigurationError, queue_settings.QueueSettings, default_class="none"
        )
        self.assertIn("low, normal, high", str(error))

    def test_defaults_are_those_of_the_options(self):
        settings = queue_settings.QueueSettings()
        defaults = {each.name: each.default for each in queue_options.QUEUE_OPTS}
        classes = queue_settings.parse_classes(defaults.pop("classes"))
        self.assertEqual(set(classes), set(settings.classes))
        known = {name: value for name, value in defaults.items() if hasattr(settings, name)}
        self.assertEqual(12, len(known))
        for name, value in known.items():
            own = getattr(settings, name)
            self.assertEqual(value, getattr(own, "value", own), name)


class LevelTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.settings = queue_settings.QueueSettings(aging_seconds=10.0)

    def test_a_class_is_reached_when_its_number_is(self):
        self.assertEqual(0, self.settings.level(0, 499.0))
        self.assertEqual(1, self.settings.level(0, 500.0))
        self.assertEqual(2, self.settings.level(0, 1e9))
        self.assertEqual(500.0, self.settings.seconds_to_level(0, 1))

    def test_without_aging_nobody_rises(self):
        settings = queue_settings.QueueSettings(aging_seconds=0.0)

        self.assertEqual(0, settings.level(0, 1e12))
        self.assertEqual(math.inf, settings.seconds_to_level(0, 1))

    def test_a_clock_that_is_behind_does_not_lower_anybody(self):
        self.assertEqual(1, self.settings.level(1, -5.0))


class BackoffTest(testtools.TestCase):
    def test_each_refusal_in_a_row_doubles_the_pause_up_to_the_longest(self):
        settings = queue_settings.QueueSettings()

        self.assertEqual(
            [1.0, 1.0, 2.0, 4.0, 32.0, 60.0, 60.0],
            [settings.backoff_seconds(n) for n in (0, 1, 2, 3, 6, 7, 10_000)],
        )
