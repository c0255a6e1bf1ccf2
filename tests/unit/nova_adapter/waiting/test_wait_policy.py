# SPDX-License-Identifier: Apache-2.0
"""Who says first how long a request waits decides it."""

import unittest

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.waiting import wait_policy
from nova_nodb_scheduler.scheduling.waiting import queue_settings


def settings(**more):
    return wait_policy.WaitSettings(queue_settings.QueueSettings(), **more)


def terms(specs=None, hints=None, project="p", **more):
    found = wait_policy.terms(specs or {}, hints or {}, project, settings(**more))
    return None if found is None else (found.wait_seconds, found.priority_class)


class TermsTest(unittest.TestCase):
    def test_nobody_waits_without_a_word(self):
        self.assertIsNone(terms())

    def test_the_first_that_says_something_decides(self):
        by_flavor, by_user = {"nodb:wait": "10"}, {"nodb_wait": "20"}
        others = {"default_wait_seconds": 40, "project_wait_seconds": {"p": 30}}
        self.assertEqual((10, "normal"), terms(by_flavor, by_user, **others))
        self.assertEqual((20, "normal"), terms({}, by_user, **others))
        self.assertEqual((30, "normal"), terms(**others))
        self.assertEqual((40, "normal"), terms(project="q", **others))

    def test_0_seconds_are_a_word(self):
        self.assertIsNone(terms({"nodb:wait": "0"}, {"nodb_wait": "20"}, default_wait_seconds=9))
        self.assertIsNone(terms({}, {"nodb_wait": "0"}, default_wait_seconds=9))
        self.assertIsNone(terms(project_wait_seconds={"p": 0}, default_wait_seconds=9))

    def test_hints_come_as_texts_and_as_lists_of_them(self):
        for value in ("20", ["20"]):
            self.assertEqual((20, "normal"), terms({}, {"nodb_wait": value}))

    def test_what_is_too_long_is_cut(self):
        self.assertEqual((604_800, "normal"), terms({"nodb:wait": "9999999"}))
        self.assertEqual((5, "normal"), terms(default_wait_seconds=50, max_wait_seconds=5))

    def test_the_class_of_the_flavor_goes_before_the_users(self):
        waits = {"nodb:wait": "10"}
        self.assertEqual((10, "high"), terms(waits, {"nodb_class": ["high"]}))
        self.assertEqual((10, "low"), terms({**waits, "nodb:class": "low"}, {"nodb_class": "high"}))

    def test_what_an_api_without_the_plugin_let_through_does_not_wait(self):
        for hints in (
            {"nodb_wait": "soon"},
            {"nodb_wait": "-1"},
            {"nodb_wait": ["1", "2"]},
            {"nodb_wait": "10", "nodb_class": "unheard"},
            {"nodb_wait": None},
        ):
            self.assertIsNone(terms({}, hints), hints)


class FaultTest(unittest.TestCase):
    def test_what_makes_sense_has_no_fault(self):
        for hints in (
            {},
            {"group": "x", "query": "[]"},
            {"nodb_wait": "0"},
            {"nodb_wait": ["604800"], "nodb_class": ["low"]},
        ):
            self.assertIsNone(wait_policy.fault(hints, settings()), hints)

    def test_each_mistake_is_named(self):
        for hints, told in (
            ({"nodb_wait": "604801"}, "from 0 to 604800"),
            ({"nodb_wait": "-1"}, "from 0 to"),
            ({"nodb_wait": "1e3"}, "from 0 to"),
            ({"nodb_wait": "٣"}, "from 0 to"),
            ({"nodb_wait": "9" * 5000}, "from 0 to"),
            ({"nodb_wait": []}, "from 0 to"),
            ({"nodb_class": "unheard"}, "one of low, normal, high"),
            ({"nodb_class": ["low", "high"]}, "one of"),
            ({"nodb_wiat": "10"}, "no hint nodb_wiat"),
            ({"_nodb_pending": "a:2"}, "not for users"),
        ):
            self.assertIn(told, wait_policy.fault(hints, settings()) or "", hints)

    def test_classes_above_the_default_are_known(self):
        self.assertEqual(
            [False, False, True],
            [wait_policy.is_above_default(name, settings()) for name in ("low", "normal", "high")],
        )


class ProjectsTest(unittest.TestCase):
    def test_seconds_of_projects_are_read(self):
        self.assertEqual({"p": 30, "q": 0}, wait_policy.parse_projects({"p": "30", "q": "0"}))

    def test_what_is_no_number_is_refused_by_name(self):
        with self.assertRaisesRegex(errors.ConfigurationError, "project_wait_seconds.*p:soon"):
            wait_policy.parse_projects({"p": "soon"})
