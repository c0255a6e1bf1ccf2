# SPDX-License-Identifier: Apache-2.0
"""Claims, releases and faults at random for as long as is wanted, in pieces.

Each piece is a world of its own: schedulers place and delete, and now and then
one is killed, another one sleeps for longer than its leases. At its end
everything is checked. What was done is kept in a file, and a run goes on there::

    python -m tests.engine_faults.long_run --driver redis --operations 1000000 --resume FILE
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import math
import pathlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import attrs

from nova_nodb_scheduler import errors
from tests.engine_faults import engines, processes, scheduler_faults, world

#: A world's grants, after which it is checked and the next begins.
PIECE_SECONDS = 60.0
_FAULT_SECONDS = 8.0


@attrs.frozen
class Piece:
    """What one world did.

    :param claims: servers that were granted, each with its claim
    :param operations: servers that were placed, refused for want of room, or deleted
    """

    engine: str
    seed: int
    operations: int
    claims: int
    over_commits: int
    leaks: int
    stale_hosts: int
    kills: int
    freezes: int
    seconds: float
    detail: str = ""


def run_piece(engine: engines.Engine, seed: int, most_operations: int) -> Piece:
    """Run one world until its time is over, or so many operations are done."""
    rng = random.Random(seed)
    made = world.World(engine.site(), seed=seed, pause_seconds=0.0)
    began = time.monotonic()
    kills = freezes = 0
    detail = ""
    counts = made.ledger.counts
    try:
        made.start()
        made.work()
        began = time.monotonic()
        fault_at = began + rng.uniform(0.5, 1.5) * _FAULT_SECONDS
        while time.monotonic() - began < PIECE_SECONDS:
            time.sleep(0.1)
            made.check_ledger()
            if _operations(counts) >= most_operations:
                break
            if time.monotonic() < fault_at:
                continue
            victim = rng.choice(made.schedulers)
            if rng.random() < 0.5:
                victim.end()
                made.replace(victim)
                made.wait_ready(world.START_SECONDS)
                made.delete_orphans()
                kills += 1
            else:
                victim.pause()
                time.sleep(scheduler_faults.FREEZE_SECONDS)
                victim.resume()
                freezes += 1
            made.work()
            fault_at = time.monotonic() + rng.uniform(0.5, 1.5) * _FAULT_SECONDS
        made.check()
    except (world.Broken, processes.NoAnswer, errors.NodbError) as error:
        detail = f"{type(error).__name__}: {error}"
    finally:
        made.stop()
    return Piece(
        engine=engine.name,
        seed=seed,
        operations=_operations(counts),
        claims=counts["granted"],
        over_commits=counts["over-commits"] + counts["policies broken"],
        leaks=int("are left on" in detail or "are left in" in detail),
        stale_hosts=int("differs in" in detail),
        kills=kills,
        freezes=freezes,
        seconds=round(time.monotonic() - began, 2),
        detail=detail,
    )


def _operations(counts: collections.Counter[str]) -> int:
    return counts["granted"] + counts["deleted"] + counts["refused"]


def summary(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the sums of a run."""
    names = ("operations", "claims", "over_commits", "leaks", "stale_hosts", "kills", "freezes")
    sums: dict[str, Any] = {name: sum(getattr(piece, name) for piece in pieces) for name in names}
    seconds = sum(piece.seconds for piece in pieces)
    sums["seconds"] = round(seconds, 1)
    sums["operations_per_second"] = round(sums["operations"] / seconds, 1) if seconds else 0.0
    sums["failed_pieces"] = sum(bool(piece.detail) for piece in pieces)
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--driver", required=True, help="the engine, as --list names it")
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no piece later")
    parser.add_argument("--resume", type=pathlib.Path, help="one line of JSON for each piece")
    given = parser.parse_args()
    logging.getLogger("nova_nodb_scheduler").setLevel(logging.CRITICAL)
    kinds = [each for each in engines.ENGINES if each.name.lower() == given.driver.lower()]
    if not kinds:
        parser.error(f"--driver: one of {', '.join(each.name for each in engines.ENGINES)}")
    pieces: list[Piece] = []
    if given.resume is not None and given.resume.exists():
        lines = given.resume.read_text().splitlines()
        pieces = [Piece(**json.loads(line)) for line in lines]
    end = time.monotonic() + given.seconds
    with kinds[0]() as engine:
        while (left := given.operations - sum(each.operations for each in pieces)) > 0:
            if time.monotonic() > end:
                break
            piece = run_piece(engine, len(pieces), left)
            pieces.append(piece)
            if given.resume is not None:
                with given.resume.open("a") as stream:
                    stream.write(json.dumps(attrs.asdict(piece)) + "\n")
            print(json.dumps(attrs.asdict(piece)), flush=True)  # noqa: T201
            if piece.detail and not piece.operations:
                break
    sums = summary(pieces)
    print(json.dumps(sums))  # noqa: T201
    return 1 if sums["failed_pieces"] or sums["over_commits"] else 0


if __name__ == "__main__":
    sys.exit(main())
