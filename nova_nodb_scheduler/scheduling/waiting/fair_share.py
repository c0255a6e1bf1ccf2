# SPDX-License-Identifier: Apache-2.0
"""How much of the cloud each project has, by its weight: dominant resource fairness.

A project's share is the greatest, over resource classes, of the part of the cloud's
capacity that it has, divided by its weight. Who has the least goes first. What it has
is what it uses, which the caller says, and what it was granted that is not among that yet.

Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011, with weights (section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping

Amounts = Mapping[str, int]


class FairShare:
    """Shares of projects; O(resource classes) each. Not safe for threads.

    :param weights: by project id; 1.0 for all others
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._capacity: dict[str, int] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._granted: dict[str, dict[str, int]] = {}

    def set_capacity(self, capacity: Amounts) -> None:
        """Say what the cloud has; a resource class that it has nothing of counts for nobody."""
        self._capacity = {name: amount for name, amount in capacity.items() if amount > 0}

    def set_usage(self, project: str, used: Amounts) -> None:
        """Say what a project uses; an empty mapping for one that has nothing."""
        _keep(self._used, project, {name: amount for name, amount in used.items() if amount})

    def grant(self, project: str, needs: Amounts, servers: int) -> None:
        """Count what was granted and is not in use yet; ``servers`` below 0 takes it back."""
        granted = self._granted.get(project, {})
        for name, amount in needs.items():
            left = granted.get(name, 0) + amount * servers
            if left:
                granted[name] = left
            else:
                granted.pop(name, None)
        _keep(self._granted, project, granted)

    def share(self, project: str) -> float:
        """Return a project's share: 0.0 for one that has nothing, 1.0 for all by weight 1."""
        used = self._used.get(project)
        granted = self._granted.get(project)
        if not used and not granted:
            return 0.0
        greatest = 0.0
        for name, whole in self._capacity.items():
            has = (used.get(name, 0) if used else 0) + (granted.get(name, 0) if granted else 0)
            greatest = max(greatest, has / whole)
        return greatest / self._weights.get(project, 1.0)


def _keep(kept: dict[str, dict[str, int]], project: str, amounts: dict[str, int]) -> None:
    if amounts:
        kept[project] = amounts
    else:
        kept.pop(project, None)
