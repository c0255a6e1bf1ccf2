# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic, its made data, and what it leaves out or refuses."""

import ast
import collections
import itertools
import pathlib
import re

import fixtures
import testtools

from tools.bench import figures, meters, options
from tools.bench.clouds import cluster, workload
from tools.bench.reports import comparison, results

ROOT = pathlib.Path(__file__).resolve().parents[2]


def usage(wall_seconds, scheduler, store=0, calls=0):
    return meters.Usage(
        wall_seconds=wall_seconds,
        cpu_seconds={"scheduler": scheduler, "placement": 1.0, "mariadb": 0.0, "conductor": 9.0},
        statements={"scheduler": 0, "scheduler_store": store, "placement": 16},
        calls={"POST /allocations": calls},
        server_seconds={"POST /allocations": 0.03 * calls},
    )


def result(hosts, side, p50_seconds, limit=1000):
    return {
        "facts": {"hosts": hosts, "limit": limit, "side": side},
        "one_by_one": {"p50_seconds": p50_seconds},
    }


class ArithmeticTest(testtools.TestCase):
    def test_a_percentile_is_one_of_the_values(self):
        values = [5.0, 1.0, 4.0, 2.0, 3.0]
        self.assertEqual(3.0, figures.percentile(values, 50))
        self.assertEqual(5.0, figures.percentile(values, 99))
        self.assertEqual(1.0, figures.percentile([1.0], 99))
        self.assertRaises(ValueError, figures.percentile, [], 50)

    def test_a_request_costs_what_is_above_the_background_of_the_same_time(self):
        costs = figures.per_request(
            usage(20.0, 3.0, store=60, calls=10), usage(10.0, 1.0, store=20), 10
        )
        self.assertAlmostEqual(0.1, costs["cpu_seconds"]["scheduler"])
        self.assertAlmostEqual(0.3, costs["gross_cpu_seconds"]["scheduler"])
        self.assertAlmostEqual(2.0, costs["sql_scheduler_store"])
        self.assertEqual(1.0, costs["http_calls_total"])
        self.assertNotIn("conductor", costs["cpu_seconds"])

    def test_no_cost_is_negative(self):
        costs = figures.per_request(usage(10.0, 0.5), usage(10.0, 1.0), 10)
        self.assertEqual(0.0, costs["cpu_seconds"]["scheduler"])

    def test_a_ratio_says_how_many_times_the_plugin_is_better(self):
        self.assertEqual(10.0, comparison.Row("wall", 5.0, 0.5, "s").ratio)
        self.assertEqual(10.0, comparison.Row("decisions", 0.5, 5.0, "/s").ratio)
        self.assertIsNone(comparison.Row("calls", 3.0, 0.0).ratio)
        self.assertIsNone(comparison.Row("wall", None, 0.5, "s").ratio)

    def test_short_times_are_written_in_milliseconds(self):
        self.assertEqual("853 ms", comparison.text(0.853, "s"))
        self.assertEqual("62.7 s", comparison.text(62.708, "s"))
        self.assertEqual("0.28/s", comparison.text(0.28, "/s"))
        self.assertEqual("-", comparison.text(None, "s"))


class MadeDataTest(testtools.TestCase):
    def test_the_same_hosts_are_made_each_time_and_in_each_size(self):
        small, large = cluster.Cluster(50), cluster.Cluster(200)
        self.assertEqual(list(small.hosts()), list(itertools.islice(large.hosts(), 50)))
        self.assertEqual(small.aggregates(), cluster.Cluster(50).aggregates())

    def test_no_host_is_over_committed(self):
        for host in cluster.Cluster(500).hosts():
            self.assertLessEqual(host.vcpus_used, host.vcpus * cluster.CPU_RATIO)
            self.assertLessEqual(
                host.memory_mb_used, host.memory_mb - cluster.RESERVED_MEMORY_MB, host
            )
            self.assertLessEqual(host.disk_gb_used, host.disk_gb)

    def test_hosts_have_as_many_traits_as_real_ones_and_each_trait_once(self):
        self.assertEqual(68, len(set(cluster.TRAITS)))
        self.assertEqual(len(cluster.TRAITS), len(set(cluster.TRAITS)))

    def test_each_host_is_in_the_aggregate_of_its_zone(self):
        members = collections.defaultdict(set)
        for each in cluster.Cluster(10).aggregates()[: cluster.ZONES]:
            members[each.metadata["availability_zone"]].update(each.hosts)
        for number in range(1, 11):
            self.assertIn(number, members[cluster.zone(number)])

    def test_both_sides_are_asked_for_the_same(self):
        first, second = (list(itertools.islice(workload.stream(7), 200)) for _ in range(2))
        self.assertEqual(first, second)
        repeated = sum(each.flavor in workload.REPEATED for each in first)
        self.assertTrue(140 <= repeated <= 180, repeated)


