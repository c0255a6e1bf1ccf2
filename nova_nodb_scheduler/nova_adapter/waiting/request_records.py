# SPDX-License-Identifier: Apache-2.0
"""Makes the record of a request that may wait, from what Nova would be called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting import (
    request_digest,
    request_payload,
    wait_policy,
)
from nova_nodb_scheduler.synchronizer.pending import pending_ledger, pending_rules


def terms(
    arguments: request_payload.BuildArguments, settings: wait_policy.WaitSettings
) -> wait_policy.WaitTerms | None:
    """Return on which terms a request waits; None for one that does not. No I/O."""
    spec = arguments.request_specs[0]
    hints = spec.scheduler_hints if "scheduler_hints" in spec else None
    return wait_policy.terms(
        spec.flavor.extra_specs or {}, hints or {}, spec.project_id or "", settings
    )


@attrs.frozen
class RequestRecords:
    """Any thread.

    :param new_owner: makes ids of holdings, each unlike any other
    """

    ledger: pending_ledger.PendingLedger
    cipher: request_payload.PayloadCipher
    new_owner: Callable[[], str]

    def newcomer(
        self, arguments: request_payload.BuildArguments, terms: wait_policy.WaitTerms
    ) -> pending.PendingRequest:
        """Return a new request, in the hand of this process. Asks for the back end's time.

        :raises BackendUnavailable: it does not tell
        """
        specs = arguments.request_specs
        spec, now = specs[0], self.ledger.now_seconds()
        return pending.PendingRequest(
            key=spec.instance_uuid,
            servers=tuple(each.instance_uuid for each in specs),
            project_id=spec.project_id or "",
            user_id=(spec.user_id if "user_id" in spec else None) or "",
            flavor=spec.flavor.name,
            priority_class=terms.priority_class,
            needs=request_digest.needs(spec),
            queue=request_digest.queue(spec, len(specs)),
            asked_at=now,
            deadline_at=now + terms.wait_seconds,
            state=pending.PendingState.SCHEDULING,
            grant=pending.Grant(1, self.new_owner(), now + self.ledger.lease_seconds),
        )

    def create(
        self,
        context: Any,
        arguments: request_payload.BuildArguments,
        request: pending.PendingRequest,
    ) -> pending_rules.Step | pending_ledger.MaybeCreated:
        """Keep a request with what it was made of; see :meth:`.PendingLedger.create`."""
        payload = request_payload.pack(self.cipher, request.key, context, arguments)
        return self.ledger.create(request, payload)
