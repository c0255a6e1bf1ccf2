# SPDX-License-Identifier: Apache-2.0
"""Which hosts have come to offer more than before: they may take somebody who waits.

The frame logs which rows changed. Of those, a host counts as grown if it can be used
now and has more left of something that a request may want, could not be used before,
or differs in what requests ask for beside amounts (traits, aggregates). A row that
changed in nothing that is looked at here counts as grown, too: an aggregate's metadata
or a host's topology did, and to wake somebody for nothing costs one plan, where not to
wake somebody costs a wait for the sweep. A row of which something was taken only does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from nova_nodb_scheduler.scheduling.frame import frame_columns, host_frame

Amounts = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
_Column = npt.NDArray[np.int64] | npt.NDArray[np.int32]


@attrs.frozen(eq=False)
class GrownRows:
    """Hosts with more room than when they were looked at last.

    :param rows: shape (n,), of the frame
    :param after: shape (n, resources): what is left of each class, below 0 where more is
        used than there is, 0 where a host has none of a class
    :param before: what was left then; None: they differ in something else
    """

    rows: Rows
    after: Amounts
    before: Amounts | None = None

    def __len__(self) -> int:
        return len(self.rows)


#: What less of is more room. What a node reports and Placement may know nothing of:
#: filters bound it.
_BETTER_LESS = ("vcpus_used", "num_instances", "num_io_ops", "failed_builds")
_BETTER_MORE = ("free_ram_mb", "free_disk_mb", "pci_free")

#: Codes of values that requests ask for, and which of two is better nobody knows.
_TELLING: tuple[Callable[[host_frame.ReadableFrame], frame_columns.CodedColumn], ...] = (
    lambda frame: frame.traits,
    lambda frame: frame.provider_aggregates,
    lambda frame: frame.aggregate_sets,
)


class RoomGrowth:
    """What hosts had when they were looked at last. Use it under the frame's lock.

    Costs what changed, and a pass over all rows where the log does not reach back.

    :param resources: names of the resource classes that are looked at
    """

    def __init__(self, resources: Sequence[str]) -> None:
        self.resources = tuple(resources)
        self._sequence = -1
        self._usable: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        #: Whose row it was: a host that is gone leaves its row to another one.
        self._tenure: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        #: Shape (rows, figures): what is the more room the greater it is.
        figures = len(self.resources) + len(_BETTER_LESS) + len(_BETTER_MORE)
        self._room: Amounts = np.zeros((0, figures), np.int64)
        self._codes: npt.NDArray[np.int64] = np.zeros((0, len(_TELLING)), np.int64)
        self._vocabularies: list[list[object]] = []

    def look(self, frame: host_frame.ReadableFrame) -> tuple[GrownRows, ...]:
        """Return the hosts that grew since the last call; none at the first one."""
        first = self._sequence < 0
        rows = None if first else frame.changed_since(self._sequence)
        self._sequence = frame.sequence
        self._grow(frame.rows)
        # Codes are given anew now and then: nothing is known of the former ones.
        vocabularies: list[list[object]] = [column(frame).values for column in _TELLING]
        recoded = any(
            one is not other for one, other in zip(vocabularies, self._vocabularies, strict=False)
        )
        self._vocabularies = vocabularies
        if rows is None:
            rows = np.arange(frame.rows)
        usable = _usable(frame, rows)
        room, codes = self._room_of(frame, rows), _codes(frame, rows)
        before = self._room[rows]
        came = ~self._usable[rows] | (frame.tenure[rows] != self._tenure[rows])
        differs = (codes != self._codes[rows]).any(axis=1) | recoded
        self._usable[rows], self._room[rows], self._codes[rows] = usable, room, codes
        self._tenure[rows] = frame.tenure[rows]
        if first:
            return ()
        grew, is_less = room > before, (room < before).any(axis=1)
        count = len(self.resources)
        freed = grew[:, :count].any(axis=1)
        otherwise = came | differs | grew[:, count:].any(axis=1)
        # Nothing that is looked at: something else.
        otherwise |= ~freed & ~is_less
        free, free_before = room[:, :count], before[:, :count]
        only_freed, others = usable & freed & ~otherwise, usable & otherwise
        found = (
            GrownRows(rows[only_freed], free[only_freed], free_before[only_freed]),
            GrownRows(rows[others], free[others]),
        )
        return tuple(each for each in found if len(each))

    def free(self, frame: host_frame.ReadableFrame, rows: Rows) -> Amounts:
        """Return what is left of each class on some rows now, as :attr:`GrownRows.after`."""
        return self._free_of(frame, rows)

    def _grow(self, rows: int) -> None:
        missing = rows - len(self._usable)
        if missing <= 0:
            return
        self._usable = np.concatenate([self._usable, np.zeros(missing, np.bool_)])
        self._tenure = np.concatenate([self._tenure, np.zeros(missing, np.int64)])
        room = np.zeros((missing, self._room.shape[1]), np.int64)
        self._room = np.concatenate([self._room, room])
        codes = np.full((missing, len(_TELLING)), -1, np.int64)
        self._codes = np.concatenate([self._codes, codes])

    def _room_of(self, frame: host_frame.ReadableFrame, rows: Rows) -> Amounts:
        figures = [self._free_of(frame, rows)]
        figures += [-getattr(frame, name)[rows][:, None] for name in _BETTER_LESS]
        figures += [getattr(frame, name)[rows][:, None] for name in _BETTER_MORE]
        return np.concatenate(figures, axis=1)

    def _free_of(self, frame: host_frame.ReadableFrame, rows: Rows) -> Amounts:
        free = np.zeros((len(rows), len(self.resources)), np.int64)
        for place, name in enumerate(self.resources):
            has = frame.resource(name)
            if has is not None:
                capacity = has.capacity[rows]
                free[:, place] = np.where(capacity < 0, 0, capacity - has.used[rows])
        return free


def capacity(frame: host_frame.ReadableFrame, resources: Sequence[str]) -> dict[str, int]:
    """Return what all hosts have of some resource classes, whatever is used of it."""
    found = {}
    for name in resources:
        has = frame.resource(name)
        if has is not None:
            there = frame.alive[: len(has.capacity)] & (has.capacity > 0)
            found[name] = int(has.capacity[there].sum())
    return found


def _usable(frame: host_frame.ReadableFrame, rows: Rows) -> npt.NDArray[np.bool_]:
    usable: npt.NDArray[np.bool_] = (
        frame.alive[rows]
        & frame.up[rows]
        & ~frame.disabled[rows]
        & frame.has_service[rows]
        & frame.updated[rows]
    )
    if frame.broken:
        usable &= ~np.isin(rows, np.fromiter(frame.broken, np.intp))
    return usable


def _codes(frame: host_frame.ReadableFrame, rows: Rows) -> npt.NDArray[np.int64]:
    return np.stack([column(frame).codes[rows] for column in _TELLING], axis=1).astype(np.int64)
