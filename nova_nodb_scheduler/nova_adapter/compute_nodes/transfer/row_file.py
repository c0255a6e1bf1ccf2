# SPDX-License-Identifier: Apache-2.0
"""Rows of a cell in a file: one JSON object a line, all columns, deleted rows too.

It is what is left should the back end be lost while the table is away: servers that do not
change do not have their compute nodes written again.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.nova_adapter.compute_nodes import node_rows


class UnreadableFile(errors.NodbError):
    """A file does not hold rows.

    :param path: of the file
    :param reason: what was found in it
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path} does not hold rows of compute nodes ({self.reason}): name a file that "
            "'nova-nodb-manage compute-nodes retire' or 'export' wrote."
        )


def free(cell: str, directory: pathlib.Path, now: datetime.datetime) -> pathlib.Path:
    """Return where rows of a cell are to be written, which overwrites no file.

    :param now: in UTC; the name has it, or the next second that is free
    """
    moment = now.replace(microsecond=0)
    while True:
        path = directory / f"compute_nodes-{cell}-{moment:%Y%m%dT%H%M%SZ}.jsonl"
        if not path.exists() and not _unfinished(path).exists():
            return path
        moment += datetime.timedelta(seconds=1)


def is_of_other(path: pathlib.Path, cell: str) -> bool:
    """Tell whether a file's name says that it holds the rows of another cell."""
    found = re.match(r"compute_nodes-(.+)-[0-9TZ]+\.jsonl", path.name)
    return found is not None and found[1] != cell


def write(path: pathlib.Path, rows: Iterable[node_rows.Row]) -> int:
    """Write rows, whole or not at all, for this user alone to read; return how many.

    :raises OSError: it cannot be written; nothing stands under its name then
    """
    written = 0
    new = _unfinished(path)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(node_rows.to_state(row), sort_keys=True) + "\n")
                written += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return written


def _unfinished(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.new")


def read(path: pathlib.Path) -> Iterator[node_rows.Row]:
    """Give the rows of a file.

    :raises UnreadableFile: there is something else in it
    :raises OSError: it cannot be read
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = node_rows.from_state(json.loads(line))
                if not (isinstance(row["id"], int) and isinstance(row["deleted"], int)):
                    raise TypeError("id and deleted must be integers")
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise UnreadableFile(str(path), f"line {number}: {error}") from error
            yield row
