# SPDX-License-Identifier: Apache-2.0
"""Hosts whose room grew, and whom that may help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from nova_nodb_scheduler.scheduling.waiting.order import resource_axis


@attrs.frozen(eq=False)
class Growth:
    """Hosts on which there may be room for somebody who did not fit before.

    Numbers are those of the caller's own view of the hosts, in which grants in flight do
    not show yet. Cost grows with the hosts of one growth: some hundreds are fine.

    :param hosts: node uuids, each once
    :param resources: names of the columns of ``after`` and ``before``
    :param after: free now, shape (n, resources)
    :param before: free when the hosts were looked at last, alike: keeps away who fitted
        then, too. None: something else than free room changed (the host is new, enabled, up
        again, in another aggregate, has other traits, fewer servers where their number is
        bounded, a hold or a grant on it ended), and whoever fits now may be helped
    """

    hosts: Sequence[str]
    resources: Sequence[str]
    after: resource_axis.Vector
    before: resource_axis.Vector | None = None


class GrownHosts:
    """Room on hosts that grew, less what is granted meanwhile. Not safe for threads.

    :param after: free and not charged, shape (n, columns); is changed
    :param before: alike, before they grew
    :param holders: for whom hosts are held, by row
    """

    def __init__(
        self,
        hosts: Sequence[str],
        after: resource_axis.Vector,
        before: resource_axis.Vector | None,
        holders: Mapping[int, str],
    ) -> None:
        self._hosts = hosts
        self._rows = {host: row for row, host in enumerate(hosts)}
        self._after = after
        self._before = before
        self._holders = holders
        self._is_common = np.ones(len(hosts), bool)
        self._is_common[list(holders)] = False
        #: Whether there is less room than when somebody looked, who then resets it.
        self.is_less = False

    def most(self) -> resource_axis.Vector | None:
        """Return the greatest room by resource class, of hosts that are held for nobody."""
        rooms = self._after[self._is_common]
        return rooms.max(axis=0) if len(rooms) else None

    def is_any(self, needs: resource_axis.Vector) -> bool:
        """Say whether a host that is held for nobody takes one server."""
        return bool((_slots(self._after, needs, np.flatnonzero(needs), 1)[self._is_common]).any())

    def helped(self, key: str, needs: resource_axis.Vector, servers: int) -> tuple[str, ...]:
        """Return the hosts that may help a request: those that take more of its servers now."""
        asked = np.flatnonzero(needs)
        slots = _slots(self._after, needs, asked, servers)
        is_helped = (slots > 0) & self._is_common
        if self._before is not None:
            is_helped &= slots > _slots(self._before, needs, asked, servers)
        for row, holder in self._holders.items():
            # What is freed there piece by piece is the holder's, whatever was before.
            is_helped[row] = holder == key and slots[row] > 0
        return tuple(self._hosts[row] for row in np.flatnonzero(is_helped).tolist())

    def take(self, hosts: Mapping[str, int], needs: resource_axis.Vector) -> None:
        """Take room for servers, by host; hosts that did not grow do not matter."""
        for host, servers in hosts.items():
            row = self._rows.get(host)
            if row is not None:
                self.is_less = True
                self._after[row, : len(needs)] -= servers * needs[: self._after.shape[1]]


def _slots(
    room: resource_axis.Vector, needs: resource_axis.Vector, asked: resource_axis.Vector, most: int
) -> resource_axis.Vector:
    """Return how many servers each host takes, ``most`` at most, shape (n,)."""
    slots = np.full(len(room), most, np.int64)
    for column in asked:
        if column >= room.shape[1]:
            # Learnt since the walk began: nothing is known to be free of it.
            return np.zeros(len(room), np.int64)
        np.minimum(slots, room[:, column] // needs[column], out=slots)
    return np.maximum(slots, 0)
