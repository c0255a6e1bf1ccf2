# SPDX-License-Identifier: Apache-2.0
"""Which branches of Nova's filters and weighers the drawn cases reached."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from tests.differential.drawn import words

#: Filters that refuse nobody, by design.
NEVER_REFUSE = frozenset({"AllHostsFilter"})


@attrs.define
class Reached:
    """What a filter or weigher did: hosts accepted and refused; requests weighed.

    :ivar varied: requests in which a weigher told hosts apart
    """

    accepted: int = 0
    refused: int = 0
    constant: int = 0
    varied: int = 0


class Coverage:
    """Counts by class name, over all cases of a run."""

    def __init__(self) -> None:
        self.filters: dict[str, Reached] = collections.defaultdict(Reached)
        self.weighers: dict[str, Reached] = collections.defaultdict(Reached)

    def watch(self, manager: Any) -> None:
        """Count what a HostManager's filters and weighers do from now on."""
        for own in manager.enabled_filters:
            own.filter_all = functools.partial(self._filter_all, type(own).__name__, own.filter_all)
        for own in manager.weighers:
            own.weigh_objects = functools.partial(
                self._weigh_objects, type(own).__name__, own.weigh_objects
            )

    def _filter_all(
        self, name: str, inner: Callable[[Any, Any], Iterable[Any]], hosts: Any, spec: Any
    ) -> Iterator[Any]:
        count = 0
        for each in inner(hosts, spec):
            count += 1
            yield each
        self.filters[name].accepted += count
        self.filters[name].refused += len(hosts) - count

    def _weigh_objects(
        self, name: str, inner: Callable[[Any, Any], Any], weighed: Any, spec: Any
    ) -> Any:
        weights = inner(weighed, spec)
        if len(set(weights)) > 1:
            self.weighers[name].varied += 1
        else:
            self.weighers[name].constant += 1
        return weights

    def missed(self) -> list[str]:
        """Return what no case reached, in words."""
        missing = []
        for name in words.FILTERS:
            reached = self.filters[name]
            if not reached.accepted:
                missing.append(f"{name} never accepted a host")
            if not reached.refused and name not in NEVER_REFUSE:
                missing.append(f"{name} never refused a host")
        return missing + [
            f"{name} never told hosts apart"
            for name in words.WEIGHERS
            if not self.weighers[name].varied
        ]

    def table(self) -> str:
        """Return the counts as text."""
        lines = [f"{'filter':<36}{'accepted':>10}{'refused':>10}"]
        lines += [
            f"{name:<36}{reached.accepted:>10}{reached.refused:>10}"
            for name, reached in sorted(self.filters.items())
        ]
        lines.append(f"{'weigher':<36}{'varied':>10}{'constant':>10}")
        lines += [
            f"{name:<36}{reached.varied:>10}{reached.constant:>10}"
            for name, reached in sorted(self.weighers.items())
        ]
        return "\n".join(lines)
