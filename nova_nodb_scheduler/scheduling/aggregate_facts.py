# SPDX-License-Identifier: Apache-2.0
"""The record of one of Nova's aggregates as facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import namespaces as namespaces_model
from nova_nodb_scheduler.scheduling import fields, host_facts, memberships

#: Major version of Nova's Aggregate object that is understood.
_OBJECT_MAJOR = "1"


def read(record: str, uuid: str, state: Mapping[str, Any]) -> memberships.AggregateFacts:
    """Return an aggregate, with its fault if it has one.

    :param record: ``namespace/key``, for errors
    """
    whole = fields.Fields(record, state)
    try:
        whole.check_major(_OBJECT_MAJOR)
        row = whole.mapping("row")
        return memberships.AggregateFacts(
            host_facts.Aggregate(uuid, row.integer("id"), row.text("name"), row.texts("metadata")),
            frozenset(row.get("hosts")),
        )
    except errors.InvalidRecord as error:
        # The hosts are a column of the namespace: what they are, the store has checked.
        hosts = namespaces_model.value_at(state, ("row", "hosts")) or ()
        return memberships.AggregateFacts(
            host_facts.Aggregate(uuid, 0), frozenset(hosts), str(error)
        )
