# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of changed files: those named after a module, and those that import it.

usage: python tools/test_changed.py [--since COMMIT] [--functional] [--most N] [--list] [FILE...]

Without files: what differs from the last commit, files that git does not know included. A module's
tests are first those of the mirrored layout (``tests/unit/store/test_table.py`` of
``store/table.py``), then those that import it, directly or by a module of the tests; where nothing
does, those of the modules that use it. A changed module of the tests is run, or who imports it.
"""

from __future__ import annotations

import argparse
import ast
import collections
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence, Set

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "nova_nodb_scheduler"
_TREES = (PACKAGE, "tests", "tools")


def module_name(path: pathlib.PurePath) -> str:
    """Return the dotted name of a file below the checkout."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, modules: Set[str]) -> set[str]:
    """Return which of the project's modules a source imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found & modules


def import_graph(root: pathlib.Path) -> dict[str, set[str]]:
    """Return what each module of the package, the tests and the tools imports."""
    sources = {
        module_name(path.relative_to(root)): path.read_text()
        for tree in _TREES
        for path in sorted((root / tree).rglob("*.py"))
    }
    return {name: imports(source, sources.keys()) for name, source in sources.items()}


def _is_test(module: str, kinds: Sequence[str]) -> bool:
    return module.rpartition(".")[2].startswith("test_") and any(
        module.startswith(f"tests.{kind}.") for kind in kinds
    )


def tests_of(
    changed: Iterable[str], graph: Mapping[str, Set[str]], kinds: Sequence[str] = ("unit",)
) -> list[str]:
    """Return the test modules of changed modules, the nearest of each first.

    :param graph: see :func:`import_graph`
    :param kinds: folders of tests/ whose modules may be returned
    """
    importers: dict[str, list[str]] = collections.defaultdict(list)
    for name, imported in sorted(graph.items()):
        for each in sorted(imported):
            importers[each].append(name)
    mirrored: list[str] = []
    others: list[str] = []
    for module in changed:
        if _is_test(module, kinds):
            mirrored.append(module)
            continue
        name = f"test_{module.rpartition('.')[2]}"
        near = [
            each
            for kind in kinds
            if (each := _mirror(module, kind, name)) in graph and each != module
        ]
        mirrored += near
        seen, floor = {module}, [module]
        while floor:
            above = {each for below in floor for each in importers[below]} - seen
            seen |= above
            # Who imports little is about what was changed; who imports all is about all.
            tests = sorted(
                (each for each in above if _is_test(each, kinds)),
                key=lambda each: (len(graph[each]), each),
            )
            others += tests
            # A module of the tests stands for what it imports; one of the package has tests of
            # its own, which are wanted only where nothing nearer was found.
            floor = sorted(
                each
                for each in above - set(tests)
                if each.startswith("tests.") or not (tests or near)
            )
    return list(dict.fromkeys(mirrored + others))


def _mirror(module: str, kind: str, name: str) -> str:
    folders = module.split(".")[1:-1] if module.startswith(f"{PACKAGE}.") else []
    return ".".join(["tests", kind, *folders, name])


def _changed_files(since: str) -> list[pathlib.Path]:
    def git(*arguments: str) -> list[str]:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        )
        return done.stdout.splitlines()

    # Against the point where the branches parted: what others changed there is theirs.
    base = git("merge-base", since, "HEAD")[0]
    names = git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")
    return [pathlib.Path(name) for name in dict.fromkeys(names)]


def main(argv: Sequence[str] | None = None) -> int:
    """Find the tests and run them; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--since", default="HEAD", help="a commit or branch (default: HEAD)")
    parser.add_argument(
        "--functional", action="store_true", help="functional tests, too; they start real servers"
    )
    parser.add_argument(
        "--most", type=int, default=12, help="test modules to run, the nearest first (default: 12)"
    )
    parser.add_argument("--list", action="store_true", help="name the test modules, run nothing")
    args = parser.parse_args(argv)
    files = [path.resolve().relative_to(ROOT) for path in args.files]
    graph = import_graph(ROOT)
    changed = [
        name
        for path in files or _changed_files(args.since)
        if path.suffix == ".py" and (name := module_name(path)) in graph
    ]
    found = tests_of(changed, graph, ("unit", "functional") if args.functional else ("unit",))
    wanted = found[: args.most]
    if args.list or not wanted:
        print("\n".join(wanted) or "no test imports what was changed: run tox -e py3")
        return 0
    status = 0
    # Functional tests patch their process for Nova; unit tests must not see that.
    for kind in ("unit", "functional"):
        modules = [each for each in wanted if each.startswith(f"tests.{kind}.")]
        if modules:
            print(f"{kind}: {' '.join(modules)}", flush=True)
            command = [sys.executable, "-m", "unittest", "-q", *modules]
            status |= subprocess.run(command, cwd=ROOT, check=False).returncode
    if len(found) > len(wanted):
        print(f"{len(found) - len(wanted)} further test modules import it: tox -e py3 runs all")
    return status


if __name__ == "__main__":
    sys.exit(main())
