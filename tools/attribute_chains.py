# SPDX-License-Identifier: Apache-2.0
"""Finds attribute chains that reach through other objects' insides: ``self.a.b.d``.

Counted are the dots behind a name, without those of a call in between. More than two are a
finding. Not counted are chains that begin at an imported module or class, groups of
oslo.config (``conf.filter_scheduler.enabled_filters``), columns of SQLAlchemy tables
(``table.c.uuid``), and as the last dot what a dict, list, set, text or enum has itself
(``self.a.b.items``): no inside is reached with it.

usage: python -m tools.attribute_chains DIRECTORY...
"""

from __future__ import annotations

import ast
import pathlib
import sys
from collections.abc import Iterator

MOST_DOTS = 2

_OF_VALUES = frozenset(
    name
    for kind in (dict, list, set, frozenset, str, bytes)
    for name in dir(kind)
    if not name.startswith("_")
) | {"value"}


def chains(source: str) -> Iterator[tuple[int, str]]:
    """Return line and text of each chain of a module that is too long."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    inner = {node.value for node in attributes if isinstance(node.value, ast.Attribute)}
    for node in attributes:
        if node in inner:
            continue
        names: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            names.append(root.attr)
            root = root.value
        if isinstance(root, ast.Name):
            names.append(root.id)
            if root.id in imported:
                continue
        if any(name == "c" or name.lower().endswith("conf") for name in names):
            continue
        dots = len(names) - isinstance(root, ast.Name)
        if dots - (names[0] in _OF_VALUES) > MOST_DOTS:
            yield node.lineno, ast.unparse(node)


def main(directories: list[str]) -> int:
    """Print the findings; return 1 if there are any, 2 where nothing can be read."""
    files = [path for each in directories for path in sorted(pathlib.Path(each).rglob("*.py"))]
    if not files:
        print(f"No Python files in {' '.join(directories) or 'no directory'}.", file=sys.stderr)
        return 2
    found = 0
    for path in files:
        for line, text in chains(path.read_text()):
            found += 1
            print(f"{path}:{line}: {text} has more than {MOST_DOTS} dots; ask who holds it.")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
