# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is to settle a record, and when the record had enough of it.

Schedulers that spread their claims write different records: each settles those
it prefers itself, or settling would take from it the compare-and-sets that
spreading saved. Whoever settles for all takes what its owner leaves for long.
"""

from __future__ import annotations

from collections.abc import Callable

from nova_nodb_scheduler.model import records


class Turns:
    """Which records one process may settle now; one thread.

    :param is_own: whether a host, or a group, by its uuid, is this process's to
        prefer; None where nobody prefers any: then who settles for all settles
    :param rest_seconds: how long a record is left alone once it was written:
        claims come to it meanwhile
    :param others_seconds: how long a record of another process waits for it
    :param clock: monotonic seconds
    :ivar for_all: whether this process settles what others leave, as of the last turn
    """

    def __init__(
        self,
        is_own: Callable[[str], bool] | None,
        rest_seconds: float,
        others_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._is_own = is_own
        self._rest_seconds = rest_seconds
        self._others_seconds = others_seconds
        self._clock = clock
        self.for_all = False
        #: Until when each record rests.
        self._resting: dict[records.RecordKey, float] = {}
        #: Records that are asked for again once they may be settled.
        self._put_off: dict[records.RecordKey, None] = {}

    def clear(self) -> None:
        """Forget all."""
        self._resting.clear()
        self._put_off.clear()

    def begin(self, *, for_all: bool) -> list[records.RecordKey]:
        """Begin a turn; return records put off that may be looked at again.

        :param for_all: whether this process settles what others leave
        """
        self.for_all = for_all
        now = self._clock()
        for key in [key for key, until in self._resting.items() if until <= now]:
            del self._resting[key]
        ready = [key for key in self._put_off if key not in self._resting]
        for key in ready:
            del self._put_off[key]
        return ready

    def wrote(self, key: records.RecordKey) -> None:
        """Note that a record was settled just now."""
        if self._rest_seconds:
            self._resting[key] = self._clock() + self._rest_seconds

    def allows(self, key: records.RecordKey, since: float) -> bool:
        """Say whether a record may be settled now; one of our own is put off if not.

        :param since: monotonic seconds at which its claims began to wait
        """
        own = self._owns(key) or self.takes_over(key, since)
        if own and key in self._resting:
            self._put_off[key] = None
            return False
        return own

    def takes_over(self, key: records.RecordKey, since: float) -> bool:
        """Say whether another process left its record for so long that it is settled here."""
        is_late = self.for_all and self._clock() >= since + self._others_seconds
        return is_late and not self._owns(key)

    def _owns(self, key: records.RecordKey) -> bool:
        return self.for_all if self._is_own is None else self._is_own(key.key)
