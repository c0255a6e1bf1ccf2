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


def decided_by_placement() -> list[str]:
    """Return the tests that run with ``candidates = placement``; the file says why."""
    return read(EXPECTED / "placement.txt")


def left_out(
    with_plugin: bool, nodes: str, *, may_wait: bool = False, waits: bool = False
) -> list[str]:
    """Return the tests that a run leaves out; the files say why.

    :param nodes: what answers for compute nodes: ``mirror``, ``store`` or ``retired``
    :param may_wait: whether the driver is ``nodb_queue``, which decides from memory alone
    :param waits: whether every server waits for room with it
    """
    served = [] if nodes == "mirror" else read(SELECTIONS / "excluded_served.txt")
    placed = decided_by_placement() if may_wait else []
    waiting = read(SELECTIONS / "excluded_waiting.txt") if may_wait and waits else []
    return [*(excluded() if with_plugin else []), *served, *placed, *waiting]


def covers(names: list[str], test_id: str) -> bool:
    """Tell whether a test belongs to a selection (it or a prefix of it is named)."""
    return any(test_id == name or test_id.startswith(name + ".") for name in names)
