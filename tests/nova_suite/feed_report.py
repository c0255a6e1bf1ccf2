# SPDX-License-Identifier: Apache-2.0
"""Print what the tests of a run waited for the feed, read, and fell back for.

Ends with status 1 if a wait failed, a write was not reported in a test that
``expected/unheard_rows.txt`` does not name, a test fell back or read a database
that ``expected/fallbacks.txt`` does not name, a conductor allocated without a
claim, or none claimed in a test of ``expected/outside_claims.txt``.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from tests.nova_suite import selection, test_nova


def _lines(results: pathlib.Path) -> Iterator[dict[str, Any]]:
    for path in sorted(results.glob("feed.*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def report(results: pathlib.Path, *, claims_outside: bool = True) -> int:
    """Print the totals and each test that is at fault; return 0 if none is.

    :param claims_outside: whether conductors were to claim in this run
    """
    allowed = selection.read(selection.EXPECTED / "fallbacks.txt")
    unheard = selection.read(selection.EXPECTED / "unheard_rows.txt")
    # With candidates = placement a server is noted, and nobody claims.
    noted = selection.read(selection.EXPECTED / "placement.txt")
    to_claim = selection.read(selection.EXPECTED / "outside_claims.txt") if claims_outside else []
    totals: collections.Counter[str] = collections.Counter()
    decisions: collections.Counter[str] = collections.Counter()
    candidates: collections.Counter[str] = collections.Counter()
    claims: collections.Counter[str] = collections.Counter()
    outside: collections.Counter[str] = collections.Counter()
    # Of a test that failed on a busy machine and ran once more either run counts.
    claiming: dict[str, bool] = {}
    longest_seconds = 0.0
    at_fault = 0
    for line in _lines(results):
        totals["tests"] += 1
        totals["waits"] += line["waits"]
        totals["milliseconds"] += round(line["seconds"] * 1000)
        decisions.update(line["decisions"])
        candidates.update(line["candidates"])
        claims.update(line["claims"])
        outside.update(line["outside"])
        if line["test"] in to_claim:
            claiming[line["test"]] = claiming.get(line["test"], False) or (
                line["outside"].get("claimed", 0) > 0
            )
        longest_seconds = max(longest_seconds, line["longest_seconds"])
        faults = {
            "waits that failed": line["failed"],
            "differences": ([] if selection.covers(unheard, line["test"]) else line["differences"]),
            "fallbacks": {} if line["test"] in allowed else line["fallbacks"],
            "reads": {} if line["test"] in allowed else line["reads"],
            "allocations without a claim": (
                0 if selection.covers(noted, line["test"]) else line["outside"].get("unclaimed", 0)
            ),
        }
        found = {name: value for name, value in faults.items() if value}
        if found:
            at_fault += 1
            print(f"{line['test']}: {found}")
    for test in sorted(name for name, claimed in claiming.items() if not claimed):
        at_fault += 1
        print(f"{test}: no conductor claimed")
    mean = totals["milliseconds"] / totals["waits"] if totals["waits"] else 0.0
    print(f"decisions of the plugin's scheduler: {dict(decisions)}")
    print(f"candidates from memory, or of Placement and why: {dict(candidates)}")
    print(f"claims, and how they ended: {dict(claims)}")
    print(f"allocations of conductors: {dict(outside)}")
    print(
        f"feed: {totals['tests']} tests, {totals['waits']} waits, mean {mean:.1f} ms, "
        f"longest {longest_seconds * 1000:.0f} ms, {at_fault} tests at fault"
    )
    return 1 if at_fault else 0


if __name__ == "__main__":
    mode = os.environ.get(test_nova.PLUGIN_VARIABLE)
    sys.exit(report(pathlib.Path(sys.argv[1]), claims_outside=mode != "reporter"))
