# SPDX-License-Identifier: Apache-2.0
"""The filter on what flavor extra specs say of a host's capabilities."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from oslo_serialization import jsonutils

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.filters import extra_specs, host_values
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

_SCOPE = "capabilities"
_ADDRESS_BITS = "hw:maxphysaddr_bits"


class _UnknownCapability(Exception):
    """A name leads into objects, or a requirement makes Nova raise."""


@attrs.frozen
class _Capability:
    """One value that is asked for, and what it must be.

    :param sources: where it is read: the first that has a value counts
    :param path: what is looked up in that value, which may be JSON
    :param must_exist: a host without the value falls; else it is not asked
    """

    sources: tuple[host_values.ValueSource, ...]
    path: tuple[str, ...]
    must_exist: bool
    required: str

    def met(self, *values: Any) -> bool:
        value = next((each for each in values if each is not None), None)
        if value is None:
            return not self.must_exist
        found = _look_up(value, self.path)
        return found is not None and extra_specs.requirement(self.required).accepts(found)

    def compared(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray | None:
        """Compare whole columns, where the first source is a column of numbers."""
        comparison = extra_specs.requirement(self.required).comparison()
        if comparison is None:
            return None
        return host_values.compare(frame, self.sources[0], rows, *comparison)

    def unreadable(self, frame: host_frame.HostFrame) -> bool:
        """Tell whether some host has a value that makes Nova raise."""
        if not extra_specs.requirement(self.required).numeric:
            return False
        return any(
            _has_live_value(frame, source.path, self.path)
            for source in self.sources
            if isinstance(source, host_values.RecordSource)
        )


class ComputeCapabilitiesFilter(plugin_contract.Filter):
    """Hosts whose state meets the extra specs of the scope ``capabilities``.

    A key without any scope counts where the host has a value of that name; a
    null in the host's stats is taken for none, where Nova refuses the host.
    """

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        try:
            capabilities = frozenset(_capabilities(request.flavor))
        except _UnknownCapability:
            return plugin_contract.OnHostObjects.NEEDED
        if not capabilities:
            return None
        if any(capability.unreadable(frame) for capability in capabilities):
            return plugin_contract.OnHostObjects.NEEDED
        return self.name, capabilities

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        passes = np.ones(len(frame.alive[rows]), np.bool_)
        for capability in _capabilities(request.flavor):
            met = capability.compared(frame, rows)
            if met is None:
                met = host_values.judge(frame, capability.sources, rows, capability.met)
            passes &= met
        return passes


def _capabilities(flavor: requests.Flavor) -> Iterator[_Capability]:
    for key, required in flavor.extra_specs.items():
        if key == _ADDRESS_BITS:
            if required is not None:
                yield _capability(("cpu_info", "maxphysaddr", "bits"), True, f">= {required}")
            continue
        if _ADDRESS_BITS in flavor.extra_specs and key == f"{_SCOPE}:cpu_info:maxphysaddr:bits":
            continue  # Nova's own replaces it
        scope = key.split(":")
        if len(scope) == 1:
            yield _capability((key,), False, required)
        elif scope[0] == _SCOPE:
            yield _capability(tuple(scope[1:]), True, required)


def _capability(names: Sequence[str], must_exist: bool, required: Any) -> _Capability:
    if not isinstance(required, str) or extra_specs.requirement(required).broken:
        raise _UnknownCapability
    first, *path = names
    sources: tuple[host_values.ValueSource, ...]
    if first in host_values.NUMBERS:
        # What would be looked up in a number are Python's attributes of it.
        if path:
            raise _UnknownCapability
        sources = (host_values.NUMBERS[first], host_values.stat(first))
        must_exist = True
    elif first in host_values.TEXTS:
        sources = (host_values.TEXTS[first], host_values.stat(first))
        must_exist = True
        # Names of hosts are no numbers, at which Nova raises.
        if (
            isinstance(sources[0], host_values.NameSource)
            and extra_specs.requirement(required).numeric
        ):
            raise _UnknownCapability
    elif first == "stats" and path:
        sources = (host_values.stat(path.pop(0)),)
    elif first in host_values.OBJECTS or first.startswith("_"):
        raise _UnknownCapability
    else:
        sources = (host_values.stat(first),)
    return _Capability(sources, tuple(path), must_exist, required)


def _look_up(value: Any, path: tuple[str, ...]) -> str | None:
    """Return as text what stands at a path of a value; texts on the way are JSON."""
    return _look_up_json(value, path) if path else str(value)


# Some hundred hosts share one cpu_info, and each request asks again.
@functools.lru_cache(maxsize=8192, typed=True)
def _look_up_json(value: Any, path: tuple[str, ...]) -> str | None:
    for name in path:
        if isinstance(value, str):
            try:
                value = jsonutils.loads(value)
            except ValueError:
                return None
        # Nova tries an attribute of what is no mapping: all plain values are alike.
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        if value is None:
            return None
    return str(value)


def _has_live_value(
    frame: host_frame.HostFrame, source: tuple[str, ...], path: tuple[str, ...]
) -> bool:
    """Tell whether a host has, at a path of a recorded value, what is no number."""
    column = frame.attribute(*source)
    bad = [
        code
        for code, value in enumerate(column.values)
        if value is not None
        and (found := _look_up(value, path)) is not None
        and not extra_specs.is_number(found)
    ]
    if not bad:
        return False
    return bool((np.isin(column.codes, bad) & frame.alive & frame.updated).any())
