# SPDX-License-Identifier: Apache-2.0
"""What is left of removed records of claims: up to where a view must have come.

The record of a host, or of a group, says which views are too old to know what was
settled there. Before such a record is removed, that goes to the floor of its
namespace; and who writes a record that says nothing of views reads the floor after
the write. Not only who makes it: another one, with an older view, may come to what
somebody made before anything was settled there. However long it slept in between:
the floor was raised before the removal, so its write is behind both. What a record
says once something was settled in it is above the floor that it was removed by.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nova_nodb_scheduler.model import records
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.synchronizer import claim_rules, contract, record_editor
from nova_nodb_scheduler.wire import codec

_FLOORS = namespaces.CLAIM_FLOORS


def is_asked(version: int, settled: records.Cursor | None, view: records.Cursor) -> bool:
    """Say whether a record does not tell by itself if a view is too old.

    A record that the view is not older than was made after all removals of its
    like, so that the view is not older than their floors either.

    :param version: of the record, 0 where there is none
    :param settled: what the record says
    """
    if 0 < version <= view.version:
        return False
    return settled is None or settled.epoch != view.epoch


class ClaimFloors:
    """The floors of one back end; any thread. Blocks for it."""

    def __init__(self, synchronizer: contract.Synchronizer) -> None:
        self._synchronizer = synchronizer
        self._editor = record_editor.RecordEditor(synchronizer, [_FLOORS])

    def stale(self, names: Collection[str], view: records.Cursor) -> str:
        """Say how a view is too old for a floor; empty if it is not.

        :param names: namespaces of claims
        :raises BackendUnavailable: nobody can tell
        :raises UndecodableRecord: a newer release wrote it; nobody can tell either
        """
        keys = [_key_of(name) for name in sorted(names)]
        found = self._synchronizer.read(keys)
        for key in keys:
            record = found.get(key)
            if record is None or record.deleted:
                continue
            decoded = codec.decode(record.payload)
            codec.check_readable(decoded.schema, _FLOORS)
            stale = claim_rules.stale_view(_floor(decoded.state), view)
            if stale:
                return stale
        return ""

    def raise_to(self, name: str, settled: records.Cursor) -> bool:
        """Raise the floor of a namespace; True if it stands at least there.

        :raises BackendUnavailable: it was not raised
        :raises UndecodableRecord: a newer release wrote it
        """

        def propose(state: Mapping[str, Any] | None, version: int) -> record_editor.Proposal[bool]:
            before = _floor(state or {})
            if before and before.epoch == settled.epoch and before.version >= settled.version:
                return record_editor.Proposal(answer=True)
            made = {"settled": {"epoch": settled.epoch, "version": settled.version}}
            return record_editor.Proposal(answer=True, state=made)

        edited = self._editor.edit(_key_of(name), propose)
        return isinstance(edited, record_editor.Edited)


def _key_of(name: str) -> records.RecordKey:
    return records.RecordKey(_FLOORS.name, name)


def _floor(state: Mapping[str, Any]) -> records.Cursor | None:
    settled = state.get("settled")
    return records.Cursor(settled["epoch"], settled["version"]) if settled else None
