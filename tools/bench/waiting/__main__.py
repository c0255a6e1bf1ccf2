# SPDX-License-Identifier: Apache-2.0
"""Command line: python -m tools.bench.waiting wake-ups | choosers; one JSON object a line."""

import argparse
import json
import sys

from tools.bench.waiting import choosers, wake_ups


def main() -> int:
    """Measure each combination that is asked for, and print it."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.waiting", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    events = kinds.add_parser("wake-ups", help=wake_ups.__doc__)
    events.add_argument("--hosts", type=int, nargs="+", default=[100_000])
    events.add_argument("--parked", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    events.add_argument("--events", type=int, default=wake_ups.EVENTS)
    events.add_argument("--restart", action="store_true", help="shares become known at once")
    drawn = kinds.add_parser("choosers", help=choosers.__doc__)
    drawn.add_argument("--hosts", type=int, default=choosers.HOSTS)
    drawn.add_argument("--schedulers", type=int, nargs="+", default=[4, 16])
    drawn.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    if given.kind == "wake-ups":
        for hosts in given.hosts:
            for parked in given.parked:
                _tell(wake_ups.measure(hosts, parked, given.events, restart=given.restart))
    else:
        for schedulers in given.schedulers:
            for setting in choosers.SETTINGS:
                for seed in given.seeds:
                    _tell(choosers.measure(setting, schedulers, given.hosts, seed))
    return 0


def _tell(found: object) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
