# SPDX-License-Identifier: Apache-2.0
"""Puts the guard into the place of Placement's own functions, and takes it out again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

from placement import util
from placement.handlers import allocation as allocation_handler
from placement.handlers import util as data_util
from placement.objects import allocation as alloc_obj
from placement.objects import reshaper as reshaper_obj

from nova_nodb_scheduler.placement_adapter import (
    allocation_schemas,
    guarded_write,
    known_functions,
    requested_consumers,
)

LOG = logging.getLogger(__name__)

_lock = threading.Lock()
#: Of this process: module, name and own function of all that is replaced.
_replaced: list[tuple[Any, str, Any]] = []


def switch_on() -> None:
    """Guard the writing of allocations in this process; a second call does nothing.

    :raises UnsupportedPlacement: something of the installed release is not known; nothing is
        replaced then
    """
    with _lock:
        if _replaced:
            return
        known_functions.check()
        for module, name, function in _replacements():
            _replaced.append((module, name, getattr(module, name)))
            setattr(module, name, function)
    LOG.info(
        "Allocations are written under locks of their providers, by %(package)s over Placement "
        "%(release)s.",
        {"package": "nova_nodb_scheduler", "release": known_functions.release()},
    )


def switch_off() -> None:
    """Give Placement its own functions back, for tests."""
    with _lock:
        while _replaced:
            setattr(*_replaced.pop())


def _replacements() -> Iterable[tuple[Any, str, Any]]:
    requested = requested_consumers
    return (
        (alloc_obj, "replace_all", guarded_write.replace_all),
        (alloc_obj, "_set_allocations", guarded_write.set_allocations),
        (reshaper_obj, "reshape", guarded_write.reshaper_of(reshaper_obj.reshape)),
        (data_util, "ensure_consumer", requested.ensurer_of(data_util.ensure_consumer)),
        (data_util, "update_consumers", requested.update_consumers),
        (
            allocation_handler,
            "inspect_consumers",
            requested.inspector_of(data_util.ensure_consumer),
        ),
        (allocation_handler, "create_allocation_list", requested.create_allocation_list),
        (
            allocation_handler,
            "_resource_providers_by_uuid",
            requested.resource_providers_by_uuid,
        ),
        (util, "extract_json", allocation_schemas.extractor_of(util.extract_json)),
    )
