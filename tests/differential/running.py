# SPDX-License-Identifier: Apache-2.0
"""How many cases a run has: ``NODB_PROPERTY_EXAMPLES`` says it, CI's few if it is not set."""

from __future__ import annotations

import os
from typing import Any

import hypothesis

#: What CI runs each time, always the same cases.
CI_EXAMPLES = 240

EXAMPLES = int(os.environ.get("NODB_PROPERTY_EXAMPLES", CI_EXAMPLES))

#: Whether every filter and weigher must have been reached.
LONG = EXAMPLES >= 4000

#: A drawn cluster takes some two requests, and a case is a request.
CLUSTER_SHARE = 0.5

#: Of all cases, how many prove the model of Placement against a real one.
PLACEMENT_SHARE = 0.25


def settings(share: float = 1.0, **more: Any) -> hypothesis.settings:
    """Return settings for a share of the run's cases; found ones are kept as tests."""
    return hypothesis.settings(
        max_examples=max(20, int(EXAMPLES * share)),
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        **more,
    )
