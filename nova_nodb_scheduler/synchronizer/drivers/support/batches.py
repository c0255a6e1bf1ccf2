# SPDX-License-Identifier: Apache-2.0
"""Batches: what one exchange with a back end takes, and what is known of a batch so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeVar

import attrs

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import records

UNKNOWN = records.WriteResult(records.Verdict.UNKNOWN)

_T = TypeVar("_T")


def split(
    items: Iterable[_T],
    most: int | None = None,
    most_bytes: int | None = None,
    size_of: Callable[[_T], int] = lambda item: 0,
) -> Iterator[list[_T]]:
    """Part items, in their order, by number and by bytes; none for no items.

    :param most: items of one part; None: any number
    :param most_bytes: of one part, but for a larger item, which stands alone; None: any
    """
    part: list[_T] = []
    part_bytes = 0
    for item in items:
        size_bytes = size_of(item)
        is_full = len(part) == most
        is_heavy = most_bytes is not None and part_bytes + size_bytes > most_bytes
        if part and (is_full or is_heavy):
            yield part
            part, part_bytes = [], 0
        part.append(item)
        part_bytes += size_bytes
    if part:
        yield part


def may_have_written(results: Iterable[records.WriteResult]) -> bool:
    """Tell whether any of these writes was carried out, for all that is known."""
    nothing = (records.Verdict.LOST, records.Verdict.REFUSED)
    return any(result.verdict not in nothing for result in results)


class Interrupted(Exception):
    """Of a batch not more is known than this, and nothing more may be sent.

    :param results: of its first writes, or of all, in their order
    """

    def __init__(self, results: Sequence[records.WriteResult] = ()) -> None:
        super().__init__(results)
        self.results = results


def one_by_one(
    writes: Iterable[records.Write],
    write: Callable[[records.Write], records.WriteResult],
    in_doubt: type[Exception] | tuple[type[Exception], ...],
) -> list[records.WriteResult]:
    """Carry writes out in turn, where the back end takes no more at once.

    :param in_doubt: what ``write`` raises where nobody knows whether it was carried out
    :raises Interrupted: it raised that, or the back end was not there for a later write
    :raises BackendUnavailable: nothing was written
    """
    results: list[records.WriteResult] = []
    for each in writes:
        try:
            results.append(write(each))
        except in_doubt as error:
            raise Interrupted([*results, UNKNOWN]) from error
        except errors.BackendUnavailable as error:
            if may_have_written(results):
                raise Interrupted(results) from error
            raise
    return results


@attrs.define
class PendingBatch:
    """What is known so far of the writes of one batch, where it takes several exchanges.

    :param results: by the write's place in the batch
    """

    writes: Sequence[records.Write]
    results: dict[int, records.WriteResult] = attrs.field(factory=dict)

    @property
    def todo(self) -> list[int]:
        """The places of those that have no result yet."""
        return [place for place in range(len(self.writes)) if place not in self.results]

    def answers(self) -> list[records.WriteResult]:
        """Return all results in order; of those without one, that it is unknown."""
        return [self.results.get(place, UNKNOWN) for place in range(len(self.writes))]

    def break_off(self, error: Exception) -> NoReturn:
        """Raise what tells that the batch ends here: the error, where nothing was written."""
        if may_have_written(self.results.values()):
            raise Interrupted(self.answers()) from error
        raise error
