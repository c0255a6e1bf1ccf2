# SPDX-License-Identifier: Apache-2.0
"""Read a selection: the list of Nova's tests that one run is about."""

import pathlib

SELECTIONS = pathlib.Path(__file__).parent / "selections"
EXPECTED = pathlib.Path(__file__).parent / "expected"


def read(path: pathlib.Path) -> list[str]:
    """Return the names in a list: one module, class or test a line, ``#`` comments."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def excluded() -> list[str]:
    """Return the tests that cannot hold with the plugin; the file says why."""
    return read(SELECTIONS / "excluded.txt")


def left_out(with_plugin: bool, nodes: str) -> list[str]:
    """Return the tests that a run leaves out; the files say why.

    :param nodes: what answers for compute nodes: ``mirror``, ``store`` or ``retired``
    """
    served = [] if nodes == "mirror" else read(SELECTIONS / "excluded_served.txt")
    return [*(excluded() if with_plugin else []), *served]


def covers(names: list[str], test_id: str) -> bool:
    """Tell whether a test belongs to a selection (it or a prefix of it is named)."""
    return any(test_id == name or test_id.startswith(name + ".") for name in names)
