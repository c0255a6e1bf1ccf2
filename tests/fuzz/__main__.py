# SPDX-License-Identifier: Apache-2.0
"""Runs a target of that name: a module of this package with ``run(cases, seed)``."""

import argparse
import importlib
import json
import sys


def main() -> int:
    """Run a target; 1 if it found something, which it raises."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", help="a module of tests.fuzz")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = importlib.import_module(f"tests.fuzz.{arguments.target}").run(
        arguments.cases, arguments.seed
    )
    print(json.dumps(found, indent=2, default=str))  # noqa: T201 - its answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
