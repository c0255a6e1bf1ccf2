# SPDX-License-Identifier: Apache-2.0
"""Choices of the pipeline as the objects that Nova's conductor expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from nova import objects

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
    return objects.Selection.from_host_state(
        chosen, allocation_request=allocation_request, allocation_request_version=version
    )
