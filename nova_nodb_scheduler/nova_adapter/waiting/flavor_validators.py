# SPDX-License-Identifier: Apache-2.0
"""What values the extra specs ``nodb:*`` of flavors may have; nova-api loads this by entry point.

Names and values that are none of these are refused when a flavor is given them. It holds
wherever the package is installed, whether the plugin is switched on or not.
"""

from __future__ import annotations

from nova.api.validation.extra_specs import base


def register() -> list[base.ExtraSpecValidator]:
    """Return what nova-api is to know; called by it, once."""
    return [
        base.ExtraSpecValidator(
            name="nodb:wait",
            description=(
                "How many seconds a server of this flavor waits for room before it ends in "
                "ERROR. 0: it does not wait, whatever its user says. Cut to [nodb_queue] "
                "max_wait_seconds."
            ),
            value={"type": int, "min": 0, "max": 31_536_000, "description": "Seconds"},
        ),
        base.ExtraSpecValidator(
            name="nodb:class",
            description="Priority class of servers of this flavor, one of [nodb_queue] classes.",
            value={"type": str, "pattern": r"\S{1,64}", "description": "Name of a class"},
        ),
        base.ExtraSpecValidator(
            name="nodb:choice",
            description=(
                "Which of the hosts that pass all filters a server of this flavor takes; see "
                "[nodb_scheduler] choice."
            ),
            value={
                "type": str,
                "enum": ["best", "two", "random"],
                "description": "How a host is chosen",
            },
        ),
    ]
