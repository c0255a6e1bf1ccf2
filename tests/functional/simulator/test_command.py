# SPDX-License-Identifier: Apache-2.0
"""``nova-nodb-simulate`` from its command line to its table, files and charts.

What it reports is held against what it says each server was sent to, counted
here from the workload and the made hosts.
"""

import collections
import csv
import json
import pathlib
import subprocess
import sys

import fixtures
import matplotlib.image
import numpy as np
import testtools

from nova_nodb_scheduler.simulator.outcome import results
from nova_nodb_scheduler.simulator.scenario import made_hosts
from nova_nodb_scheduler.testing import redis_server

#: It only ends a run that hangs.
TIMEOUT_SECONDS = 300

#: What each server of the workload takes.
NEED = {made_hosts.VCPU: 8, made_hosts.MEMORY_MB: 4096, made_hosts.DISK_GB: 10}

#: Of a chart, in pixels.
WIDTH, HEIGHT = 840, 504


class CommandTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def simulate(self, *arguments):
        """Run the command; return what it writes to standard output."""
        command = [sys.executable, "-m", "nova_nodb_scheduler.cmd.simulate", "--quiet"]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def workload(self, count):
        """Write a workload of so many servers that stay; return its path."""
        path = self.directory / "workload.csv"
        line = (
            f"0,{NEED[made_hosts.VCPU]},{NEED[made_hosts.MEMORY_MB]},{NEED[made_hosts.DISK_GB]}\n"
        )
        path.write_text("at_seconds,vcpus,memory_mb,disk_gb\n" + count * line)
        return path

    def free(self, **options):
        """Return by host uuid what residents leave free of each class."""
        hosts = made_hosts.Cluster(made_hosts.ClusterOptions(**options)).hosts
        return {
            host.uuid: {name: host.capacity[name] - host.resident[name] for name in NEED}
            for host in hosts
        }

    def choices(self, path):
        """Return the (server, host) pairs of each strategy."""
        found = collections.defaultdict(list)
        with path.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                found[row["strategy"]].append((row["server"], row["host"]))
        return found

    def overcommitted(self, choices, free):
        """Count the servers granted where that exceeded what was free."""
        left = {host: dict(amounts) for host, amounts in free.items()}
        count = 0
        for _, host in choices:
            for name, amount in NEED.items():
                left[host][name] -= amount
            count += min(left[host].values()) < 0
        return count

    def assert_drawn(self, path, count):
        """See that a chart can be read, and shows at least so many strategies."""
        picture = matplotlib.image.imread(path)
        self.assertEqual((HEIGHT, WIDTH), picture.shape[:2], path)
        pixels = (picture[..., :3].reshape(-1, 3) * 255).round().astype(int)
        coloured = pixels[np.ptp(pixels, axis=1) > 50]
        _, amounts = np.unique(coloured, axis=0, return_counts=True)
        self.assertGreaterEqual(int((amounts > 20).sum()), count, path)

    def test_report_files_and_charts_tell_the_same_and_claims_grant_what_there_is(self):
        made = {"hosts": 60, "cpu_ratio": 1.0, "fill": 0.92, "seed": 1}
        free = self.free(**made)
        room = sum(min(host[name] // NEED[name] for name in NEED) for host in free.values())
        requests = room + 8
        report, charts = self.directory / "result.json", self.directory / "charts"
        text = self.simulate(
            *("--hosts", made["hosts"], "--cpu-ratio", made["cpu_ratio"], "--fill", made["fill"]),
            *("--seed", made["seed"], "--workload", self.workload(requests)),
            *("--schedulers", 2, "--strategy", "claims,random"),
            *("--packing", "--packing-trials", 1),
            *("--json", report, "--charts", charts),
            *("--choices", self.directory / "choices.csv"),
        )
        document = json.loads(report.read_text())
        choices = self.choices(self.directory / "choices.csv")

        self.assertEqual(results.FORMAT, document["format"])
        settings = document["settings"]
        self.assertEqual((60, 2), (settings["hosts"], settings["schedulers"]))
        self.assertEqual((requests, requests), (settings["requests"], settings["servers"]))
        self.assertEqual({"claims", "random"}, document["strategies"].keys())
        servers = {made_hosts.server_uuid(made["seed"], number) for number in range(requests)}
        for strategy, figures in document["strategies"].items():
            chosen = choices[strategy]
            self.assertEqual(requests, figures["decisions"])
            self.assertEqual(requests, sum(figures["outcomes"].values()))
            self.assertEqual(len(chosen), figures["servers_placed"])
            self.assertEqual(len(chosen), figures["outcomes"]["placed"])
            self.assertEqual(results.digest(chosen), figures["choices_digest"])
            self.assertEqual(len(chosen), len(dict(chosen)))
            self.assertLessEqual(dict(chosen).keys(), servers)
            self.assertEqual(self.overcommitted(chosen, free), figures["overcommitted_servers"])
            self.assertIn(figures["choices_digest"], text)
        claims = document["strategies"]["claims"]
        self.assertEqual((0, 0), (claims["overcommitted_servers"], claims["leaked_claims"]))
        self.assertEqual(room, claims["servers_placed"])
        for name in ("claim_seconds", "feed_lag_seconds", "latency_seconds", "ready_seconds"):
            spread = [claims[name][part] for part in ("p50", "p90", "p99", "max")]
            self.assertEqual(sorted(spread), spread, name)

        self.check_packing(document["strategies"], requests, made)
        names = ("latency", "feed", "throughput", "harm", "packing")
        self.assertEqual(
            {f"simulation-{name}.png" for name in names}, {path.name for path in charts.iterdir()}
        )
        for path in charts.iterdir():
            self.assert_drawn(path, 2)

    def check_packing(self, strategies, requests, made):
        """See that no fleet is called large enough that cannot be."""
        empty = self.free(**{**made, "fill": 0.0000001})
        most = max(min(host[name] // NEED[name] for name in NEED) for host in empty.values())
        for figures in strategies.values():
            self.assertEqual(made["hosts"], figures["packing"]["of"])
            self.assertLessEqual(figures["packing"]["hosts"], made["hosts"])
            self.assertGreaterEqual(figures["packing"]["hosts"] * most, requests)

    def test_a_real_server_carries_several_runs_each_of_which_begins_empty(self):
        redis = self.useFixture(redis_server.Redis())
        text = self.simulate(
            *("--synchronizer", "redis", "--option", f"url={redis.url}", "--reset"),
            *("--hosts", 20, "--rack-hosts", 5, "--schedulers", 2, "--requests", 40),
            *("--build-seconds", 0.5, "--strategy", "optimistic,claims"),
            *("--json", "-"),
        )
        document = json.loads(text)

        self.assertEqual("redis", document["settings"]["synchronizer"])
        # What its address says, it may hold credentials.
        self.assertNotIn(redis.address, text)
        for figures in document["strategies"].values():
            self.assertEqual({"placed": 40}, figures["outcomes"])
            self.assertEqual(document["settings"]["servers"], figures["servers_placed"])
            self.assertEqual(0, figures["overcommitted_servers"])
            self.assertEqual((0, 0), (figures["failed_flushes"], figures["leaked_claims"]))
        # Optimists may have decided everything before the first server is built and published.
        claims = document["strategies"]["claims"]
        self.assertGreater(claims["batches_followed"], 0)
        self.assertIsNotNone(claims["claim_seconds"]["p50"])
