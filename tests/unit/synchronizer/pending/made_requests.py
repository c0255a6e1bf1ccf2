# SPDX-License-Identifier: Apache-2.0
"""Requests that wait, as tests make them."""

from nova_nodb_scheduler.model import pending

LEASE_SECONDS = 30.0


def newcomer(key="a", servers=("a", "b"), owner="one", now_seconds=1000.0, wait_seconds=600.0):
    """Return a request that a conductor takes for the first time."""
    return pending.PendingRequest(
        key=key,
        servers=servers,
        project_id="project",
        user_id="user",
        flavor="m1.large",
        priority_class="normal",
        needs={"VCPU": 4},
        queue="digest",
        asked_at=now_seconds,
        deadline_at=now_seconds + wait_seconds,
        state=pending.PendingState.SCHEDULING,
        grant=pending.Grant(1, owner, now_seconds + LEASE_SECONDS),
    )
