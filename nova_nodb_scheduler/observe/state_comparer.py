# SPDX-License-Identifier: Apache-2.0
"""Compare a store with a source of truth: what it missed, holds stale, holds extra.

After kube-scheduler's cache comparer. The truth is streamed (a table of a
million rows never stands in memory); counts are complete, examples bounded.
"""

from __future__ import annotations

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
        ]


def compare(
    truth: Iterable[tuple[str, Mapping[str, Any]]],
    store_states: Mapping[str, Mapping[str, Any]],
    ignore_fields: Collection[str] = (),
    *,
    examples: int = 100,
    is_refused: Callable[[str], bool] = lambda key: False,
) -> Comparison:
    """Compare states by key.

    Nested mappings are compared field by field, everything else as a whole.
    A field that is absent on one side and None on the other is equal: Nova's
    rows tell no difference.

    :param truth: each key once
    :param store_states: looked up once per key; may decode lazily
    :param ignore_fields: dotted names; one that names a mapping leaves out
        all below it
    :param examples: how many missed, stale, extra and refused each are named
    :param is_refused: tells of a key of the truth whether the store takes no
        record under it
    """
    ignored = frozenset(ignore_fields)
    seen: set[str] = set()
    missed: list[str] = []
    stale: list[Stale] = []
    stale_by_field: Counter[str] = Counter()
    refused: list[str] = []
    missed_count = stale_count = refused_count = 0
    for key, state in truth:
        if is_refused(key):
            refused_count += 1
            if len(refused) < examples:
                refused.append(records.printable_name(key))
            continue
        seen.add(key)
        held = store_states.get(key)
        if held is None:
            missed_count += 1
            if len(missed) < examples:
                missed.append(key)
            continue
        fields = tuple(sorted(_differing_fields(state, held, "", ignored)))
        if fields:
            stale_count += 1
            stale_by_field.update(fields)
            if len(stale) < examples:
                stale.append(Stale(key, fields))
    extra: list[str] = []
    extra_count = 0
    for key in store_states:
        if key not in seen:
            extra_count += 1
            if len(extra) < examples:
                extra.append(key)
    return Comparison(
        compared=len(seen),
        missed_count=missed_count,
        stale_count=stale_count,
        extra_count=extra_count,
        missed=tuple(sorted(missed)),
        stale=tuple(sorted(stale, key=lambda each: each.key)),
        extra=tuple(sorted(extra)),
        stale_by_field=dict(sorted(stale_by_field.items())),
        refused_count=refused_count,
        refused=tuple(refused),
    )


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
