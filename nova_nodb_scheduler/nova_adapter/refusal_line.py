# SPDX-License-Identifier: Apache-2.0
"""One log line for a request that found no host among candidates of Placement itself.

Nova's own code filtered them one by one and kept no counts. The columns know
most of the hosts and filters, and tell how many each leaves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from nova_nodb_scheduler.nova_adapter import decision_log, request_planner
from nova_nodb_scheduler.scheduling import pipeline

LOG = logging.getLogger(__name__)


def tell(
    parts: request_planner.Parts | None,
    trace: decision_log.Trace,
    spec: Any,
    offered: Sequence[str],
    reason: str,
) -> None:
    """Log the line and have the trace keep its counts; never raises.

    Called once it is known that nobody is left: what is counted is of then.

    :param parts: None where what the columns know may be old: then nothing is counted
    :param offered: the providers of Placement's answer; empty where it had none
    :param reason: why Placement was asked
    """
    counts: tuple[pipeline.FilterCount, ...] = ()
    uncounted: tuple[str, ...] = ()
    if parts is not None:
        try:
            counts, uncounted = _counts(parts, spec, offered)
            trace.counts = counts
        except Exception:
            LOG.exception("Which filters refused Placement's candidates cannot be told.")
    LOG.info(
        "No valid host for server %(server)s, one of %(servers)d in the request. Placement was "
        "asked (%(reason)s) and offered %(offered)d providers%(counts)s%(uncounted)s.",
        {
            "server": spec.instance_uuid if "instance_uuid" in spec else None,
            "servers": len(trace.servers),
            "reason": reason,
            "offered": len(offered),
            "counts": f": {trace.text()}" if counts else "",
            "uncounted": f"; not counted: {', '.join(uncounted)}" if uncounted else "",
        },
    )


def _counts(
    parts: request_planner.Parts, spec: Any, offered: Sequence[str]
) -> tuple[tuple[pipeline.FilterCount, ...], tuple[str, ...]]:
    parts.keeper.catch_up(time.time())
    return parts.engine.counts_among(parts.request(spec, None), offered)
