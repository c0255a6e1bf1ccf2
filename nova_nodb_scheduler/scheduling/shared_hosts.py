# SPDX-License-Identifier: Apache-2.0
"""The hosts of a signature as one request sees them: nothing copied, nothing changed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterable

import numpy as np

from nova_nodb_scheduler.scheduling import choice, host_frame, pipeline, ranking


class SharedHosts:
    """Hosts by the scores that all requests of a signature share.

    Each call takes the lock and sees the hosts as they are then.

    :param ranked: the signature's ranking, up to date; called under the lock
    :param left_out: rows that this request ignores
    """

    def __init__(
        self,
        lock: contextlib.AbstractContextManager[bool],
        frame: host_frame.HostFrame,
        ranked: Callable[[], ranking.Ranking],
        steps: pipeline.Steps,
        left_out: frozenset[int],
        *,
        shuffled: bool,
        rng: random.Random,
    ) -> None:
        self._lock = lock
        self._frame = frame
        self._ranked = ranked
        self._steps = steps
        self._left_out = left_out
        self._shuffled = shuffled
        self._rng = rng

    def best_first(self, count: int, passed_over: Collection[str]) -> list[choice.Choice]:
        """Return up to ``count`` of the best; none whose uuid is passed over."""
        with self._lock:
            ranked = self._ranked()
            rows = ranked.best_first(self._rng, shuffled=self._shuffled)
            return self._choices(ranked, rows, count, passed_over)

    def in_cell(self, cell: str, count: int, passed_over: Collection[str]) -> list[choice.Choice]:
        """The same of one cell."""
        with self._lock:
            ranked = self._ranked()
            rows = np.flatnonzero(self._frame.cell.codes == self._frame.cell.code(cell))
            wanted = count + len(passed_over) + len(self._left_out)
            return self._choices(ranked, ranked.among(rows, wanted, self._rng), count, passed_over)

    def share(self, uuid: str) -> tuple[choice.Share, ...]:
        """Not known here: an explained plan has a shortlist of its own."""
        raise NotImplementedError

    def _choices(
        self,
        ranked: ranking.Ranking,
        rows: Iterable[int],
        count: int,
        passed_over: Collection[str],
    ) -> list[choice.Choice]:
        found: list[choice.Choice] = []
        for row in rows:
            if len(found) == count:
                break
            if row in self._left_out:
                continue
            place = self._frame.place(row)
            if place.uuid in passed_over:
                continue
            own = self._steps.candidates
            found.append(
                choice.Choice(
                    row=row,
                    uuid=place.uuid,
                    cell=place.cell,
                    host=place.host,
                    node=place.node,
                    score=ranked.scores.item(row),
                    allocation_requests=(
                        own.allocation_requests(self._frame, row, passed=True) if own else ()
                    ),
                )
            )
        return found
