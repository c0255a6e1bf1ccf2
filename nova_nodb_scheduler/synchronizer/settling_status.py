# SPDX-License-Identifier: Apache-2.0
"""What status and metrics tell of claims, and of those that were ended."""

from __future__ import annotations

import attrs

from nova_nodb_scheduler.model import claims as model
from nova_nodb_scheduler.scheduling import namespaces
from nova_nodb_scheduler.store import snapshot as snapshot_module
from nova_nodb_scheduler.synchronizer import settling_evidence


@attrs.define
class SettlingStatus:
    """Counts since the start, for status and metrics."""

    settled: int = 0
    expired: int = 0
    reconciled: int = 0
    asked: int = 0
    unanswered: int = 0
    removed: int = 0


def counts(
    snapshot: snapshot_module.Snapshot, now_seconds: float, lease_seconds: float
) -> dict[str, float]:
    """Return claims on hosts by state, and the age of the oldest pending one in seconds."""
    view = snapshot.namespace(namespaces.CLAIM_RECORDS.name)
    found = {"pending": 0.0, "confirmed": 0.0, "oldest_pending_seconds": 0.0}
    for host in view.keys():  # noqa: SIM118 - a view is no mapping
        for held in settling_evidence.claims_of(snapshot, host).values():
            found[held.state.value] += 1
            if held.state is model.ClaimState.PENDING and held.deadline_seconds is not None:
                age = now_seconds - (held.deadline_seconds - lease_seconds)
                found["oldest_pending_seconds"] = max(found["oldest_pending_seconds"], age)
    return found
