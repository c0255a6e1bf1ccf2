# SPDX-License-Identifier: Apache-2.0
"""The comparison of a run of Nova's tests with stock Nova's lists finds every difference."""

from __future__ import annotations

import contextlib
import io
import pathlib
import tempfile
import unittest

from tests.nova_suite import results, selection


class TestCompare(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self._results = pathlib.Path(directory.name) / "results"
        self._expected = pathlib.Path(directory.name) / "expected"
        self._results.mkdir()
        self._run(passed=["a.b.T.one", "a.b.T.two"], failed=["a.b.T.three"])
        results.record(self._results, self._expected, "a.b")

    def _run(self, passed: list[str], failed: list[str]) -> None:
        for name, ids in (("pass", passed), ("fail", failed), ("skip", [])):
            (self._results / f"{name}.txt").write_text("".join(f"{i}\n" for i in ids))

    def _compare(self, names: list[str], left_out: list[str] | None = None) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = results.compare(self._results, self._expected, names, left_out or [])
        return status, output.getvalue()

    def test_the_same_outcome_is_no_difference(self) -> None:
        self.assertEqual(0, self._compare(["a.b"])[0])

    def test_a_test_that_no_longer_passes_is_told(self) -> None:
        self._run(passed=["a.b.T.one"], failed=["a.b.T.two", "a.b.T.three"])
        status, output = self._compare(["a.b"])
        self.assertEqual(1, status)
        self.assertIn("expected to pass, did not: a.b.T.two", output)
        self.assertIn("not expected to fail, did: a.b.T.two", output)

    def test_a_test_that_did_not_run_is_told(self) -> None:
        self._run(passed=["a.b.T.one"], failed=["a.b.T.three"])
        self.assertIn("expected to pass, did not: a.b.T.two", self._compare(["a.b"])[1])

    def test_an_expected_failure_that_passes_is_told(self) -> None:
        self._run(passed=["a.b.T.one", "a.b.T.two", "a.b.T.three"], failed=[])
        self.assertEqual(1, self._compare(["a.b"])[0])

    def test_stock_settles_what_failed_with_the_plugin_or_cannot_hold_with_it(self) -> None:
        self._run(passed=["a.b.T.one"], failed=["a.b.T.two", "a.b.T.three"])
        with contextlib.redirect_stdout(io.StringIO()) as output:
            results.unsettled(self._results, ["a.b"], ["a.b.T.four", "a.c.T.five"])
        self.assertEqual(["a.b.T.four", "a.b.T.three", "a.b.T.two"], output.getvalue().split())
        stock = self._results / "stock"
        stock.mkdir()
        (stock / "pass.txt").write_text("a.b.T.four\na.b.T.two\n")
        (stock / "fail.txt").write_text("a.b.T.three\n")
        results.record(self._results, self._expected, "a.b", stock)
        status, output = self._compare(["a.b"], ["a.b.T.four"])
        self.assertEqual(1, status)
        # What stock fails, too, is no difference.
        self.assertNotIn("a.b.T.three", output)
        self.assertIn("expected to pass, did not: a.b.T.two", output)

    def test_only_what_the_selection_covers_is_expected(self) -> None:
        self._run(passed=["a.b.T.one"], failed=[])
        self.assertEqual(0, self._compare(["a.b.T.one"])[0])

    def test_a_run_without_any_test_is_a_difference(self) -> None:
        self._run(passed=[], failed=[])
        self.assertEqual(1, self._compare(["a.b"])[0])

    def test_what_was_left_out_is_not_expected(self) -> None:
        self._run(passed=["a.b.T.one"], failed=["a.b.T.three"])
        self.assertEqual(0, self._compare(["a.b"], ["a.b.T.two"])[0])


class TestSelections(unittest.TestCase):
    def test_a_name_covers_what_is_below_it_and_not_its_namesakes(self) -> None:
        self.assertTrue(selection.covers(["a.test_b"], "a.test_b.T.one"))
        self.assertFalse(selection.covers(["a.test_b"], "a.test_bc.T.one"))

    def test_the_short_selection_is_part_of_the_whole_ones(self) -> None:
        whole = [
            name
            for each in ("issue.txt", "endings.txt")
            for name in selection.read(selection.SELECTIONS / each)
        ]
        short = selection.read(selection.SELECTIONS / "ci.txt")
        self.assertTrue(short)
        self.assertEqual([], [name for name in short if not selection.covers(whole, name)])

    def test_each_test_that_is_left_out_is_in_stock_novas_lists(self) -> None:
        stock: set[str] = set()
        for path in (selection.EXPECTED / "nova34").glob("*.txt"):
            stock |= set(path.read_text().splitlines())
        for nodes in ("mirror", "store", "retired"):
            self.assertEqual(set(), set(selection.left_out(True, nodes)) - stock)
