# SPDX-License-Identifier: Apache-2.0
"""What was granted and does not show yet: charged on its hosts and to its project.

Between the grant and the moment when the claim of the server is seen, a host looks as free
as before. Without the charge every event would grant the same room once more.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

import attrs

from nova_nodb_scheduler.scheduling.waiting import fair_share


@attrs.frozen
class Charge:
    """What one attempt takes.

    :param hosts: number of servers by node uuid; empty where no host is known
    :param needs: of one server
    :param servers: of the request, for the project's share
    """

    attempt: int
    project: str
    needs: Mapping[str, int]
    servers: int
    hosts: Mapping[str, int]


class GrantsInFlight:
    """Charges by request; O(hosts of the request). Not safe for threads."""

    def __init__(self, shares: fair_share.FairShare) -> None:
        self._shares = shares
        self._charges: dict[str, Charge] = {}
        self._by_host: dict[str, dict[str, int]] = {}
        self._ended: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._charges)

    def get(self, key: str) -> Charge | None:
        """Return what a request is charged for."""
        return self._charges.get(key)

    def hosts(self) -> Mapping[str, Mapping[str, int]]:
        """Return what is charged, by node uuid; for reading."""
        return self._by_host

    def put(self, key: str, charge: Charge) -> None:
        """Charge an attempt, instead of the request's former one."""
        self.end(key, is_shown=False)
        self._charges[key] = charge
        self._shares.grant(charge.project, charge.needs, charge.servers)
        self._add(charge, 1)

    def end(self, key: str, *, is_shown: bool) -> Charge | None:
        """Charge a request no longer.

        :param is_shown: whether it stands among what its hosts use; otherwise there is room
            on them again, see :meth:`take_ended`
        :returns: what was charged
        """
        charge = self._charges.pop(key, None)
        if charge is None:
            return None
        self._shares.grant(charge.project, charge.needs, -charge.servers)
        self._add(charge, -1)
        if not is_shown:
            self._ended.update(dict.fromkeys(charge.hosts))
        return charge

    def take_ended(self) -> tuple[str, ...]:
        """Return hosts that have room again because a charge ended; each once."""
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def _add(self, charge: Charge, sign: int) -> None:
        for host, servers in charge.hosts.items():
            charged = collections.Counter(self._by_host.get(host, {}))
            for name, amount in charge.needs.items():
                charged[name] += sign * servers * amount
            left = {name: amount for name, amount in charged.items() if amount}
            if left:
                self._by_host[host] = left
            else:
                self._by_host.pop(host, None)
