# SPDX-License-Identifier: Apache-2.0
"""Edits the records of claims, several hosts or groups at a time, from what was last seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling.namespaces import known_namespaces
from nova_nodb_scheduler.synchronizer import contract
from nova_nodb_scheduler.synchronizer.claims import claim_rules, group_rules
from nova_nodb_scheduler.synchronizer.records import record_editor

T = TypeVar("T")
#: A host's record, or a group's.
R = TypeVar("R")
#: What is asked of a record, beside others.
E = TypeVar("E")

#: From a record to what becomes of it.
Change = Callable[[R], record_editor.Proposal[T]]
HostChange = Change[model.ClaimRecord, T]
GroupChange = Change[group_model.GroupRecord, T]

#: From keys to the epoch and the records of them that the feed has brought by now; None
#: while it is not followed. No I/O.
RecordsShown = Callable[[Iterable[records.RecordKey]], tuple[str, Iterable[records.Record]] | None]

#: What came of the edit of each host or group.
Edits = dict[str, record_editor.Edited[T] | record_editor.Unwritten]


class ClaimEdits:
    """The claims' records of one back end; any thread. Blocks for it, raises nothing of it.

    :param pause: see :class:`record_editor.RecordEditor`
    :param count_lost: told of compare-and-sets that were lost, with how many
    :param count_absorbed: see :class:`record_editor.BatchEditor`
    :param latest: what this process last saw or wrote of the records
    :param shown: looked at before each edit: between a take and its confirm the feed
        brings what others took, and a confirm that knows it loses nothing to it
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        pause: Callable[[int], None],
        count_lost: Callable[[int], None],
        count_absorbed: Callable[[int], None],
        latest: record_editor.RecordCache,
        shown: RecordsShown,
    ) -> None:
        self._latest = latest
        self._shown = shown
        self._editor = record_editor.BatchEditor(
            synchronizer,
            [known_namespaces.CLAIM_RECORDS, known_namespaces.GROUP_CLAIMS],
            pause=pause,
            count_lost=count_lost,
            count_absorbed=count_absorbed,
        )

    def see(self, epoch: str, seen: Iterable[records.Record]) -> None:
        """Take in records that the feed of an epoch brought."""
        self._latest.see(epoch, seen)

    def hosts(self, changes: Mapping[str, HostChange[T]]) -> Edits[T]:
        """Change hosts' claims, each by itself; what came of it by host."""
        return self._edit(
            {claim_rules.host_key(host): _on_host(host, change) for host, change in changes.items()}
        )

    def groups(self, changes: Mapping[str, GroupChange[T]]) -> Edits[T]:
        """Change groups' members, each group by itself; what came of it by group."""
        return self._edit(
            {
                group_rules.group_key(uuid): _on_group(uuid, change)
                for uuid, change in changes.items()
            }
        )

    def _edit(self, proposers: Mapping[records.RecordKey, record_editor.Propose[T]]) -> Edits[T]:
        if not proposers:
            return {}
        shown = self._shown(proposers)
        if shown is not None:
            self._latest.see(*shown)
        # Before anything is read: the feed may tell of a new epoch at any moment.
        epoch = self._latest.epoch
        edited = self._editor.edit_each(proposers, self._latest.known(proposers))
        for answer in edited.values():
            if isinstance(answer, record_editor.Edited):
                self._latest.note(answer.record, answer.epoch or epoch)
        return {key.key: answer for key, answer in edited.items()}


@attrs.frozen
class EntryOutcome(Generic[T]):
    """What came of one of the entries that are asked of a record together.

    :param epoch: that it was written in, where the driver says it
    """

    answer: T | record_editor.Unwritten
    epoch: str | None = None

    @property
    def stands(self) -> bool | None:
        """Whether the answer is a grant; None where nobody can tell."""
        if isinstance(self.answer, record_editor.Unwritten):
            return None
        return isinstance(self.answer, model.Granted)


def edit_entries(
    edit: Callable[[Mapping[str, Change[R, tuple[T, ...]]]], Edits[tuple[T, ...]]],
    entries: Sequence[E],
    record_of: Callable[[E], str],
    rule: Callable[[R, Sequence[E]], record_editor.Proposal[tuple[T, ...]]],
) -> list[EntryOutcome[T]]:
    """Change records by entries, those of one record together; what came of each, in order.

    :param edit: :meth:`ClaimEdits.hosts` or :meth:`ClaimEdits.groups`
    :param record_of: tells the host, or the group, of an entry
    :param rule: has an answer for each of a record's entries
    """
    of_record: dict[str, list[E]] = {}
    places: list[tuple[str, int]] = []
    for entry in entries:
        name = record_of(entry)
        here = of_record.setdefault(name, [])
        places.append((name, len(here)))
        here.append(entry)
    edited = edit({name: _by_rule(rule, here) for name, here in of_record.items()})
    return [_outcome(edited[name], place) for name, place in places]


def _by_rule(
    rule: Callable[[R, Sequence[E]], record_editor.Proposal[T]], entries: Sequence[E]
) -> Change[R, T]:
    return lambda record: rule(record, entries)


def _outcome(
    edited: record_editor.Edited[tuple[T, ...]] | record_editor.Unwritten, place: int
) -> EntryOutcome[T]:
    if isinstance(edited, record_editor.Edited):
        return EntryOutcome(edited.answer[place], edited.epoch)
    return EntryOutcome(edited)


def _on_host(host: str, change: HostChange[T]) -> record_editor.Propose[T]:
    return lambda state, version: change(model.ClaimRecord.from_state(host, state, version))


def _on_group(uuid: str, change: GroupChange[T]) -> record_editor.Propose[T]:
    return lambda state, version: change(group_model.GroupRecord.from_state(uuid, state, version))
