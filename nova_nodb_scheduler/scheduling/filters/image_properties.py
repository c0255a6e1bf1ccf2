# SPDX-License-Identifier: Apache-2.0
"""The filter on what the image says it needs of a hypervisor."""

from __future__ import annotations

import re
from typing import Any

from oslo_utils import versionutils

from nova_nodb_scheduler.model import requests
from nova_nodb_scheduler.scheduling import contract, host_frame
from nova_nodb_scheduler.scheduling.filters import host_values

_SUPPORTED = host_values.Recorded(("supported_instances",))
_VERSION = host_values.NUMBERS["hypervisor_version"]


class ImagePropertiesFilter(contract.Filter):
    """Hosts that run the image's architecture, hypervisor type and VM mode.

    Each must be named in one and the same entry of what the host supports, at
    whatever place. Values are canonical: Nova's objects make them so.
    """

    once_per_request = True
    on_rebuild = True

    def key(self, request: requests.Request, frame: host_frame.HostFrame) -> contract.Key:
        wanted = self._wanted(request)
        if not wanted:
            return None
        # Nova looks for the bits in a text and raises, but only once a host
        # has all the rest: its own code has to tell.
        if _property(request, "hw_maxphysaddr_bits"):
            return contract.OnHostObjects.NEEDED
        version = _property(request, "img_hv_requested_version")
        if version and not _is_predicate(version):
            return contract.OnHostObjects.NEEDED
        return self.name, wanted, version

    def mask(
        self, request: requests.Request, frame: host_frame.HostFrame, rows: contract.Rows
    ) -> contract.BoolArray:
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
