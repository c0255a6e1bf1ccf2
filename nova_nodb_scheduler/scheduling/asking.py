# SPDX-License-Identifier: Apache-2.0
"""Which hosts Nova's own filters pass, asked for a few hosts at a time."""

from __future__ import annotations

from collections.abc import Sequence

from nova_nodb_scheduler.scheduling import contract, pipeline


class Asking:
    """The hosts of one request: each is asked once for a server, and only if somebody wants it.

    One thread; asking may block.

    :ivar refused: who failed, for whichever server; as Nova, which goes on
        with the hosts that are left, it is not asked for the next
    """

    def __init__(self, objects: contract.HostObjects, names: Sequence[str]) -> None:
        """Ask some filters; hosts that are first asked for a later server pass these too."""
        self._objects = objects
        self._first_names = tuple(names)
        self._names = self._first_names
        self._index = 0
        self._known: dict[str, bool] = {}
        self._seen: set[str] = set()
        self._counts: dict[str, list[int]] = {}
        self.refused: set[str] = set()

    def begin(self, names: Sequence[str], index: int) -> None:
        """Go on to a server; what was said for the one before holds no more."""
        self._names, self._index = tuple(names), index
        self._known.clear()
        self._counts = {name: [0, 0] for name in names}

    @property
    def counts(self) -> tuple[pipeline.FilterCount, ...]:
        """How many hosts each filter was asked about for this server, and how many it passed."""
        return tuple(
            pipeline.FilterCount(name, before, after)
            for name, (before, after) in self._counts.items()
            if before
        )

    def passing(self, uuids: Sequence[str]) -> frozenset[str]:
        """Return which hosts pass all filters, and ask for those that nobody asked for yet."""
        new = [uuid for uuid in uuids if uuid not in self._known]
        if self._index:
            # Some filters are asked for the first server of a request alone.
            later = [uuid for uuid in new if uuid in self._seen]
            new = [uuid for uuid in new if uuid not in self._seen]
            self._ask(later, self._names, self._index)
        self._ask(new, self._first_names, 0)
        return frozenset(uuid for uuid in uuids if self._known[uuid])

    def _ask(self, uuids: Sequence[str], names: Sequence[str], index: int) -> None:
        left: Sequence[str] = uuids
        for name in names:
            if not left:
                break
            passed = frozenset(self._objects.filter(name, left, index))
            count = self._counts.setdefault(name, [0, 0])
            count[0] += len(left)
            left = [uuid for uuid in left if uuid in passed]
            count[1] += len(left)
        self._seen.update(uuids)
        self._known.update(dict.fromkeys(uuids, False))
        self._known.update(dict.fromkeys(left, True))
        self.refused.update(set(uuids).difference(left))
