# SPDX-License-Identifier: Apache-2.0
"""The versioned objects that tell of requests that wait for room."""

from __future__ import annotations

from oslo_versionedobjects import base, fields

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.wire import explanations, objects

#: Told as the state of requests whose servers are all sent, and looked for on their hosts.
PLACED = "placed"
#: All states that are told.
STATES = (*(each.value for each in pending.PendingState), PLACED)


@base.VersionedObjectRegistry.register
class ListedRequest(objects.NodbObject):
    """A request that waits, or is being placed; fields as :class:`.pending.PendingRequest`.

    ``hold_host``: node uuid of the host that is held for it, None where there is none.
    ``state``: that of the record, or :data:`PLACED`. ``purpose``: of the last attempt.
    Times are seconds by the back end's clock.
    """

    VERSION = "1.0"
    fields = {
        "key": fields.StringField(),
        "servers": fields.ListOfStringsField(),
        "sent": fields.ListOfStringsField(),
        "project_id": fields.StringField(),
        "user_id": fields.StringField(),
        "flavor": fields.StringField(),
        "priority_class": fields.StringField(),
        "needs": objects.JsonObjectField(),
        "queue": fields.StringField(),
        "rank": fields.IntegerField(),
        "asked_at": fields.FloatField(),
        "parked_at": fields.FloatField(),
        "deadline_at": fields.FloatField(),
        "not_before": fields.FloatField(),
        "refusals": fields.NonNegativeIntegerField(),
        "reason": fields.StringField(),
        "state": fields.StringField(),
        "attempt": fields.NonNegativeIntegerField(),
        "purpose": fields.StringField(),
        "lease_until": fields.FloatField(),
        "hold_host": fields.StringField(nullable=True),
        "hold_until": fields.FloatField(nullable=True),
    }


def state_of(request: pending.PendingRequest) -> str:
    """Return the state that is told of a request: placed, also while it is looked for."""
    return PLACED if request.placed_at else request.state.value


def of_request(request: pending.PendingRequest) -> ListedRequest:
    """Return a request as it travels."""
    hold = request.hold
    return ListedRequest(
        key=request.key,
        servers=list(request.servers),
        sent=list(request.sent),
        project_id=request.project_id,
        user_id=request.user_id,
        flavor=request.flavor,
        priority_class=request.priority_class,
        needs=dict(request.needs),
        queue=request.queue,
        rank=request.rank,
        asked_at=request.asked_at,
        parked_at=request.parked_at,
        deadline_at=request.deadline_at,
        not_before=request.not_before,
        refusals=request.refusals,
        reason=request.reason,
        state=state_of(request),
        attempt=request.grant.attempt,
        purpose=request.grant.purpose.value,
        lease_until=request.grant.until_seconds,
        hold_host=None if hold is None else hold.host,
        hold_until=None if hold is None else hold.until_seconds,
    )


@base.VersionedObjectRegistry.register
class PendingPage(objects.NodbObject):
    """Some of the requests, those that were asked for first at first.

    ``total`` and ``servers``: of all requests that fulfil the conditions, on all pages.
    ``unreadable``: records that cannot be read, whatever the conditions.
    ``now``: the back end's clock, by which all times are. ``next_marker``: None on the last page.
    """

    VERSION = "1.0"
    fields = {
        "requests": fields.ListOfObjectsField("NodbListedRequest"),
        "total": fields.NonNegativeIntegerField(),
        "servers": fields.NonNegativeIntegerField(),
        "unreadable": fields.NonNegativeIntegerField(),
        "now": fields.FloatField(),
        "proof_age_seconds": fields.FloatField(nullable=True),
        "next_marker": fields.StringField(nullable=True),
    }


@base.VersionedObjectRegistry.register
class HostShortfall(objects.NodbObject):
    """A host that a request might go to if enough of it were free.

    ``missing``: what would have to be freed there, by resource class; empty where nothing
    is missing. ``free``: what is left, of the same classes. ``held_for``: key of the
    request that it is held for, None where it is not held.
    """

    VERSION = "1.0"
    fields = {
        "uuid": fields.StringField(),
        "cell": fields.StringField(),
        "host": fields.StringField(),
        "node": fields.StringField(),
        "free": objects.JsonObjectField(),
        "missing": objects.JsonObjectField(),
        "held_for": fields.StringField(nullable=True),
    }


@base.VersionedObjectRegistry.register
class PendingDetails(objects.NodbObject):
    """One request, why it does not fit, and what would have to be freed.

    ``ahead``: requests of its class or above that go before it; None where the scheduler
    that answers keeps no queue. ``fits``: hosts that would take one of its servers now.
    ``possible``: hosts that would if they had room. ``counts``: hosts that each step of a
    decision leaves now. ``hosts``: of those possible, where the least would have to be freed.
    ``why_unknown``: why the last four are not known; empty where they are.
    """

    VERSION = "1.0"
    fields = {
        "request": fields.ObjectField("NodbListedRequest"),
        "scheduler": fields.StringField(),
        "now": fields.FloatField(),
        "ahead": fields.NonNegativeIntegerField(nullable=True),
        "fits": fields.NonNegativeIntegerField(),
        "possible": fields.NonNegativeIntegerField(),
        "counts": fields.ListOfObjectsField(explanations.StepCount.obj_name()),
        "hosts": fields.ListOfObjectsField("NodbHostShortfall"),
        "why_unknown": fields.StringField(),
    }


@base.VersionedObjectRegistry.register
class PendingOutcome(objects.NodbObject):
    """What became of one request that an operator wanted something of.

    ``outcome``: ``done``, ``busy`` (it is being placed at the moment), ``gone`` or, of a drain,
    ``unreadable``.
    ``request``: as it stands now; None where it is gone.
    """

    VERSION = "1.0"
    fields = {
        "key": fields.StringField(),
        "outcome": fields.StringField(),
        "request": fields.ObjectField("NodbListedRequest", nullable=True),
    }


@base.VersionedObjectRegistry.register
class PendingOutcomes(objects.NodbObject):
    """What became of some requests; ``next_marker``: None where there are no more."""

    VERSION = "1.0"
    fields = {
        "outcomes": fields.ListOfObjectsField("NodbPendingOutcome"),
        "next_marker": fields.StringField(nullable=True),
    }
