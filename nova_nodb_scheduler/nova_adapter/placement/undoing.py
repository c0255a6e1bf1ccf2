# SPDX-License-Identifier: Apache-2.0
"""Takes written allocations away again, and only those."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from oslo_log import log

from nova_nodb_scheduler.nova_adapter.placement import conflicts, outcomes, posting, reading_back

LOG = log.getLogger(__name__)


def undo(
    posts: posting.Posting,
    reading: reading_back.ReadBack,
    servers: Iterable[outcomes.Server],
    *,
    unsure: bool,
) -> Collection[str]:
    """Remove allocations, all in one call; see :meth:`AllocationWriter.undo`.

    The consumer's generation is the guard: what another wrote since stays.
    """
    # A consumer that was just made is at generation 1.
    asked = list(servers)
    left = reading.equal(asked) if unsure else dict.fromkeys(asked, 1)
    attempt = 0
    while left:
        reply = posts.empty(left.items(), reading.request_id)
        if isinstance(reply, conflicts.Done):
            return ()
        attempt += 1
        if attempt > 1 and not reading.pause(attempt):
            break
        asked = list(left)
        left = reading.equal(asked)
    return () if left == {} else _still(left or asked)


def _still(servers: Iterable[outcomes.Server]) -> Collection[str]:
    left = frozenset(server.consumer for server in servers)
    LOG.warning(
        "Allocations of %(count)d servers may be left in Placement, as it did not answer: "
        "%(some)s. 'nova-manage placement audit' finds them.",
        {"count": len(left), "some": ", ".join(sorted(left)[:5])},
    )
    return left
