# SPDX-License-Identifier: Apache-2.0
"""What Placement's allocations were at every moment, as triggers of MariaDB wrote it down.

Samples are some tenths of a second apart, and seconds where the machine is full: what took room and
freed it again between two of them they do not show. A trigger writes within the transaction that
changes an allocation, so that what was rolled back is not there. Its time is that of the statement,
which is some milliseconds before others see it.
"""

import bisect
import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

Execute = Callable[[str], Iterable[Sequence[Any]]]
"""Carries one statement out."""

_INTO = "INSERT INTO chaos.usage_changes (at, provider_id, class_id, delta)"
_NEW = "UNIX_TIMESTAMP(NOW(6)), NEW.resource_provider_id, NEW.resource_class_id, NEW.used"
_OLD = "UNIX_TIMESTAMP(NOW(6)), OLD.resource_provider_id, OLD.resource_class_id, -OLD.used"
_TRIGGER = "CREATE TRIGGER placement.chaos_{when} AFTER {when} ON placement.allocations"

_PREPARATION = (
    "CREATE DATABASE chaos",
    (
        "CREATE TABLE chaos.usage_changes (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,"
        " at DOUBLE NOT NULL, provider_id INT NOT NULL, class_id INT NOT NULL, delta INT NOT NULL)"
        " ENGINE=InnoDB"
    ),
    f"{_TRIGGER.format(when='INSERT')} FOR EACH ROW {_INTO} VALUES ({_NEW})",
    f"{_TRIGGER.format(when='DELETE')} FOR EACH ROW {_INTO} VALUES ({_OLD})",
    f"{_TRIGGER.format(when='UPDATE')} FOR EACH ROW {_INTO} VALUES ({_OLD}), ({_NEW})",
)
_CHANGES = (
    "SELECT p.name, h.at, h.delta FROM chaos.usage_changes h"
    " JOIN placement.resource_providers p ON p.id = h.provider_id"
    " JOIN placement.resource_classes c ON c.id = h.class_id WHERE c.name = 'VCPU' ORDER BY h.id"
)
_CAPACITY = (
    "SELECT p.name, (i.total - i.reserved) * i.allocation_ratio FROM placement.inventories i"
    " JOIN placement.resource_providers p ON p.id = i.resource_provider_id"
    " JOIN placement.resource_classes c ON c.id = i.resource_class_id WHERE c.name = 'VCPU'"
)
_USED = (
    "SELECT p.name, SUM(a.used) FROM placement.allocations a"
    " JOIN placement.resource_providers p ON p.id = a.resource_provider_id"
    " JOIN placement.resource_classes c ON c.id = a.resource_class_id WHERE c.name = 'VCPU'"
    " GROUP BY p.name"
)


class IncompleteError(Exception):
    """What was written down does not lead to what stands."""


def begin(execute: Execute) -> None:
    """Have every change written down from now on; nothing may be allocated yet."""
    for statement in _PREPARATION:
        execute(statement)


@attrs.frozen
class UsageHistory:
    """VCPU that were allocated, through time.

    :param capacity: of each provider, by its name
    :param moments: of each provider: when its usage changed, in seconds since the epoch
    :param used: of each provider: what it was then
    """

    capacity: Mapping[str, float]
    moments: Mapping[str, Sequence[float]]
    used: Mapping[str, Sequence[int]]

    def least_free(self, since: float, until: float) -> dict[str, int]:
        """Return the VCPU of each provider that were free at every moment of a time.

        :param since, until: seconds since the epoch
        """
        return {
            provider: max(0, int(capacity) - self._most_used(provider, since, until))
            for provider, capacity in self.capacity.items()
        }

    def _most_used(self, provider: str, since: float, until: float) -> int:
        moments, used = self.moments.get(provider, ()), self.used.get(provider, ())
        begin = bisect.bisect_right(moments, since)
        before = used[begin - 1] if begin else 0
        return max((before, *used[begin : bisect.bisect_right(moments, until)]))


def read(execute: Execute) -> UsageHistory:
    """Read all of it as of one moment.

    :raises IncompleteError: its sums are not what is allocated
    """
    moments: dict[str, list[float]] = collections.defaultdict(list)
    used: dict[str, list[int]] = collections.defaultdict(list)
    for provider, at, delta in execute(_CHANGES):
        # Numbers are in the order of statements, and times are, but for a clock's correction.
        known = moments[provider]
        known.append(max(float(at), known[-1]) if known else float(at))
        used[provider].append((used[provider][-1] if used[provider] else 0) + int(delta))
    stands = {str(provider): int(total) for provider, total in execute(_USED)}
    told = {provider: course[-1] for provider, course in used.items() if course[-1]}
    if told != stands:
        raise IncompleteError(f"allocations changed by {told} in all, and {stands} stand")
    capacity = {str(provider): float(size) for provider, size in execute(_CAPACITY)}
    return UsageHistory(capacity, dict(moments), dict(used))
