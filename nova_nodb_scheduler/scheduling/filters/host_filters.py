# SPDX-License-Identifier: Apache-2.0
"""Filters on a host itself: its service, its name, its metrics, and what an image needs of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from oslo_utils import versionutils

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling.filters import host_values
from nova_nodb_scheduler.scheduling.frame import host_frame
from nova_nodb_scheduler.scheduling.pipeline import plugin_contract


class ComputeFilter(plugin_contract.Filter):
    """Hosts whose nova-compute is enabled and was heard of lately."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        return self.name

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        return frame.up[rows] & ~frame.disabled[rows]


class AllHostsFilter(plugin_contract.Filter):
    """Every host."""

    once_per_request = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        return None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        return np.ones(len(frame.alive[rows]), np.bool_)


class IsolatedHostsFilter(plugin_contract.Filter):
    """Isolated hosts for isolated images; other hosts for all others.

    Where it is not restrictive, other images may go to isolated hosts too.
    Names of hosts are compared as they are written.
    """

    once_per_request = True
    on_rebuild = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        passes_on_isolated, passes_elsewhere = self._passes(request)
        if passes_on_isolated and passes_elsewhere:
            return None
        return self.name, passes_on_isolated, passes_elsewhere

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        passes_on_isolated, passes_elsewhere = self._passes(request)
        isolated = host_values.among(
            frame, rows, host_values.rows_of_names(frame, self._settings.isolated_hosts)
        )
        return np.where(isolated, passes_on_isolated, passes_elsewhere)

    def _passes(self, request: requests.Request) -> tuple[bool, bool]:
        """Return whether the request may go to isolated hosts, and to others."""
        restrictive = self._settings.restrict_isolated_hosts_to_isolated_images
        if not self._settings.isolated_images:
            return not restrictive, True
        image = request.image.uuid if request.image is not None else None
        if image in self._settings.isolated_images:
            return True, False
        return not restrictive, True


class MetricsFilter(plugin_contract.Filter):
    """Hosts that report every metric that the metrics weigher weighs."""

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        if host_values.some_unreported(frame):
            return plugin_contract.OnHostObjects.NEEDED
        return self.name if self._settings.metrics_weight_setting else None

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        passes = frame.updated[rows].copy()
        for metric, _ratio in self._settings.metrics_weight_setting:
            column = frame.attribute("metrics", metric)
            # Code 0 is None: no such metric.
            passes &= column.codes[rows] != 0
        return passes


_SUPPORTED = host_values.RecordSource(("supported_instances",))
_VERSION = host_values.NUMBERS["hypervisor_version"]


class ImagePropertiesFilter(plugin_contract.Filter):
    """Hosts that run the image's architecture, hypervisor type and VM mode.

    Each must be named in one and the same entry of what the host supports, at
    whatever place. Values are canonical: Nova's objects make them so.
    """

    once_per_request = True
    on_rebuild = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> plugin_contract.Key:
        wanted = self._wanted(request)
        if not wanted:
            return None
        # Nova looks for the bits in a text and raises, but only once a host
        # has all the rest: its own code has to tell.
        if _property(request, "hw_maxphysaddr_bits"):
            return plugin_contract.OnHostObjects.NEEDED
        version = _property(request, "img_hv_requested_version")
        if version and not _is_predicate(version):
            return plugin_contract.OnHostObjects.NEEDED
        return self.name, wanted, version

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: plugin_contract.Rows
    ) -> plugin_contract.BoolArray:
        wanted = self._wanted(request)
        version = _property(request, "img_hv_requested_version")

        def supported(entries: tuple[tuple[str, ...], ...] | None) -> bool:
            return any(wanted.issubset(entry) for entry in entries or ())

        if not version:
            return host_values.judge(frame, [_SUPPORTED], rows, supported)
        predicate = versionutils.VersionPredicate(version)

        def runs(entries: tuple[tuple[str, ...], ...] | None, number: int | None) -> bool:
            if not supported(entries):
                return False
            # A host that tells no version is not held to one.
            return (
                not number
                or number < 0
                or predicate.satisfied_by(versionutils.convert_version_to_str(number))
            )

        return host_values.judge(frame, [_SUPPORTED, _VERSION], rows, runs)

    def _wanted(self, request: requests.Request) -> frozenset[str]:
        architecture = self._settings.image_properties_default_architecture
        if request.image is not None:
            architecture = request.image.properties.get("hw_architecture", architecture)
        named = (
            architecture,
            _property(request, "img_hv_type"),
            _property(request, "hw_vm_mode"),
        )
        return frozenset(name for name in named if name)


def _property(request: requests.Request, name: str) -> Any:
    return request.image.properties.get(name) if request.image is not None else None


def _is_predicate(text: str) -> bool:
    try:
        versionutils.VersionPredicate(text)
    except (TypeError, ValueError, re.error):
        return False
    return True
