# SPDX-License-Identifier: Apache-2.0
"""Edits the records of claims, several hosts or groups at a time, from what was last seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.model import group_claims as group_model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import (
    claims,
    contract,
    group_claims,
    latest_records,
    record_batches,
    record_editor,
)

T = TypeVar("T")

#: From a host's record, or a group's, to what becomes of it.
HostChange = Callable[[model.ClaimRecord], record_editor.Proposal[T]]
GroupChange = Callable[[group_model.GroupRecord], record_editor.Proposal[T]]

#: What came of the edit of each host or group.
Edits = dict[str, record_editor.Edited[T] | record_editor.Unwritten]


class ClaimEdits:
    """The claims' records of one back end; any thread. Blocks for it, raises nothing of it.

    :param pause: see :class:`record_editor.RecordEditor`
    :param count_lost: told of compare-and-sets that were lost, with how many
    :param latest: what this process last saw or wrote of the records
    """

    def __init__(
        self,
        synchronizer: contract.Synchronizer,
        pause: Callable[[int], None],
        count_lost: Callable[[int], None],
        latest: latest_records.LatestRecords,
    ) -> None:
        self._latest = latest
        self._editor = record_batches.BatchEditor(
            synchronizer,
            [namespaces.CLAIM_RECORDS, namespaces.GROUP_CLAIMS],
            pause=pause,
            count_lost=count_lost,
        )

    def see(self, epoch: str, seen: Iterable[records.Record]) -> None:
        """Take in records that the feed of an epoch brought."""
        self._latest.see(epoch, seen)

    def hosts(self, changes: Mapping[str, HostChange[T]]) -> Edits[T]:
        """Change hosts' claims, each by itself; what came of it by host."""
        return self._edit(
            {claims.key_of(host): _on_host(host, change) for host, change in changes.items()}
        )

    def groups(self, changes: Mapping[str, GroupChange[T]]) -> Edits[T]:
        """Change groups' members, each group by itself; what came of it by group."""
        return self._edit(
            {group_claims.key_of(uuid): _on_group(uuid, change) for uuid, change in changes.items()}
        )

    def _edit(self, proposers: Mapping[records.RecordKey, record_editor.Propose[T]]) -> Edits[T]:
        if not proposers:
            return {}
        # Before anything is read: the feed may tell of a new epoch at any moment.
        epoch = self._latest.epoch
        edited = self._editor.edit_each(proposers, self._latest.known(proposers))
        for answer in edited.values():
            if isinstance(answer, record_editor.Edited):
                self._latest.note(answer.record, answer.epoch or epoch)
        return {key.key: answer for key, answer in edited.items()}


def stands(
    edited: record_editor.Edited[tuple[T, ...]] | record_editor.Unwritten, place: int
) -> bool | None:
    """Return whether one of the answers of an edit is a grant; None where nobody can tell."""
    if not isinstance(edited, record_editor.Edited):
        return None
    return isinstance(edited.answer[place], model.Granted)


def _on_host(host: str, change: HostChange[T]) -> record_editor.Propose[T]:
    return lambda state, version: change(model.ClaimRecord.from_state(host, state, version))


def _on_group(uuid: str, change: GroupChange[T]) -> record_editor.Propose[T]:
    return lambda state, version: change(group_model.GroupRecord.from_state(uuid, state, version))
