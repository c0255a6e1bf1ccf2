# SPDX-License-Identifier: Apache-2.0
"""Choices of the pipeline as the objects that Nova's conductor expects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import nova.conf
from nova import objects
from nova.objects import base
from nova.scheduler.filters import utils as filter_utils
from oslo_serialization import jsonutils

from nova_nodb_scheduler.scheduling import choice as choice_module


@attrs.frozen
class _ChosenHost:
    """What Nova's Selection.from_host_state reads of a HostState."""

    host: str
    nodename: str
    uuid: str
    cell_uuid: str
    limits: Mapping[str, Any]
    aggregates: list[Any]


def selection(
    choice: choice_module.Choice,
    allocation_request: Mapping[str, Any] | None,
    version: str | None,
    limits: Mapping[str, Any],
    aggregates_of: Callable[[str], list[Any]],
) -> Any:
    """Return a choice as Nova's Selection.

    :param allocation_request: what was, or for an alternate may be, allocated
    :param version: microversion the allocation request is made for
    :param aggregates_of: Nova's aggregates of a host by its name
    """
    chosen = _ChosenHost(
        host=choice.host,
        nodename=choice.node,
        uuid=choice.uuid,
        cell_uuid=choice.cell,
        limits=dict(limits),
        aggregates=aggregates_of(choice.host),
    )
    if limits:
        return objects.Selection.from_host_state(
            chosen, allocation_request=allocation_request, allocation_request_version=version
        )
    zones = filter_utils.aggregate_metadata_get_by_host(chosen, key=_ZONE).get(_ZONE)
    return _filled(
        _pattern(objects.Selection),
        compute_node_uuid=choice.uuid,
        service_host=choice.host,
        nodename=choice.node,
        cell_uuid=choice.cell,
        limits=_filled(_pattern(objects.Selection).limits),
        allocation_request=jsonutils.dumps(allocation_request),
        allocation_request_version=version,
        availability_zone=(
            next(iter(zones)) if zones else nova.conf.CONF.default_availability_zone
        ),
    )


_ZONE = "availability_zone"


@functools.lru_cache(maxsize=1)
def _pattern(kind: type[Any]) -> Any:
    """Return a Selection as Nova makes it of a host without limits.

    To set each field of each choice and of its limits anew, as Nova does, takes
    a twentieth of a request's time in memory.
    """
    nobody = _ChosenHost("", "", _NO_UUID, _NO_UUID, {}, [])
    return kind.from_host_state(nobody)


_NO_UUID = "00000000-0000-0000-0000-000000000000"


def _filled(pattern: Any, **values: Any) -> Any:
    """Return an object of its own like a pattern, but for some fields' values.

    :param values: as the fields hold them
    """
    made = object.__new__(type(pattern))
    held = vars(made)
    held.update(vars(pattern))
    made._changed_fields = set(pattern._changed_fields)
    for name, value in values.items():
        held[base.get_attrname(name)] = value
    return made
