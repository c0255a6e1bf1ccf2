# SPDX-License-Identifier: Apache-2.0
"""Try faults on engines: ``python -m tests.engine_faults --help``."""

from __future__ import annotations

import argparse
import logging
import pathlib
import sys
import time
import unittest

from rich import console

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.testing import server_processes
from tests.engine_faults import engines, fault, report, runner

_ROOT = pathlib.Path(__file__).parents[2]
DOCUMENT = _ROOT / "doc" / "source" / "reference" / "engine-faults.rst.inc"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.engine_faults", description=__doc__)
    parser.add_argument("--driver", action="append", default=[], help="part of its name")
    parser.add_argument("--fault", action="append", default=[], help="part of its name")
    parser.add_argument("--short", action="store_true", help="what CI tries")
    parser.add_argument("--list", action="store_true", help="name what would be tried")
    parser.add_argument(
        "--json", type=pathlib.Path, help="keep outcomes here; those that are there are not tried"
    )
    parser.add_argument("--again", action="store_true", help="try those that failed again")
    parser.add_argument("--file", action="store_true", help=f"write {DOCUMENT.relative_to(_ROOT)}")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    logging.getLogger("nova_nodb_scheduler").setLevel(logging.CRITICAL)
    selection = runner.Selection(tuple(given.driver), tuple(given.fault), given.short)
    kinds = [each for each in engines.ENGINES if selection.has_engine(each)]
    if given.list:
        _name_all(kinds, selection)
        return 0
    outcomes: list[fault.Outcome] = []
    if given.json is not None and given.json.exists():
        outcomes = report.from_json(given.json.read_text())
        if given.again:
            outcomes = [each for each in outcomes if each.passed]
    began, before = time.monotonic(), len(outcomes)
    skipped = 0

    def told(outcome: fault.Outcome) -> None:
        outcomes.append(outcome)
        if given.json is not None:
            given.json.write_text(report.to_json(outcomes))
        recovery = outcome.recovery_seconds
        print(  # noqa: T201 - a command's output
            f"{time.strftime('%H:%M:%S')} {'ok    ' if outcome.passed else 'FAILED'} "
            f"{outcome.engine}: {outcome.fault} "
            f"(recovery {'-' if recovery is None else f'{recovery:.1f}'} s, "
            f"in all {outcome.seconds:.1f} s) {outcome.detail[:600]}",
            flush=True,
        )

    for kind in kinds:
        done = {(each.engine, each.fault) for each in outcomes}
        try:
            runner.run(kind, selection, done, told)
        except unittest.SkipTest as absent:
            skipped += 1
            print(f"skipped {kind.name}: {absent}")  # noqa: T201
        except (server_processes.ServerFailed, errors.NodbError) as error:
            tried = fault.Fault("(start)", 0.0, lambda trial: None)
            told(fault.Outcome(kind.name, tried.name, False, None, 0, None, 0, 0, {}, str(error)))
    new = outcomes[before:]
    console.Console(width=160).print(report.table(outcomes))
    if given.file:
        DOCUMENT.write_text(report.to_rst(outcomes))
    failed = sum(not each.passed for each in new)
    seconds = time.monotonic() - began
    print(  # noqa: T201
        f"{seconds:.0f} s; {len(new) - failed} passed, {failed} failed, {skipped} skipped"
    )
    return 1 if failed or not (outcomes or skipped) else 0


def _name_all(kinds: list[type[engines.Engine]], selection: runner.Selection) -> None:
    for kind in kinds:
        for each in runner.faults(kind):
            if selection.has_fault(kind, each):
                print(f"{kind.name}: {each.name}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
