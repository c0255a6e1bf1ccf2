# SPDX-License-Identifier: Apache-2.0
"""The hosts of a signature as one request sees them: nothing copied, nothing changed.

What requests of a signature share is brought to the present by steps made at
present. A request that was planned earlier may have another signature by now
(an aggregate was given to a project, a member of its group moved): with the
steps it began with it would write its own answers where others look theirs up.
So it keeps none, and asks for its hosts anew each time it takes the lock.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterable

import numpy as np

from nova_nodb_scheduler.scheduling import choice, host_frame, pipeline, ranking


class SharedHosts:
    """Hosts by the scores that all requests of a signature share. One request's.

    Each call takes the lock and sees the hosts as they are then.

    :param now: what the request may go to, as long as the lock is held that it is
        planned under; :meth:`let_go` ends that
    :param present: the same at any later time; called under the lock
    """

    def __init__(
        self,
        lock: contextlib.AbstractContextManager[bool],
        now: choice.Source,
        present: Callable[[], choice.Source],
    ) -> None:
        self._lock = lock
        self._now: choice.Source | None = now
        self._present = present

    def let_go(self) -> None:
        """Say that the lock is about to be given up."""
        self._now = None

    def best_first(self, count: int, passed_over: Collection[str]) -> list[choice.Choice]:
        """Return up to ``count`` of the best; none whose uuid is passed over."""
        with self._lock:
            return self._source().best_first(count, passed_over)

    def in_cell(self, cell: str, count: int, passed_over: Collection[str]) -> list[choice.Choice]:
        """The same of one cell."""
        with self._lock:
            return self._source().in_cell(cell, count, passed_over)

    def share(self, uuid: str) -> tuple[choice.Share, ...]:
        """Not known here: an explained plan has a shortlist of its own."""
        raise NotImplementedError

    def _source(self) -> choice.Source:
        return self._now if self._now is not None else self._present()


class RankedRows:
    """One request's view of a ranking, under the engine's lock.

    :param ranked: of a signature, up to date
    :param steps: the request's, made at present
    :param left_out: rows that the request ignores
    """

    def __init__(
        self,
        frame: host_frame.HostFrame,
        ranked: ranking.Ranking,
        steps: pipeline.Steps,
        left_out: Collection[int],
        *,
        shuffled: bool,
        rng: random.Random,
    ) -> None:
        self._frame = frame
        self._ranked = ranked
        self._steps = steps
        self._left_out = left_out
        self._shuffled = shuffled
        self._rng = rng

    def best_first(self, count: int, passed_over: Collection[str]) -> list[choice.Choice]:
        """See :class:`choice.Source`."""
        rows = self._ranked.best_first(self._rng, shuffled=self._shuffled)
        return self._choices(rows, count, passed_over)

    def in_cell(self, cell: str, count: int, passed_over: Collection[str]) -> list[choice.Choice]:
        """See :class:`choice.Source`."""
        rows = np.flatnonzero(self._frame.cell.codes == self._frame.cell.code(cell))
        wanted = count + len(passed_over) + len(self._left_out)
        return self._choices(self._ranked.among(rows, wanted, self._rng), count, passed_over)

    def share(self, uuid: str) -> tuple[choice.Share, ...]:
        """Not known here: an explained plan has a shortlist of its own."""
        raise NotImplementedError

    def _choices(
        self,
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
                    score=self._ranked.scores.item(row),
                    allocation_requests=(
                        own.allocation_requests(self._frame, row, passed=True) if own else ()
                    ),
                )
            )
        return found
