# SPDX-License-Identifier: Apache-2.0
"""By what a request that waits stands in a queue: what it needs, and what it is like.

Two requests with one digest have equal chances at any moment, so that a scheduler looks
at hosts once for both. Whatever a filter or a weigher may read of a request counts; ids,
which differ and mean nothing, do not. Whose a request is counts apart, see
:func:`.pending.demand`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from nova.scheduler import utils as scheduler_utils

from nova_nodb_scheduler.model import pending
from nova_nodb_scheduler.nova_adapter.waiting import wait_policy

#: Fields of a RequestSpec that no decision depends on.
_NEUTRAL_FIELDS = frozenset({"id", "instance_uuid", "retry", "security_groups", "limits"})
#: Fields that differ from one request to the next in whatever object below one. What users and
#: operators name themselves, hints and extra specs, may have such names, too.
_NEUTRAL_NAMES = frozenset(
    {
        "id",
        "instance_uuid",
        "created_at",
        "updated_at",
        "deleted_at",
        "deleted",
        "request_id",
        "requester_id",
        "port_id",
        "arq_uuid",
        "members",
        "hosts",
        "tag",
    }
)
_OWNER_FIELDS = ("project_id", "user_id")
_VERSIONED = ("nova_object.changes", "nova_object.version")
_DATA = "nova_object.data"


def needs(spec: Any) -> dict[str, int]:
    """Return amounts by resource class of one server, as its allocation will be."""
    merged = scheduler_utils.ResourceRequest.from_request_spec(spec).merged_resources()
    return {str(name): int(amount) for name, amount in merged.items()}


def queue(spec: Any, servers: int) -> str:
    """Return the digest of a request for so many servers; see :func:`.pending.queue_name`."""
    fields = {
        name: _plain(spec.fields[name].to_primitive(spec, name, getattr(spec, name)))
        for name in spec.fields
        if name not in _NEUTRAL_FIELDS and spec.obj_attr_is_set(name)
    }
    fields["scheduler_hints"] = {
        name: value
        for name, value in (fields.get("scheduler_hints") or {}).items()
        if name not in wait_policy.HINTS and not name.startswith(wait_policy.INTERNAL_PREFIX)
    }
    owner = [fields.pop(name, None) for name in _OWNER_FIELDS]
    image = spec.image if spec.obj_attr_is_set("image") else None
    if image is not None and image.obj_attr_is_set("id"):
        # By which IsolatedHostsFilter tells images.
        fields["image_id"] = image.id
    group = spec.instance_group if spec.obj_attr_is_set("instance_group") else None
    demand = [fields, None if group is None else group.uuid, servers]
    return pending.queue_name(_digest(demand)[:24], _digest(owner)[:8])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {str(name): _plain(each) for name, each in value.items() if name not in _VERSIONED}
        if _DATA in plain:
            fields = plain[_DATA]
            plain[_DATA] = {name: fields[name] for name in fields.keys() - _NEUTRAL_NAMES}
        return plain
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
