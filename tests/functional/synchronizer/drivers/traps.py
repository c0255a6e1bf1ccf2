# SPDX-License-Identifier: Apache-2.0
"""Runs a test against a driver without one of its safeguards: it must fail."""

from __future__ import annotations

import unittest


class TrapCase(unittest.TestCase):
    def assert_caught(
        self, case: type[unittest.TestCase], name: str, *, may_raise: bool = False
    ) -> None:
        """Run a test that must fail.

        :param may_raise: an error will do as well as a failure
        """
        result = unittest.TestResult()
        case(name).run(result)
        self.assertEqual([], result.skipped)
        caught = list(result.failures)
        if may_raise:
            caught += result.errors
        else:
            self.assertEqual([], result.errors)
        self.assertTrue(caught, f"{name} passes a naive driver")

    def assert_passes(self, case: type[unittest.TestCase], name: str) -> None:
        """Run a test that must pass: with the driver as it is."""
        result = unittest.TestResult()
        case(name).run(result)
        self.assertTrue(result.wasSuccessful(), result.failures + result.errors)
