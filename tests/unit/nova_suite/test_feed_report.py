# SPDX-License-Identifier: Apache-2.0
"""The report of a run of Nova's tests finds conductors that allocate without a claim."""

from __future__ import annotations

import contextlib
import io
import pathlib
import tempfile
import unittest
from collections.abc import Mapping

from tests.nova_suite import feed, feed_report, selection

_TO_CLAIM = selection.read(selection.EXPECTED / "outside_claims.txt")


class TestOutsideClaims(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self._results = pathlib.Path(directory.name)

    def _ran(self, test_id: str, outside: Mapping[str, int]) -> None:
        waits = feed.FeedWaits(test_id)
        waits.outside.update(outside)
        waits.file(self._results)

    def _report(self, **how: bool) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = feed_report.report(self._results, **how)
        return status, output.getvalue()

    def test_claims_where_they_are_to_be_are_no_fault(self) -> None:
        for test_id in _TO_CLAIM:
            self._ran(test_id, {"claimed": 1})
        self._ran("a.T.one", {})
        status, output = self._report()
        self.assertEqual(0, status)
        self.assertIn(f"allocations of conductors: {{'claimed': {len(_TO_CLAIM)}}}", output)

    def test_a_test_in_which_no_conductor_claimed_is_at_fault(self) -> None:
        self._ran(_TO_CLAIM[0], {"refused": 1})
        status, output = self._report()
        self.assertEqual(1, status)
        self.assertIn(f"{_TO_CLAIM[0]}: no conductor claimed", output)

    def test_nothing_is_missed_where_novas_own_scheduler_runs(self) -> None:
        self._ran(_TO_CLAIM[0], {})
        self.assertEqual(0, self._report(claims_outside=False)[0])

    def test_a_test_that_ran_once_more_may_have_claimed_in_either_run(self) -> None:
        for outside in ({"claimed": 1}, {}):
            self._ran(_TO_CLAIM[0], outside)
        for outside in ({}, {"claimed": 1}):
            self._ran(_TO_CLAIM[1], outside)
        self.assertEqual(0, self._report()[0])

    def test_an_allocation_without_a_claim_is_a_fault_in_any_test(self) -> None:
        self._ran("a.T.one", {"claimed": 1, "unclaimed": 1})
        status, output = self._report()
        self.assertEqual(1, status)
        self.assertIn("a.T.one: {'allocations without a claim': 1}", output)

    def test_each_test_that_is_to_claim_passes_in_stock_nova(self) -> None:
        stock: set[str] = set()
        for path in (selection.EXPECTED / "nova34").glob("*.pass.txt"):
            stock |= set(path.read_text().splitlines())
        self.assertEqual(set(), set(_TO_CLAIM) - stock)
