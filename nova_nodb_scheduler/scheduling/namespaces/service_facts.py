# SPDX-License-Identifier: Apache-2.0
"""A nova-compute service's record and its heartbeats as facts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.frame import host_facts
from nova_nodb_scheduler.scheduling.namespaces import record_fields

#: Major version of Nova's Service object that is understood.
_OBJECT_MAJOR = "1"


class ServiceFacts(NamedTuple):
    """A host's nova-compute service; names and order are those of the frame's columns.

    :param last_seen_seconds: of a service that never sent a heartbeat, its creation's time
    """

    has_service: bool = False
    disabled: bool = False
    forced_down: bool = False
    last_seen_seconds: float = host_facts.NEVER


@functools.lru_cache(maxsize=4096)
def same(facts: ServiceFacts) -> ServiceFacts:
    """Return one and the same facts for equal ones: most services are alike."""
    return facts


def digest(key: str, state: Mapping[str, Any]) -> ServiceFacts | errors.InvalidRecord:
    """Return a service's facts before its first heartbeat, or what is wrong with its record."""
    whole = record_fields.RecordFields(f"services/{key}", state)
    try:
        whole.check_major(_OBJECT_MAJOR)
        row = whole.mapping("row")
        # As Nova's servicegroup driver: from its creation on it has some time.
        created = row.seconds("created_at")
        return same(
            ServiceFacts(
                has_service=True,
                disabled=bool(row.get("disabled")),
                forced_down=bool(row.get("forced_down")),
                last_seen_seconds=host_facts.NEVER if created is None else created,
            )
        )
    except errors.InvalidRecord as error:
        return error


def heartbeat(key: str, state: Mapping[str, Any]) -> float | errors.InvalidRecord | None:
    """Return when a service said last that it lives, in seconds since the epoch."""
    try:
        return record_fields.RecordFields(f"service_liveness/{key}", state).seconds("last_seen_up")
    except errors.InvalidRecord as error:
        return error
