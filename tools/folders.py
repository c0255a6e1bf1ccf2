# SPDX-License-Identifier: Apache-2.0
"""Prints lines and modules of each folder of the package, now, at a commit, or at two.

usage: python tools/folders.py [--depth N] [--rst] [COMMIT [COMMIT]]

Without a commit, of the checkout. A folder counts with what is below it; the last column is the
most modules that one folder of it holds itself. Alembic's versions are not counted as modules that
a reader looks for, for they are a history.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import io
import pathlib
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "nova_nodb_scheduler"


@dataclasses.dataclass
class Folder:
    """What a folder holds, folders below it included."""

    modules: int = 0
    lines: int = 0
    most: int = 0


def sources(commit: str | None) -> Iterator[tuple[pathlib.PurePosixPath, str]]:
    """Return the package's modules as they are, or as they were at a commit."""
    if commit is None:
        for path in sorted((ROOT / PACKAGE).rglob("*.py")):
            yield pathlib.PurePosixPath(path.relative_to(ROOT).as_posix()), path.read_text()
        return
    packed = subprocess.run(
        ["git", "archive", commit, PACKAGE], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                yield pathlib.PurePosixPath(member.name), content.read().decode()


def count(commit: str | None, depth: int) -> tuple[dict[str, Folder], list[int]]:
    """Return the folders down to a depth below the package's own, and each module's lines."""
    folders: dict[str, Folder] = collections.defaultdict(Folder)
    own: collections.Counter[pathlib.PurePosixPath] = collections.Counter()
    sizes = []
    for path, text in sources(commit):
        lines = text.count("\n")
        is_module = path.name != "__init__.py" and path.parent.name != "versions"
        own[path.parent] += is_module
        if is_module:
            sizes.append(lines)
        for name in _names(path.parent, depth):
            folders[name].lines += lines
            folders[name].modules += is_module
    for place, modules in own.items():
        for name in _names(place, depth):
            folders[name].most = max(folders[name].most, modules)
    return dict(folders), sizes


def _names(place: pathlib.PurePosixPath, depth: int) -> list[str]:
    """Return a folder and those it lies in, as far down as is shown."""
    return ["/".join(place.parts[: end + 1]) for end in range(min(depth + 1, len(place.parts)))]


def _cells(folder: Folder | None) -> list[str]:
    if folder is None:
        return ["", "", ""]
    return [str(folder.modules), str(folder.lines), str(folder.most)]


def rows(sides: Sequence[Mapping[str, Folder]]) -> list[list[str]]:
    """Return a row a folder: its name, then modules, lines and the fullest folder of each side."""
    names = sorted(set().union(*sides), key=lambda name: name.split("/"))
    return [[name, *(cell for side in sides for cell in _cells(side.get(name)))] for name in names]


def _text(table: Sequence[Sequence[str]]) -> str:
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in table
    )


def _rst(table: Sequence[Sequence[str]]) -> str:
    out = [".. list-table::", "   :header-rows: 1", ""]
    for row in table:
        for place, cell in enumerate(row):
            shown = f"``{cell}``" if place == 0 and row is not table[0] else cell
            out.append(f"   {'* -' if place == 0 else '  -'} {shown}".rstrip())
    return "\n".join(out)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="a commit or tag; . is now")
    parser.add_argument("--depth", type=int, default=2, help="folders below the package's own")
    parser.add_argument("--rst", action="store_true", help="as a table of the documents")
    args = parser.parse_args(argv)
    named: list[str] = args.commits or ["."]
    counted = [count(None if name == "." else name, args.depth) for name in named]
    head = ["folder"]
    for name in named:
        when = "now" if name == "." else name
        head += [f"modules, {when}", "lines", "most in one"]
    table = [head, *rows([folders for folders, _ in counted])]
    print(_rst(table) if args.rst else _text(table))
    if not args.rst:
        for name, (_, sizes) in zip(named, counted, strict=True):
            print(f"{name}: median {statistics.median(sizes):.0f} lines, longest {max(sizes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
