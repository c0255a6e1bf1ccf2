# SPDX-License-Identifier: Apache-2.0
"""File what a run of Nova's tests gave, and compare it with stock Nova's record.

``file`` reads a subunit stream on standard input and writes ``pass.txt``,
``fail.txt``, ``skip.txt``, ``timings.tsv`` and, of those that failed by nothing but
patience, ``patience.txt`` into the results directory. ``choose`` writes ``again.txt``,
which names the tests to run once more, and ``settle`` takes over those that passed then:
``impatient.txt`` names them. ``compare`` tells how those lists differ from the expected
ones and ends with status 1 if they do. ``record`` files a stock run's lists as the
expected ones; or those of a run with the plugin, with stock's word on what ``unsettled``
lists: tests that failed with the plugin, or that cannot hold with it.
"""

import argparse
import collections
import os
import pathlib
import sys
from collections.abc import Iterable

import subunit
import testtools

from tests.nova_suite import given_up, selection

#: So many tests that ran out of patience are run once more, and no more of them.
AGAIN_AT_MOST = 5

_OUTCOME_OF_STATUS = {
    "success": "pass",
    "fail": "fail",
    "uxsuccess": "fail",
    "inprogress": "fail",  # the worker died under it
    "skip": "skip",
    "xfail": "skip",
}
_OUTCOMES = ("pass", "fail", "skip")
_COMMANDS = ("file", "choose", "settle", "compare", "record", "unsettled")


class Outcomes:
    """Collects the outcome and the duration of each test of a stream."""

    def __init__(self) -> None:
        self.ids: dict[str, set[str]] = collections.defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.impatient: set[str] = set()

    def add(self, test: dict) -> None:
        """Take one finished test, as ``testtools.StreamToDict`` gives it."""
        outcome = _OUTCOME_OF_STATUS.get(test["status"])
        if outcome is None:  # "exists": a listed test, not a run one
            return
        self.ids[outcome].add(test["id"])
        told = [
            detail.as_text()
            for name, detail in test["details"].items()
            if name.startswith("traceback")
        ]
        if test["status"] == "fail" and given_up.ran_out_of_patience(told):
            self.impatient.add(test["id"])
        started, stopped = test["timestamps"]
        if started and stopped:
            self.seconds[test["id"]] = (stopped - started).total_seconds()


def _write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def _read_lines(path: pathlib.Path) -> set[str]:
    return set(path.read_text().splitlines()) if path.exists() else set()


def file_stream(results: pathlib.Path) -> int:
    """Write the lists of the subunit stream on standard input."""
    outcomes = Outcomes()
    stream = testtools.StreamToDict(outcomes.add)
    stream.startTestRun()
    subunit.ByteStreamToStreamResult(sys.stdin.buffer, non_subunit_name="stdout").run(stream)
    stream.stopTestRun()
    for outcome in _OUTCOMES:
        _write_lines(results / f"{outcome}.txt", sorted(outcomes.ids[outcome]))
    _write_lines(results / "patience.txt", sorted(outcomes.impatient))
    slowest_first = sorted(outcomes.seconds.items(), key=lambda item: -item[1])
    _write_lines(
        results / "timings.tsv", (f"{seconds:.2f}\t{name}" for name, seconds in slowest_first)
    )
    print(", ".join(f"{len(outcomes.ids[outcome])} {outcome}" for outcome in _OUTCOMES))
    return 0


def choose(results: pathlib.Path, expected: pathlib.Path, names: list[str], is_strict: bool) -> int:
    """Write ``again.txt``: the few tests that ran out of patience, if nothing else failed.

    A test that is expected to fail counts for nothing.

    :param is_strict: nothing is tried again
    """
    failed = _read_lines(results / "fail.txt") - _expected("fail", expected, names)
    impatient = failed & _read_lines(results / "patience.txt")
    few = impatient == failed and len(failed) <= AGAIN_AT_MOST and not is_strict
    _write_lines(results / "again.txt", sorted(failed) if few else [])
    if failed and not few:
        print(f"{len(failed)} failed, and none is run again:")
    elif failed:
        print(f"{len(failed)} ran out of patience and are run once more, alone:")
    for test_id in sorted(failed):
        print(f"  {test_id}{' (out of patience)' if test_id in impatient else ''}")
    return 0


