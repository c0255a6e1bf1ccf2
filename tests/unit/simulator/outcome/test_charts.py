# SPDX-License-Identifier: Apache-2.0
"""Charts are drawn of runs in which next to nothing happened, too."""

import pathlib
import warnings

import fixtures
import testtools

from nova_nodb_scheduler.simulator.outcome import charts, results

NOTHING = results.RunResult(
    strategy="claims",
    figures={"overcommitted_servers": 0, "refusals_at_hosts": 0, "conflicts": 0, "writes_lost": 0},
    decisions=(),
    sequence=(),
    fill=(),
)


WAITED = results.RunResult(
    strategy="queue",
    figures={
        **NOTHING.figures,
        "projects": {
            "blue": {"weight_share": 0.25, "placed_share": 0.3},
            "red": {"weight_share": 0.75, "placed_share": None},
        },
    },
    decisions=(),
    sequence=(),
    fill=(),
    waits={"high": [1.0, 2.0], "low": []},
)


class ChartsTest(testtools.TestCase):
    def draw(self, packing, found=(NOTHING,)):
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "new"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            drawn = charts.draw(directory, list(found), packing)
        self.assertEqual(set(drawn), set(directory.iterdir()))
        return {path.name for path in drawn}

    def test_a_run_without_decisions_has_its_charts(self):
        self.assertEqual(4, len(self.draw({})))

    def test_packing_has_a_chart_where_it_was_asked_for_even_if_nothing_fits(self):
        for hosts in (3, None):
            found = self.draw({"claims": {"hosts": hosts, "of": 8}})
            self.assertIn("simulation-packing.png", found)
            self.assertEqual(5, len(found))

    def test_waits_and_shares_have_charts_where_requests_waited(self):
        found = self.draw({}, (NOTHING, WAITED))
        self.assertLess({"simulation-waits.png", "simulation-shares.png"}, found)
        self.assertEqual(6, len(found))
