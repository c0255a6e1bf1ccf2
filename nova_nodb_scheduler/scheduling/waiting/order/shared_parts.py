# SPDX-License-Identifier: Apache-2.0
"""Requests that share what is equal among them: ids, names, amounts.

A decoded record has strings and a mapping of its own. A million of them name a few
thousand projects, flavors and queues.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import attrs

from nova_nodb_scheduler.model import pending

#: Different needs that are remembered. They are those of flavors; what is beyond is kept
#: by its own request.
_MOST_NEEDS = 65_536


class SharedParts:
    """What requests share; grows with the different needs only. Not safe for threads."""

    def __init__(self) -> None:
        self._needs: dict[Mapping[str, int], Mapping[str, int]] = {}

    def share(self, request: pending.PendingRequest) -> pending.PendingRequest:
        """Return an equal request, made of parts that others have, too."""
        alone = (request.key,)
        return attrs.evolve(
            request,
            servers=alone if request.servers == alone else request.servers,
            project_id=sys.intern(request.project_id),
            user_id=sys.intern(request.user_id),
            flavor=sys.intern(request.flavor),
            priority_class=sys.intern(request.priority_class),
            needs=self.needs(request.needs),
            queue=sys.intern(request.queue),
            grant=attrs.evolve(
                request.grant,
                owner=sys.intern(request.grant.owner),
                host=sys.intern(request.grant.host),
            ),
            reason=sys.intern(request.reason),
        )

    def needs(self, needs: Mapping[str, int]) -> Mapping[str, int]:
        """Return an equal mapping, the same one for all that are equal; it is immutable."""
        known = self._needs.get(needs)
        if known is None:
            if len(self._needs) < _MOST_NEEDS:
                self._needs[needs] = needs
            return needs
        return known
