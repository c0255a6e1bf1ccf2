# SPDX-License-Identifier: Apache-2.0
"""Load every entry point of an installed distribution; name those that do not load."""

from __future__ import annotations

import importlib.metadata
import sys


def main() -> int:
    """Return how many of the distribution's entry points failed to load."""
    distribution = importlib.metadata.distribution(sys.argv[1])
    print(distribution.metadata["Name"], distribution.version, distribution.locate_file(""))
    failures = 0
    for entry_point in sorted(distribution.entry_points, key=lambda e: (e.group, e.name)):
        try:
            loaded = entry_point.load()
        except Exception as error:  # noqa: BLE001 - whatever an import raises is the finding
            failures += 1
            print(f"FAILED {entry_point.group} {entry_point.name}: {error!r}")
        else:
            kind = type(loaded).__name__
            print(f"ok     {entry_point.group} {entry_point.name} = {entry_point.value} ({kind})")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
