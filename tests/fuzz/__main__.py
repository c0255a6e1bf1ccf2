# SPDX-License-Identifier: Apache-2.0
"""Fuzz one target: python -m tests.fuzz decoder --cases 1000000 --seed 1."""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import resource
import sys

import attrs

from tests.fuzz import registry, target


def main(arguments: list[str] | None = None) -> int:
    """The exit status is 0 when nothing was found."""
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)

    def make() -> target.Target:
        made = registry.TARGETS[options.target].make()
        # What takes more ends with MemoryError, and is a finding. Engines that
        # were started are bound by their own limits.
        most = (options.memory_mib << 20, resource.getrlimit(resource.RLIMIT_AS)[1])
        resource.setrlimit(resource.RLIMIT_AS, most)
        return made

    figures = target.run(
        options.target,
        make,
        seed=options.seed,
        cases=options.cases,
        first=options.first,
        progress=lambda done: print(f"{done} cases", file=sys.stderr, flush=True),
    )
    text = json.dumps(attrs.asdict(figures), indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 1 if figures.findings else 0


def _parser() -> argparse.ArgumentParser:
    about = "\n".join(f"  {name:14} {each.about}" for name, each in registry.TARGETS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=f"{__doc__}\n\ntargets:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", choices=sorted(registry.TARGETS))
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument(
        "--memory-mib",
        type=int,
        default=1024,
        help="address space of the whole process; the default holds for all targets",
    )
    parser.add_argument("--output", type=pathlib.Path, help="file for the figures, in JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
