# SPDX-License-Identifier: Apache-2.0
"""Results on disk, one JSON file for each size, limit and side; a file is there whole or not."""

import json
import pathlib
from typing import Any

Result = dict[str, Any]


class Results:
    """The results below a directory."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def has(self, hosts: int, limit: int, side: str) -> bool:
        return self._path(hosts, limit, side).exists()

    def save(self, hosts: int, limit: int, side: str, result: Result) -> None:
        self._write(self._path(hosts, limit, side), result)

    def get(self, hosts: int, limit: int, side: str) -> Result | None:
        """Return a result; None where it was not measured."""
        return self._read(self._path(hosts, limit, side))

    def save_core(self, hosts: int, result: Result) -> None:
        """Keep what the pipeline alone did."""
        self._write(self._directory / f"core-{hosts}.json", result)

    def save_fit(self, hosts: int, result: Result) -> None:
        """Keep what requests for NUMA cells and PCI devices cost."""
        self._write(self._directory / f"fit-{hosts}.json", result)

    def save_start(self, hosts: int, result: Result) -> None:
        """Keep what host states of a scheduler that starts took."""
        self._write(self._directory / f"start-{hosts}.json", result)

    def all(self) -> list[Result]:
        """Return all results of both sides, by size, limit and side (stock first)."""
        found = [self._read(path) for path in self._directory.glob("scheduler-*.json")]
        kept = [each for each in found if each is not None]
        return sorted(kept, key=lambda each: _order(each["facts"]))

    def core(self) -> list[Result]:
        """Return the results of the pipeline alone, by size."""
        return self._by_size("core")

    def fit(self) -> list[Result]:
        """Return those of requests for NUMA cells and PCI devices, by size."""
        return self._by_size("fit")

    def start(self) -> list[Result]:
        """Return those of starts, by size."""
        return self._by_size("start")

    def _by_size(self, kind: str) -> list[Result]:
        found = [self._read(path) for path in self._directory.glob(f"{kind}-*.json")]
        return sorted((each for each in found if each is not None), key=lambda each: each["hosts"])

    def _path(self, hosts: int, limit: int, side: str) -> pathlib.Path:
        return self._directory / f"scheduler-{hosts}-{limit}-{side}.json"

    @staticmethod
    def _write(path: pathlib.Path, result: Result) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(result, indent=1) + "\n")
        fresh.replace(path)

    @staticmethod
    def _read(path: pathlib.Path) -> Result | None:
        if not path.exists():
            return None
        found: Result = json.loads(path.read_text())
        return found


def _order(facts: dict[str, Any]) -> tuple[int, int, bool]:
    return int(facts["hosts"]), int(facts["limit"]), facts["side"] != "stock"
