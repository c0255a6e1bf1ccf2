# SPDX-License-Identifier: Apache-2.0
"""Which of the hosts that pass a server takes: the best, or one that was drawn.

Schedulers that all take the best want the same host at the same moment, and all
but one lose the claim. Who draws among the hosts with room meets nobody; of two
that were drawn, the better one keeps most of what weighers are for (the power of
two choices: Mitzenmacher, IEEE TPDS 12(10), 2001). Filters are exact all the same,
and what is drawn is claimed like any host.
"""

from __future__ import annotations

import collections
import enum
import logging
import threading

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.pipeline import chosen_hosts

LOG = logging.getLogger(__name__)

#: The flavor's extra spec that goes before the option.
EXTRA_SPEC = "nodb:choice"

#: Values of the extra spec that a warning is remembered of.
_WARNED = 100


class Chooser(enum.Enum):
    """How a host is chosen among those that pass all filters."""

    #: As Nova does.
    BEST = "best"
    #: The better of two that are drawn.
    TWO = "two"
    #: One that is drawn.
    RANDOM = "random"


class FlavorChoosers:
    """Says how a request's hosts are chosen: by its flavor, else by the option. Any thread.

    :ivar unknown: requests whose flavor names none of the choosers; they take the best
    """

    def __init__(self, default: Chooser) -> None:
        self._default = default
        self._lock = threading.Lock()
        self._warned: collections.OrderedDict[tuple[str, str], None] = collections.OrderedDict()
        self.unknown = 0

    def of(self, request: requests.Request) -> Chooser:
        """Return a request's chooser."""
        named = request.flavor.extra_specs.get(EXTRA_SPEC)
        if named is None:
            return self._default
        try:
            return Chooser(named)
        except ValueError:
            self._count_unknown(request.flavor.name, named)
            return Chooser.BEST

    def _count_unknown(self, flavor: str, named: str) -> None:
        with self._lock:
            self.unknown += 1
            if (flavor, named) in self._warned:
                return
            self._warned[flavor, named] = None
            if len(self._warned) > _WARNED:
                self._warned.popitem(last=False)
        LOG.warning(
            "Flavor %(flavor)s says %(spec)s=%(named)r, which is none of %(known)s: its servers "
            "go to the best host. Correct the flavor's extra spec.",
            {
                "flavor": flavor,
                "spec": EXTRA_SPEC,
                "named": named,
                "known": ", ".join(each.value for each in Chooser),
            },
        )


class DrawnHosts:
    """The hosts of a source in the order in which a chooser takes them.

    :param source: the request's
    :param chooser: one that draws
    """

    def __init__(self, source: chosen_hosts.HostSource, chooser: Chooser) -> None:
        self._source = source
        self._drawn = 2 if chooser is Chooser.TWO else 1

    def next(
        self, count: int, passed_over: frozenset[str], cell: str | None = None
    ) -> list[chosen_hosts.Choice]:
        """Return up to ``count`` hosts; fewer only if there are no more.

        :param passed_over: uuids of hosts that are not drawn
        :param cell: uuid; None for hosts of all cells
        """
        if self._drawn == 1:
            return self._source.at_random(count, passed_over, cell)
        found: list[chosen_hosts.Choice] = []
        while len(found) < count:
            # The worse of two is drawn from again: it is no worse for having met a better one.
            known = passed_over.union(each.uuid for each in found)
            drawn = self._source.at_random(self._drawn, known, cell)
            if not drawn:
                break
            found.append(max(drawn, key=_score))
        return found


def _score(chosen: chosen_hosts.Choice) -> float:
    return chosen.score