class NamesTest(testtools.TestCase):
    """What the benchmark names by text stays true when it moves; Nova need not be there."""

    def constant(self, path, name):
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.Assign) and node.targets[0].id == name:
                return ast.literal_eval(node.value)
        raise AssertionError(f"{path} has no {name}")

    def test_each_measured_part_is_a_method(self):
        for methods in self.constant("tools/bench/request_profile.py", "_PARTS").values():
            for module, owner, name in methods:
                path = ROOT / "nova_nodb_scheduler" / f"{module.replace('.', '/')}.py"
                classes = {
                    node.name: {each.name for each in node.body if hasattr(each, "name")}
                    for node in ast.parse(path.read_text()).body
                    if isinstance(node, ast.ClassDef)
                }
                self.assertIn(name, classes.get(owner, ()), (module, owner))

    def test_each_commanded_process_is_a_main_module(self):
        named = re.findall(
            r"tools\.bench[.\w{}]*_process\b",
            "".join(path.read_text() for path in (ROOT / "tools" / "bench").glob("*.py")),
        )
        self.assertNotEqual([], named)
        for module in named:
            for kind in ("caller", "conductor", "scheduler"):
                path = ROOT / f"{module.replace('{name}', kind).replace('.', '/')}.py"
                self.assertIn('if __name__ == "__main__":', path.read_text())


class OptionsTest(testtools.TestCase):
    def parse(self, *arguments):
        return options.parse(["--state", self.id(), *arguments])

    def test_a_limit_of_all_hosts_is_measured_only_where_it_differs_and_is_bearable(self):
        given = self.parse("--limit", "1000,N")
        self.assertEqual([1000], given.limits_for(100))
        self.assertEqual([1000, 10000], given.limits_for(10_000))
        self.assertEqual([1000], given.limits_for(100_000))

    def test_a_hundred_hosts_are_measured_in_a_hurry_unless_told_otherwise(self):
        self.assertEqual(12.0, self.parse().durations(100).seconds)
        self.assertEqual(60.0, self.parse().durations(1000).seconds)
        self.assertEqual(30.0, self.parse("--seconds", "30").durations(100).seconds)

    def test_an_unknown_side_is_refused(self):
        self.assertRaises(SystemExit, self.parse, "--sides", "stock,other")


class ResultsTest(testtools.TestCase):
    def test_a_result_is_kept_for_each_size_limit_and_side(self):
        kept = results.Results(pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        for hosts, side in ((1000, "plugin"), (100, "plugin"), (1000, "stock")):
            kept.save(hosts, 1000, side, result(hosts, side, 1.0))
        self.assertTrue(kept.has(1000, 1000, "stock"))
        self.assertFalse(kept.has(100, 1000, "stock"))
        found = [(case.hosts, sorted(case.sides)) for case in comparison.cases(kept)]
        self.assertEqual([(100, ["plugin"]), (1000, ["plugin", "stock"])], found)

    def test_what_a_side_did_not_measure_is_left_open(self):
        case = comparison.Case(100, 1000, {"stock": result(100, "stock", 2.0)})
        rows = {row.measure: row for row in comparison.rows_of_request(case)}
        self.assertEqual((2.0, None), (rows["wall, p50"].stock, rows["wall, p50"].plugin))
        self.assertIsNone(rows["CPU, scheduler"].stock)
