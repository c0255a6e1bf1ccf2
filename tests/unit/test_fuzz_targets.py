# SPDX-License-Identifier: Apache-2.0
"""A short run of each target that is fuzzed, and the runner itself."""

import random
import unittest

from nova_nodb_scheduler.wire import decoded_sizes
from tests.fuzz import registry, target

_CASES = 1_500


class TargetsTest(unittest.TestCase):
    def test_some_cases_of_each_target_find_nothing(self):
        for name, entry in registry.TARGETS.items():
            if entry.needs_servers:
                continue
            with self.subTest(name):
                figures = target.run(name, entry.make, seed=7, cases=_CASES)
                self.assertEqual((), figures.findings)
                self.assertEqual(_CASES, sum(figures.ends.values()))
                self.assertLess(1, len(figures.ends))
        self.assertEqual(decoded_sizes.DecodingBounds(), decoded_sizes.present())


class Fails:
    """A target of which each tenth case fails."""

    case_bytes = 1 << 20

    def __init__(self):
        self.closed = False

    def case(self, dice: random.Random) -> str:
        if dice.randrange(10) == 0:
            raise target.Finding("drawn")
        return "fine"

    def close(self) -> None:
        self.closed = True


class Greedy(Fails):
    def case(self, dice: random.Random) -> str:
        return str(len(bytes(2 << 20)))


class RunnerTest(unittest.TestCase):
    def test_a_finding_is_found_again_by_its_number_alone(self):
        figures = target.run("fails", Fails, seed=1, cases=50)
        self.assertTrue(figures.findings)
        for found in figures.findings:
            again = target.run("fails", Fails, seed=1, cases=1, first=found.number)
            self.assertEqual((found,), again.findings)

    def test_a_run_ends_behind_so_many_findings_and_closes_its_target(self):
        made = Fails()
        figures = target.run("fails", lambda: made, seed=1, cases=10_000, most_findings=3)
        self.assertEqual((3, True), (len(figures.findings), made.closed))
        self.assertLess(figures.cases, 10_000)

    def test_a_case_that_takes_more_memory_than_it_may_is_a_finding(self):
        figures = target.run("greedy", Greedy, seed=1, cases=1)
        self.assertIn("it took", figures.findings[0].error)
