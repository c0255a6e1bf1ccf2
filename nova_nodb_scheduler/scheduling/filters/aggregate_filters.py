# SPDX-License-Identifier: Apache-2.0
"""Filters on what a host's aggregates say, and on limits that they may set.

Hosts in the same aggregates share an answer: it is looked for once for each
set of aggregates that some of the rows are in.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

import numpy as np

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.filters import extra_specs
from nova_nodb_scheduler.scheduling.frame import host_facts, host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract

#: Values by key: split at commas, stripped, of all aggregates together.
Metadata: TypeAlias = Mapping[str, frozenset[str]]

_NO_LIMIT = 2**53


def judge(
    frame: host_frame.HostFrame,
    rows: plugin_contract.Rows,
    passes: Callable[[tuple[str, ...]], bool],
) -> plugin_contract.BoolArray:
    """Return what a predicate of aggregates' uuids says of each of the rows."""
    return frame.aggregate_sets.where(rows, passes)


def limits(
    frame: host_frame.HostFrame, rows: plugin_contract.Rows, key: str, default: int
) -> plugin_contract.FloatArray:
    """Return the least number that the rows' aggregates set, else a default.

    As in Nova one value that is no number makes the default count.
    """

    def limit(uuids: tuple[str, ...]) -> float:
        try:
            least = min(map(int, raw_values(frame, uuids, key)), default=default)
        except ValueError:
            return default
        # Counts of instances are exact in floats, and such a limit is none.
        return max(min(least, _NO_LIMIT), -_NO_LIMIT)

    return frame.aggregate_sets.map(rows, limit)


def raw_values(frame: host_frame.HostFrame, uuids: tuple[str, ...], key: str) -> frozenset[str]:
    """Return the values of one key, whole as they are stored."""
    return frozenset(
        frame.aggregates[uuid].metadata[key]
        for uuid in uuids
        if uuid in frame.aggregates and key in frame.aggregates[uuid].metadata
    )


def merged(frame: host_frame.HostFrame, uuids: tuple[str, ...]) -> Metadata:
    """Return all metadata of some aggregates together."""
    found: dict[str, set[str]] = {}
    for uuid in uuids:
        aggregate = frame.aggregates.get(uuid)
        for key, text in aggregate.metadata.items() if aggregate is not None else ():
            found.setdefault(key, set()).update(value.strip() for value in text.split(","))
    return {key: frozenset(values) for key, values in found.items()}


def vocabulary(frame: host_frame.HostFrame) -> Metadata:
    """Return all metadata of all aggregates together."""
    # Each request asks, and aggregates change rarely.
    global _latest
    aggregates, found = _latest
    if aggregates is not frame.aggregates:
        found = merged(frame, tuple(frame.aggregates))
        _latest = frame.aggregates, found
    return found


#: The aggregates of some frame, which are replaced whole, and their vocabulary.
_latest: tuple[Mapping[str, host_facts.HostAggregate], Metadata] = ({}, {})


def some_host_in(frame: host_frame.HostFrame, uuids: frozenset[str]) -> bool:
    """Tell whether a host is in one of some aggregates."""
    if not uuids:
        return False
    inside = frame.aggregate_sets.where(slice(None), lambda sets: not uuids.isdisjoint(sets))
    return bool((inside & frame.alive).any())


_SCOPE = "aggregate_instance_extra_specs"
_TENANTS = "filter_tenant_id"


class AggregateImagePropertiesIsolation(plugin_contract.Filter):
    """Hosts whose aggregates do not name another value of an image property.

    Only properties that Nova knows count, and only in the namespace that is
    configured, if one is.
    """

    once_per_request = True
    on_rebuild = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        properties = self._properties(request, frame)
        return (self.name, frozenset(properties.items())) if properties else None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        properties = self._properties(request, frame)

        def passes(uuids: tuple[str, ...]) -> bool:
            metadata = merged(frame, uuids)
            return all(
                name not in metadata or value in metadata[name]
                for name, value in properties.items()
            )

        return judge(frame, rows, passes)

    def _properties(
        self, request: requests.Request, frame: host_frame.HostFrame
    ) -> Mapping[str, str]:
        """Return the properties that some aggregate names, as texts."""
        if request.image is None:
            return {}
        namespace = self._settings.aggregate_image_properties_isolation_namespace
        separator = self._settings.aggregate_image_properties_isolation_separator
        prefix = f"{namespace}{separator}" if namespace else ""
        named = vocabulary(frame)
        return {
            name: str(value)
            for name, value in request.image.properties.items()
            if value and name in named and name.startswith(prefix)
        }


