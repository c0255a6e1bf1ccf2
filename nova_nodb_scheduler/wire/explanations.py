# SPDX-License-Identifier: Apache-2.0
"""The versioned objects that tell why a request goes, or went, where it does."""

from __future__ import annotations

from oslo_versionedobjects import base, fields

from nova_nodb_scheduler.wire import objects


@base.VersionedObjectRegistry.register
class StepCount(objects.NodbObject):
    """How many hosts a step of a decision was given, and how many it left."""

    VERSION = "1.0"
    fields = {
        "name": fields.StringField(),
        "before": fields.NonNegativeIntegerField(),
        "after": fields.NonNegativeIntegerField(),
    }


@base.VersionedObjectRegistry.register
class WeigherShare(objects.NodbObject):
    """What one weigher gave to one host.

    ``share`` is ``multiplier * normalised`` and counts; None stands for what is
    no finite number.
    """

    VERSION = "1.0"
    fields = {
        "weigher": fields.StringField(),
        "raw": fields.FloatField(nullable=True),
        "normalised": fields.FloatField(nullable=True),
        "multiplier": fields.FloatField(nullable=True),
        "share": fields.FloatField(nullable=True),
    }


@base.VersionedObjectRegistry.register
class ExplainedHost(objects.NodbObject):
    """A host that passed all filters; ``score`` is the sum of its shares."""

    VERSION = "1.0"
    fields = {
        "uuid": fields.StringField(),
        "cell": fields.StringField(),
        "host": fields.StringField(),
        "node": fields.StringField(),
        "score": fields.FloatField(nullable=True),
        "shares": fields.ListOfObjectsField("NodbWeigherShare"),
    }


@base.VersionedObjectRegistry.register
class PlacedServer(objects.NodbObject):
    """The host that a server was, or would be, sent to.

    ``score`` is None where Placement's candidates were chosen from.
    """

    VERSION = "1.0"
    fields = {
        "server": fields.StringField(),
        "uuid": fields.StringField(),
        "host": fields.StringField(),
        "node": fields.StringField(),
        "score": fields.FloatField(nullable=True),
    }


@base.VersionedObjectRegistry.register
class RefusedHost(objects.NodbObject):
    """A host that was chosen for a server and could not be claimed, and why."""

    VERSION = "1.0"
    fields = {
        "server": fields.StringField(),
        "uuid": fields.StringField(),
        "host": fields.StringField(),
        "reason": fields.StringField(),
    }


@base.VersionedObjectRegistry.register
class Explanation(objects.NodbObject):
    """What one scheduler worker would decide of a request now.

    ``reason``: why memory cannot decide it, empty where it can. Then ``placed`` is
    empty, and ``counts``, ``passed`` and ``hosts`` are empty or leave out which hosts
    Placement would offer. ``passed``: hosts that all steps left to the first server.
    ``placed``: where the servers would go, in order; fewer than ``servers``
    where there is not room for all. ``counts``: of the first server, and where
    one found no host, of that one.
    """

    VERSION = "1.0"
    fields = {
        "scheduler": fields.StringField(),
        "pid": fields.IntegerField(),
        "at": fields.FloatField(),
        "seconds": fields.FloatField(),
        "servers": fields.NonNegativeIntegerField(),
        "candidates": fields.StringField(),
        "reason": fields.StringField(),
        "counts": fields.ListOfObjectsField("NodbStepCount"),
        "passed": fields.NonNegativeIntegerField(),
        "hosts": fields.ListOfObjectsField("NodbExplainedHost"),
        "placed": fields.ListOfObjectsField("NodbPlacedServer"),
    }


@base.VersionedObjectRegistry.register
class PastDecision(objects.NodbObject):
    """A request that was decided, as far as one of its servers is concerned.

    ``candidates``: ``memory``, or why Placement was asked; ``counts`` are known
    of decisions from memory alone. ``servers``: how many the request was for.
    ``placed``: the server's host; empty where none was found. ``outcome``:
    ``selected``, ``no_valid_host``, ``given_up`` or ``error``. ``at``: when it ended, seconds
    since 1970 by the scheduler's clock.
    """

    VERSION = "1.0"
    fields = {
        "at": fields.FloatField(),
        "seconds": fields.FloatField(),
        "outcome": fields.StringField(),
        "candidates": fields.StringField(),
        "servers": fields.NonNegativeIntegerField(),
        "counts": fields.ListOfObjectsField("NodbStepCount"),
        "placed": fields.ListOfObjectsField("NodbPlacedServer"),
        "refused": fields.ListOfObjectsField("NodbRefusedHost"),
    }


@base.VersionedObjectRegistry.register
class PastDecisions(objects.NodbObject):
    """What one scheduler worker remembers of a server, the oldest first.

    ``remembered``: requests that it remembers at all; ``since``: when the
    oldest of them ended, None where there is none.
    """

    VERSION = "1.0"
    fields = {
        "host": fields.StringField(),
        "pid": fields.IntegerField(),
        "remembered": fields.NonNegativeIntegerField(),
        "since": fields.FloatField(nullable=True),
        "decisions": fields.ListOfObjectsField("NodbPastDecision"),
    }
