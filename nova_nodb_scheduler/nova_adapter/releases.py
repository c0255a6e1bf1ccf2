# SPDX-License-Identifier: Apache-2.0
"""Which Nova is installed, and whether this plugin was tested with it."""

from __future__ import annotations

import functools
from importlib import metadata

from nova_nodb_scheduler import errors

#: Major releases of Nova this plugin is tested with: 2025.1 to 2026.2.
SUPPORTED = range(31, 35)


def supported_text() -> str:
    """Return the supported releases for messages."""
    return f"{SUPPORTED.start} (2025.1) to {SUPPORTED.stop - 1} (2026.2)"


@functools.cache
def nova_version() -> str:
    """Return the version of the installed Nova, ``unknown`` where there is none."""
    try:
        return metadata.version("nova")
    except metadata.PackageNotFoundError:
        return "unknown"


def is_supported(version: str) -> bool:
    """Tell whether a version text names a supported major release."""
    major = version.partition(".")[0]
    return major.isdigit() and int(major) in SUPPORTED


def check() -> None:
    """Refuse a Nova this plugin was not tested with.

    :raises UnsupportedRelease: the installed release is older or newer
    """
    found = nova_version()
    if not is_supported(found):
        raise errors.UnsupportedRelease(found, supported_text())