class AggregateInstanceExtraSpecsFilter(plugin_contract.Filter):
    """Hosts whose aggregates meet the flavor's extra specs.

    Those without a scope count, and those of the scope
    ``aggregate_instance_extra_specs``; each must have a value that meets it.
    """

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        wanted = _wanted(request.flavor)
        if not wanted:
            return None
        if any(_raises(frame, name, text) for name, text in wanted):
            return plugin_contract.OnHostObjects.NEEDED
        return self.name, wanted

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        wanted = [(name, extra_specs.requirement(text)) for name, text in _wanted(request.flavor)]

        def passes(uuids: tuple[str, ...]) -> bool:
            metadata = merged(frame, uuids)
            return all(
                any(requirement.accepts(value) for value in metadata.get(name, ()))
                for name, requirement in wanted
            )

        return judge(frame, rows, passes)


def _wanted(flavor: requests.Flavor) -> frozenset[tuple[str, str]]:
    wanted = set()
    for key, text in flavor.extra_specs.items():
        scope, colon, name = key.partition(":")
        if not colon:
            wanted.add((key, text))
        elif scope == _SCOPE:
            wanted.add((name, text))
    return frozenset(wanted)


def _raises(frame: host_frame.HostFrame, name: str, text: str) -> bool:
    """Tell whether Nova may raise: a number is wanted and some host has none."""
    requirement = extra_specs.requirement(text)
    if not (requirement.broken or requirement.numeric):
        return False
    if name not in vocabulary(frame):
        return False
    unreadable = frozenset(
        uuid
        for uuid in frame.aggregates
        if any(
            requirement.broken or not extra_specs.is_number(value)
            for value in merged(frame, (uuid,)).get(name, ())
        )
    )
    return some_host_in(frame, unreadable)


class AggregateMultiTenancyIsolation(plugin_contract.Filter):
    """Hosts whose aggregates name the project, or name none."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        named: frozenset[str] | None = None
        for key, projects in vocabulary(frame).items():
            if key.startswith(_TENANTS):
                named = projects if named is None else named | projects
        if named is None:
            return None
        # Projects that are named nowhere are all alike.
        return self.name, request.project_id if request.project_id in named else None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        def passes(uuids: tuple[str, ...]) -> bool:
            metadata = merged(frame, uuids)
            projects = [metadata[key] for key in metadata if key.startswith(_TENANTS)]
            return not projects or any(request.project_id in each for each in projects)

        return judge(frame, rows, passes)


class AggregateTypeAffinityFilter(plugin_contract.Filter):
    """Hosts whose aggregates name the flavor as ``instance_type``, or name none."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        if "instance_type" not in vocabulary(frame):
            return None
        return self.name, request.flavor.name

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        def passes(uuids: tuple[str, ...]) -> bool:
            texts = raw_values(frame, uuids, "instance_type")
            names = {name.strip() for text in texts for name in text.split(",")}
            return not texts or request.flavor.name in names

        return judge(frame, rows, passes)


class _Below(plugin_contract.Filter):
    """Hosts with less of something than the option of a name says.

    :cvar column: what is counted
    :cvar option: the bound, in the settings and in aggregates' metadata
    """

    column: ClassVar[str]
    option: ClassVar[str]

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        return self.name

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        counts = getattr(frame, self.column)[rows]
        passes: plugin_contract.BoolArray = np.less(counts, self.bound(frame, rows))
        return passes

    @abc.abstractmethod
    def bound(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> int | plugin_contract.FloatArray:
        """Return the bound of the rows."""


class _BelowOption(_Below):
    def bound(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> int | plugin_contract.FloatArray:
        return int(getattr(self._settings, self.option))


class _BelowAggregates(_Below):
    def bound(
        self, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> int | plugin_contract.FloatArray:
        default = int(getattr(self._settings, self.option))
        return limits(frame, rows, self.option, default)


class IoOpsFilter(_BelowOption):
    """Hosts with fewer instances in I/O than allowed."""

    column = "num_io_ops"
    option = "max_io_ops_per_host"


class AggregateIoOpsFilter(_BelowAggregates):
    """The same with the least bound of the host's aggregates."""

    column = IoOpsFilter.column
    option = IoOpsFilter.option


class NumInstancesFilter(_BelowOption):
    """Hosts with fewer instances than allowed."""

    column = "num_instances"
    option = "max_instances_per_host"


class AggregateNumInstancesFilter(_BelowAggregates):
    """The same with the least bound of the host's aggregates."""

    column = NumInstancesFilter.column
    option = NumInstancesFilter.option
