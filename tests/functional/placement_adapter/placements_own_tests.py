# SPDX-License-Identifier: Apache-2.0
"""Runs Placement's own functional tests in this process, over a database, guarded or not.

Placement's wheel ships them: those of its objects, and the gabbi files of its API. Run as
``python -m tests.functional.placement_adapter.placements_own_tests URL [--guarded] [--only WORD]
...``; what became of each test goes to standard output as JSON, once all have run.
"""

from __future__ import annotations

import argparse
import json
import sys
import unittest
from collections.abc import Collection
from typing import Any

import testtools
from gabbi import suite as gabbi_suite
from oslo_config import cfg
from placement.tests import fixtures as placement_fixtures

from nova_nodb_scheduler.placement_adapter import guard_switch

PACKAGE = "placement.tests.functional"

#: Of what a guard changes: who writes allocations, and what reads them.
OF_ALLOCATIONS = ("allocations", "test_allocation.", "consumer", "reshape", "usage")


class Outcomes(testtools.TestResult):
    """What became of each test, by its id, and why it failed."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, str] = {}
        self.why: dict[str, str] = {}

    def _note(self, test: Any, outcome: str, error: Any = None, details: Any = None) -> None:
        name = test.id()
        # Of a test whose clean-up fails, too, the worse counts.
        if self.of.get(name) != "fail":
            self.of[name] = outcome
        if outcome == "fail":
            self.why[name] = self._err_details_to_string(test, error, details)[-2000:]

    def addSuccess(self, test: Any, details: Any = None) -> None:
        self._note(test, "pass")

    def addSkip(self, test: Any, reason: Any = None, details: Any = None) -> None:
        self._note(test, "skip")

    def addFailure(self, test: Any, err: Any = None, details: Any = None) -> None:
        self._note(test, "fail", err, details)

    def addError(self, test: Any, err: Any = None, details: Any = None) -> None:
        self._note(test, "fail", err, details)

    def addExpectedFailure(self, test: Any, err: Any = None, details: Any = None) -> None:
        self._note(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any, details: Any = None) -> None:
        self._note(test, "unexpected success")


def _over(url: str) -> None:
    """Have Placement's fixture of a database take this one; it empties it for each test."""
    make = placement_fixtures.Database.__init__

    def made(self: Any, conf_fixture: Any, set_config: bool = False) -> None:
        if set_config:
            try:
                conf_fixture.register_opt(cfg.StrOpt("connection"), group="placement_database")
            except cfg.DuplicateOptError:
                pass
            conf_fixture.config(connection=url, group="placement_database")
        make(self, conf_fixture, set_config)

    placement_fixtures.Database.__init__ = made


def _chosen(suite: Any, words: Collection[str]) -> Any:
    """Return a suite without what has none of these words in its id.

    gabbi's suites are whole files, which begin and end fixtures for all of their tests.
    """
    kept = []
    for each in suite:
        if isinstance(each, gabbi_suite.GabbiSuite):
            if any(word in next(iter(each)).id() for word in words):
                kept.append(each)
        elif isinstance(each, unittest.TestSuite):
            kept.append(_chosen(each, words))
        elif any(word in each.id() for word in words):
            kept.append(each)
    return unittest.TestSuite(kept)


def main() -> None:
    """Run them all; the outcomes are a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--guarded", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    arguments = parser.parse_args()
    # gabbi says what it does to standard output.
    told, sys.stdout = sys.stdout, sys.stderr
    _over(arguments.url)
    if arguments.guarded:
        guard_switch.switch_on()
    loader = unittest.TestLoader()
    suite: Any = loader.discover(PACKAGE, top_level_dir=None)
    if arguments.only:
        suite = _chosen(suite, arguments.only)
    outcomes = Outcomes()
    suite.run(outcomes)
    told.write(json.dumps({"of": outcomes.of, "why": outcomes.why}) + "\n")


if __name__ == "__main__":
    main()