def settle(results: pathlib.Path) -> int:
    """Count as passed what did when it was run once more, below ``again``, and name it."""
    passed = _read_lines(results / "again.txt") & _read_lines(results / "again" / "pass.txt")
    for outcome, ids in (
        ("pass", _read_lines(results / "pass.txt") | passed),
        ("fail", _read_lines(results / "fail.txt") - passed),
        ("impatient", passed),
    ):
        _write_lines(results / f"{outcome}.txt", sorted(ids))
    print(f"{len(passed)} tests ran out of patience and passed when they were run again")
    return 0


def unsettled(results: pathlib.Path, names: list[str], left_out: list[str]) -> int:
    """Print the tests of a run with the plugin that stock has to be asked about."""
    asked = {test_id for test_id in left_out if selection.covers(names, test_id)}
    for test_id in sorted(asked | _read_lines(results / "fail.txt")):
        print(test_id)
    return 0


def record(
    results: pathlib.Path, expected: pathlib.Path, name: str, stock: pathlib.Path | None = None
) -> int:
    """File the lists of a stock run as the expected ones of the selection ``name``.

    :param stock: where ``results`` is of a run with the plugin, stock's of the tests
        that were unsettled: what failed with the plugin is filed by its word alone
    """
    expected.mkdir(parents=True, exist_ok=True)
    for outcome in _OUTCOMES:
        ids = _read_lines(results / f"{outcome}.txt")
        if stock is not None:
            ids = (ids if outcome != "fail" else set()) | _read_lines(stock / f"{outcome}.txt")
        stored = expected / f"{name}.{outcome}.txt"
        stored.unlink(missing_ok=True)
        if ids:
            _write_lines(stored, sorted(ids))
    return 0


def _expected(outcome: str, expected: pathlib.Path, names: list[str]) -> set[str]:
    """Return the tests of a selection that have an outcome on stock Nova."""
    lists = (_read_lines(path) for path in sorted(expected.glob(f"*.{outcome}.txt")))
    return {line for lines in lists for line in lines if selection.covers(names, line)}


def compare(
    results: pathlib.Path, expected: pathlib.Path, names: list[str], left_out: list[str]
) -> int:
    """Print each test whose outcome is not the expected one; return 1 if there is any.

    :param names: the selection of the run; only what it covers is expected
    :param left_out: tests that the run left out
    """
    differences = 0
    for outcome in _OUTCOMES:
        stored = _expected(outcome, expected, names)
        seen = _read_lines(results / f"{outcome}.txt")
        stored = {test_id for test_id in stored if not selection.covers(left_out, test_id)}
        for test_id in sorted(stored - seen):
            print(f"expected to {outcome}, did not: {test_id}")
        for test_id in sorted(seen - stored):
            print(f"not expected to {outcome}, did: {test_id}")
        differences += len(stored ^ seen)
    print(f"{differences} differences from {expected}")
    return 1 if differences else 0


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=_COMMANDS)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--expected", type=pathlib.Path)
    parser.add_argument("--selection", type=pathlib.Path)
    parser.add_argument("--stock", type=pathlib.Path, help="stock's lists of what was unsettled")
    parser.add_argument("--plugin", action="store_true", help="the run was with the plugin")
    parser.add_argument("--compute-nodes", default="mirror", help="what answered for compute nodes")
    parser.add_argument("--driver", default="nodb_scheduler", help="the scheduler_driver")
    parser.add_argument("--waits", action="store_true", help="every server may wait for room")
    arguments = parser.parse_args()
    if arguments.command == "file":
        return file_stream(arguments.results)
    if arguments.command == "settle":
        return settle(arguments.results)
    if arguments.command == "unsettled" and arguments.selection is not None:
        names = selection.read(arguments.selection)
        return unsettled(arguments.results, names, selection.excluded())
    if arguments.expected is None or arguments.selection is None:
        parser.error(f"{arguments.command} needs --expected and --selection")
    if arguments.command == "choose":
        names = selection.read(arguments.selection)
        is_strict = bool(os.environ.get("NODB_STRICT"))
        return choose(arguments.results, arguments.expected, names, is_strict)
    if arguments.command == "record":
        return record(
            arguments.results, arguments.expected, arguments.selection.stem, arguments.stock
        )
    return compare(
        arguments.results,
        arguments.expected,
        selection.read(arguments.selection),
        selection.left_out(
            arguments.plugin,
            arguments.compute_nodes,
            may_wait=arguments.driver == "nodb_queue",
            waits=arguments.waits,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
