# SPDX-License-Identifier: Apache-2.0
"""Keeps several schedulers from wanting the same host at the same moment.

Where hosts weigh exactly the same, Nova takes any of them. Here each host belongs
to one of the schedulers that live, by a rendezvous hash of both names: a
scheduler prefers its own among those that Nova might take. Who lives is known
only roughly, and need not be agreed on: two that think differently meet now and
then, and the claim decides.

What Nova might take is a tie for the best, and with ``host_subset_size`` all that
weigh no less than the host that was drawn among the best, each of which might have
been drawn. Where no two hosts weigh the same, all schedulers want the same host:
who loses the claim is told what was claimed before, and claims what is left of it.

An operator may tolerate more (``claim_spread = tolerant``): hosts about as good
as the best count as ties, a deviation from Nova's order. Not where a weigher
speaks for the request itself; a scheduler that is alone never deviates.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence

from nova_nodb_scheduler.scheduling import choice

#: For the tolerant: scores that differ by no more count as the same: a twentieth of
#: what one weigher with a multiplier of 1 can give.
TOLERANCE = 0.05

#: Of the hosts that pass all filters, the share that counts as the same as well: in a
#: cloud that fills unevenly few hosts weigh nearly the same.
BEST_SHARE = 0.01

#: But not those that are worse by more than one weigher with a multiplier of 1 can
#: give: a greater one, as for hosts that failed to build servers, is to be heeded.
MOST_TOLERANCE = 1.0

#: Most hosts looked at for each living scheduler, twice as many each time until one
#: is its own. What others took a moment ago is still among the best here.
MOST_PER_SCHEDULER = 128


class Spreading:
    """The preference of one scheduler; any thread.

    :param own: this scheduler's name, as ``living`` gives it
    :param living: names of the schedulers that live, this one's among them;
        no I/O
    :param tolerant: whether hosts about as good as the best count as ties
    """

    def __init__(
        self, own: str, living: Callable[[], Sequence[str]], *, tolerant: bool = False
    ) -> None:
        self._own = own
        self._living = living
        self._tolerant = tolerant

    def is_own(self, host: str) -> bool:
        """Say whether a host, by its uuid, belongs to this scheduler."""
        return owner(host, tuple(self._living())) == self._own

    def choose(
        self,
        best: Callable[[int], Sequence[choice.Choice]],
        passed: int,
        *,
        is_told_apart: bool = False,
    ) -> choice.Choice | None:
        """Return the host this scheduler tries next; None if there is none.

        :param best: from a number to so many hosts or all there are, best first, as Nova
            orders them: the host that it would take is the first
        :param passed: how many hosts there are that pass all filters
        :param is_told_apart: whether a weigher speaks for the request: nothing is tolerated
        """
        living = tuple(self._living())
        if len(living) < 2:
            return next(iter(best(1)), None)
        alike, tolerance, most_tolerance = 0, 0.0, 0.0
        if self._tolerant and not is_told_apart:
            alike = int(passed * BEST_SHARE)
            tolerance, most_tolerance = TOLERANCE, MOST_TOLERANCE
        wanted, most = len(living), MOST_PER_SCHEDULER * len(living)
        while hosts := best(wanted):
            score = hosts[0].score
            near = [
                each
                for rank, each in enumerate(hosts)
                if each.score >= score - (most_tolerance if rank < alike else tolerance)
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
