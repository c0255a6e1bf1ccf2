# SPDX-License-Identifier: Apache-2.0
"""Compare a store with a source of truth: what it missed, holds stale, holds extra.

After kube-scheduler's cache comparer. The truth is streamed (a table of a
million rows never stands in memory); what differs is kept by key, so that it can
be looked at again; of a comparison counts are complete, examples bounded.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import attrs

from nova_nodb_scheduler.model import records


@attrs.frozen
class Stale:
    """A record whose state differs.

    :param fields: dotted names of the fields that differ, sorted
    """

    key: str
    fields: tuple[str, ...]


@attrs.frozen
class Comparison:
    """What a comparison found.

    :param compared: records of the truth
    :param missed: keys only the truth holds, the first of them
    :param stale: records that differ, the first of them
    :param extra: keys only the store holds, the first of them
    :param stale_by_field: how many records differ in a field
    :param refused: keys of the truth under which the store takes no record, the
        first of them; not among those compared
    :param settled: keys that differed, were just written, and were alike when
        looked at again, the first of them; they do not count as differing
    """

    compared: int
    missed_count: int
    stale_count: int
    extra_count: int
    missed: tuple[str, ...]
    stale: tuple[Stale, ...]
    extra: tuple[str, ...]
    stale_by_field: Mapping[str, int]
    refused_count: int = 0
    refused: tuple[str, ...] = ()
    settled_count: int = 0
    settled: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not (self.missed_count or self.stale_count or self.extra_count)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return attrs.asdict(self) | {"clean": self.clean}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (kind, key, fields) of the examples, for a table."""
        return [
            *(("missed", key, "") for key in self.missed),
            *(("stale", each.key, ", ".join(each.fields)) for each in self.stale),
            *(("extra", key, "") for key in self.extra),
            *(("refused", key, "") for key in self.refused),
            *(("settled", key, "") for key in self.settled),
        ]


@attrs.define
class Differences:
    """All that differs, by key, until what is looked at again is taken out.

    :param compared: records of the truth
    :param missed: keys only the truth holds
    :param stale: the dotted names of the fields that differ, sorted, by key
    :param extra: keys only the store holds
    :param refused: as printed, keys of the truth under which the store takes no record
    :param settled: keys that were alike when looked at again
    """

    compared: int = 0
    missed: set[str] = attrs.field(factory=set)
    stale: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    extra: set[str] = attrs.field(factory=set)
    refused: list[str] = attrs.field(factory=list)
    settled: set[str] = attrs.field(factory=set)

    def __contains__(self, key: str) -> bool:
        return key in self.missed or key in self.stale or key in self.extra

    def look_again(
        self,
        key: str,
        truth: Mapping[str, Any] | None,
        held: Mapping[str, Any] | None,
        ignore_fields: Collection[str] = (),
    ) -> bool:
        """Put what a key is now in the place of what it was; tell whether it is alike.

        :param truth: its state; None where there is none any more
        :param held: the store's; the same
        """
        self.missed.discard(key)
        self.stale.pop(key, None)
        self.extra.discard(key)
        if truth is None or held is None:
            if truth is not None:
                self.missed.add(key)
            elif held is not None:
                self.extra.add(key)
        elif fields := _fields(truth, held, ignore_fields):
            self.stale[key] = fields
        if key in self:
            return False
        self.settled.add(key)
        return True

    def comparison(self, examples: int = 100) -> Comparison:
        """Count them.

        :param examples: how many of each kind are named
        """

        def first(keys: Collection[str]) -> tuple[str, ...]:
            return tuple(heapq.nsmallest(examples, keys))

        return Comparison(
            compared=self.compared,
            missed_count=len(self.missed),
            stale_count=len(self.stale),
            extra_count=len(self.extra),
            missed=first(self.missed),
            stale=tuple(Stale(key, self.stale[key]) for key in first(self.stale)),
            extra=first(self.extra),
            stale_by_field=dict(
                sorted(Counter(itertools.chain.from_iterable(self.stale.values())).items())
            ),
            refused_count=len(self.refused),
            refused=tuple(self.refused[:examples]),
            settled_count=len(self.settled),
            settled=first(self.settled),
        )


def differences(
    truth: Iterable[tuple[str, Mapping[str, Any]]],
    store_states: Mapping[str, Mapping[str, Any]],
    ignore_fields: Collection[str] = (),
    *,
    is_refused: Callable[[str], bool] = lambda key: False,
) -> Differences:
    """Compare states by key.

    Nested mappings are compared field by field, everything else as a whole.
    A field that is absent on one side and None on the other is equal: Nova's
    rows tell no difference.

    :param truth: each key once
    :param store_states: looked up once per key; may decode lazily
    :param ignore_fields: dotted names; one that names a mapping leaves out
        all below it
    :param is_refused: tells of a key of the truth whether the store takes no
        record under it
    """
    found = Differences()
    seen: set[str] = set()
    # Millions may differ, in the same few fields.
    alike: dict[tuple[str, ...], tuple[str, ...]] = {}
    for key, state in truth:
        if is_refused(key):
            found.refused.append(records.printable_name(key))
            continue
        seen.add(key)
        held = store_states.get(key)
        if held is None:
            found.missed.add(key)
        elif fields := _fields(state, held, ignore_fields):
            found.stale[key] = alike.setdefault(fields, fields)
    found.compared = len(seen)
    found.extra.update(key for key in store_states if key not in seen)
    return found


def _fields(
    truth: Mapping[str, Any], held: Mapping[str, Any], ignored: Collection[str]
) -> tuple[str, ...]:
    return tuple(sorted(_differing_fields(truth, held, "", ignored)))


def _differing_fields(
    truth: Mapping[str, Any], held: Mapping[str, Any], prefix: str, ignored: Collection[str]
) -> Iterable[str]:
    for name in {*truth, *held}:
        path = f"{prefix}{name}"
        if path in ignored:
            continue
        one, other = truth.get(name), held.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differing_fields(one, other, f"{path}.", ignored)
        elif one != other:
            yield path
