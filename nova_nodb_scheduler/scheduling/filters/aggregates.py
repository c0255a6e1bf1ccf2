# SPDX-License-Identifier: Apache-2.0
"""Filters on what the metadata of a host's aggregates allows."""

from __future__ import annotations

from collections.abc import Mapping

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.filters import aggregate_metadata, extra_specs

_SCOPE = "aggregate_instance_extra_specs"
_TENANTS = "filter_tenant_id"


class AggregateImagePropertiesIsolation(contract.Filter):
    """Hosts whose aggregates do not name another value of an image property.

    Only properties that Nova knows count, and only in the namespace that is
    configured, if one is.
    """

    once_per_request = True
    on_rebuild = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        properties = self._properties(request, frame)
        return (self.name, frozenset(properties.items())) if properties else None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        properties = self._properties(request, frame)

        def passes(uuids: tuple[str, ...]) -> bool:
            metadata = aggregate_metadata.merged(frame, uuids)
            return all(
                name not in metadata or value in metadata[name]
                for name, value in properties.items()
            )

        return aggregate_metadata.judge(frame, rows, passes)

    def _properties(
        self, request: requests.Request, frame: host_frame.HostFrame
    ) -> Mapping[str, str]:
        """Return the properties that some aggregate names, as texts."""
        if request.image is None:
            return {}
        namespace = self._settings.aggregate_image_properties_isolation_namespace
        separator = self._settings.aggregate_image_properties_isolation_separator
        prefix = f"{namespace}{separator}" if namespace else ""
        named = aggregate_metadata.vocabulary(frame)
        return {
            name: str(value)
            for name, value in request.image.properties.items()
            if value and name in named and name.startswith(prefix)
        }


class AggregateInstanceExtraSpecsFilter(contract.Filter):
    """Hosts whose aggregates meet the flavor's extra specs.

    Those without a scope count, and those of the scope
    ``aggregate_instance_extra_specs``; each must have a value that meets it.
    """

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        wanted = _wanted(request.flavor)
        if not wanted:
            return None
        if any(_raises(frame, name, text) for name, text in wanted):
            return contract.OnHostObjects.NEEDED
        return self.name, wanted

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        wanted = [(name, extra_specs.requirement(text)) for name, text in _wanted(request.flavor)]

        def passes(uuids: tuple[str, ...]) -> bool:
            metadata = aggregate_metadata.merged(frame, uuids)
            return all(
                any(requirement.accepts(value) for value in metadata.get(name, ()))
                for name, requirement in wanted
            )

        return aggregate_metadata.judge(frame, rows, passes)


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
    if name not in aggregate_metadata.vocabulary(frame):
        return False
    unreadable = frozenset(
        uuid
        for uuid in frame.aggregates
        if any(
            requirement.broken or not extra_specs.is_number(value)
            for value in aggregate_metadata.merged(frame, (uuid,)).get(name, ())
        )
    )
    return aggregate_metadata.some_host_in(frame, unreadable)


class AggregateMultiTenancyIsolation(contract.Filter):
    """Hosts whose aggregates name the project, or name none."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        named: frozenset[str] | None = None
        for key, projects in aggregate_metadata.vocabulary(frame).items():
            if key.startswith(_TENANTS):
                named = projects if named is None else named | projects
        if named is None:
            return None
        # Projects that are named nowhere are all alike.
        return self.name, request.project_id if request.project_id in named else None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        def passes(uuids: tuple[str, ...]) -> bool:
            metadata = aggregate_metadata.merged(frame, uuids)
            projects = [metadata[key] for key in metadata if key.startswith(_TENANTS)]
            return not projects or any(request.project_id in each for each in projects)

        return aggregate_metadata.judge(frame, rows, passes)


class AggregateTypeAffinityFilter(contract.Filter):
    """Hosts whose aggregates name the flavor as ``instance_type``, or name none."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        if "instance_type" not in aggregate_metadata.vocabulary(frame):
            return None
        return self.name, request.flavor.name

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
        def passes(uuids: tuple[str, ...]) -> bool:
            texts = aggregate_metadata.raw_values(frame, uuids, "instance_type")
            names = {name.strip() for text in texts for name in text.split(",")}
            return not texts or request.flavor.name in names

        return aggregate_metadata.judge(frame, rows, passes)
