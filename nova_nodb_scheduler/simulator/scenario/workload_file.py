# SPDX-License-Identifier: Apache-2.0
"""Reads a workload from a file: CSV with a header, or one JSON object a line.

The first error is told with its line and column, for such files come of scripts.
"""

from __future__ import annotations

import csv
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.simulator.scenario import workload

_MOST_SERVERS = 1000
#: Of more, Placement itself could hold no allocation.
_MOST_AMOUNT = 2**31 - 1


@attrs.frozen
class Field:
    """A column of a workload.

    :param whole: a whole number, else any
    """

    least: float
    most: float
    whole: bool = True
    required: bool = True
    meaning: str = ""


FIELDS: Mapping[str, Field] = {
    "at_seconds": Field(0, math.inf, whole=False, meaning="arrival, from the run's beginning"),
    "servers": Field(1, _MOST_SERVERS, required=False, meaning="servers of the request; 1"),
    "vcpus": Field(1, _MOST_AMOUNT, meaning="VCPUs of each server"),
    "memory_mb": Field(1, _MOST_AMOUNT, meaning="memory of each server, MiB"),
    "disk_gb": Field(0, _MOST_AMOUNT, required=False, meaning="disk of each server, GiB; 0"),
    "lifetime_seconds": Field(
        0, math.inf, whole=False, required=False, meaning="until deletion; empty: stays"
    ),
}

#: Where a field of a line stands, column counted from 1.
_Where = Callable[[str], int]


def read(path: pathlib.Path) -> tuple[workload.Arrival, ...]:
    """Read a file; ``.csv`` is CSV, ``.jsonl`` and ``.json`` are JSON lines.

    :raises InvalidFile: the file cannot be read, with line and column of the
        first thing that is wrong in it
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise workload.InvalidFile(f"{path}:1:1", f"it cannot be read: {error}") from error
    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".json": _json_rows}
    if path.suffix not in readers:
        raise workload.InvalidFile(
            f"{path}:1:1",
            f"{path.suffix or 'no suffix'} is unknown: name it {', '.join(sorted(readers))}",
        )
    arrivals = [
        _arrival(path, line, values, where)
        for line, values, where in readers[path.suffix](path, text.splitlines())
    ]
    if not arrivals:
        raise workload.InvalidFile(f"{path}:1:1", "there is no request in it")
    return workload.numbered(arrivals)


def _csv_rows(
    path: pathlib.Path, lines: list[str]
) -> Iterator[tuple[int, Mapping[str, Any], _Where]]:
    names = _cells(path, 1, lines[0]) if lines else []
    header = [name.strip() for name, _ in names]
    for place, (name, column) in enumerate(names):
        known = header[place]
        if known not in FIELDS:
            raise _unknown(path, 1, column, name)
        if known in header[:place]:
            raise workload.InvalidFile(f"{path}:1:{column}", f"{known} is there twice")
    for name, field in FIELDS.items():
        if field.required and name not in header:
            raise workload.InvalidFile(f"{path}:1:1", f"the header lacks {name}")
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = _cells(path, number, line)
        if len(cells) != len(header):
            column = cells[min(len(header), len(cells) - 1)][1]
            raise workload.InvalidFile(
                f"{path}:{number}:{column}",
                f"{len(cells)} cells in this line, and {len(header)} in the header",
            )
        columns = {name: column for name, (_, column) in zip(header, cells, strict=True)}
        values = {
            name: _number(cell) for name, (cell, _) in zip(header, cells, strict=True) if cell
        }
        yield number, values, columns.__getitem__


def _cells(path: pathlib.Path, number: int, line: str) -> list[tuple[str, int]]:
    """Return the cells of a line, with the column where each begins."""
    try:
        cells = next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise workload.InvalidFile(f"{path}:{number}:1", f"it is no CSV: {error}") from error
    begins = [1]
    quoted = False
    for place, letter in enumerate(line, start=1):
        if letter == '"':
            quoted = not quoted
        elif letter == "," and not quoted:
            begins.append(place + 1)
    return list(zip(cells, begins, strict=True))


def _number(cell: str) -> Any:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _json_rows(
    path: pathlib.Path, lines: Iterable[str]
) -> Iterator[tuple[int, Mapping[str, Any], _Where]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise workload.InvalidFile(
                f"{path}:{number}:{error.colno}", f"it is no JSON: {error.msg}"
            ) from error
        if not isinstance(values, dict):
            raise workload.InvalidFile(f"{path}:{number}:1", "it is no JSON object")

        def where(name: str, line: str = line) -> int:
            found = re.search(rf'"{re.escape(name)}"\s*:\s*', line)
            return 1 if found is None else found.end() + 1

        for name in values:
            if name not in FIELDS:
                raise _unknown(path, number, line.find(f'"{name}"') + 1, name)
        yield number, {name: each for name, each in values.items() if each is not None}, where


def _unknown(path: pathlib.Path, line: int, column: int, name: str) -> workload.InvalidFile:
    return workload.InvalidFile(
        f"{path}:{line}:{column}", f"{name!r} is unknown; there are {', '.join(FIELDS)}"
    )


def _arrival(
    path: pathlib.Path, line: int, values: Mapping[str, Any], where: _Where
) -> workload.Arrival:
    for name, field in FIELDS.items():
        if name not in values:
            if field.required:
                raise workload.InvalidFile(f"{path}:{line}:1", f"{name} is missing")
            continue
        value = values[name]
        wanted = (int,) if field.whole else (int, float)
        # A bool is an int to Python, and no amount of anything.
        if isinstance(value, bool) or not isinstance(value, wanted):
            kind = "whole number" if field.whole else "number"
            raise _wrong(path, line, where(name), name, f"{value!r} is no {kind}")
        if not math.isfinite(value) or not field.least <= value <= field.most:
            bounds = f"{field.least:g} to {field.most:g}"
            raise _wrong(path, line, where(name), name, f"{value!r} is not within {bounds}")
    vcpus, memory_mb = int(values["vcpus"]), int(values["memory_mb"])
    disk_gb = int(values.get("disk_gb", 0))
    lifetime = values.get("lifetime_seconds")
    return workload.Arrival(
        number=0,
        at_seconds=float(values["at_seconds"]),
        flavor=workload.MadeFlavor(f"{vcpus}-{memory_mb}-{disk_gb}", vcpus, memory_mb, disk_gb),
        servers=int(values.get("servers", 1)),
        lifetime_seconds=None if lifetime is None else float(lifetime),
    )


def _wrong(
    path: pathlib.Path, line: int, column: int, name: str, reason: str
) -> workload.InvalidFile:
    return workload.InvalidFile(f"{path}:{line}:{column}", f"{name}: {reason}")
