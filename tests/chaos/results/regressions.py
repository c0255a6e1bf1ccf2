# SPDX-License-Identifier: Apache-2.0
"""Seeds whose rounds found something: kept in a file beside this module, and run again."""

import json
import pathlib
from collections.abc import Iterable

import attrs

from tests.chaos import rounds

FILE = pathlib.Path(__file__).with_name("regressions.json")


def _strings(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


@attrs.frozen
class Regression:
    """What is needed to draw a round's plan again, and what it found when it did.

    :param seconds, every_seconds: as the round was drawn
    """

    seed: int
    backend: str
    faults: tuple[str, ...] = attrs.field(converter=_strings)
    seconds: float
    every_seconds: float
    found: tuple[str, ...] = attrs.field(converter=_strings)
    found_on: str


def load(path: pathlib.Path = FILE) -> list[Regression]:
    """Return what is kept, oldest first."""
    if not path.exists():
        return []
    return [Regression(**entry) for entry in json.loads(path.read_text())]


def keep(found: Iterable[Regression], path: pathlib.Path = FILE) -> int:
    """Add those that are not kept yet; return how many."""
    kept = load(path)
    known = {(each.seed, each.backend, each.faults) for each in kept}
    new = [each for each in found if (each.seed, each.backend, each.faults) not in known]
    if new:
        text = json.dumps([attrs.asdict(each) for each in [*kept, *new]], indent=1)
        path.write_text(text + "\n")
    return len(new)


def of(outcome: rounds.Outcome, seconds: float, every_seconds: float) -> Regression:
    """Return the entry of a round that found something."""
    kinds = sorted({str(finding["kind"]) for finding in outcome.findings})
    return Regression(
        seed=outcome.seed,
        backend=outcome.control_plane,
        faults=outcome.kinds,
        seconds=seconds,
        every_seconds=every_seconds,
        found=tuple(kinds),
        found_on=outcome.run_on,
    )
