# SPDX-License-Identifier: Apache-2.0
"""What is left of removed records of server groups: up to where a view must have come.

A group's record says which views are too old to know what was settled there. Before
it is removed, that goes to the floor; and who writes a record that says nothing of
views reads the floor after the write. Not only who makes it: another one, with an
older view, may come to what somebody made before anything was settled there. However
long it slept in between: the floor was raised before the removal, so its write is
behind both. What a record says once something was settled in it is above the floor
that it was removed by.

Records of hosts are as many as there were nodes, and stay: of most claims on hosts
nobody would want to pay for one more read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler.model import group_claims as model
from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import claim_rules, contract, record_editor

_FLOORS = namespaces.CLAIM_FLOORS
_KEY = records.RecordKey(_FLOORS.name, namespaces.GROUP_CLAIMS.name)


def is_asked(record: model.GroupRecord, view: records.Cursor) -> bool:
    """Say whether a record does not tell by itself if a view is too old.

    A record that the view is not older than was made after all removals of its
    like, so that the view is not older than their floor either.
    """
    if 0 < record.version <= view.version:
        return False
    return record.settled is None or record.settled.epoch != view.epoch


class GroupFloor:
    """The floor of one back end; any thread. Blocks for it."""

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._editor = record_editor.RecordEditor(synchronizer, [_FLOORS])

    def stale(self, view: records.Cursor) -> str:
        """Say how a view is too old for the floor; empty if it is not.

        :raises BackendUnavailable: nobody can tell
        :raises UndecodableRecord: a newer release wrote it; nobody can tell either
        """
        state, _, _ = self._editor.read(_KEY)
        return claim_rules.stale_view(_floor(state or {}), view)

    def raise_to(self, settled: records.Cursor) -> bool:
        """Raise the floor; True if it stands at least there.

        :raises BackendUnavailable: it was not raised
        :raises UndecodableRecord: a newer release wrote it
        """

        def propose(state: Mapping[str, Any] | None, version: int) -> record_editor.Proposal[bool]:
            before = _floor(state or {})
            if before and before.epoch == settled.epoch and before.version >= settled.version:
                return record_editor.Proposal(answer=True)
            made = {"settled": {"epoch": settled.epoch, "version": settled.version}}
            return record_editor.Proposal(answer=True, state=made)

        return isinstance(self._editor.edit(_KEY, propose), record_editor.Edited)


def _floor(state: Mapping[str, Any]) -> records.Cursor | None:
    settled = state.get("settled")
    return records.Cursor(settled["epoch"], settled["version"]) if settled else None
