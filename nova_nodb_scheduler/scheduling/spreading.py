# SPDX-License-Identifier: Apache-2.0
"""Keeps several schedulers from wanting the same host at the same moment.

All of them find the same best host, and all but one lose the claim on it. Here
each host belongs to one of the schedulers that live, by a rendezvous hash of
both names: a scheduler prefers its own among hosts that are about as good as
the best. Who lives is known only roughly, and need not be agreed on: two that
think differently meet now and then, and the claim decides.

A deviation from Nova's order, chosen by ``claim_spread = auto``; a scheduler
that is alone keeps Nova's order. Clouds with several schedulers set Nova's
``host_subset_size`` for the same end, which draws among the best by chance.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence

from nova_nodb_scheduler.scheduling import choice

#: Scores that differ by no more count as the same: a twentieth of what one
#: weigher with a multiplier of 1 can give.
TOLERANCE = 0.05

#: Of the hosts that pass all filters, the share that counts as the same however
#: they weigh: in a cloud that fills unevenly few hosts weigh nearly the same.
BEST_SHARE = 0.01

#: Most hosts looked at for each living scheduler, twice as many each time until one
#: is its own. What others took a moment ago is still among the best here.
MOST_PER_SCHEDULER = 128


class Spreading:
    """The preference of one scheduler; any thread.

    :param own: this scheduler's name, as ``living`` gives it
    :param living: names of the schedulers that live, this one's among them;
        no I/O
    """

    def __init__(self, own: str, living: Callable[[], Sequence[str]]) -> None:
        self._own = own
        self._living = living

    def is_own(self, host: str) -> bool:
        """Say whether a host, by its uuid, belongs to this scheduler."""
        return owner(host, tuple(self._living())) == self._own

    def choose(
        self, best: Callable[[int], Sequence[choice.Choice]], passed: int
    ) -> choice.Choice | None:
        """Return the host this scheduler tries next; None if there is none.

        :param best: from a number to so many hosts or all there are, best first,
            as Nova orders them
        :param passed: how many hosts there are that pass all filters
        """
        living = tuple(self._living())
        if len(living) < 2:
            return next(iter(best(1)), None)
        alike = int(passed * BEST_SHARE)
        wanted, most = len(living), MOST_PER_SCHEDULER * len(living)
        while hosts := best(wanted):
            near = [
                each
                for rank, each in enumerate(hosts)
                if rank < alike or each.score >= hosts[0].score - TOLERANCE
            ]
            own = next((each for each in near if owner(each.uuid, living) == self._own), None)
            if own is not None:
                return own
            if len(near) < wanted or wanted >= most:
                return hosts[0]
            wanted *= 2
        return None


@functools.lru_cache(maxsize=16384)
def owner(host: str, schedulers: tuple[str, ...]) -> str:
    """Return the scheduler a host belongs to: when one comes or goes, few hosts change hands."""
    return max(schedulers, key=lambda name: (_weight(name, host), name))


def _weight(scheduler: str, host: str) -> bytes:
    return hashlib.blake2b(f"{scheduler}\0{host}".encode(), digest_size=8).digest()
