# SPDX-License-Identifier: Apache-2.0
"""Workloads are read from files, and the first error is told with its place."""

import pathlib

import fixtures
import testtools

from nova_nodb_scheduler.simulator.scenario import workload, workload_file

HEADER = "at_seconds,vcpus,memory_mb,servers,disk_gb,lifetime_seconds\n"


class WorkloadFileTest(testtools.TestCase):
    def setUp(self):
        super().setUp()
        self.directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text, encoding="utf-8")
        return path

    def refused(self, name, text):
        """Return (line, column, reason) of what is said of a file."""
        path = self.write(name, text)
        error = self.assertRaises(workload.InvalidFile, workload_file.read, path)
        line, column = error.place.removeprefix(f"{path}:").split(":")
        return int(line), int(column), error.reason

    def test_csv_is_read_in_the_order_of_arrival(self):
        path = self.write("w.csv", HEADER + "5,2,2048,3,10,60\n\n1.5,1,512,,,\n")

        first, second = workload_file.read(path)
        self.assertEqual((0, 1.5, 1, None), _told(first))
        self.assertEqual((1, 5.0, 3, 60.0), _told(second))
        self.assertEqual((0, 1), (first.first_server, second.first_server))
        self.assertEqual({"VCPU": 1, "MEMORY_MB": 512}, first.flavor.resources)
        self.assertEqual({"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 10}, second.flavor.resources)

    def test_json_lines_mean_the_same(self):
        text = '{"at_seconds": 1, "vcpus": 2, "memory_mb": 3, "lifetime_seconds": null}\n'
        csv = self.write("w.csv", "at_seconds,vcpus,memory_mb\n1,2,3\n")
        self.assertEqual(workload_file.read(csv), workload_file.read(self.write("w.jsonl", text)))

    def test_a_value_that_is_no_number_is_shown_where_it_stands(self):
        line, column, reason = self.refused("w.csv", HEADER + "1,2,512,1,,\n2,2,lots,1,,\n")

        self.assertEqual((3, 5), (line, column))
        self.assertIn("memory_mb: 'lots' is no whole number", reason)

    def test_a_column_is_counted_in_letters_and_behind_quotes_too(self):
        found = self.refused("w.csv", 'at_seconds,vcpus,memory_mb\n"1",2,-5\n')

        self.assertEqual((2, 7), found[:2])
        self.assertIn("not within", found[2])

    def test_the_same_of_json(self):
        good = '{"at_seconds": 1, "vcpus": 2, "memory_mb": 3}\n'
        for bad, column, words in (
            ('{"at_seconds": 1, "vcpus": true, "memory_mb": 3}', 28, "no whole number"),
            ('{"at_seconds": 1, "vcpus": 0, "memory_mb": 3}', 28, "not within"),
            ('{"at_seconds": 1, "vcpus": 1,, "memory_mb": 3}', 30, "no JSON"),
            ('{"at_seconds": 1, "memory_mb": 3}', 1, "vcpus is missing"),
            ('{"at_seconds": 1, "vcpus": 1, "memory_mb": 3, "ram": 1}', 47, "'ram' is unknown"),
            ("[1, 2]", 1, "no JSON object"),
        ):
            line, found, reason = self.refused("w.jsonl", good + bad + "\n")
            self.assertEqual((2, column), (line, found), bad)
            self.assertIn(words, reason)

    def test_not_a_number_and_infinity_are_refused(self):
        for text in ("nan", "inf", "-1"):
            line, column, _ = self.refused("w.csv", f"vcpus,memory_mb,at_seconds\n1,2,{text}\n")
            self.assertEqual((2, 5), (line, column), text)

    def test_a_header_is_checked_by_name(self):
        self.assertEqual((1, 12), self.refused("w.csv", "at_seconds,cpus,memory_mb\n")[:2])
        twice = self.refused("w.csv", "at_seconds,vcpus,vcpus,memory_mb\n")
        self.assertEqual((1, 18), twice[:2])
        self.assertIn("lacks memory_mb", self.refused("w.csv", "at_seconds,vcpus\n")[2])

    def test_a_line_with_a_cell_too_many_is_shown_at_that_cell(self):
        line, column, reason = self.refused("w.csv", "at_seconds,vcpus,memory_mb\n1,2,3,4\n")

        self.assertEqual((2, 7), (line, column))
        self.assertIn("4 cells", reason)

    def test_nothing_in_a_file_is_an_error(self):
        self.assertIn("no request", self.refused("w.csv", "at_seconds,vcpus,memory_mb\n")[2])
        self.assertIn("no request", self.refused("w.jsonl", "\n")[2])

    def test_files_of_other_kinds_and_absent_ones_are_refused(self):
        self.assertIn(".csv, .json, .jsonl", self.refused("w.xlsx", "")[2])
        absent = self.directory / "absent.csv"
        error = self.assertRaises(workload.InvalidFile, workload_file.read, absent)
        self.assertIn("cannot be read", str(error))


def _told(arrival):
    return arrival.number, arrival.at_seconds, arrival.servers, arrival.lifetime_seconds
