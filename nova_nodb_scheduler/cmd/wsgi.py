# SPDX-License-Identifier: Apache-2.0
"""nova-api as a WSGI module with the reporter, explicitly.

Name it to the WSGI server in the place of ``nova.wsgi.osapi_compute``:
``nova_nodb_scheduler.cmd.wsgi:application``.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any


def _patch_as_nova_does() -> None:
    """Do first what Nova's own WSGI module does first; from 33 on, choose threads."""
    monkey_patch = importlib.import_module("nova.monkey_patch")
    patch = getattr(monkey_patch, "patch", None)
    if patch is not None and "backend" in inspect.signature(patch).parameters:
        patch(backend="threading")


def _application() -> Any:
    return importlib.import_module("nova.wsgi.osapi_compute").application


_patch_as_nova_does()

from nova_nodb_scheduler.cmd import service  # noqa: E402 - after the patching

application = service.run(_application, "api")
