# SPDX-License-Identifier: Apache-2.0
"""Records of requests that wait for room, as facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.model import pending


def digest(key: str, state: Mapping[str, Any]) -> pending.PendingRequest | errors.InvalidRecord:
    """Return the request that a record holds; an error where it is none."""
    try:
        return pending.of_state(key, state)
    except pending.MalformedPending as error:
        return errors.InvalidRecord(f"pending/{key}", "(state)", str(error))
